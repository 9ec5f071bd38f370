"""Strength and number of signal tokens from a small labeled sample, with their uncertainty.

Two moments identify them. The class means of the tokens differ by m = theta R / L along the signal; the tokens of a
positive sequence spread there by s = theta^2 (R/L) (1 - R/L) more than the noise. Then R/L = m^2 / (s + m^2) and
theta = (s + m^2) / m. The signal is itself estimated, from the difference of the class means, and a noisy direction
would bias both moments. So the sample is cut into folds, and only products of estimates from different folds are
averaged: such products are unbiased, whatever the dimension. Leaving out one fold at a time gives the uncertainty.

Real tokens are neither centered nor isotropic: they are whitened by the negative sequences first. All folds share that
whitening, so its own uncertainty comes on top of theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular
from scipy.stats import kurtosis, t

from whichtoken.checks import check_range
from whichtoken.datasets.sparse_tokens import check_signal_tokens
from whichtoken.display.shown import Shown

Array = NDArray[np.float64]

FOLDS = 10
FULL_WHITENING = 5  # negative tokens per dimension that a covariance needs
ENOUGH_KURTOSIS = 0.5
ENOUGH_RATIO = 1.25  # of variances that should be equal
INDEPENDENT = 1e-10  # share of a variance below which it is rounding
SLOPE = np.array([1.0, 2.0])  # of the logarithms of both moments in that of the strength


@dataclass(frozen=True)
class Candidate(Shown):
    """A number of signal tokens that the pilot allows, and the strength that goes with it."""

    signal_tokens: int
    weight: float  # how plausible, relative to the others; sums to one
    log_strength: float
    deviation: float  # standard deviation of log_strength; 0 where it is known


@dataclass(frozen=True)
class PilotEstimate(Shown):
    """What a pilot sample says about the task: the result of `estimate_task`.

    Attributes
    ----------
    samples : int
        Sequences of the pilot.
    length : int
        Tokens of a sequence.
    dim : int
        Width of a token.
    prevalence : float
        Share of positive sequences.
    mean_shift : float
        m, distance of the class means along the signal.
    second_moment : float
        s + m^2 = theta^2 R / L.
    candidates : tuple of Candidate
        In ascending order of signal_tokens.
    signal_tokens : int
        The most plausible number.
    signal_tokens_interval : tuple of int
        95 % interval.
    strength : float
        Estimate that goes with `signal_tokens`.
    strength_interval : tuple of float
        95 % interval.
    warnings : tuple of str
        What was assumed for want of data.
    misfits : tuple of str
        What the pilot shows that the model does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import SparseTokens
    >>> from whichtoken.theory.sparse_tokens import estimate_task
    >>> data = SparseTokens(length=6, signal_tokens=1, strength=5.0, prevalence=0.5, dim=20)
    >>> pilot = estimate_task(*data.sample(400, np.random.default_rng(0)))
    >>> pilot.signal_tokens, abs(pilot.strength - 5) < 0.5
    (1, True)
    """

    samples: int
    length: int
    dim: int
    prevalence: float
    mean_shift: float
    second_moment: float
    candidates: tuple[Candidate, ...]
    signal_tokens: int
    signal_tokens_interval: tuple[int, int]
    strength: float
    strength_interval: tuple[float, float]
    warnings: tuple[str, ...]
    misfits: tuple[str, ...]


def estimate_task(
    tokens: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
    *,
    signal_tokens: int | None = None,
    strength: float | None = None,
) -> PilotEstimate:
    """Estimate strength and number of signal tokens.

    Parameters
    ----------
    tokens : array_like of shape (n, L, d)
        A labeled sample.
    labels : array_like of shape (n,)
        Two values, the larger for positive sequences. At least 20 sequences of each class.
    seed : int, default=0
        Seed for the cut into folds.
    signal_tokens, strength : int and float, optional
        Known values: the other one is then estimated for a task that has them.

    Returns
    -------
    PilotEstimate
        Strength, number of signal tokens, intervals and warnings.

    Raises
    ------
    ValueError
        If the pilot is too small, or shows no difference between the classes.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.datasets import SparseTokens
    >>> from whichtoken.theory.sparse_tokens import estimate_task
    >>> data = SparseTokens(length=6, signal_tokens=2, strength=4.0, prevalence=0.5, dim=20)
    >>> pilot = estimate_task(*data.sample(400, np.random.default_rng(0)), signal_tokens=2)
    >>> pilot.signal_tokens, abs(pilot.strength - 4) < 0.5
    (2, True)
    """
    X, positive = _check(tokens, labels)
    n, length, dim = X.shape
    counts = np.arange(1, length)
    if signal_tokens is not None:
        check_signal_tokens(signal_tokens, length)
        counts = np.array([signal_tokens])
    if strength is not None:
        check_range("strength", strength, 0.0, math.inf)
    white, noise, doubt, warnings = _whiten(X, positive)
    m, second, replicates = _moments(white, positive, noise, np.random.default_rng(seed))
    logs = np.log(replicates)  # (FOLDS, 2)
    centered = logs - logs.mean(axis=0)
    covariance = (FOLDS - 1) / FOLDS * centered.T @ centered + doubt * np.outer(SLOPE, SLOPE)
    candidates = _candidates(np.log([m, second]), covariance, length, counts, strength)
    best = max(candidates, key=lambda candidate: candidate.weight)
    likely = [candidate for candidate in candidates if candidate.weight >= 0.05 * best.weight]
    reach = float(t.ppf(0.975, FOLDS - 1)) * best.deviation
    strengths = [math.exp(c.log_strength + side * reach) for c in likely for side in (-1, 1)]
    return PilotEstimate(
        samples=n,
        length=length,
        dim=dim,
        prevalence=float(positive.mean()),
        mean_shift=m,
        second_moment=second,
        candidates=candidates,
        signal_tokens=best.signal_tokens,
        signal_tokens_interval=(likely[0].signal_tokens, likely[-1].signal_tokens),
        strength=math.exp(best.log_strength),
        strength_interval=(min(strengths), max(strengths)),
        warnings=tuple(warnings),
        misfits=(*_gaussianity(white, positive), *_homogeneity(white, positive), *_rank(white, positive)),
    )


def _check(tokens: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    X, y = np.asarray(tokens, dtype=float), np.asarray(labels, dtype=float)
    if X.ndim != 3 or y.shape != X.shape[:1] or X.shape[1] < 2:
        raise ValueError(f"pilot tokens {X.shape} and labels {y.shape} must have shapes (n, length >= 2, dim) and (n,)")
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise ValueError("pilot must be finite; it contains NaN or infinite values")
    values = np.unique(y)
    if values.size > 2:
        raise ValueError(
            f"pilot labels must take two values; got {values.size}: {', '.join(f'{v:g}' for v in values[:5])}"
        )
    positive = y == np.max(y, initial=-math.inf)
    fewest = int(min(positive.sum(), (~positive).sum()))
    if fewest < 2 * FOLDS:
        raise ValueError(f"pilot needs at least {2 * FOLDS} sequences of each class; one class has {fewest}")
    return X, positive


def _whiten(X: Array, positive: NDArray[np.bool_]) -> tuple[Array, float, float, list[str]]:
    """Tokens whose noise is centered and isotropic, its variance in quadratic forms, that of a log length, and warnings."""
    negative = X[~positive]
    constant = np.flatnonzero(np.ptp(negative, axis=1).max(axis=0) == 0)
    if constant.size:
        listed = ", ".join(map(str, constant[:5]))
        raise ValueError(f"pilot features must vary within sequences; constant, counted from 0: {listed}")
    centered = (negative - negative.mean(axis=1, keepdims=True)).reshape(-1, X.shape[2])
    freedom, dim = centered.shape[0] - len(negative), X.shape[2]
    shifted = X - negative.mean(axis=(0, 1))
    if freedom < FULL_WHITENING * dim:
        scale = np.sqrt((centered**2).sum(axis=0) / freedom)
        message = (
            f"only {freedom} negative tokens for {dim} dimensions: coordinates were scaled but not decorrelated, so "
            f"the estimates assume uncorrelated coordinates"
        )
        return shifted / scale, 1.0, 0.0, [message]  # errors of the scales average out over the coordinates
    # inverse-Wishart moments: the first keeps lengths unbiased, the second is what unit noise looks like afterwards, the third
    # how far a squared length, u^T S^-1 u, is off
    factor = _factor(centered.T @ centered / (freedom - dim - 1))
    white = solve_triangular(factor, shifted.reshape(-1, dim).T, lower=True).T.reshape(X.shape)
    spare = freedom - dim
    return white, (spare - 1) * (freedom - 1) / (spare * (spare - 3)), 1 / (2 * (spare - 3)), []


def _factor(covariance: Array) -> Array:
    """Its Cholesky factor; the squared pivots are what the earlier features leave open of a feature's variance."""
    try:
        factor: Array = cholesky(covariance, lower=True)
    except LinAlgError:
        factor = np.zeros_like(covariance)
    if (np.diag(factor) ** 2 < INDEPENDENT * np.diag(covariance)).any():
        raise ValueError("pilot features must be linearly independent; leave out those that follow from others")
    return factor


