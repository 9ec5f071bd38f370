"""Which groups, and how many: ranked by attention, counted by a small validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.parallel import Parallel, delayed

from whichtoken.display.shown import Shown
from whichtoken.display.text import counted
from whichtoken.estimators.cluster_split import stratified_folds
from whichtoken.estimators.groups.attention import full_attention, separate_attention, shared_attention
from whichtoken.estimators.groups.layout import Layout
from whichtoken.training.convex_head import logistic_heads

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
Attention = Callable[[list[Array], Array, Array, Array, float], Array]

ATTENTIONS: dict[str, Attention] = {
    "shared": shared_attention,
    "separate": separate_attention,
    "full": full_attention,
}
RIDGES = tuple(np.logspace(-4, 0, 9).tolist())  # a coarser grid would handicap many groups, which need it, beside few
RANKING_RIDGE = 1e-2


@dataclass(frozen=True)
class GroupChoice(Shown):
    """Kind of attention, number of groups and inverse ridge of the readout."""

    attention: str
    count: int
    C: float  # the ridge is 1 / (C n) beside the mean loss, as in scikit-learn


@dataclass(frozen=True)
class Comparison(Shown):
    """What the validation saw of fewer groups beside all of them; held-out log losses of the same samples."""

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
            f"held-out log loss {self.fewer:.4f} with {self.count}, {self.whole:.4f} with all,"
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


@dataclass(frozen=True, eq=False)
class Samples:
    """What a fit sees."""

    X: Array  # (n, features)
    codes: Rows  # number of the class, (n,)
    targets: Sequence[Array]  # -1 and +1 of each score, (n,) each
    weights: Array  # (n,), of mean one

    def part(self, rows: Rows) -> Samples:
        """Some of them."""
        return Samples(self.X[rows], self.codes[rows], [signs[rows] for signs in self.targets], self.weights[rows])

    @property
    def shares(self) -> Array:
        """The weights, of sum one."""
        shares: Array = self.weights / self.weights.sum()
        return shares


@dataclass(frozen=True)
class Candidates:
    """What is compared: kinds of attention, numbers of groups and ridges, in one layout."""

    layout: Layout
    kinds: Sequence[str]
    counts: Sequence[int]
    ridges: Sequence[float]


def group_attention(Z: Array, samples: Samples, layout: Layout, kind: str) -> Array:
    """Attention over the groups, (D,), averaged over the scores; Z (n, features) are the samples, standardised."""
    groups = [Z[:, columns] for columns in layout.members]
    fixed, shares = Z[:, layout.covariates], samples.shares
    found = [ATTENTIONS[kind](groups, fixed, signs, shares, RANKING_RIDGE) for signs in samples.targets]
    attention: Array = np.mean(found, axis=0)
    return attention


def validation_folds(codes: Rows, folds: int, clusters: NDArray[Any] | None, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows to judge on; fewer folds where a class has fewer members, none where it has one."""
    most = min(folds, int(np.bincount(codes).min()), len(codes) if clusters is None else len(np.unique(clusters)))
    if most < 2:
        return []
    parts = stratified_folds(codes, most, clusters, seed)
    # whole clusters may leave a part without a class
    return [(inside, outside) for inside, outside in parts if len(np.unique(codes[inside])) == codes.max() + 1]


def choose_groups(
    samples: Samples, among: Candidates, splits: Sequence[tuple[Rows, Rows]], jobs: int | None = None, say: bool = False
) -> tuple[GroupChoice, Comparison | None]:
    """The choice by log loss in a stratified cross-validation, which ranks the groups anew in every fold.

    The fewest groups are sought whose loss is not above the least by more than a standard error of the paired difference.
    They are taken only if they predict at least as well as all groups do: a standard error is much where many groups carry
    a little, so a selection that costs anything is none. The comparison is None where there is nothing to compare.
    """
    kinds, counts, ridges, n = among.kinds, among.counts, among.ridges, len(samples.X)
    if not splits or len(kinds) == len(counts) == len(ridges) == 1:
        return GroupChoice(kinds[0], counts[0], 1 / (ridges[len(ridges) // 2] * n)), None
    run = Parallel(n_jobs=jobs, prefer="threads")
    parts = run(delayed(_Fold)(samples, among, *rows) for rows in splits)
    judged = np.sort(np.concatenate([part.outside for part in parts]))

    def tried(kind: str, count: int) -> tuple[GroupChoice, Array]:
        """The ridge of least loss, and the losses of the held-out samples."""
        losses = np.full((len(ridges), n), np.nan)
        for part, found in zip(parts, run(delayed(part.losses)(kind, count) for part in parts), strict=True):
            losses[:, part.outside] = found
        losses = losses[:, judged]
        least = int(losses.mean(axis=1).argmin())
        if say:
            print(f"{kind}, {counted(count, 'group')}: held-out log loss {losses[least].mean():.4f}", file=sys.stderr)
        return GroupChoice(kind, count, 1 / (ridges[least] * n)), losses[least]

    total = len(among.layout.names)
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

    def __init__(self, samples: Samples, among: Candidates, inside: Rows, outside: Rows) -> None:
        training, held = samples.part(inside), samples.part(outside)
        standardise = Standardisation.of(training.X)
        self.outside, self.among, self.training, self.held = outside, among, training, held
        self.train, self.test = standardise(training.X), standardise(held.X)
        self.ranks = {
            kind: np.argsort(-group_attention(self.train, training, among.layout, kind), kind="stable")
            for kind in among.kinds
        }

    def losses(self, kind: str, count: int) -> Array:
        """Weighted log losses of the held-out samples for each ridge, (ridges, held-out), summed over the scores."""
        columns = self.among.layout.columns(self.ranks[kind][:count])
        total = np.zeros((len(self.among.ridges), len(self.test)))
        for signs, held in zip(self.training.targets, self.held.targets, strict=True):
            heads = logistic_heads(self.train[:, columns], signs, self.among.ridges, self.training.shares)
            scores = np.stack([self.test[:, columns] @ head.readout + head.bias for head in heads])
            total += np.logaddexp(0, -held * scores)
        return total * self.held.weights


def _excess(losses: Array, reference: Array) -> float:
    """How much higher losses are than others of the same samples, in standard errors of the difference."""
    difference = losses - reference
    error = difference.std() / np.sqrt(len(difference))
    return float(difference.mean() / error) if error else 0.0
