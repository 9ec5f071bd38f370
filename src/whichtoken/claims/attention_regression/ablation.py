"""Which parts of structure-aware descent matter, and from where does it start safely?

Claim   Preconditioning, noise-level damping and renormalization each lower the excess after a given number of steps, and the
        spectral start makes training reliable; balance pins the factors and changes little else, and the penalty on the
        imbalance, which the source adds against spurious stationary points, does not change how a saddle is left.
Source  The parts are those that Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) name; their formulas and this ablation are
        made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from whichtoken.claims._shared import Checks, Entry, Figure, above, below, check, checks, group_by, near, pairs
from whichtoken.claims.attention_regression._training import TrainingSet, sample_problem
from whichtoken.display.figures import legend
from whichtoken.lab import Experiment, Grid, Measured, Resampled, Row, Rows, Share, log_slope
from whichtoken.theory.attention_regression import imbalance

Variant = Literal[
    "full", "no-gram", "no-gram-no-penalty", "no-balance", "no-damping", "no-damping-no-backtracking", "no-backtracking",
    "no-renormalization", "no-centering",
]  # fmt: skip
Start = Literal["spectral", "random", "saddle", "flipped"]
# settings without a part, and what that is called
VARIANTS: Mapping[Variant, tuple[Mapping[str, Any], str]] = {
    "full": ({}, "full method"),
    "no-gram": ({"preconditioner": "covariance"}, "without Gram matrices"),
    "no-gram-no-penalty": ({"preconditioner": "covariance", "balance": "none"}, "without Gram matrices and penalty"),
    "no-balance": ({"balance": "none"}, "without balance"),
    "no-damping": ({"damping": 0.0}, "without damping"),
    "no-damping-no-backtracking": ({"damping": 0.0, "backtrack": False}, "without damping and backtracking"),
    "no-backtracking": ({"backtrack": False}, "without backtracking"),
    "no-renormalization": ({"rescale": False}, "without renormalization"),
    "no-centering": ({"center": False}, "without centering"),
}

STARTS: Mapping[Start, str] = {
    "spectral": "spectral start", "random": "random start", "saddle": "start at a saddle", "flipped": "start with wrong signs",
}  # fmt: skip
# parts without which it should be worse
HELPFUL: tuple[Variant, ...] = ("no-gram", "no-damping", "no-renormalization", "no-centering")
HARMLESS: tuple[Variant, ...] = ("no-balance", "no-backtracking")
UNPENALIZED: Variant = "no-gram-no-penalty"
SUCCESS = 2.0  # times the predicted floor
CHECKPOINTS = (3, 12, 40)


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


class Ablation(Experiment[Point]):
    id = "attention-regression/ablation"
    version = 3
    needs = "torch"
    presets = {
        "quick": (
            Grid(variant=[v for v in VARIANTS if v != "no-damping"], condition=100.0, tokens=200, seeds=10),
            Grid(variant="no-damping", condition=100.0, tokens=200, seeds=36),
            Grid(start=["spectral", "saddle"], condition=100.0, tokens=200, seeds=36),
            Grid(start="saddle", variant=["no-gram", UNPENALIZED], condition=100.0, tokens=200, seeds=10),
        ),
        "full": (
            Grid(variant=list(VARIANTS), condition=[10.0, 100.0], seeds=20),
            Grid(variant=["full", "no-renormalization"], size=16.0, seeds=20),
            Grid(start=list(get_args(Start)), condition=[1.0, 10.0, 100.0], seeds=40),
            Grid(start=["random"], variant="no-gram", condition=[1.0, 10.0, 100.0], seeds=40),
            Grid(start_samples=[12, 24, 48, 96, 192, 384], seeds=40),
            Grid(start="saddle", variant=["no-gram", UNPENALIZED], condition=[1.0, 10.0, 100.0], seeds=20),
        ),
    }
    method_fields = frozenset({"variant", "start", "start_samples", "size"})

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
            start="random" if point.start == "random" else "spectral", **settings,
        )  # fmt: skip
        P, Q = _start(point.start, *solver.starting_factors(data.Z, data.Y, rng))
        descent = solver.minimize(TokenObjective(data.Z, data.Y), P, Q)
        path = descent.accepted
        after = [
            max((iterate for iterate in path if iterate.iteration <= n), key=lambda i: i.iteration) for n in CHECKPOINTS
        ]
        floor = data.floor("stored", 0.3)
        excess = [data.stored(iterate.P, iterate.Q) for iterate in after]
        return {
            "excess": excess,
            "floors": [value / floor for value in excess],
            "diverged": descent.status == "diverged",
            "success": descent.status != "diverged" and excess[-1] <= SUCCESS * floor,
            "imbalance": imbalance(after[-1].P, after[-1].Q),
            "start_distance": _distance_to_minimizers(P, Q, problem.target @ data.whitening.root),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        parts = rows.where(start="spectral", size=1.0, start_samples=Point.start_samples)
        for k, runs in group_by(parts, "condition"):
            yield from _part_checks(runs, k)
        yield from _size_checks(rows.where(start="spectral"))
        yield from _start_checks(rows.where(variant="full", size=1.0))
        default = rows.where(size=1.0, start_samples=Point.start_samples)
        # what the penalty on the imbalance does, where the covariance alone preconditions
        for start in ("spectral", "saddle"):
            for k in default.where(start=start, variant=UNPENALIZED).levels("condition"):
                runs = default.where(start=start, condition=k)
                last = partial(_excess_at, -1)
                without, penalized = pairs(runs, last, {"variant": UNPENALIZED}, {"variant": "no-gram"})
                yield check(
                    f"ablation.penalty.{start}.k{k:g}",
                    f"{start} start, condition numbers {k:g}, no Gram preconditioner: excess after 40 steps without the penalty"
                    " over that with it",
                    near(1.0, within=0.05),
                    without / penalized,
                )
        # whether the Gram preconditioner helps to leave saddles, as the source says: from one, and from a random start
        for start in ("saddle", "random"):
            for k in default.where(start=start, variant="no-gram").levels("condition"):
                runs = default.where(start=start, condition=k)
                full, without = pairs(runs, "success", {"variant": "full"}, {"variant": "no-gram"})
                yield check(
                    f"ablation.escape.{start}.k{k:g}",
                    f"{start} start, condition numbers {k:g}: share of runs at the floor after 40 steps, minus that without the"
                    " Gram preconditioner",
                    above(0.1),  # help that is worth the name: one run in ten
                    full - without,
                )

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
    """The spectral start as it is, with its weakest direction removed (a saddle of the limit) or of the wrong sign.

    A flipped direction gives the map a determinant of the wrong sign: descent has to pass through a singular map.
    """
    if name in ("spectral", "random"):
        return P, Q
    weakest = int(np.argmin(np.linalg.norm(P, axis=0)))
    P = P.copy()
    P[:, weakest] *= -1.0
    if name == "saddle":
        Q = Q.copy()
        P[:, weakest] = Q[:, weakest] = 0.0
    return P, Q


def _distance_to_minimizers(P: Any, Q: Any, target: Any) -> float:
    """Distance of the pair, in equal norms, to the nearest balanced factors of the target, relative to their size."""
    from scipy.linalg import svd

    from whichtoken.theory.attention_regression import balanced_factors

    scale = np.sqrt(np.linalg.norm(P) / np.linalg.norm(Q))
    pair, best = np.vstack([P / scale, Q * scale]), np.vstack(balanced_factors(target))
    left, _, right = svd(best.T @ pair)
    return float(np.linalg.norm(pair - best @ left @ right) / np.linalg.norm(best))


def _excess_at(place: int, row: Row[Point]) -> float:
    return float(row.measured["excess"][place])


def _part_checks(rows: Rows[Point], k: float) -> Checks:
    entries: list[Entry] = []
    for variants, place, rule in ((HELPFUL, 0, above(1.2)), (HARMLESS, 2, below(1.1))):
        for variant in variants:
            if rows.where(variant=variant):
                excess = partial(_excess_at, place)
                other, full = pairs(rows, excess, {"variant": variant}, {"variant": "full"})
                sentence = f"median excess after {CHECKPOINTS[place]} steps, in multiples of the full method's"
                ratio = Resampled(other / full, np.median)
                entries += [(variant, f"{VARIANTS[variant][1]}: {sentence}", rule, ratio)]
    if wild := rows.where(variant="no-damping-no-backtracking"):
        sentence = "share of runs that diverge or end above two floors without damping and backtracking"
        entries += [("diverges", sentence, above(0.1), Share(~wild.values("success")))]
    sentence = "share of runs of the full method at the floor after 40 steps"
    entries += [("full", sentence, above(0.8), Share(rows.where(variant="full").values("success")))]
    yield from checks("ablation", *entries, where=f"condition numbers {k:g}", ending=f".k{k:g}")


def _size_checks(rows: Rows[Point]) -> Checks:
    if not rows.where(size=16.0):
        return
    few = rows.where(start_samples=Point.start_samples)
    large, small = {"size": 16.0}, {"size": 1.0, "condition": 10.0}
    changes = [
        abs(np.divide(*pairs(few.where(variant="full"), partial(_excess_at, place), large, small)) - 1.0)
        for place in range(len(CHECKPOINTS))
    ]
    yield from checks(
        "ablation.size",
        ("full", "largest relative change of the excess when target and noise are 16 times larger",
         below(1e-6), np.max(changes, axis=0)),
        ("no-renormalization", "the same problems without renormalization: excess after 40 steps, in floors",
         above(10.0), [row.measured["floors"][2] for row in few.where(variant="no-renormalization", size=16.0)]),
    )  # fmt: skip


def _start_checks(rows: Rows[Point]) -> Checks:
    reached = "share of runs at the floor after 40 steps"
    default = rows.where(start_samples=Point.start_samples)
    for start in ("random", "saddle", "flipped"):
        if runs := default.where(start=start):
            sentence = f"{start} start: {reached}, all condition numbers"
            yield check(f"ablation.start.{start}", sentence, above(0.8), Share(runs.values("success")))
    spectral = rows.where(start="spectral", condition=10.0)
    if len(spectral.levels("start_samples")) > 1:
        many = Rows(row for row in spectral if row.point.start_samples >= 48)
        few, most = (Share(spectral.where(start_samples=n).values("success")) for n in (12, 384))
        yield from checks(
            "ablation.start",
            ("distance",
             "distance of the spectral start to the minimizers, as a power of the number of pairs it is made of, 48 or more",
             near(-0.5, within=0.1), log_slope(many, "start_samples", "start_distance")),
            ("n12", f"spectral start from 12 pairs: {reached}", above(0.8), few),
            ("n384", f"spectral start from 384 pairs: {reached}", above(0.8), most),
        )  # fmt: skip
