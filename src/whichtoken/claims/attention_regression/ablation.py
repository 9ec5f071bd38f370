"""Which parts of structure-aware descent matter, and from where does it start safely?

Claim   A preconditioner helps descent to leave saddles and random starts, and a spectral start lies near the minimizers. Gram
        matrices, renormalization and centering each lower the excess after few steps. Our penalty on the imbalance brings
        unbalanced starts to the floor, and changes nothing at balanced saddles, where it is zero.
Source  Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514), abstract: preconditioner, regularizer and spectral start. Their
        formulas were not read: the covariance preconditioner is our reading of theirs, the Gram matrices are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, legend
from whichtoken.claims._runs import Array, group_by, pairs, rows_where
from whichtoken.claims.attention_regression._training import GRIDS, TrainingSet, sample_problem
from whichtoken.lab import Measured, Resampled, Rows, Share, log_slope
from whichtoken.theory.attention_regression import imbalance

Variant = Literal[
    "full", "no-gram", "no-gram-no-penalty", "no-balance", "no-damping", "no-damping-no-backtracking", "no-backtracking",
    "no-renormalization", "no-centering", "no-preconditioner",
]  # fmt: skip
Start = Literal["spectral", "random", "saddle", "rank-one", "flipped", "unbalanced"]
# settings without a part, and what that is called
VARIANTS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "full": ({}, "full method"),
    "no-gram": ({"preconditioner": "covariance"}, "without Gram matrices"),
    "no-gram-no-penalty": ({"preconditioner": "covariance", "balance": "none"}, "without Gram matrices and penalty"),
    "no-balance": ({"balance": "none"}, "without balance"),
    "no-damping": ({"damping": 0.0}, "without damping"),
    "no-damping-no-backtracking": ({"damping": 0.0, "backtrack": False}, "without damping and backtracking"),
    "no-backtracking": ({"backtrack": False}, "without backtracking"),
    "no-renormalization": ({"rescale": False}, "without renormalization"),
    "no-centering": ({"center": False}, "without centering"),
    "no-preconditioner": ({}, "plain gradient descent, best of its step sizes"),
}

STARTS: Mapping[Start, str] = {
    "spectral": "spectral start", "random": "random start", "saddle": "start at a saddle",
    "rank-one": "start at a saddle of rank one", "flipped": "start with wrong signs", "unbalanced": "unbalanced random start",
}  # fmt: skip
UNPENALIZED: Variant = "no-gram-no-penalty"
SUCCESS = 2.0  # times the predicted floor
IMBALANCE = 10.0  # largest factor by which a column of P is longer, and that of Q shorter
CHECKPOINTS = (3, 12, 40)
CONDITION = "condition numbers {:g}"

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point:
    dim: int = 6
    tokens: int = 400
    condition: float = 10.0  # of target and covariance
    noise: float = 0.1
    size: float = 1.0  # target and noise are multiplied by it
    variant: Variant = "full"
    start: Start = "spectral"
    start_samples: int = 24


class Ablation(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.attention_regression.structure_aware_descent import StructureAwareDescent, TokenObjective

        problem, size = sample_problem(point, rng), point.size
        problem = replace(
            problem, labels=size * problem.labels, target=size * problem.target, noise=size * problem.noise
        )
        settings = VARIANTS[point.variant][0]
        data = TrainingSet(problem, rng, center=settings.get("center", True))
        solver = StructureAwareDescent(
            iterations=CHECKPOINTS[-1], tolerance=0.0, start_samples=point.start_samples,
            start="random" if point.start in ("random", "unbalanced") else "spectral", **settings,
        )  # fmt: skip
        P, Q = _start(point.start, *solver.starting_factors(data.Z, data.Y, rng))
        objective = TokenObjective(data.Z, data.Y)
        if point.variant == "no-preconditioner":
            after, diverged = _plain_descent(data, objective, P, Q), False
        else:
            descent = solver.minimize(objective, P, Q)
            path, diverged = descent.accepted, descent.status == "diverged"
            after = [
                max((iterate for iterate in path if iterate.iteration <= n), key=lambda i: i.iteration)
                for n in CHECKPOINTS
            ]
        floor = data.floor("stored", 0.3)
        excess = [data.stored(iterate.P, iterate.Q) for iterate in after]
        return {
            "excess": excess,
            "floors": [value / floor for value in excess],
            "diverged": diverged,
            "success": not diverged and excess[-1] <= SUCCESS * floor,
            "imbalance": imbalance(after[-1].P, after[-1].Q),
            "start_distance": _distance_to_minimizers(P, Q, problem.target @ data.whitening.root),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        default = rows.where(size=1.0, start_samples=Point.start_samples)
        yield from _escape_parts(default)
        for criterion, starts in ((TABLE.penalty, ("spectral", "saddle")), (TABLE.regularizer, ("saddle",))):
            for start in starts:
                for k, ratio, runs in _ratios(default.where(start=start), UNPENALIZED, "no-gram", -1):
                    words = f"{start} start, {CONDITION.format(k)}"
                    yield criterion.part(f"{start}.k{k:g}", words, ratio, on=runs)
        unbalanced: Any = default.where(start="unbalanced")
        if gains := [
            np.subtract(*pairs(runs, "success", {"variant": "no-gram"}, {"variant": UNPENALIZED}))
            for _, runs in group_by(unbalanced, "condition")
        ]:
            yield TABLE.unbalanced(np.mean(gains, axis=0), on=unbalanced)
        yield from _part_checks(default.where(start="spectral"))
        yield from _start_checks(rows.where(variant="full", size=1.0))
        large = rows.where(start="spectral", variant="no-renormalization", size=16.0)
        yield TABLE.unscaled([row.measured["floors"][2] for row in large], on=large)

    def judge_point(self, rows: Rows[Point]) -> Checks:
        yield TABLE.reaches(_share_at_floor(rows), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        parts = rows.where(start="spectral", size=1.0)
        k = max(parts.levels("condition"), default=0.0)
        for variant in parts.levels("variant"):
            excess = np.array([row.measured["excess"] for row in parts.where(variant=variant, condition=k)])
            if len(excess):
                left.plot(CHECKPOINTS, np.median(excess, axis=0), marker="o", label=VARIANTS[variant][1])
        left.set(xscale="log", yscale="log", xlabel="iterations", title=f"Median excess, condition numbers {k:g}")
        for start, runs in group_by(rows.where(variant="full", size=1.0), "start"):
            shares = {k: some.values("success").mean() for k, some in group_by(runs, "condition")}
            right.plot(list(shares), list(shares.values()), marker="o", label=STARTS[start])
        right.set(xscale="log", xlabel="condition number", title="Share of runs at the floor after 40 iterations")
        for axes in (left, right):
            legend(axes, fontsize=8)


def _start(name: Start, P: Any, Q: Any) -> tuple[Any, Any]:
    """The start as it is, or with its columns scaled against each other; without its weakest direction, or with nothing but its
    strongest (saddles of the limit); or with its weakest direction of the wrong sign.

    A flipped direction gives the map a determinant of the wrong sign: descent has to pass through a singular map.
    """
    if name in ("spectral", "random"):
        return P, Q
    if name == "unbalanced":
        factors = np.geomspace(1 / IMBALANCE, IMBALANCE, P.shape[1])
        return P * factors, Q / factors
    lost = np.argsort(np.linalg.norm(P, axis=0))[: -1 if name == "rank-one" else 1]
    P, Q = P.copy(), Q.copy()
    if name == "flipped":
        P[:, lost] *= -1.0
    else:
        P[:, lost] = Q[:, lost] = 0.0
    return P, Q


def _distance_to_minimizers(P: Any, Q: Any, target: Any) -> float:
    """Distance of the pair, in equal norms, to the nearest balanced factors of the target, relative to their size."""
    from scipy.linalg import svd

    from whichtoken.theory.attention_regression import balanced_factors

    scale = np.sqrt(np.linalg.norm(P) / np.linalg.norm(Q))
    pair, best = np.vstack([P / scale, Q * scale]), np.vstack(balanced_factors(target))
    left, _, right = svd(best.T @ pair)
    return float(np.linalg.norm(pair - best @ left @ right) / np.linalg.norm(best))


def _plain_descent(data: TrainingSet, objective: Any, P: Any, Q: Any) -> list[Any]:
    """Gradient descent on the raw factors at the checkpoints, with the step size that ends lowest.

    The best of all step sizes is more than a user has: what a preconditioner gains on it is not a matter of tuning.
    """
    from whichtoken.theory.attention_regression.factor_baselines import Evaluation, run_baseline
    from whichtoken.theory.attention_regression.structure_aware_descent import RawCoordinates

    raw, factors = RawCoordinates(objective, data.whitening), data.whitening.to_raw(P, Q)
    paths = [run_baseline("gradient", raw, *factors, lr, CHECKPOINTS[-1] + 1) for lr in GRIDS["gradient-raw"]]
    complete = [path for path in paths if len(path) > CHECKPOINTS[-1]]  # the others diverge
    best = min(complete or paths, key=lambda path: path[-1].loss)
    after = [best[min(n, len(best) - 1)] for n in CHECKPOINTS]
    return [Evaluation(*data.whitening.to_whitened(found.P, found.Q), found.loss) for found in after]


def _escape_parts(rows: Rows[Point]) -> Checks:
    """Whether a preconditioner helps to leave saddles and random starts; where all arrive, nothing can be gained."""
    kinds: Any = {"variant": "no-gram"}, {"variant": "no-preconditioner"}
    for start in ("saddle", "rank-one", "random"):
        runs = rows_where(rows.where(start=start), lambda point: point.variant in ("no-gram", "no-preconditioner"))
        if runs.where(variant="no-preconditioner"):
            gains = [np.subtract(*pairs(some, "success", *kinds)) for _, some in group_by(runs, "condition")]
            each = [gain for gain in gains if len(gain)]
            shortest = min(map(len, each), default=0)
            gain = np.mean([gain[:shortest] for gain in each], axis=0)  # of each repeat, over the condition numbers
            yield TABLE.escape.part(start, f"{start} start, mean over condition numbers", gain, on=runs)


def _ratios(rows: Rows[Point], variant: str, other: str, place: int) -> Iterator[tuple[float, Array, Rows[Point]]]:
    """Excess at a checkpoint over that of another variant, and the runs of both, by condition number."""
    for k in rows.where(variant=variant).levels("condition"):
        runs = rows_where(rows.where(condition=k), lambda point: point.variant in (variant, other))
        excess = pairs(runs, lambda row: row.measured["excess"][place], {"variant": variant}, {"variant": other})
        yield k, np.divide(*excess), runs


def _part_checks(rows: Rows[Point]) -> Checks:
    for variant, criterion, place in (
        ("no-gram", TABLE.worse, 0),
        ("no-damping", TABLE.worse, 0),
        ("no-renormalization", TABLE.worse, 0),
        ("no-centering", TABLE.worse, 0),
        ("no-balance", TABLE.harmless, 2),
        ("no-backtracking", TABLE.harmless, 2),
    ):
        words = VARIANTS[variant][1]
        for k, ratio, runs in _ratios(rows, variant, "full", place):
            label = f"k{k:g}" if criterion is TABLE.worse else f"{variant}.k{k:g}"
            where, median = f"{words}, condition numbers {k:g}", Resampled(ratio, np.median)
            yield criterion.part(label, where, median, on=runs, variant=variant, words=words)
    wild = rows.where(variant="no-damping-no-backtracking")
    yield from TABLE.diverges.each(
        wild, "condition", "k{:g}", CONDITION, lambda runs: Share(~runs.values("success").astype(bool))
    )


def _start_checks(rows: Rows[Point]) -> Checks:
    default, spectral = rows.where(start_samples=Point.start_samples), rows.where(start="spectral")
    for start in ("random", "saddle", "rank-one", "flipped"):
        if runs := default.where(start=start):
            yield TABLE.start.part(start, STARTS[start], Share(runs.values("success")), on=runs)
    yield from TABLE.full.each(default.where(start="spectral"), "condition", "k{:g}", CONDITION, _share_at_floor)
    few = spectral.where(condition=10.0)
    for n in (12, 384):
        if runs := few.where(start_samples=n):
            yield TABLE.full.part(
                f"n{n}", f"start from {n} pairs, condition numbers 10", _share_at_floor(runs), on=runs
            )
    many = rows_where(few, lambda point: point.start_samples >= 48)
    if len(many.levels("start_samples")) > 1:
        yield TABLE.distance(log_slope(many, "start_samples", "start_distance"), on=many)


def _share_at_floor(runs: Rows[Point]) -> Share:
    return Share(runs.values("success"))
