"""Which groups, and how many: ranked by attention, counted by a small validation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Self

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray
from scipy.sparse import csc_array, hstack
from scipy.special import entr, softmax
from sklearn.model_selection import check_cv
from sklearn.utils.parallel import Parallel, delayed

from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.estimators.common import stratified_folds
from whichtoken.theory.group_sparse import default_learning_rate
from whichtoken.theory.group_sparse.encodings import positional_encodings
from whichtoken.theory.group_sparse.gradient import logistic_loss_and_gradient
from whichtoken.theory.sparse_tokens.convex_head import combined_path, logistic_heads

Array = NDArray[np.float64]

PRUNED = 1e-3  # attention below which a group is out
ROUNDS = 8
STEPS = 200
COARSE, BETWEEN = 1e-2, 1e-1  # tolerance of readouts that only rank or validate, and of those that another one follows
# products of samples, over all groups, that fit into a cache, and samples of which seven digits are enough to rank
PRODUCTS, LARGEST = 1 << 22, 1e3


def separate_attention(groups: list[Array], fixed: Array, signs: Array, shares: Array, ridge: float) -> Array:
    """A value vector for each group: score = sum_j s_j <v_j, x_j> + <u, c> + b.

    Given the products beta_j = s_j v_j, the attention of least ridge sum |v_j|^2 is s_j ~ |beta_j|^(2/3), so the readout
    and the attention are solved in turn. What is minimized is a penalty (sum_j |beta_j|^(2/3))^3, sparser than the group lasso.
    Groups of more variables need proportionally more: lengths are divided by sqrt(d_j).
    """
    parts = [*groups, fixed]
    widths = np.array([part.shape[1] for part in parts])
    # of few samples all that is needed is their products in each group: the sum of these for any attention
    few = widths.sum() > len(signs) and len(parts) * len(signs) ** 2 <= PRODUCTS
    few = few and all(np.abs(part).max(initial=0) < LARGEST for part in parts)
    place, features = np.repeat(np.arange(len(widths)), widths), np.empty(0) if few else np.hstack(parts)
    products = np.empty((len(parts) * few, len(signs), len(signs)), np.float32)
    for part, product in zip(parts, products, strict=few):
        single = part.astype(np.float32)
        np.matmul(single, single.T, out=product)
    attention, weights, bias, scores = np.full(len(groups), 1 / len(groups)), np.zeros(len(place)), 0.0, None
    for step in range(ROUNDS):
        # what the next round moves anyway need not be exact
        tolerance = COARSE if step == ROUNDS - 1 else BETWEEN
        kept = attention > PRUNED * attention.max()
        factors = np.append(attention * len(groups) * kept, 1.0)
        # each starts as good as the last round ended, with the new attention
        if few:
            summed = np.tensordot((factors**2).astype(np.float32), products, 1).astype(float)
            [(duals, bias, scores, _)] = combined_path(summed, signs, (ridge,), shares, tolerance, scores)
            squares = factors**4 * (products @ duals.astype(np.float32) @ duals)
        else:
            alive = np.append(kept, True)[place]
            factor = factors[place[alive]]
            start = weights[alive] / factor, bias
            [head] = logistic_heads(features[:, alive] * factor, signs, (ridge,), shares, tolerance, start)
            weights, bias = np.zeros(len(place)), head.bias
            weights[alive] = factor * head.readout
            squares = np.asarray(np.bincount(place, weights**2, len(widths)), dtype=float)
        lengths = np.sqrt(np.maximum(squares, 0) / np.maximum(widths, 1))[:-1]
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


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Shown):
    """Groups of columns, which may overlap, and columns that are always kept."""

    names: tuple[Any, ...]
    members: tuple[NDArray[np.intp], ...]  # columns of each group
    covariates: NDArray[np.intp]

    @property
    def overlaps(self) -> bool:
        """Whether a column is in several groups."""
        members = np.concatenate(self.members)
        return len(np.unique(members)) < len(members)

    def part(self, groups: Sequence[int] | NDArray[np.intp]) -> Layout:
        """Some of the groups."""
        return Layout(tuple(self.names[g] for g in groups), tuple(self.members[g] for g in groups), self.covariates)

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
            example = columns[missing[0]] if columns is not None else int(missing[0])
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

ATTENTIONS: dict[str, Attention] = {"separate": separate_attention, "full": full_attention}
RIDGES = tuple(np.logspace(-4, 0, 9).tolist())  # a coarser grid would handicap many groups, which need it, beside few
RANKING_RIDGE = 1e-2
HOPELESS = 2.0  # standard errors above another map in some folds, from which on the other folds are not waited for
SLACK = 0.01  # share of the explained loss that may be given up for fewer groups
# features of a column in splines, of a group in waves
BENDS = {"splines": 8, "fourier": 32}
TINY, LEAST = 1e-12, 1e-100  # differences below this, relative to a value of at least so much, are none
STRAIGHT = 0.5  # weight of a column beside its splines
MAPS = ("linear", *BENDS)


@dataclass(frozen=True)
class GroupChoice(Shown):
    """Kind of attention, map of the groups, number of groups and inverse ridge of the readout."""

    attention: str
    group_map: str
    count: int
    C: float  # the ridge is 1 / (C n) beside the mean loss, as in scikit-learn


@dataclass(frozen=True)
class GroupPath(Shown):
    """Held-out log losses for numbers of groups, of the same rows, and how many groups are kept.

    Kept are the fewest whose loss is close to the least: above it by at most one standard error of the difference, paired
    over rows, and by at most a hundredth of what the best number explains.
    """

    counts: tuple[int, ...]
    losses: tuple[float, ...]
    errors: tuple[float, ...]  # standard errors of the differences to the least loss
    chosen: int
    maps: dict[str, float]  # least loss on the path of each map that was tried in all folds

    def __str__(self) -> str:
        at = dict(zip(self.counts, self.losses, strict=True))
        others = dict.fromkeys((min(self.counts, key=lambda count: at[count]), self.counts[-1]))
        beside = [f"{at[count]:.4f} with {count}" for count in others if count != self.chosen]
        return ", ".join([f"held-out log loss {at[self.chosen]:.4f} with {pluralize(self.chosen, 'group')}", *beside])


@dataclass(frozen=True, eq=False)
class Standardization:
    """Mean and standard deviation of the columns, half the distance where there are two values, and 1 where there is one."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Array, weights: Array | None = None) -> Standardization:
        mean = np.average(X, axis=0, weights=weights)
        scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))
        low, high = X.min(axis=0), X.max(axis=0)
        # divided by its deviation, a rare category would be large, and a ridge would hardly hold its coefficient back
        scale = np.where(((low == X) | (high == X)).all(axis=0), (high - low) / 2, scale)
        return cls(mean, np.where(scale <= TINY * np.maximum(np.abs(mean), LEAST), 1.0, scale))

    def __call__(self, X: Array) -> Array:
        Z = X - self.mean
        Z /= self.scale
        return Z