def _moments(
    X: Array, positive: NDArray[np.bool_], noise: float, rng: np.random.Generator
) -> tuple[float, float, Array]:
    """Mean shift m, second moment s + m^2, and both with one fold left out, (FOLDS, 2)."""
    length = X.shape[1]
    fold = np.empty(len(X), dtype=int)
    for members in (np.flatnonzero(positive), np.flatnonzero(~positive)):
        fold[rng.permutation(members)] = np.arange(members.size) % FOLDS
    means = X.mean(axis=1)
    shifts = np.stack(
        [means[positive & (fold == k)].mean(axis=0) - means[~positive & (fold == k)].mean(axis=0) for k in range(FOLDS)]
    )  # (FOLDS, d)
    overlap = shifts @ shifts.T
    along = X[positive] @ shifts.T  # (positives, L, FOLDS)
    along -= along.mean(axis=1, keepdims=True)
    spread = np.einsum("ilj,ilk->ijk", along, along) / (length - 1)
    spread = np.stack([spread[fold[positive] == k].mean(axis=0) for k in range(FOLDS)]) - noise * overlap

    def combine(folds: NDArray[np.intp]) -> tuple[float, float]:
        k = folds.size
        pairs = overlap[np.ix_(folds, folds)]
        m2 = (pairs.sum() - np.trace(pairs)) / (k * (k - 1))
        triples = spread[np.ix_(folds, folds, folds)].copy()
        index = np.arange(k)
        for place in ((index, index, slice(None)), (index, slice(None), index), (slice(None), index, index)):
            triples[place] = 0.0
        excess = triples.sum() / (k * (k - 1) * (k - 2)) * (length - 1) / length
        # excess estimates s m^2, and s >= 0
        return m2, max(excess / m2, 0.0) + m2 if m2 > 0 else 0.0

    everything = np.arange(FOLDS)
    m2, second = combine(everything)
    replicates = np.array([combine(np.delete(everything, k)) for k in everything])
    if m2 <= 0 or (replicates[:, 0] <= 0).any():
        raise ValueError(
            "pilot shows no reliable difference between the classes; give the task instead of a pilot, or a larger pilot"
        )
    replicates[:, 0] = np.sqrt(replicates[:, 0])
    return math.sqrt(m2), float(second), replicates


