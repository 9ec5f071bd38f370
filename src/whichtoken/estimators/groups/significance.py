"""Which groups of columns matter, with error control: permutation tests of each group given all the others.

The hypothesis of a group g is conditional: the labels do not depend on its columns X_g once all other columns X_-g are known.
A group that only resembles one that matters is therefore a true null.

1. The labels are predicted by attention fitted without g, on the groups that are strongest by themselves; r is what is left.
2. The columns of g are predicted by ridge regressions on all other columns; R is what is left.
3. The statistic is the squared length of r in the span of R: the slope of the loss in the value vector of g, where attention
   would go first. r is permuted against R.

Where groups are independent of each other, R = X_g: permuting the rows of X_g leaves the joint law with (labels, X_-g) as
it is if the hypothesis holds, and step 1 never saw X_g, so the p-value is exact for any law of the labels. Where they are
correlated, it is valid to the order of the product of the errors of steps 1 and 2, if X_g depends on the others
linearly: the distilled conditional randomization test of Liu, Katsevich, Janson, Ramdas (Biometrika 2022). Both residuals are
orthogonal to what both regressions used, which makes chance agreements larger than those of permutations; `_inflation`
corrects that.

Given each other, near copies add nothing, so none of them passes. Groups of which one says nearly all of another are therefore
tested together as well, before their members. The family-wise error of unions and groups together is bounded by one step-down
procedure (`step_down`), which is Holm's where there are no near copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import expit
from sklearn.utils import check_array, check_random_state

from whichtoken.checks import check_choice, check_features, check_integer, check_range
from whichtoken.display.shown import Shown
from whichtoken.display.text import pluralize
from whichtoken.estimators.common import encode_labels, plain_label, signs_of
from whichtoken.estimators.groups.selection import (
    RANKING_RIDGE,
    Layout,
    Rows,
    Samples,
    Standardization,
    parse_groups,
    separate_attention,
)
from whichtoken.theory.sparse_tokens.convex_head import logistic_heads
from whichtoken.threads import one_thread

Array = NDArray[np.float64]

CONTROLS = ("fwer", "fdr")
SCREENED = 8  # groups that predict the labels without the tested one
EXCEEDED = 50  # permutations that reach the statistic, after which a large p-value is known well enough
LEAST_PERMUTATIONS, BATCH = 2000, 500
SHOWN = 5  # names of groups in a sentence
COPIED = 0.8  # share of a group's variance that another one says, from which on they are near copies
LARGEST = 1 / 3  # directions of a group that are tested, and columns of a union, per row; more leave a test no power
FOLDS = 3
PENALTIES = (1e-4, 0.01, 0.1, 1.0, np.inf)  # per row, of the regression of a group on the others; infinity is none


@dataclass(frozen=True)
class UnionTest(Shown):
    """Groups that are near copies of each other, tested as one."""

    groups: tuple[Any, ...]
    p_value: float
    adjusted: float


@dataclass(frozen=True, eq=False)
class GroupTests(Shown):
    """p-values of groups, and which groups are selected at the level; in the order of the groups."""

    names: tuple[Any, ...]
    p_values: Array
    adjusted: Array  # a group is selected where this is at most alpha
    alpha: float
    control: str  # "fwer": Holm; "fdr": Benjamini and Hochberg
    shares: Array | None = None  # of random halves of the rows in which a group is selected
    unions: tuple[UnionTest, ...] = ()  # of near copies

    @property
    def selected(self) -> list[Any]:
        """Groups that pass, by p-value; may be empty."""
        order = np.argsort(self.p_values, kind="stable")
        return [self.names[g] for g in order if self.adjusted[g] <= self.alpha]

    @property
    def undecided(self) -> list[UnionTest]:
        """Near copies that pass together while none of them passes alone: which of them matters cannot be told."""
        alone = set(self.selected)
        return [one for one in self.unions if one.adjusted <= self.alpha and not alone.intersection(one.groups)]

    def __str__(self) -> str:
        least, rate = int(self.adjusted.argmin()), {"fwer": "family-wise error", "fdr": "false discovery rate"}
        none = "no group alone" if self.undecided else "no group"
        found = f"{pluralize(len(self.selected), 'group')} of {len(self.names)}" if self.selected else none
        said = (
            f"{found} at {rate[self.control]} {self.alpha:g}; smallest adjusted p-value"
            f" {self.adjusted[least]:.2g}, for group {self.names[least]}"
        )
        return "; ".join([said, *map(_union_sentence, self.undecided)])

    def as_json(self) -> dict[str, Any]:
        """Everything but the names, as a model folder keeps it."""
        shares = None if self.shares is None else self.shares.tolist()
        lists = {"p_values": self.p_values.tolist(), "adjusted": self.adjusted.tolist(), "shares": shares}
        unions = [asdict(one) for one in self.unions]
        return {**lists, "alpha": self.alpha, "control": self.control, "unions": unions}

    @classmethod
    def from_json(cls, names: Sequence[Any], parts: dict[str, Any]) -> Self:
        """What `as_json` wrote."""
        lists = {name: np.array(parts[name]) for name in ("p_values", "adjusted", "shares") if parts[name] is not None}
        unions = tuple(UnionTest(tuple(one.groups), one.p_value, one.adjusted) for one in parts["unions"])
        return cls(tuple(names), **{**parts, **lists, "unions": unions})


def _union_sentence(union: UnionTest) -> str:
    names = ", ".join(map(str, union.groups[:SHOWN])) + (", ..." if len(union.groups) > SHOWN else "")
    return (
        f"groups {names} carry the same signal, together with adjusted p-value {union.adjusted:.2g}; the data cannot tell"
        " which of them matters"
    )


@dataclass(frozen=True)
class TransferTest(Shown):
    """p-values on new data: of "the selected groups carry nothing" and of "no other group adds to them"."""

    signal: float
    others: float  # the least of the other groups, after Holm
    adding: list[Any]  # other groups that pass
    alpha: float

    @property
    def holds(self) -> bool:
        """Whether the selected groups carry signal and no other is seen to add to it, at the level."""
        return self.signal <= self.alpha < self.others

    def __str__(self) -> str:
        carry = "carry signal" if self.signal <= self.alpha else "are not seen to carry signal"
        names = ", ".join(map(str, self.adding))
        add = (
            f"{names} {'adds' if len(self.adding) == 1 else 'add'} to it" if names else "no other is seen to add to it"
        )
        return f"the selected groups {carry} (p = {self.signal:.2g}), {add} (p = {self.others:.2g})"


def group_tests(
    X: ArrayLike,
    y: ArrayLike,
    groups: Any = None,
    *,
    covariates: Any = None,
    alpha: float = 0.05,
    control: str = "fwer",
    resamples: int = 0,
    random_state: Any = None,
) -> GroupTests:
    """Test which columns, or groups of columns, the labels depend on, given all the others.

    Reach for it to know which groups matter with a bounded error rate, whatever model you use afterwards. Rows must be
    independent. Columns may be anything that is counted or measured once per row: measurements, words of a document (counts),
    statistics of a bag, or instances at fixed places (`X.reshape(n, -1)` with the place as the group). What an instance of
    a bag without places does has no p-value, as only the bag has a label.

    Parameters
    ----------
    X : (n, features)
        Finite numbers.
    y : (n,)
        Labels of two or more classes.
    groups, covariates : optional
        As for `GroupClassifier`; each column by itself, and none.
    alpha : float, default=0.05
        Level.
    control : {"fwer", "fdr"}, default="fwer"
        "fwer" bounds the chance of any wrong group, by Holm's method, which holds under any dependence. "fdr" bounds the
        expected share of wrong groups among those selected, and of wrong unions among those that pass, by that of Benjamini
        and Hochberg, for positive dependence.
    resamples : int, default=0
        Random halves of the rows in which groups are selected again, for `shares`: how stable a selection is.
    random_state : int, RandomState or None
        Seed for permutations and halves.

    Returns
    -------
    GroupTests
        p-values and what is selected, which may be nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken.estimators import group_tests
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> found = group_tests(X, X[:, 2] + X[:, 3] > 0, ["a", "a", "b", "b", "c", "c"], random_state=0)
    >>> found.selected
    ['b']
    >>> str(group_tests(X, np.arange(200) % 2, random_state=0)).split(";")[0]
    'no group at family-wise error 0.05'
    """
    names = [str(name) for name in X.columns] if hasattr(X, "columns") else None
    table = check_array(X, dtype=np.float64, ensure_all_finite=False, input_name="X")
    check_features(table, "features")
    classes, codes = encode_labels(y, len(table))
    check_range("alpha", alpha, 0.0, 1.0)
    check_choice("control", control, CONTROLS)
    check_integer("resamples", resamples, 0)
    layout = parse_groups(groups, covariates, table.shape[1], names)
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31))
    samples = Samples(table, codes, signs_of(codes, len(classes)), np.ones(len(table)))
    with one_thread():
        found = tested(samples, layout, alpha, control, rng)
        passed = [
            tested(samples.part(_half(codes, rng)), layout, alpha, control, rng).adjusted <= alpha
            for _ in range(resamples)
        ]
    return replace(found, shares=np.mean(passed, axis=0) if passed else None)


def tested(samples: Samples, layout: Layout, alpha: float, control: str, rng: np.random.Generator) -> GroupTests:
    """p-values of all groups, and of unions of near copies."""
    names = tuple(plain_label(name) for name in layout.names)
    aside = rng.spawn(1)[0]
    clusters = near_copies(samples.X, layout)
    found = p_values(samples, layout, alpha, rng, clusters)
    widest = LARGEST * len(samples.X)
    several = [k for k, part in enumerate(clusters) if len(part) > 1 and len(layout.columns(part)) <= widest]
    together = np.ones(0)
    if several:
        members = tuple(np.unique(np.concatenate([layout.members[g] for g in part])) for part in clusters)
        merged = Layout(tuple(range(len(clusters))), members, layout.covariates)
        together = p_values(samples, merged, alpha, aside, [[k] for k in merged.names], several)
    if control == "fwer":
        adjusted, whole = step_down(found, together, [clusters[k] for k in several])
    else:
        # a rate for each: unions that pass would make room for wrong groups
        adjusted, whole = adjust(found, control), adjust(together, control)
    unions = tuple(
        UnionTest(tuple(names[g] for g in clusters[k]), float(p), float(after))
        for k, p, after in zip(several, together, whole, strict=True)
    )
    return GroupTests(names, found, adjusted, alpha, control, unions=unions)


def near_copies(X: Array, layout: Layout) -> list[list[int]]:
    """Places of the groups, those of which one says nearly all of another together (complete linkage)."""
    count, alone = len(layout.names), [[g] for g in range(len(layout.names))]
    Z = Standardization.of(X)(X)
    if layout.covariates.size:
        design = np.hstack([np.ones((len(Z), 1)), Z[:, layout.covariates]])
        Z = Z - design @ np.linalg.lstsq(design, Z, rcond=None)[0]
    if count == 1:
        return alone
    every, ends = np.concatenate(layout.members), np.cumsum([0, *map(len, layout.members)])[:-1]
    total = np.add.reduceat((Z**2).sum(axis=0)[every], ends)
    unsaid = np.ones((count, count))
    for g, part in enumerate(layout.members):
        basis = _basis(Z[:, part])
        rest = total - np.add.reduceat(((basis.T @ Z) ** 2).sum(axis=0)[every], ends)
        # chance agrees with as many directions as there are columns
        rest *= (len(Z) - 1) / max(1, len(Z) - 1 - basis.shape[1])
        unsaid[g] = np.divide(rest, total, out=np.ones(count), where=total > 1e-9 * len(Z)).clip(0, 1)
    unsaid = np.minimum(unsaid, unsaid.T)
    np.fill_diagonal(unsaid, 0)
    codes = fcluster(linkage(squareform(unsaid, checks=False), "complete"), 1 - COPIED, "distance")
    return [np.flatnonzero(codes == code).tolist() for code in dict.fromkeys(codes.tolist())]


def _half(codes: Rows, rng: np.random.Generator) -> Rows:
    """Half of the rows of each class, rounded up."""
    order = rng.permutation(len(codes))
    kept = [order[codes[order] == code] for code in np.unique(codes)]
    return np.sort(np.concatenate([rows[: (len(rows) + 1) // 2] for rows in kept]))


def step_down(single: Array, whole: Array, clusters: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Adjusted p-values of groups and of clusters of them, whose members are tested once the cluster has passed.

    The level is shared among the groups that have not passed yet, and a cluster has the shares of its members (Meinshausen,
    Biometrika 2008). No more than the level is spent on true hypotheses, as those that are tested are disjoint, and what is spent
    on each grows with what has passed: the family-wise error is bounded under any dependence (Goeman, Solari 2010). Without
    clusters it is Holm's method.
    """
    inside = {g for part in clusters for g in part}
    adjusted = np.ones(len(single)), np.ones(len(whole))
    # what is left of the level multiplies all of them, so the order does not depend on it
    waiting = [(float(p), 0, g) for g, p in enumerate(single) if g not in inside]
    waiting += [(float(p) / len(part), 1, k) for k, (p, part) in enumerate(zip(whole, clusters, strict=True))]
    heapify(waiting)
    left, reached = len(single), 0.0
    while waiting:
        least, kind, place = heappop(waiting)
        reached = max(reached, min(1.0, least * left))
        adjusted[kind][place] = reached
        left -= 1 - kind
        for g in clusters[place] if kind else ():
            heappush(waiting, (float(single[g]), 0, g))
    return adjusted


