"""l_p regularisation path of one attention head and its decoder together.

The key-query matrix W and the decoder v are minimised in turn. At the same time it would not work: what W can still gain
falls like exp(-|W|) beside what v can, below the last digit of the loss. In turn, each has an objective of its own size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from whichtoken.attention import Items, pool_outputs
from whichtoken.attention.losses import LOSSES
from whichtoken.data.attention_tokens import AttentionProblem
from whichtoken.display.shown import Shown
from whichtoken.flows.path import Matrix, Objective, Sphere, checked_radii, lag, log_excess, stationarity
from whichtoken.theory.mirror_descent import directional_divergence

JointLoss = Literal["logistic", "exponential"]  # losses with an infimum that only |v| -> infinity reaches

_ROUNDS = 200  # of W, then v; about five suffice from R = 10 on
_STILL = 1e-14  # divergence of a round's ends at which it has converged
_SAME = 1e-4  # values of log L that count as the same minimum


@dataclass(frozen=True, eq=False)
class JointRegularizationPath(Shown):
    """Minimisers of the loss over |W|_p <= R and |v|_p <= ratio * R, one per radius R."""

    p: float
    ratio: float
    radii: NDArray[np.float64]  # (k,), ascending
    directions: Matrix  # (k, d, d), W / R
    decoders: Matrix  # (k, d), v / (ratio R)
    log_loss: NDArray[np.float64]  # (k,)
    stationarity: NDArray[np.float64]  # (k,), the larger D_p of W and v to their steepest descent directions
    agreeing: NDArray[np.float64]  # (k,), share of the starts that lead to the same minimum
    selected: NDArray[np.int64]  # (k, n), the token that v scores highest

    def _headline(self) -> str:
        return f"{len(self.radii)} radii up to {self.radii[-1]:.4g} in the l_{self.p:g} norm, ratio {self.ratio:g}"


def joint_regularization_path(
    problem: AttentionProblem,
    radii: Iterable[float],
    *,
    p: float,
    rng: np.random.Generator,
    ratio: float = 1.0,
    starts: int = 4,
    loss: JointLoss = "logistic",
) -> JointRegularizationPath:
    """Minimise the mean loss over |W|_p <= R, |v|_p <= ratio * R for each R.

    The joint regularisation path of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581. For R -> infinity v tends to the
    max-margin classifier of the selected tokens and W to the member of the family `joint_limit` at this ratio. Both are
    minimised in turn until neither moves; random `starts` are followed from radius to radius and the best is kept.

    Parameters
    ----------
    problem : AttentionProblem
        Tokens (n, T, d), queries (n, d) and labels (n,); its decoder is not used.
    radii : iterable of float
        Positive numbers R.
    p : float
        Exponent of the norm, above 1.
    rng : numpy.random.Generator
        Source of the random starts.
    ratio : float, default=1.0
        |v|_p / |W|_p, positive.
    starts : int, default=4
        Random starts that are followed.
    loss : {"logistic", "exponential"}, default="logistic"
        What is minimised.

    Returns
    -------
    JointRegularizationPath
        W and v of each radius, as directions, and how near they are to a minimiser.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.data import AttentionTokens
    >>> from whichtoken.flows import joint_regularization_path
    >>> rng = np.random.default_rng(0)
    >>> problem = AttentionTokens(sequences=2, length=3, dim=4).sample(rng)
    >>> path = joint_regularization_path(problem, [1.0, 10.0], p=2.0, rng=rng, starts=1)
    >>> path.directions.shape, path.decoders.shape
    ((2, 4, 4), (2, 4))
    """
    radius = checked_radii(radii, starts)
    if not 0.0 < ratio < math.inf:
        raise ValueError(f"ratio={ratio} must be a finite positive number")
    if loss not in ("logistic", "exponential"):
        raise ValueError(f"loss={loss!r} must be logistic or exponential")
    dim = problem.decoder.shape[0]
    descent = _Alternation(problem, loss, Sphere(p, (dim, dim)), Sphere(p, (dim,)))
    followed: list[tuple[Matrix, Matrix]] = [
        (rng.standard_normal((dim, dim)), rng.standard_normal((dim,))) for _ in range(starts)
    ]
    rows = []
    for size in radius.tolist():
        found = [descent.minimise(*start, size, ratio * size) for start in followed]
        followed = [(end[0], end[1]) for end in found]
        weights, decoder, value = min(found, key=lambda end: end[2])
        distance = descent.stationarity(weights, decoder, size, ratio * size)
        agreeing = float(np.mean([end - value < _SAME for *_, end in found]))
        selected = replace(problem, decoder=decoder).token_scores.argmax(axis=1)
        rows.append((weights, decoder, value, distance, agreeing, selected))
    return JointRegularizationPath(p, ratio, radius, *(np.array(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True)
class _Alternation:
    """Minimisation in W and v by turns."""

    problem: AttentionProblem
    loss: JointLoss
    matrices: Sphere
    vectors: Sphere

    def minimise(self, weights: Matrix, decoder: Matrix, radius: float, reach: float) -> tuple[Matrix, Matrix, float]:
        """Directions of W and v, and log L, of a point that is best in W for its v and in v for its W."""
        place, value = self.matrices.parameters(weights), 0.0
        for _ in range(_ROUNDS):
            before = self.matrices.direction(place), decoder
            place = self._best_weights(reach * decoder, radius, place)
            weights = self.matrices.direction(place)
            start = self.vectors.parameters(decoder)
            end, value = self.vectors.minimise(self._of_decoder(radius * weights), reach, start)
            decoder = self.vectors.direction(end)
            p = self.matrices.p
            if max(directional_divergence(*pair, p) for pair in zip((weights, decoder), before, strict=True)) < _STILL:
                break
        return weights, decoder, value

    def _best_weights(self, decoder: Matrix, radius: float, place: Matrix) -> Matrix:
        """Parameters of the best W for this v, from where it was and from where the tokens that v prefers lead.

        A W that has settled on another token sees no slope any more, and would stay.
        """
        preferred = replace(self.problem, decoder=decoder).token_scores.argmax(axis=1)
        starts = [place]
        if (self._scores(self.matrices.direction(place)).argmax(axis=1) != preferred).any():
            starts.append(self.matrices.minimise(lag(self.problem, preferred), radius, place)[0])
        ends = [self.matrices.minimise(self._of_weights(decoder), radius, start) for start in starts]
        return min(ends, key=lambda end: end[1])[0]

    def _scores(self, weights: Matrix) -> Matrix:
        """Attention scores of all tokens, (n, T)."""
        return np.asarray(np.einsum("ntd,de,ne->nt", self.problem.tokens, weights, self.problem.queries))

    def stationarity(self, weights: Matrix, decoder: Matrix, radius: float, reach: float) -> float:
        p = self.matrices.p
        return max(
            stationarity(self._of_weights(reach * decoder), radius, weights, p),
            stationarity(self._of_decoder(radius * weights), reach, decoder, p),
        )

    def _of_weights(self, decoder: Matrix) -> Objective:
        """log(L - inf_W L) for this v: the same minimisers as L."""
        return log_excess(replace(self.problem, decoder=decoder), self.loss)

    def _of_decoder(self, weights: Matrix) -> Objective:
        """log L for this W, a convex function of v."""
        items = Items.of(self.problem.tokens)
        attended = pool_outputs(self._scores(weights).ravel(), items.vectors, items.starts)
        features = self.problem.labels[:, None] * attended  # (n, d)

        def objective(decoder: Matrix) -> tuple[float, Matrix]:
            margins = features @ decoder  # (n,)
            loss = LOSSES[self.loss]
            total = logsumexp(loss.log_value(margins))
            return float(total - math.log(len(margins))), -np.exp(loss.log_slope(margins) - total) @ features

        return objective