@dataclass(frozen=True, eq=False, repr=False)
class GroupMap(Shown):
    """Features in which the readout is linear: the columns themselves, then bends of them, each of one group's columns.

    "splines": how far a column has come from each of its quantiles to the next, so that its effect is a line with bends.
    "fourier": cosines of random sums of a group's columns, so that these act together in any smooth way. Scores stay sums over
    groups.
    """

    kind: str
    directions: csc_array  # (columns, bends)
    offsets: Array  # (bends,)

    @classmethod
    def of(cls, kind: str, samples: Samples, layout: Layout, seed: int) -> GroupMap:
        """Learned from the training rows, for the groups of the layout."""
        X, weights = samples.X, samples.weights
        if kind == "splines":
            levels, used = np.linspace(0, 1, BENDS[kind] + 1), layout.columns(range(len(layout.names)))
            order = X[:, used].argsort(axis=0)
            reached = weights[order].cumsum(axis=0)
            places = [(reached / reached[-1] < level).sum(axis=0) for level in levels]
            at = np.take_along_axis(X[:, used], np.take_along_axis(order, np.array(places), axis=0), axis=0)
            knots = [np.unique(column) for column in at.T]
            # a column of two values has nothing to bend
            knots = [part if len(np.unique(X[:, c])) > 2 else part[:1] for c, part in zip(used, knots, strict=True)]
            starts, widths = (np.concatenate([*parts, []]) for parts in ([k[:-1] for k in knots], map(np.diff, knots)))
            columns = np.repeat(used, [len(part) - 1 for part in knots])
            wide = widths > TINY * np.maximum(np.abs(starts), LEAST)
            columns, starts, widths = columns[wide], starts[wide], widths[wide]
            entries = (1 / widths, (columns, np.arange(len(columns))))
            return cls(kind, csc_array(entries, shape=(X.shape[1], len(columns))), -starts / widths)
        rng, standardize, blocks = np.random.default_rng(seed), Standardization.of(X, weights), []
        for part in layout.members if kind == "fourier" else ():
            # three scales, as groups may act slowly or quickly
            waves = rng.standard_normal((len(part), BENDS[kind])) * np.resize([0.5, 1.0, 2.0], BENDS[kind])
            block = np.zeros((X.shape[1], BENDS[kind]))
            block[part] = waves / (standardize.scale[part, None] * np.sqrt(len(part)))
            blocks.append(csc_array(block))
        directions = hstack([csc_array((X.shape[1], 0)), *blocks], format="csc")
        offsets = rng.uniform(0, 2 * np.pi, directions.shape[1]) - standardize.mean @ directions
        return cls(kind, directions, np.asarray(offsets))

    def bent(self, sums: Array) -> Array:
        """Bends of sums of columns, (n, bends)."""
        return np.clip(sums, 0, 1) if self.kind == "splines" else np.cos(sums)

    def __call__(self, X: Array) -> Array:
        """Features (n, columns + bends)."""
        return np.hstack([X, self.bent(X @ self.directions + self.offsets)]) if len(self.offsets) else X

    @property
    def boosts(self) -> Array:
        """By how much standardized features are multiplied, so that bends have as much variance as their columns, or more."""
        pattern = (self.directions != 0).astype(float)  # (columns, bends)
        bends = np.asarray(pattern.sum(axis=1)).ravel()  # of each column
        columns = np.where(bends > 0, STRAIGHT, 1.0) if self.kind == "splines" else np.ones(len(bends))
        return np.concatenate([columns, np.sqrt((1 / np.maximum(bends, 1)) @ pattern)])

    def layout(self, of: Layout) -> Layout:
        """The same groups of features: a bend belongs where all of its columns do."""
        if not len(self.offsets):
            return of
        width, pattern = self.directions.shape[0], (self.directions != 0).astype(float)
        sizes = np.diff(self.directions.indptr)

        def with_bends(columns: Rows) -> Rows:
            inside = pattern.T @ np.isin(np.arange(width), columns).astype(float) == sizes
            return np.concatenate([columns, width + np.flatnonzero(inside)])

        return Layout(of.names, tuple(with_bends(part) for part in of.members), with_bends(of.covariates))

    def slopes(self, coef: Array, X: Array, center: Array) -> Array:
        """Slopes (n, scores, columns) whose products with X - center sum to the difference of the scores of X and center.

        The gradients of the scores, averaged over the straight way from center to X: one column's share in a bend is its
        share in the sum that is bent.
        """
        width = X.shape[1]
        if not len(self.offsets):
            return np.broadcast_to(coef, (len(X), *coef.shape))
        start, end = center @ self.directions + self.offsets, X @ self.directions + self.offsets
        change = end - start
        steep = np.divide(self.bent(end) - self.bent(start), change, out=np.zeros_like(change), where=change != 0)
        bends = (steep[:, None] * coef[:, width:]).reshape(-1, len(self.offsets)) @ self.directions.T
        return np.asarray(coef[:, :width] + bends.reshape(len(X), len(coef), width))