def adjust(found: Array, control: str) -> Array:
    """p-values after Holm ("fwer") or Benjamini and Hochberg ("fdr")."""
    order, count = np.argsort(found, kind="stable"), len(found)
    if control == "fwer":
        steps = np.maximum.accumulate(found[order] * (count - np.arange(count)))
    else:
        steps = np.minimum.accumulate((found[order] * count / np.arange(1, count + 1))[::-1])[::-1]
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def p_values(
    samples: Samples,
    layout: Layout,
    alpha: float,
    rng: np.random.Generator,
    clusters: Sequence[Sequence[int]] | None = None,
    wanted: Sequence[int] | None = None,
) -> Array:
    """The p-values of the groups, or of those wanted; enough permutations that a group can pass at the level after Holm.

    The labels are predicted by the near copies of a group too (those in its cluster): the regression of the group on them leaves
    so little of it that the penalty leaves as much of what they carry.
    """
    clusters = near_copies(samples.X, layout) if clusters is None else clusters
    alike = {g: [other for other in part if other != g] for part in clusters for g in part}
    Z = Standardization.of(samples.X)(samples.X)
    n, count, fixed = len(Z), len(layout.names), Z[:, layout.covariates]
    base = _residuals([], fixed, samples)
    if fixed.shape[1]:
        design = np.hstack([np.ones((n, 1)), fixed])
        Z = Z - design @ np.linalg.lstsq(design, Z, rcond=None)[0]
    groups = [Z[:, columns] for columns in layout.members]
    bases = [_basis(group) for group in groups]
    # without a group that is not among them, they are the same
    screened = _screened(bases, base)
    common = _residuals([groups[g] for g in screened if count > 1], fixed, samples)
    left, values, _ = np.linalg.svd(Z, full_matrices=False)
    most = max(LEAST_PERMUTATIONS, int(5 * count / alpha))
    places = range(count) if wanted is None else wanted
    found = np.ones(len(places))
    parts = _unexplained(Z, layout.part(places), rng) if count > 1 else [(groups[0], np.inf)]
    for k, (g, (part, penalty)) in enumerate(zip(places, parts, strict=True)):
        # of a wide group its main directions: too many say everything of any labels
        basis, residuals = _basis(part)[:, : max(1, int(LARGEST * n))], common
        if basis.shape[1] == 0:  # constant, or known from the covariates
            continue
        mates = [other for other in alike[g] if other not in screened]
        if count > 1 and (g in screened or mates):
            others = _screened(bases, base, without=g) if g in screened else screened
            residuals = _residuals([groups[other] for other in {*others, *alike[g]}], fixed, samples)
        # the covariates are in both regressions
        factor = _inflation(residuals, left, values, penalty) * (n - 1) / max(1, n - 1 - fixed.shape[1])
        found[k] = _permutation_test(basis, residuals, factor, most, rng)
    return found


