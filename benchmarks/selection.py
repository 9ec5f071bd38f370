"""Error control of the selection of groups, beside knockoffs (hidimstat), stability selection and a tuned group lasso (skglm).

Groups of three Gaussian columns share a correlation with all others; labels follow a logistic law of one group, or of none. A
wrong group is one that adds nothing given the others. In one more cell, the group that matters has a near copy: a method finds
it with either of the two, and the copy alone is wrong. Knockoffs are those of hidimstat at its defaults, with a false discovery
rate of 0.05; they select columns, and a group counts where one of its columns does. Stability selection takes the group that
enters the group lasso first in 50 halves of the rows, and the share that bounds the expected number of wrong groups by 0.05
(Meinshausen and Buehlmann 2010). skglm's penalty is tuned by cross-validated log loss, and bounds nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from whichtoken.estimators import group_tests
from whichtoken.extras import is_installed
from whichtoken.lab.benchmark import Beside, Cases, Measure, cpu_seconds

from .groups import group_lasso

PART = "Tables"
QUESTION = "How often does GroupClassifier find the group of columns that matters, and how often one that does not?"
SKGLM, STABILITY, KNOCKOFFS = "skglm's group logistic regression", "stability selection", "hidimstat's knockoffs"
WHY = {
    "skglm's group logistic regression": {
        "win": "A penalty tuned for prediction does not bound the share of wrong groups.",
        "loss": "The group lasso finds the right group more often, with several wrong ones: it does not bound their share.",
        "even": "The group lasso finds the right group too, along with several wrong ones: it does not bound their share.",
    },
    "stability selection": {
        "win": "Stability selection works on halves of the rows, which hold half the information.",
        "loss": "Stability selection asks which group is strongest, not whether a group adds to all the others.",
        "even": "Both find a single strong group.",
    },
    "hidimstat's knockoffs": {
        "win": (
            "Knockoffs select nothing until about as many groups stand out as one over the false discovery rate, here twenty."
        ),
        "even": "Neither finds anything.",
    },
}

Array = NDArray[np.float64]
Tables = list[tuple[Array, NDArray[np.bool_]]]
Select = Callable[[Array, NDArray[np.bool_], int], set[int]]

ALPHA, WIDTH, STRENGTH = 0.05, 3, 1.5
NULL_TABLES, HALVES = 1000, 50
TABLES = {20: (100, 10), 50: (100, 10), 200: (40, 4)}  # by the number of groups: for ours, and for the peers
# rows, groups, correlation between groups
CELLS = tuple(
    (n, groups, correlation) for groups in (20, 50, 200) for n in (100, 200, 400) for correlation in (0.0, 0.5, 0.9)
)
COPY = 0.1  # deviation of a near copy from the group that it copies


def measure(wanted: Cases) -> Iterator[Measure]:
    """Yield the level without any signal, the time, then power and wrong groups where one group matters."""
    for copied in (False, True):
        case = f"nothing matters{', two groups are near copies' if copied else ''}"
        if wanted(case):
            tables = [_table(seed, 200, 20, 0.0, 0.0, copied) for seed in range(NULL_TABLES)]
            wrong = sum(bool(_ours(X, y, seed)) for seed, (X, y) in enumerate(tables))
            yield _level(f"{case}, n=200, 20 groups of {WIDTH}, {NULL_TABLES} tables", wrong, NULL_TABLES)
    if wanted("60 columns"):
        X, y = _table(0, 200, 20, 0.0, STRENGTH)
        seconds = cpu_seconds(lambda: group_tests(X, y, np.repeat(range(20), WIDTH), resamples=20, random_state=0))
        yield Measure("n=200, 60 columns", "s of CPU time, with shares of 20 halves", seconds, 5.0, at_least=False)
    cells = [
        (f"one of {groups} groups matters, n={n}, correlation {rho:g}", n, groups, rho) for n, groups, rho in CELLS
    ]
    for case, n, groups, rho in [("one of two near copies matters, n=200, 20 groups", 200, 20, 0.0), *cells]:
        # the group that matters, or its near copy
        right = {0, 1} if "copies" in case else {0}
        for measures, count in zip((_power, _peers), TABLES[groups], strict=True):
            name = f"{case}, {count} tables"
            if wanted(name):
                drawn = [_table(seed, n, groups, rho, STRENGTH, len(right) > 1) for seed in range(count)]
                found = [_ours(X, y, seed) for seed, (X, y) in enumerate(drawn)]
                hits = [any(part & right for part in parts) for parts in found]
                yield from measures(name, drawn, found, hits, right)


def _power(
    case: str, drawn: Tables, found: list[list[set[int]]], hits: list[bool], right: set[int]
) -> Iterator[Measure]:
    """How often ours finds the group, and something wrong; near copies that pass together count."""
    low, high = binomtest(sum(hits), len(hits)).proportion_ci()
    alone = np.mean([{0} in parts for parts in found])
    detail = f"exact 95 % interval {low:.3f} to {high:.3f}; by itself in {alone:.2f}"
    yield Measure(case, "share of tables in which it is found", float(np.mean(hits)), 0.0, detail=detail)
    # of near copies that pass together, one matters if the right one is among them
    yield _level(case, sum(any(0 not in part for part in parts) for parts in found), len(found))


def _peers(
    case: str, drawn: Tables, found: list[list[set[int]]], hits: list[bool], right: set[int]
) -> Iterator[Measure]:
    for peer, select in PEERS.items():
        if peer == KNOCKOFFS and not is_installed("hidimstat"):
            continue
        theirs = [select(X, y, seed) for seed, (X, y) in enumerate(drawn)]
        power, mine = np.mean([bool(one & right) for one in theirs]), np.mean(hits)
        extra = np.mean([len(one - {0}) for one in theirs])
        detail = f"{mine:.2f} against {power:.2f}, which has {extra:.1f} wrong groups on average"
        beside = Beside(peer, float(mine), float(power), "share found", True)
        what = f"found more often than by {peer}"
        yield Measure(case, what, float(mine - power), 0.0, detail=detail, beside=beside)


def _level(case: str, wrong: int, tables: int) -> Measure:
    interval = binomtest(wrong, tables).proportion_ci()
    detail = f"{wrong} of {tables}, {wrong / tables:.3f}, exact 95 % interval {interval.low:.3f} to {interval.high:.3f}"
    return Measure(case, "tables with a wrong group, lower end of the interval", interval.low, ALPHA, False, detail)


def _table(
    seed: int, n: int, groups: int, correlation: float, strength: float, copied: bool = False
) -> tuple[Array, NDArray[np.bool_]]:
    rng = np.random.default_rng([seed, n, groups])
    own, common = rng.standard_normal((n, groups, WIDTH)), rng.standard_normal((n, 1, WIDTH))
    X = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    if copied:
        X[:, 1] = X[:, 0] + COPY * X[:, 1]
    direction = rng.standard_normal(WIDTH)
    score = strength * X[:, 0] @ direction / np.linalg.norm(direction)
    return X.reshape(n, -1), rng.random(n) < 1 / (1 + np.exp(-score))


def _ours(X: Array, y: NDArray[np.bool_], seed: int) -> list[set[int]]:
    """Groups that pass alone, and sets of near copies that pass together."""
    found = group_tests(X, y, np.arange(X.shape[1]) // WIDTH, alpha=ALPHA, random_state=seed)
    return [*({group} for group in found.selected), *(set(union.groups) for union in found.undecided)]


def _lasso(X: Array, y: NDArray[np.bool_], seed: int) -> set[int]:
    readout, _ = group_lasso(X, np.where(y, 1.0, -1.0), WIDTH)
    return set(np.flatnonzero(readout.reshape(-1, WIDTH).any(axis=1)).tolist())


def _stability(X: Array, y: NDArray[np.bool_], seed: int) -> set[int]:
    rng, groups = np.random.default_rng(seed), X.shape[1] // WIDTH
    counts = np.zeros(groups)
    for _ in range(HALVES):
        rows = rng.permutation(len(y))[: len(y) // 2]
        # the group whose slope at zero is steepest enters first
        slopes = (y[rows] - y[rows].mean()) @ X[rows]
        counts[np.linalg.norm(slopes.reshape(groups, WIDTH), axis=1).argmax()] += 1
    least = min(1.0, (1 + 1 / (groups * ALPHA)) / 2)
    return set(np.flatnonzero(counts >= least * HALVES).tolist())


def _knockoffs(X: Array, y: NDArray[np.bool_], seed: int) -> set[int]:
    # an optional peer, which is no part of an extra
    hidimstat: Any = importlib.import_module("hidimstat")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = hidimstat.ModelXKnockoff(random_state=seed)
        model.fit_importance(X, np.where(y, 1.0, -1.0))
        columns = np.flatnonzero(model.fdr_selection(fdr=ALPHA))
    return set((columns // WIDTH).tolist())


PEERS: dict[str, Select] = {SKGLM: _lasso, STABILITY: _stability, KNOCKOFFS: _knockoffs}