def _candidates(
    logs: Array, covariance: Array, length: int, counts: NDArray[np.intp], strength: float | None
) -> tuple[Candidate, ...]:
    """Each plausible one of the counts with its weight and the strength, if not known, that fits both moments best.

    log m = log theta + log(R/L) and log (s + m^2) = 2 log theta + log(R/L): generalized least squares in log theta.
    """
    precision = np.linalg.inv(covariance + 1e-8 * np.eye(2))
    information = SLOPE @ precision @ SLOPE
    rest = logs - np.log(counts / length)[:, None]  # (counts, 2)
    if strength is None:
        log_strength, deviation = rest @ precision @ SLOPE / information, 1 / math.sqrt(information)
    else:
        log_strength, deviation = np.full(counts.size, math.log(strength)), 0.0
    misfit = rest - log_strength[:, None] * SLOPE
    distance = np.einsum("ij,jk,ik->i", misfit, precision, misfit)
    weight = np.exp(-(distance - distance.min()) / 2)
    weight /= weight.sum()
    chosen = weight > 0.01
    return tuple(
        Candidate(int(count), float(share / weight[chosen].sum()), float(value), deviation)
        for count, share, value in zip(counts[chosen], weight[chosen], log_strength[chosen], strict=True)
    )


def _gaussianity(white: Array, positive: NDArray[np.bool_]) -> list[str]:
    """Whether the negative tokens are far from Gaussian, along the class difference or in a tenth of the coordinates."""
    negative = white[~positive].reshape(-1, white.shape[2])
    along = float(kurtosis(negative @ white[positive].mean(axis=(0, 1))))
    tenth = float(np.sort(np.abs(kurtosis(negative, axis=0)))[::-1][negative.shape[1] // 10])
    worst = max(along, tenth, key=abs)
    if abs(worst) <= ENOUGH_KURTOSIS + 4 * math.sqrt(24 / len(negative)):
        return []
    return [f"the tokens of negative sequences are not Gaussian (excess kurtosis {worst:.1f} instead of 0)"]


def _homogeneity(white: Array, positive: NDArray[np.bool_]) -> list[str]:
    """Whether tokens of one negative sequence are more alike, or less, than those of different ones."""
    negative = white[~positive]  # (n, L, d)
    count, length, dim = negative.shape
    within = negative.var(axis=1, ddof=1).mean(axis=0)
    logs = np.log(np.maximum(length * negative.mean(axis=1).var(axis=0, ddof=1) / within, 1e-9))
    noise = 2 / (count - 1) + 2 / (count * (length - 1))  # variance of such a logarithm
    if (logs**2).mean() - noise <= math.log(ENOUGH_RATIO) ** 2 + 4 * noise * math.sqrt(2 / dim):
        return []
    return [
        "tokens of one negative sequence depend on each other (means of sequences vary"
        f" {math.exp(logs.min()):.2g} to {math.exp(logs.max()):.2g} times as much as those of independent tokens)"
    ]


def _rank(white: Array, positive: NDArray[np.bool_]) -> list[str]:
    """Whether positive tokens spread along more directions than the one of a signal.

    Without a signal the largest eigenvalue of one sample covariance, whitened by another, stays below the edge of Wachter's law.
    """
    dim = white.shape[2]
    spread = [part - part.mean(axis=1, keepdims=True) for part in (white[positive], white[~positive])]
    above, below = (dim / (len(part) * (part.shape[1] - 1)) for part in spread)
    if below >= 1 / FULL_WHITENING:
        return []  # the covariance of the negative tokens is not known well enough
    covariances = [np.einsum("nld,nle->de", part, part) / (len(part) * (part.shape[1] - 1)) for part in spread]
    values = eigh(*covariances, eigvals_only=True)
    edge = ((1 + math.sqrt(above + below - above * below)) / (1 - below)) ** 2
    found = int((values > edge * ENOUGH_RATIO).sum())
    if found < 2:
        return []
    return [f"positive tokens spread along {found} directions, not along the one of a single signal"]