def _residuals(groups: Sequence[Array], fixed: Array, samples: Samples) -> Array:
    """Labels minus their probabilities by attention to some groups, centered, (targets, n)."""
    found = []
    for signs in samples.targets:
        features = fixed
        if groups:
            attention = separate_attention(list(groups), fixed, signs, samples.shares, RANKING_RIDGE)
            scaled = [len(groups) * share * part for share, part in zip(attention, groups, strict=True)]
            features = np.hstack([*scaled, fixed])
        [head] = logistic_heads(features, signs, (RANKING_RIDGE,), samples.weights)
        residual = samples.weights * ((signs > 0) - expit(features @ head.readout + head.bias))
        found.append(residual - residual.mean())
    return np.array(found)


def _basis(part: Array) -> Array:
    """An orthonormal basis (n, rank) of centered columns, whose scale is about one."""
    left, values, _ = np.linalg.svd(part - part.mean(axis=0), full_matrices=False)
    return np.asarray(left[:, values > 1e-9 * np.sqrt(len(part))])


def _screened(bases: Sequence[Array], residuals: Array, without: int | None = None) -> list[int]:
    """Groups that predict the labels, one after the other: each the strongest in what those before it leave."""
    n, every = residuals.shape[1], np.hstack(bases)
    widths = np.array([basis.shape[1] for basis in bases])
    owners, free = np.repeat(np.arange(len(bases)), widths), widths > 0
    if without is not None:
        free[without] = False
    found, rest, least = list[int](), residuals, 1e-9 * (residuals**2).sum()
    while free.any() and len(found) < SCREENED and (rest**2).sum() > least:
        squares = np.bincount(owners, ((rest @ every) ** 2).sum(axis=0), len(bases)) * (n - 1) / (rest**2).sum()
        # how far the statistic is above its mean under permutations, in units of about its deviation
        strengths = np.where(free, (squares - widths) / np.sqrt(np.maximum(widths, 1)), -np.inf)
        found.append(int(strengths.argmax()))
        free[found[-1]] = False
        known = np.linalg.qr(np.hstack([bases[g] for g in found]))[0]
        rest = residuals - (residuals @ known) @ known.T
    return found


