"""Which groups, and how many: ranked by attention, counted by a small validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.utils.parallel import Parallel, delayed

from whichtoken.display.shown import Shown
from whichtoken.display.text import counted
from whichtoken.estimators._common import stratified_folds
from whichtoken.theory.group_sparse import default_learning_rate
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.gradient import logistic_loss_and_gradient
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads

Array = NDArray[np.float64]

PRUNED = 1e-3  # attention below which a group is out
ROUNDS = 8
STEPS = 200


def shared_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """One value vector v for all groups: score = sum_j s_j <v, x_j> + <u, c> + b with s a softmax of free scores.

    The position-only form of the transformer of Zhang, Meng, Cao (arXiv 2504.08638), d + D numbers. The start is the best
    rank-one approximation of the correlations of groups and label, where gradient descent from zero goes first.
    """
    X = np.stack(groups, axis=1)  # (n, D, d)
    count = X.shape[1]
    covariance = np.tensordot(shares * (signs - shares @ signs), X, axes=1)  # (D, d)
    left, _, right = np.linalg.svd(covariance, full_matrices=False)
    value = right[0] * np.sign(left[:, 0].sum() or 1.0)
    side = np.abs(left[:, 0])
    starts = [np.zeros(count), np.log(side + 0.1 * side.max())]
    found = [_descend(X, fixed, signs, shares, ridge, (logits, value)) for logits in starts]
    return min(found, key=lambda pair: pair[0])[1]


def _descend(
    X: Array, fixed: Array, signs: Array, shares: Array, ridge: float, start: tuple[Array, Array]
) -> tuple[float, Array]:
    """Objective and attention after L-BFGS on scores, value vector, covariates and bias together."""
    (logits, value), (_, count, width) = start, X.shape
    ends = np.cumsum([count, width, fixed.shape[1]])

    def objective(packed: Array) -> tuple[float, Array]:
        scores, v, u, (bias,) = np.split(packed, ends)
        attention = softmax(scores)
        values = X @ v  # (n, D)
        mean = values @ attention
        margins = signs * (mean + fixed @ u + bias)
        slopes = -signs * expit(-margins) * shares
        received = slopes @ values  # (D,)
        gradient = np.concatenate(
            [
                attention * (received - slopes @ mean),
                np.tensordot(slopes, np.tensordot(X, attention, axes=(1, 0)), axes=1) + ridge * v,
                fixed.T @ slopes + ridge * u,
                [slopes.sum()],
            ]
        )
        return float(shares @ np.logaddexp(0, -margins) + ridge / 2 * (v @ v + u @ u)), gradient

    first = np.concatenate([logits, 0.1 * value, np.zeros(fixed.shape[1] + 1)])
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    return float(found.fun), softmax(found.x[:count])


def separate_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """A value vector for each group: score = sum_j s_j <v_j, x_j> + <u, c> + b.

    Given the products beta_j = s_j v_j, the attention of least ridge sum |v_j|^2 is s_j ~ |beta_j|^(2/3), so the readout
    and the attention are solved in turn. What is minimized is a penalty (sum_j |beta_j|^(2/3))^3, sparser than the group lasso.
    Groups of more variables need proportionally more: lengths are divided by sqrt(d_j).
    """
    attention = np.full(len(groups), 1 / len(groups))
    for _ in range(ROUNDS):
        alive = np.flatnonzero(attention > PRUNED * attention.max())
        features = np.hstack([*(attention[j] * len(groups) * groups[j] for j in alive), fixed])
        readout = logistic_heads(features, signs, (ridge,), shares)[0].readout
        parts = np.split(readout, np.cumsum([groups[j].shape[1] for j in alive]))
        lengths = np.zeros(len(groups))
        for j, part in zip(alive, parts, strict=False):  # the last part belongs to the covariates
            lengths[j] = attention[j] * np.linalg.norm(part) / np.sqrt(len(part))
        if not lengths.any():
            break
        attention = lengths ** (2 / 3)
        attention /= attention.sum()
    return attention


def full_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """Mean attention of the whole one-layer transformer, whose scores also depend on the variables.

    Trained from zero by gradient descent, where ridge and weights have no place; shorter groups are filled up with zeros,
    and covariates, which are no tokens, are left to the readout.
    """
    if len(groups) == 1:
        return np.ones(1)
    width = max(group.shape[1] for group in groups)
    X = np.stack([np.pad(group, ((0, 0), (0, width - group.shape[1]))) for group in groups], axis=1)
    encodings = positional_encodings("sine", len(groups))
    W, v = np.zeros((width + len(groups),) * 2), np.zeros(width + len(groups))
    lr, threads = default_learning_rate(groups=len(groups)), get_num_threads()
    for _ in range(STEPS):
        _, W_gradient, v_gradient = logistic_loss_and_gradient(X, signs, encodings, W, v, threads)
        W -= lr * W_gradient
        v -= lr * v_gradient
    positions = np.broadcast_to(encodings, (len(X), *encodings.shape))
    tokens = np.concatenate([X, positions], axis=2)  # (n, groups, width + groups)
    weights = softmax(tokens @ W @ tokens.mT, axis=1)  # (n, keys, queries)
    return np.asarray(weights.mean(axis=(0, 2)))


@dataclass(frozen=True, eq=False)
class Layout:
    """Groups of columns, which may overlap, and columns that are always kept."""

    names: tuple[Any, ...]
    members: tuple[NDArray[np.intp], ...]  # columns of each group
    covariates: NDArray[np.intp]

    @property
    def equal(self) -> bool:
        """Whether all groups have the same size, so that one value vector can read them all."""
        return len({len(columns) for columns in self.members}) == 1

    def columns(self, groups: Sequence[int] | NDArray[np.intp]) -> NDArray[np.intp]:
        """Columns of some groups, once each and in ascending order, with the covariates."""
        parts = [self.covariates, *(self.members[g] for g in groups)]
        return np.unique(np.concatenate(parts)).astype(np.intp)


def parse_groups(groups: Any, covariates: Any, features: int, columns: Sequence[str] | None) -> Layout:
    """The layout of `features` columns.

    Parameters
    ----------
    groups
        A group id or name per column (array or list); a mapping of group name to columns, by name or index; or None, when
        each column is a group of its own.
    covariates
        Columns that belong to no group and are always kept, by name or index. Ids of such columns are ignored.
    columns
        Names of the columns, where the data have them.
    """
    kept = _indices("covariates", () if covariates is None else covariates, features, columns)
    if isinstance(groups, Mapping):
        names = tuple(groups)
        members = tuple(_indices(f"group {name!r}", part, features, columns) for name, part in groups.items())
        if not names:
            raise ValueError("groups={} is empty; at least one group must be named")
        for name, part in zip(names, members, strict=True):
            if not len(part):
                raise ValueError(f"group {name!r} has no columns")
            if np.intersect1d(part, kept).size:
                raise ValueError(f"group {name!r} contains covariates; a column is one or the other")
        missing = np.setdiff1d(np.arange(features), np.concatenate([kept, *members]))
        if missing.size:
            example = columns[missing[0]] if columns is not None else missing[0]
            raise ValueError(
                f"groups do not cover {missing.size} of the {features} columns, such as {example!r}; add it to a group or to"
                " covariates"
            )
        return Layout(names, members, kept)
    if groups is None:
        ids: NDArray[Any] = np.array(columns if columns is not None else range(features), dtype=object)
    else:
        ids = np.asarray(groups)
    if ids.ndim != 1 or len(ids) != features:
        raise ValueError(f"groups must name a group for each of the {features} columns of X; got {ids.shape} ids")
    free = np.setdiff1d(np.arange(features), kept)
    names = tuple(dict.fromkeys(ids[free].tolist()))  # in the order of the columns
    if not names:
        raise ValueError("groups: every column is a covariate; at least one must belong to a group")
    return Layout(names, tuple(free[ids[free] == name] for name in names), kept)


def _indices(where: str, wanted: Any, features: int, columns: Sequence[str] | None) -> NDArray[np.intp]:
    """Columns given by name or index, or one of them, as indices in the order given, each once."""
    places = {name: place for place, name in enumerate(columns)} if columns is not None else {}
    found = []
    for column in [wanted] if isinstance(wanted, str | int | np.integer) else wanted:
        if isinstance(column, str) and column in places:
            found.append(places[column])
        elif isinstance(column, int | np.integer) and 0 <= column < features:
            found.append(int(column))
        else:
            raise ValueError(f"{where}: X has no column {column!r}; columns are names of X or 0 to {features - 1}")
    return np.array(list(dict.fromkeys(found)), dtype=np.intp)


Rows = NDArray[np.intp]
Attention = Callable[[list[Array], Array, Array, Array, float], Array]

ATTENTIONS: dict[str, Attention] = {"shared": shared_attention, "separate": separate_attention, "full": full_attention}
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
class Standardization:
    """Mean and standard deviation of the columns; constant columns have scale 1."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Array) -> Standardization:
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
        return np.asarray(self.weights / self.weights.sum())