@dataclass(frozen=True, eq=False)
class Samples:
    """What a fit sees."""

    X: Array  # (n, features)
    codes: Rows  # number of the class, (n,)
    targets: Sequence[Array]  # -1 and +1 of each score, (n,) each
    weights: Array  # (n,); a row of weight 2 counts as two

    def part(self, rows: Rows) -> Samples:
        """Some of them."""
        return Samples(self.X[rows], self.codes[rows], [signs[rows] for signs in self.targets], self.weights[rows])

    @property
    def count(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum())

    @property
    def shares(self) -> Array:
        """The weights, of sum one."""
        return np.asarray(self.weights / self.count)


@dataclass(frozen=True)
class Candidates:
    """What is compared: maps, numbers of groups and ridges, in one layout with one kind of attention."""

    layout: Layout
    attention: str
    maps: Sequence[str]
    counts: Sequence[int]
    ridges: Sequence[float]
    seed: int


def group_attention(Z: Array, samples: Samples, layout: Layout, kind: str) -> Array:
    """Attention over the groups, (D,), averaged over the scores; Z (n, features) are the samples, standardized."""
    groups = [Z[:, columns] for columns in layout.members]
    fixed, shares = Z[:, layout.covariates], samples.shares
    found = [ATTENTIONS[kind](groups, fixed, signs, shares, RANKING_RIDGE) for signs in samples.targets]
    return np.asarray(np.mean(found, axis=0))


