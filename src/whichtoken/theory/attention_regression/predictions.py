"""How far a finite context is from the linear map of an infinite one. Symbols as in `attention_regression`."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations_with_replacement, permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.checks import check_choice, check_count

Array = NDArray[np.float64]


def limit_map(A: ArrayLike, B: ArrayLike, covariance: ArrayLike) -> Array:
    """A Sigma B^T (outputs, d): what the layer computes on an infinite context of Gaussian tokens of mean zero.

    Parameters
    ----------
    A : array_like of shape (outputs, d)
        Value matrix.
    B : array_like of shape (d, d)
        Key-query matrix.
    covariance : array_like of shape (d, d)
        Sigma.

    Returns
    -------
    array of shape (outputs, d)
        The linear map.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import limit_map
    >>> limit_map(np.eye(2), 2 * np.eye(2), covariance=3 * np.eye(2)).tolist()
    [[6.0, 0.0], [0.0, 6.0]]
    """
    value, key_query = factor_pair(A, B)
    return np.asarray(value @ np.asarray(covariance, dtype=np.float64) @ key_query.T)


def population_loss(P: ArrayLike, Q: ArrayLike, target: ArrayLike) -> tuple[float, Array, Array]:
    """1/2 |P Q^T - Y|_F^2 and its gradients in P and Q.

    Parameters
    ----------
    P, Q : array_like of shape (outputs, d) and (d, d)
        Whitened factors.
    target : array_like of shape (outputs, d)
        Y.

    Returns
    -------
    tuple
        Loss, gradient in P, gradient in Q.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import population_loss
    >>> loss, slope_P, slope_Q = population_loss(np.eye(2), np.eye(2), target=3 * np.eye(2))
    >>> loss, slope_P.tolist()
    (4.0, [[-2.0, 0.0], [0.0, -2.0]])
    """
    value, key_query = factor_pair(P, Q)
    error = value @ key_query.T - np.asarray(target, dtype=np.float64)
    return 0.5 * float(np.sum(error**2)), error @ key_query, error.T @ value


def balanced_factors(target: ArrayLike, logit_norm: float | None = None) -> tuple[Array, Array]:
    """P (outputs, d) and Q (d, d) with P Q^T = Y, P^T P proportional to Q^T Q, and |Q|_F = logit_norm or |P|_F.

    Y = U s V^T is split as P = U s^(1/2), Q = V s^(1/2). The rotation that is free between the two is set to I: with
    Q = V s^(1/2) V^T every token would attend to itself.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y.
    logit_norm : float, optional
        |Q|_F; by default that of P.

    Returns
    -------
    tuple of array
        P and Q.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import balanced_factors, imbalance
    >>> target = np.array([[2.0, 0.0], [1.0, 1.0]])
    >>> P, Q = balanced_factors(target)
    >>> bool(np.allclose(P @ Q.T, target)), imbalance(P, Q) < 1e-12
    (True, True)
    """
    from scipy import linalg

    left, sizes, right = linalg.svd(np.asarray(target, dtype=np.float64), full_matrices=False)
    dim, rank = right.shape[1], len(sizes)
    value, key_query = np.zeros((len(left), dim)), np.zeros((dim, dim))
    value[:, :rank], key_query[:, :rank] = left * np.sqrt(sizes), right.T * np.sqrt(sizes)
    scale = 1.0 if logit_norm is None else logit_norm / float(np.linalg.norm(key_query))
    return value / scale, key_query * scale


def imbalance(P: ArrayLike, Q: ArrayLike) -> float:
    """|P^T P / tau - tau Q^T Q|_F relative to |P|_F |Q|_F, tau = |P|_F/|Q|_F: zero iff balanced, the same for (cP, Q/c).

    Parameters
    ----------
    P, Q : array_like of shape (outputs, d) and (d, d)
        Whitened factors.

    Returns
    -------
    float
        0 if balanced.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import imbalance
    >>> imbalance(np.eye(2), 5 * np.eye(2)) < 1e-12, round(imbalance(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])), 4)
    (True, 1.4142)
    """
    value, key_query = factor_pair(P, Q)
    first, second = np.linalg.norm(value), np.linalg.norm(key_query)
    return float(np.linalg.norm(value.T @ value / first**2 - key_query.T @ key_query / second**2))


def gauge_floor(target: ArrayLike) -> float:
    """n times the least error of a short-logit layer on centered tokens, over all factors of Y: |Y|_*^2 + |Y|_F^2.

    As Q shrinks, n * finite_context_error(P, Q, n, centered=True) tends to |P|_F^2 |Q|_F^2 + |Y|_F^2, and the product of
    the norms is least, the nuclear norm of Y, exactly for balanced factors.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y.

    Returns
    -------
    float
        The floor, times n.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import gauge_floor
    >>> round(gauge_floor(np.eye(2)), 6)
    6.0
    """
    sizes = svdvals(np.asarray(target, dtype=np.float64))
    return float(sizes.sum() ** 2 + np.sum(sizes**2))


def factor_pair(P: ArrayLike, Q: ArrayLike) -> tuple[Array, Array]:
    value, key_query = np.asarray(P, dtype=np.float64), np.asarray(Q, dtype=np.float64)
    if value.ndim != 2 or key_query.shape != (value.shape[1],) * 2:
        raise ValueError(f"P {value.shape} and Q {key_query.shape} must have shapes (outputs, d) and (d, d)")
    if not (np.isfinite(value).all() and np.isfinite(key_query).all()):
        raise ValueError("P and Q must be finite")
    return value, key_query


def svdvals(matrix: Array) -> Array:
    from scipy import linalg  # takes a quarter of a second to import, which listing the claims does not need

    return np.asarray(linalg.svdvals(matrix))


LOGIT_BOUND = math.sqrt(0.5)  # |Q|_op from which on D is infinite
_QUANTILES = (np.arange(400) + 0.5) / 400


class ContextDeviation(float):
    """A mean squared error, and an estimate of the share of it that a context of this length really shows.

    Its formula counts tokens far out in the direction of b that a short context does not contain. `coverage` estimates
    the share that it does contain: near 1 the formula is exact, lower values are a warning. They are made for plain
    tokens of 8 dimensions or more, where simulated contexts of 400 show within 0.08 of them. Centered contexts show up to
    0.07 less than the estimate, whitened ones up to 0.15 less, and in few dimensions it is far too high: where it says
    0.55, plain tokens show 0.38 in 4 dimensions and 0.24 in 2.

    Parameters
    ----------
    error : float
        The mean squared error.
    coverage : float
        Share of it that a context of this length shows.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import finite_context_error
    >>> error = finite_context_error(np.eye(8), 0.1 * np.eye(8), context=400)
    >>> 0 < error < 0.1, round(error.coverage, 2)
    (True, 1.0)
    """

    coverage: float

    def __new__(cls, error: float, coverage: float) -> ContextDeviation:
        self = super().__new__(cls, error)
        self.coverage = coverage
        return self

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]
        return float(self), self.coverage


def finite_context_error(
    P: ArrayLike, Q: ArrayLike, context: int, centered: bool = False, whitened: bool = False
) -> ContextDeviation:
    """E |P h(z) - P Q^T z|^2 over queries z and contexts of n independent standard normal tokens, to order 1/n.

    For one query the covariance of h is (1/n) [e^(|b|^2) (I + b b^T)]. Subtracting the context's mean from its tokens
    removes I from the bracket, and whitening the context by its own covariance also removes |b|^2 I + b b^T.

    Parameters
    ----------
    P : array_like of shape (outputs, d)
        Whitened value matrix.
    Q : array_like of shape (d, d)
        Whitened key-query matrix.
    context : int
        Number of tokens n.
    centered : bool, default=False
        The context has mean zero, as after subtracting it; the query is measured from the same mean.
    whitened : bool, default=False
        The context has mean zero and covariance I, as training tokens have in their own whitened coordinates.

    Returns
    -------
    ContextDeviation
        A float with the attribute `coverage`.

    Raises
    ------
    ValueError
        If |Q|_op reaches 1/sqrt(2): the error then falls more slowly than 1/n and has no such formula.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import finite_context_error
    >>> short, long = (finite_context_error(np.eye(8), 0.1 * np.eye(8), context=n) for n in (100, 1000))
    >>> round(short / long, 6)
    10.0
    """
    value, key_query = factor_pair(P, Q)
    check_count("context", context, 2)
    tilts = svdvals(key_query) ** 2  # eigenvalues of Q Q^T
    if tilts[0] >= LOGIT_BOUND**2:
        raise ValueError(
            f"Q has operator norm {math.sqrt(tilts[0]):.4g}, the finite-context error needs less than 1/sqrt(2) = 0.7071"
        )
    gain = float(np.prod((1.0 - 2.0 * tilts) ** -0.5))  # D
    effective = value @ key_query.T  # Y
    spread = np.linalg.solve(np.eye(len(key_query)) - 2.0 * key_query @ key_query.T, effective.T)
    value_size, map_size = float(np.sum(value**2)), float(np.sum(effective**2))
    known = tilts.sum() * value_size + map_size if whitened else 0.0
    error = (gain - (centered or whitened)) * value_size + gain * float(np.sum(effective.T * spread)) - known
    return ContextDeviation(error / context, _coverage(tilts, context))


def _coverage(tilts: Array, context: int) -> float:
    """Share of E exp(2 b.z) that the largest of n tokens reach, averaged over queries weighted by their error.

    Tilted by 2b, a token has a N(2|b|, 1) coordinate along b, but n tokens reach only to sqrt(2 log n). Weighted by
    exp(|b|^2), |b|^2 is a sum of scaled chi-squares, here replaced by the gamma law of the same mean and variance.
    """
    scales = tilts / (1.0 - 2.0 * tilts)
    if not scales.sum() > 0.0:
        return 1.0
    mean, variance = scales.sum(), 2.0 * np.sum(scales**2)
    from scipy import stats  # takes half a second to import, and only this needs it

    lengths = np.sqrt(stats.gamma.ppf(_QUANTILES, mean**2 / variance, scale=variance / mean))  # |b|
    return float(np.mean(stats.norm.cdf(math.sqrt(2.0 * math.log(context)) - 2.0 * lengths)))


DRAWS = 12  # of the cumulants; the mean then errs by 5 to 10 %
# dimensions up to which K4, of dim^4 entries, is counted; its error is about 8 % of that of K3 at |Q|_F = 0.3
WIDEST = 12
EVALUATIONS = 25  # of the error and its derivatives in one search for a subspace


def frame_error(sizes: Array, dim: int, noise: float, samples: int, logit_norm: float) -> float:
    """Mean squared error, of the third and fourth cumulants of n stored tokens, that is left after the subspace is chosen.

    Parameters
    ----------
    sizes : array of shape (outputs,)
        Singular values of Y.
    dim : int
        Number of features d, more than outputs.
    noise : float
        Standard deviation of the label noise: the subspace is chosen so as to fit it too.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F.

    Returns
    -------
    float
        Averaged over `DRAWS` Gaussian cumulants, the same in every call.
    """
    rng = np.random.default_rng(0)
    return float(np.mean([_one_draw(sizes, dim, noise, logit_norm, rng) for _ in range(DRAWS)])) / samples


def _one_draw(sizes: Array, dim: int, noise: float, logit_norm: float, rng: np.random.Generator) -> float:
    """n times the error for one draw of the cumulants, whose entries are here of order one."""
    from scipy.optimize import least_squares

    outputs = len(sizes)
    cumulants = [_symmetric_normal(dim, order, rng) for order in ((3, 4) if dim <= WIDEST else (3,))]
    fitted_noise = noise * rng.standard_normal(_residuals(np.eye(dim, outputs), cumulants, sizes, logit_norm).shape)
    fitted_noise[:outputs] = 0.0  # constants: the labels are centered

    def misfit(tilt: Array) -> Array:
        return _residuals(_frame(tilt, outputs), cumulants, sizes, logit_norm) - fitted_noise

    found = least_squares(
        misfit, np.zeros((dim - outputs) * outputs), ftol=1e-3, xtol=1e-3, gtol=1e-6, max_nfev=EVALUATIONS
    )
    return float(np.sum(_residuals(_frame(found.x, outputs), cumulants, sizes, logit_norm) ** 2))


def _residuals(frame: Array, cumulants: list[Array], sizes: Array, logit_norm: float) -> Array:
    """Coefficients of the error in orthonormal polynomials of the query, constants first.

    Its linear part is left out: training fits the linear map to the labels in any case.
    """
    scale = logit_norm / math.sqrt(sizes.sum())
    root = frame * np.sqrt(sizes)
    third = 0.5 * scale * _compress(cumulants[0], root)
    constants = np.trace(third, axis1=1, axis2=2)
    parts = [constants, math.sqrt(2.0) * _distinct(third, 2)]
    for fourth in cumulants[1:]:
        cubic = scale**2 / 6.0 * _compress(fourth, root)
        parts.append(math.sqrt(6.0) * _distinct(cubic, 3))
    return np.concatenate(parts)


def _compress(tensor: Array, root: Array) -> Array:
    for _ in range(tensor.ndim):  # contract the first axis, append the new one: after all of them the order is the old
        tensor = np.tensordot(tensor, root, axes=(0, 0))
    return tensor


def _distinct(form: Array, degree: int) -> Array:
    """Entries (output, i <= j <= ...) with weights such that their squares sum to those of the whole form."""
    columns, weights = _columns(form.shape[0], degree)
    picked: Array = np.moveaxis(form, 0, -1)[columns].T * weights
    return picked.ravel()


@cache
def _columns(outputs: int, degree: int) -> tuple[tuple[NDArray[np.int64], ...], Array]:
    indices = list(combinations_with_replacement(range(outputs), degree))
    weights = [math.sqrt(math.factorial(degree) / _repetitions(index)) for index in indices]
    return tuple(np.array(indices).T), np.array(weights)


def _symmetric_normal(dim: int, order: int, rng: np.random.Generator) -> Array:
    """Hermite moments of Gaussian tokens, times sqrt(n): an entry's variance is the product of its repetitions' factorials."""
    tensor = np.empty((dim,) * order)
    for index in combinations_with_replacement(range(dim), order):
        value = math.sqrt(_repetitions(index)) * rng.standard_normal()
        for place in set(permutations(index)):
            tensor[place] = value
    return tensor


def _repetitions(index: tuple[int, ...]) -> int:
    return math.prod(math.factorial(count) for count in Counter(index).values())


def _frame(tilt: Array, outputs: int) -> Array:
    """The first axes, tilted into the others without a rotation of their own: every subspace but those at a right angle."""
    left, _, right = np.linalg.svd(np.vstack([np.eye(outputs), tilt.reshape(-1, outputs)]), full_matrices=False)
    return np.asarray(left @ right)


def excess_floor(kind: str, target: ArrayLike, noise: float, samples: int, logit_norm: float) -> float:
    """Excess 1/2 E |f(x) - M x|^2 at which training on n centered pairs ends, to order 1/n.

    Least squares contributes noise^2 d outputs / n to the squared error, its intercept noise^2 outputs / n. The context
    contributes its own error; where it is not the training set, so does the gap between the two covariances. With fewer
    outputs than features training chooses the subspace in which it looks at the training tokens, and most of their own
    error goes (`frames`; a mean over simulated cumulants, which takes about a second); with as many it stays. One or two outputs
    at very little noise end two to three times above it (`attention-regression/floor`).

    Parameters
    ----------
    kind : {"population", "stored", "fresh"}
        An infinite context; the training tokens; n new tokens.
    target : array_like of shape (outputs, d)
        Y = M Sigma^(1/2).
    noise : float
        Standard deviation of the label noise.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F of the balanced factors that training ends in.

    Returns
    -------
    float
        The excess.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import excess_floor
    >>> few, many = (excess_floor("stored", np.eye(4), noise=0.1, samples=n, logit_norm=0.3) for n in (100, 1000))
    >>> round(few / many, 6)
    10.0
    """
    check_choice("kind", kind, ("population", "stored", "fresh"))
    whitened_map = np.asarray(target, dtype=np.float64)
    outputs, dim = whitened_map.shape
    least_squares, intercept = noise**2 * dim * outputs / samples, noise**2 * outputs / samples
    covariance_gap = gauge_floor(whitened_map) / samples  # E |P (S - I) Q^T|_F^2, S the covariance of n tokens
    if kind == "population":
        return float(0.5 * (least_squares + covariance_gap))
    if kind == "stored" and outputs < dim:
        own = frame_error(svdvals(whitened_map), dim, noise, samples, logit_norm)
        return float(0.5 * (least_squares + intercept + own))
    untrained = start_floor(whitened_map, noise, samples, logit_norm)
    return untrained if kind == "stored" else untrained + covariance_gap


def start_floor(target: ArrayLike, noise: float, samples: int, logit_norm: float) -> float:
    """Excess of the spectral start itself on its n training tokens: least squares, and the error of any balanced factors.

    Parameters
    ----------
    target : array_like of shape (outputs, d)
        Y = M Sigma^(1/2).
    noise : float
        Standard deviation of the label noise.
    samples : int
        Training pairs n.
    logit_norm : float
        |Q|_F of the balanced factors.

    Returns
    -------
    float
        The excess, 1/2 E |f(x) - M x|^2.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.theory.attention_regression import excess_floor, start_floor
    >>> start = start_floor(np.eye(1, 6), noise=0.01, samples=800, logit_norm=0.3)
    >>> excess_floor("stored", np.eye(1, 6), noise=0.01, samples=800, logit_norm=0.3) < 0.02 * start  # one output
    True
    """
    whitened_map = np.asarray(target, dtype=np.float64)
    outputs, dim = whitened_map.shape
    P, Q = balanced_factors(whitened_map, logit_norm)
    own = finite_context_error(P, Q, samples, whitened=True)
    return float(0.5 * (noise**2 * outputs * (dim + 1) / samples + own))


def gram_rate(
    singular_values: ArrayLike, step: float, damping: float = 0.0, dim: int | None = None, outputs: int | None = None
) -> float:
    """Factor per iteration of the loss near the solution, with Gram preconditioning: that of the slowest direction.

    The error E of the map moves to E - eta (E Pi_Q + Pi_P E), Pi the damped projections on the two factors. In the
    singular basis of Y entry (i, j) shrinks by 1 - eta (w_i + w_j), w_i = s_i / (s_i + delta s_1). Undamped and of full
    rank that is (1 - 2 eta)^2, whatever the singular values.

    Parameters
    ----------
    singular_values : array_like of shape (min(outputs, d),)
        Of Y, all positive, any order.
    step : float
        eta.
    damping : float, default=0.0
        delta, relative to the largest eigenvalue of the Gram matrix.
    dim, outputs : int, optional
        Width of the tokens or number of outputs, whichever is larger than the other: the map then has directions which
        only one of the factors can move, and they shrink by (1 - eta w_i)^2.

    Returns
    -------
    float
        Factor per iteration, below 1 where training converges.

    Examples
    --------
    >>> from whichtoken.theory.attention_regression import gram_rate
    >>> gram_rate([1.0, 0.01], step=0.25), gram_rate([1.0, 1.0], step=0.25)  # conditioning does not matter
    (0.25, 0.25)
    """
    sizes = np.asarray(singular_values, dtype=np.float64)
    if sizes.ndim != 1 or not sizes.size or not (sizes > 0.0).all():
        raise ValueError(f"singular_values={sizes.tolist()} must be a list of positive numbers, for a map of full rank")
    if min(dim or 0, outputs or 0) > len(sizes):
        raise ValueError(f"dim={dim} and outputs={outputs} must not both exceed the {len(sizes)} singular values")
    _check_step(step)
    weights = sizes / (sizes + damping * sizes.max())
    rows, columns = (np.append(weights, 0.0) if (size or 0) > len(sizes) else weights for size in (outputs, dim))
    return float(np.max(np.abs(1.0 - step * (rows[:, None] + columns[None, :]))) ** 2)


def _check_step(step: float) -> None:
    if not 0.0 < step < math.inf:
        raise ValueError(f"step={step} must be a finite positive number")
