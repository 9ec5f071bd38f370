"""Which groups, and how many: ranked by attention, counted by a small validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from whichtoken.estimators.group_attention import full_attention, separate_attention, shared_attention
from whichtoken.estimators.group_layout import Layout
from whichtoken.optim.convex_head import fit_head

Array = NDArray[np.float64]
Attention = Callable[[list[Array], Array, Array, float], Array]

ATTENTIONS: dict[str, Attention] = {
    "shared": shared_attention,
    "separate": separate_attention,
    "full": full_attention,
}
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
RANKING_RIDGE = 1e-2


@dataclass(frozen=True)
class Choice:
    """Kind of attention, number of groups and ridge of the readout."""

    attention: str
    count: int
    ridge: float


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and standard deviation of the columns; constant columns have scale 1."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Array) -> Standardisation:
        mean, scale = X.mean(axis=0), X.std(axis=0)
        return cls(mean, np.where(scale <= 1e-12 * np.maximum(np.abs(mean), 1e-300), 1.0, scale))

    def __call__(self, X: Array) -> Array:
        return (X - self.mean) / self.scale


def group_attention(Z: Array, targets: Sequence[Array], layout: Layout, kind: str) -> Array:
    """Attention over the groups, (D,), averaged over the scores of `targets`; Z (n, features) is standardised."""
    groups = [Z[:, columns] for columns in layout.members]
    fixed = Z[:, layout.covariates]
    attention: Array = np.mean([ATTENTIONS[kind](groups, fixed, signs, RANKING_RIDGE) for signs in targets], axis=0)
    return attention


def choose(
    X: Array,
    codes: NDArray[np.intp],
    targets: Sequence[Array],
    layout: Layout,
    kinds: Sequence[str],
    counts: Sequence[int],
    ridges: Sequence[float],
    folds: int,
    seed: int,
) -> Choice:
    """The choice of least log-loss in a stratified cross-validation, which ranks the groups anew in every fold.

    Fewer groups are preferred as long as their loss is not worse than the least by more than the standard error of the
    difference; counts (ascending) are not followed further once two of them are worse by more than twice that.
    """
    folds = min(folds, int(np.bincount(codes).min()))
    if folds < 2 or len(kinds) == len(counts) == len(ridges) == 1:
        return Choice(kinds[0], counts[0], ridges[len(ridges) // 2])
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    parts = [_Fold(X, targets, layout, kinds, *rows) for rows in splitter.split(X, codes)]
    losses: dict[Choice, Array] = {}  # (n,) each
    for kind in kinds:
        behind = 0
        for count in counts:
            losses |= {c: _losses(parts, c, len(X)) for c in (Choice(kind, count, ridge) for ridge in ridges)}
            here = min((c for c in losses if c.count == count), key=lambda c: losses[c].mean())
            behind = behind + 1 if _excess(losses, here) > 2 else 0
            if behind == 2:
                break
    fewest = min(choice.count for choice in losses if _excess(losses, choice) <= 1)
    return min((choice for choice in losses if choice.count == fewest), key=lambda choice: losses[choice].mean())


class _Fold:
    """Standardised training and held-out parts with the groups ranked on the training part."""

    def __init__(
        self,
        X: Array,
        targets: Sequence[Array],
        layout: Layout,
        kinds: Sequence[str],
        inside: NDArray[np.intp],
        outside: NDArray[np.intp],
    ) -> None:
        standardise = Standardisation.of(X[inside])
        self.outside, self.layout = outside, layout
        self.train, self.test = standardise(X[inside]), standardise(X[outside])
        self.targets = [(signs[inside], signs[outside]) for signs in targets]
        inner = [signs[inside] for signs in targets]
        self.ranks = {
            kind: np.argsort(-group_attention(self.train, inner, layout, kind), kind="stable") for kind in kinds
        }

    def losses(self, choice: Choice) -> Array:
        """Log-losses of the held-out samples, summed over the scores."""
        columns = self.layout.columns(self.ranks[choice.attention][: choice.count])
        total = np.zeros(len(self.test))
        for signs, held in self.targets:
            head = fit_head(self.train[:, columns], signs, choice.ridge)
            total += np.logaddexp(0, -held * (self.test[:, columns] @ head.readout + head.bias))
        return total


def _losses(parts: Sequence[_Fold], choice: Choice, samples: int) -> Array:
    losses = np.empty(samples)
    for part in parts:
        losses[part.outside] = part.losses(choice)
    return losses


def _excess(losses: dict[Choice, Array], choice: Choice) -> float:
    """How much worse than the best a choice is, in standard errors of the difference."""
    best = min(losses, key=lambda c: losses[c].mean())
    difference = losses[choice] - losses[best]
    error = difference.std() / np.sqrt(len(difference))
    return float(difference.mean() / error) if error else 0.0