def validation_folds(
    codes: Rows, cv: Any, groups: NDArray[Any] | None, seed: int, used: NDArray[np.bool_]
) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows to validate on, counted among those that are used.

    A number of folds is cut at random, and is lower where a class has fewer members; there are none where it has one. Anything
    else is what scikit-learn accepts as `cv`.
    """
    if isinstance(cv, int | np.integer):
        codes, kept = codes[used], None if groups is None else groups[used]
        most = min(int(cv), int(np.bincount(codes).min()), len(codes) if kept is None else len(np.unique(kept)))
        parts = stratified_folds(codes, most, kept, seed) if most > 1 else []
    else:
        place = np.cumsum(used) - 1
        every = check_cv(cv).split(codes, codes, groups)
        parts = [(place[inside[used[inside]]], place[outside[used[outside]]]) for inside, outside in every]
        codes = codes[used]
    # whole groups may leave a part without a class
    return [
        (inside, outside)
        for inside, outside in parts
        if len(outside) and len(np.unique(codes[inside])) == codes.max() + 1
    ]


def choose_groups(
    samples: Samples,
    among: Candidates,
    repeats: Sequence[Sequence[tuple[Rows, Rows]]],
    jobs: int | None = None,
    say: bool = False,
) -> tuple[GroupChoice, GroupPath | None]:
    """The choice by log loss in a stratified cross-validation, which ranks the groups anew in every fold.

    How the folds are drawn moves the choice on a small table: where the first of the repeats does not tell all groups from the
    best number, the mean over all repeats decides.

    The path of ascending numbers of groups is followed for the linear map. A map that bends is taken only if its least loss
    is below the linear one's by more than a standard error of the paired difference; its path is followed if that is so with
    all groups, or with as many as the linear one needs, and fold after fold only as long as one of them is not two errors
    above. The path is None where nothing was compared.
    """
    counts, ridges, n, splits = among.counts, among.ridges, len(samples.X), repeats[0]
    if not splits or len(among.maps) == len(counts) == len(ridges) == 1:
        return GroupChoice(
            among.attention, among.maps[0], counts[-1], 1 / (ridges[len(ridges) // 2] * samples.count)
        ), None
    run = Parallel(n_jobs=jobs, prefer="threads")
    validated, times = np.unique(np.concatenate([outside for _, outside in splits]), return_counts=True)
    compare = _Comparison.of(samples.part(validated))
    paths: dict[str, dict[GroupChoice, Array]] = {}
    for kind in among.maps:
        rival = compare.shortest(paths["linear"]) if "linear" in paths else None
        make = partial(_Fold, samples, among, kind)
        if rival is None:
            parts = run(delayed(make)(*rows) for rows in splits)
        else:
            parts = _promising(make, splits, _rivaling(counts, rival), rival[1], compare, validated)
        if not parts:
            continue

        def tried(count: int, kind: str = kind, parts: list[_Fold] = parts) -> Tried:
            """The ridge of least loss, and the losses of the held-out samples."""
            ridges = parts[0].ridges
            losses = np.zeros((len(ridges), n))
            for part, found in zip(parts, run(delayed(part.losses)(count) for part in parts), strict=True):
                losses[:, part.outside] += found
            losses = losses[:, validated] / times
            means = [compare.mean(row) for row in losses]
            least = int(np.argmin(means))
            if say:
                mean = means[least]
                print(f"{kind}, {pluralize(count, 'group')}: held-out log loss {mean:.4f}", file=sys.stderr)
            return GroupChoice(among.attention, kind, count, 1 / (ridges[least] * samples.count)), losses[least]

        paths[kind] = _path(counts, tried, rival, compare)
    best = {kind: min(path.values(), key=compare.mean) for kind, path in paths.items()}
    first, *others = sorted(best, key=lambda kind: compare.mean(best[kind]))
    if "linear" in others and compare.excess(best["linear"], best[first]) <= 1:
        first = "linear"
    path, (taken, _) = paths[first], compare.shortest(paths[first])
    found = GroupPath(
        tuple(choice.count for choice in path),
        tuple(compare.mean(losses) for losses in path.values()),
        tuple(compare.error(losses, best[first]) for losses in path.values()),
        taken.count,
        {kind: compare.mean(losses) for kind, losses in best.items()},
    )
    if len(repeats) > 1 and len(counts) > 1 and found.losses[-1] - min(found.losses) <= 2 * found.errors[-1]:
        return choose_groups(samples, among, [list(chain(*repeats))], jobs, say)
    # without a group there is nothing to bend
    return taken if taken.count else replace(taken, group_map="linear"), found


Tried = tuple[GroupChoice, Array]


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Compares log losses (n,) of the same held-out rows."""

    weights: Array  # (n,)
    constant: float  # loss of the same answer for every row

    @classmethod
    def of(cls, held: Samples) -> Self:
        chances = [held.shares @ (signs > 0) for signs in held.targets]
        return cls(held.weights, sum(float(entr([chance, 1 - chance]).sum()) for chance in chances))

    def mean(self, losses: Array) -> float:
        return float(self.weights @ losses / self.weights.sum())

    def error(self, losses: Array, reference: Array) -> float:
        """Standard error of the difference of the means."""
        difference = losses - reference
        spread = self.mean((difference - self.mean(difference)) ** 2)
        return float(np.sqrt(spread / self.weights.sum()))

    def excess(self, losses: Array, reference: Array) -> float:
        """How much higher losses are than others, in standard errors of the difference."""
        error = self.error(losses, reference)
        return self.mean(losses - reference) / error if error else 0.0

    def shortest(self, path: dict[GroupChoice, Array]) -> Tried:
        """The fewest groups that are close to the least loss, and the losses that are least."""
        best = min(path.values(), key=self.mean)
        most = SLACK * max(0.0, self.constant - self.mean(best))

        def close(count: int, losses: Array) -> bool:
            # none at all only has to be within a standard error: where nothing matters, nothing can be given up
            return self.excess(losses, best) <= 1 and (count == 0 or self.mean(losses - best) <= most)

        return next(choice for choice, losses in path.items() if close(choice.count, losses)), best


