"""Which groups, and how many: ranked by attention, counted by a small validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from whichtoken.estimators.groups.attention import full_attention, separate_attention, shared_attention
from whichtoken.estimators.groups.layout import Layout
from whichtoken.training.convex_head import logistic_heads

Array = NDArray[np.float64]
Attention = Callable[[list[Array], Array, Array, float], Array]

ATTENTIONS: dict[str, Attention] = {
    "shared": shared_attention,
    "separate": separate_attention,
    "full": full_attention,
}
RIDGES = tuple(np.logspace(-4, 0, 9).tolist())  # a coarser grid would handicap many groups, which need it, beside few
RANKING_RIDGE = 1e-2


@dataclass(frozen=True)
class GroupChoice:
    """Kind of attention, number of groups and ridge of the readout."""

    attention: str
    count: int
    ridge: float


@dataclass(frozen=True)
class Comparison:
    """What the validation saw of fewer groups beside all of them; held-out log-losses of the same samples."""

    count: int  # of the fewer groups
    fewer: float
    whole: float
    error: float  # standard error of the difference, paired over samples

    @classmethod
    def of(cls, count: int, fewer: Array, whole: Array) -> Comparison:
        error = (fewer - whole).std() / np.sqrt(len(whole))
        return cls(count, float(fewer.mean()), float(whole.mean()), float(error))

    def __str__(self) -> str:
        return (
            f"held-out log-loss {self.fewer:.4f} with {self.count}, {self.whole:.4f} with all,"
            f" standard error of the difference {self.error:.4f}"
        )


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


def choose_groups(
    X: Array,
    codes: NDArray[np.intp],
    targets: Sequence[Array],
    layout: Layout,
    kinds: Sequence[str],
    counts: Sequence[int],
    ridges: Sequence[float],
    folds: int,
    seed: int,
) -> tuple[GroupChoice, Comparison | None]:
    """The choice by log-loss in a stratified cross-validation, which ranks the groups anew in every fold.

    The fewest groups are sought whose loss is not above the least by more than a standard error of the paired difference.
    They are taken only if they predict at least as well as all groups do: a standard error is much where many groups carry
    a little, so a selection that costs anything is none. The comparison is None where there is nothing to compare.
    """
    folds = min(folds, int(np.bincount(codes).min()))
    if folds < 2 or len(kinds) == len(counts) == len(ridges) == 1:
        return GroupChoice(kinds[0], counts[0], ridges[len(ridges) // 2]), None
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    parts = [_Fold(X, targets, layout, kinds, *rows) for rows in splitter.split(X, codes)]

    def tried(kind: str, count: int) -> tuple[GroupChoice, Array]:
        """The ridge of least loss, and the losses (n,)."""
        losses = np.empty((len(ridges), len(X)))
        for part in parts:
            losses[:, part.outside] = part.losses(kind, count, ridges)
        least = int(losses.mean(axis=1).argmin())
        return GroupChoice(kind, count, ridges[least]), losses[least]

    total = len(layout.names)
    fewer: dict[GroupChoice, Array] = {}
    for kind in kinds:
        fewer |= _path(kind, [count for count in counts if count < total], tried)
    if total not in counts:
        return _fewest(fewer), None
    # all groups are the same candidate whatever ranks them; a value for each suits them best
    whole, whole_losses = tried(kinds[-1], total)
    if not fewer:
        return whole, None
    taken = _fewest(fewer)
    comparison = Comparison.of(taken.count, fewer[taken], whole_losses)
    return (taken if comparison.fewer <= comparison.whole else whole), comparison


def _path(
    kind: str, counts: Sequence[int], tried: Callable[[str, int], tuple[GroupChoice, Array]]
) -> dict[GroupChoice, Array]:
    """Losses for ascending counts, not followed further once two are worse than the best by two standard errors."""
    found: dict[GroupChoice, Array] = {}
    behind = 0
    for count in counts:
        choice, losses = tried(kind, count)
        found[choice] = losses
        best = min(found.values(), key=np.mean)
        behind = behind + 1 if _excess(losses, best) > 2 else 0
        if behind == 2:
            break
    return found


def _fewest(losses: dict[GroupChoice, Array]) -> GroupChoice:
    """The fewest groups whose loss is not above the least by more than a standard error of the difference."""
    least = min(losses.values(), key=np.mean)
    fewest = min(choice.count for choice in losses if _excess(losses[choice], least) <= 1)
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

    def losses(self, kind: str, count: int, ridges: Sequence[float]) -> Array:
        """Log-losses of the held-out samples for each ridge, (ridges, held-out), summed over the scores."""
        columns = self.layout.columns(self.ranks[kind][:count])
        total = np.zeros((len(ridges), len(self.test)))
        for signs, held in self.targets:
            heads = logistic_heads(self.train[:, columns], signs, ridges)
            scores = np.stack([self.test[:, columns] @ head.readout + head.bias for head in heads])
            total += np.logaddexp(0, -held * scores)
        return total


def _excess(losses: Array, reference: Array) -> float:
    """How much higher losses are than others of the same samples, in standard errors of the difference."""
    difference = losses - reference
    error = difference.std() / np.sqrt(len(difference))
    return float(difference.mean() / error) if error else 0.0