def _unexplained(Z: Array, layout: Layout, rng: np.random.Generator) -> list[tuple[Array, float]]:
    """What ridge regressions on all other columns leave of each group, and their penalties, by cross-validation."""
    n, raw = len(Z), [Z[:, columns] for columns in layout.members]
    errors = np.zeros((len(raw), len(PENALTIES)))
    for held in np.array_split(rng.permutation(n), FOLDS):
        inside = np.delete(Z, held, axis=0)
        _, values, right = np.linalg.svd(inside - inside.mean(axis=0), full_matrices=False)
        test = Z[held] - inside.mean(axis=0)
        rotated = test @ right.T
        for g, columns in enumerate(layout.members):
            for place, penalty in enumerate(PENALTIES):
                rest = _ridge_residuals(rotated, values, right[:, columns], test[:, columns], penalty * len(inside))
                errors[g, place] += (rest**2).sum()
    chosen = np.array(PENALTIES)[errors.argmin(axis=1)] * n
    left, values, right = np.linalg.svd(Z, full_matrices=False)
    parts = zip(layout.members, raw, chosen, strict=True)
    return [
        (_ridge_residuals(left * values, values, right[:, c], own, float(one)), float(one)) for c, own, one in parts
    ]


def _ridge_residuals(rotated: Array, values: Array, right: Array, own: Array, penalty: float) -> Array:
    """Columns `own` minus their ridge regression on all others.

    The regression of one block on the others is in the inverse of all columns' penalized Gram matrix: X W_g W_gg^-1, which the
    singular values of X give for all groups at once. rotated: the rows in the right singular vectors; right: those of the block.
    """
    if np.isinf(penalty):
        return own
    gains = 1 / (values**2 + penalty) - 1 / penalty
    inner = (right.T * gains) @ right + np.eye(right.shape[1]) / penalty
    return np.asarray(np.linalg.solve(inner, ((rotated * gains) @ right + own / penalty).T).T)