def _path(
    counts: Sequence[int], tried: Callable[[int], Tried], rival: Tried | None, compare: _Comparison
) -> dict[GroupChoice, Array]:
    """Losses of ascending counts and of all groups, not followed further once two are worse than the best by two errors.

    With the choice of a rival and its least losses, followed only if these are beaten by more than an error.
    """
    found = dict([tried(counts[-1])])
    if rival is not None:
        found |= dict(map(tried, _rivaling(counts, rival)[1:]))
        if all(compare.excess(rival[1], losses) <= 1 for losses in found.values()):
            counts = ()
    behind = 0
    for count in counts[:-1]:
        choice, losses = tried(count)
        found[choice] = losses
        least, best = min(found.items(), key=lambda pair: compare.mean(pair[1]))
        behind = behind + 1 if least.count < count and compare.excess(losses, best) > 2 else 0
        if behind == 2:
            break
    return dict(sorted(found.items(), key=lambda pair: pair[0].count))


def _rivaling(counts: Sequence[int], rival: Tried) -> list[int]:
    """All groups, and as many as the rival needs."""
    return list(dict.fromkeys([counts[-1], min(max(rival[0].count, 1), counts[-1])]))


def _promising(
    make: Callable[[Rows, Rows], _Fold],
    splits: Sequence[tuple[Rows, Rows]],
    counts: Sequence[int],
    rival: Array,
    compare: _Comparison,
    validated: Rows,
) -> list[_Fold]:
    """All folds, or none if the losses of some are clearly above the rival's of the same rows, for each of the counts."""
    folds: list[_Fold] = []
    for rows in splits:
        if folds:
            place = np.searchsorted(validated, np.concatenate([fold.outside for fold in folds]))
            here = replace(compare, weights=compare.weights[place])
            least = (min(np.hstack([fold.losses(count) for fold in folds]), key=here.mean) for count in counts)
            if all(here.excess(losses, rival[place]) > HOPELESS for losses in least):
                return []
        folds.append(make(*rows))
    return folds