@dataclass(frozen=True)
class Candidates:
    """What is compared: kinds of attention, numbers of groups and ridges, in one layout."""

    layout: Layout
    kinds: Sequence[str]
    counts: Sequence[int]
    ridges: Sequence[float]


def group_attention(Z: Array, samples: Samples, layout: Layout, kind: str) -> Array:
    """Attention over the groups, (D,), averaged over the scores; Z (n, features) are the samples, standardized."""
    groups = [Z[:, columns] for columns in layout.members]
    fixed, shares = Z[:, layout.covariates], samples.shares
    found = [ATTENTIONS[kind](groups, fixed, signs, shares, RANKING_RIDGE) for signs in samples.targets]
    return np.asarray(np.mean(found, axis=0))


def validation_folds(codes: Rows, folds: int, groups: NDArray[Any] | None, seed: int) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows to validate on; fewer folds where a class has fewer members, none where it has one."""
    most = min(folds, int(np.bincount(codes).min()), len(codes) if groups is None else len(np.unique(groups)))
    if most < 2:
        return []
    parts = stratified_folds(codes, most, groups, seed)
    # whole groups may leave a part without a class
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
    validated = np.sort(np.concatenate([part.outside for part in parts]))

    def tried(kind: str, count: int) -> tuple[GroupChoice, Array]:
        """The ridge of least loss, and the losses of the held-out samples."""
        losses = np.full((len(ridges), n), np.nan)
        for part, found in zip(parts, run(delayed(part.losses)(kind, count) for part in parts), strict=True):
            losses[:, part.outside] = found
        losses = losses[:, validated]
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
    """Standardized training and held-out parts with the groups ranked on the training part."""

    def __init__(self, samples: Samples, among: Candidates, inside: Rows, outside: Rows) -> None:
        training, held = samples.part(inside), samples.part(outside)
        standardize = Standardization.of(training.X)
        self.outside, self.among, self.training, self.held = outside, among, training, held
        self.train, self.test = standardize(training.X), standardize(held.X)
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