def _inflation(residuals: Array, left: Array, values: Array, penalty: float) -> float:
    """By how much the statistic exceeds that of permutations by chance, at least 1.

    M, the map to what the regression on the columns leaves, shrinks the residuals of the labels less than it shrinks permuted
    ones, as the labels were fitted to some of the columns too: the ratio of |M r|^2 / |r|^2 to tr(M^2) / (n - 1).
    """
    if np.isinf(penalty):
        return 1.0
    n = residuals.shape[1]
    lost = 1 - (penalty / (values**2 + penalty)) ** 2
    kept = 1 - float(((residuals @ left) ** 2 @ lost).sum() / (residuals**2).sum())
    return float(max(1.0, kept * (n - 1) / max(1.0, n - 1 - float(lost.sum()))))


def _permutation_test(basis: Array, residuals: Array, factor: float, most: int, rng: np.random.Generator) -> float:
    """A p-value from at most so many permutations, fewer where it is large (Besag and Clifford 1991), valid in both cases."""
    observed = ((residuals @ basis) ** 2).sum() * (1 - 1e-12)
    reached = drawn = 0
    while drawn < most:
        orders = rng.permuted(np.tile(np.arange(len(basis)), (min(BATCH, most - drawn), 1)), axis=1)
        squares = sum(((residual[orders] @ basis) ** 2).sum(axis=1) for residual in residuals)
        hits = np.flatnonzero(factor * squares >= observed)
        if reached + len(hits) >= EXCEEDED:
            return float(EXCEEDED / (drawn + hits[EXCEEDED - reached - 1] + 1))
        reached, drawn = reached + len(hits), drawn + len(orders)
    return (reached + 1) / (drawn + 1)