class _Fold:
    """Standardized features of the training and held-out parts, with the groups ranked on the training part."""

    def __init__(self, samples: Samples, among: Candidates, kind: str, inside: Rows, outside: Rows) -> None:
        training, held = samples.part(inside), samples.part(outside)
        maps = GroupMap.of(kind, training, among.layout, among.seed)
        features, boosts, self.layout = maps(training.X), maps.boosts, maps.layout(among.layout)
        standardize = Standardization.of(features, training.weights)
        # bends cost more, and need less precision
        self.ridges = among.ridges[:: 1 if kind == "linear" else 2]
        self.outside, self.training, self.held = outside, training, held
        self.train, self.test = standardize(features), standardize(maps(held.X))
        self.train *= boosts
        self.test *= boosts
        self.attention = among.attention
        self.known: dict[int, Array] = {}

    @cached_property
    def order(self) -> Rows:
        """The groups by attention."""
        return np.argsort(-group_attention(self.train, self.training, self.layout, self.attention), kind="stable")

    def losses(self, count: int) -> Array:
        """Log losses of the held-out samples for each ridge, (ridges, held-out), summed over the scores."""
        if count in self.known:
            return self.known[count]
        columns = self.layout.columns(self.order[:count] if 0 < count < len(self.layout.names) else range(count))
        total = np.full((len(self.ridges), len(self.test)), np.inf)  # of ridges that are weaker than a hopeless one
        train, test, shares = self.train[:, columns], self.test[:, columns], self.training.shares
        weakening, targets = self.ridges[::-1], self.training.targets
        paths: Any = [logistic_heads(train, signs, weakening, shares, COARSE) for signs in targets]
        if len(paths) > 1:  # one after the other, as each needs memory
            paths = [list(path) for path in paths]
        compare = _Comparison.of(self.held)
        best = total[-1]
        for losses, heads in zip(total[::-1], zip(*paths, strict=True), strict=False):
            losses[:] = 0
            for held, head in zip(self.held.targets, heads, strict=True):
                losses += np.logaddexp(0, -held * (test @ head.readout + head.bias))
            best = min(best, losses, key=compare.mean)
            if compare.excess(losses, best) > HOPELESS:
                break
        self.known[count] = total
        return total
