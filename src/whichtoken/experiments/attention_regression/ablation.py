"""Which parts of structure-aware descent matter, and from where does it start safely?

Claim   Preconditioning, noise-level damping and renormalisation each lower the excess after a given number of steps, and the
        spectral start makes training reliable; balance pins the factors and changes little else, and the penalty on the
        imbalance, which the source adds against spurious stationary points, does not change how a saddle is left.
Source  The parts are those that Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514) name; their formulas and this ablation are
        made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from whichtoken.lab import (
    Claim,
    Experiment,
    Grid,
    Mean,
    Measured,
    Resampled,
    Rows,
    Share,
    agreement,
    at_least,
    at_most,
    log_slope,
)
from whichtoken.theory.attention_regression import imbalance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Variant = Literal[
    "full", "no-gram", "no-gram-no-penalty", "no-balance", "no-damping", "no-damping-no-backtracking", "no-backtracking",
    "no-renormalisation", "no-centring",
]  # fmt: skip
Start = Literal["spectral", "random", "saddle", "flipped"]
VARIANTS: Mapping[Variant, Mapping[str, Any]] = {
    "full": {},
    "no-gram": {"preconditioner": "covariance"},
    "no-gram-no-penalty": {"preconditioner": "covariance", "balance": "none"},
    "no-balance": {"balance": "none"},
    "no-damping": {"damping": 0.0},
    "no-damping-no-backtracking": {"damping": 0.0, "backtrack": False},
    "no-backtracking": {"backtrack": False},
    "no-renormalisation": {"rescale": False},
    "no-centring": {"center": False},
}
WORDS: Mapping[Variant, str] = {
    "full": "full method",
    "no-gram": "without Gram matrices",
    "no-gram-no-penalty": "without Gram matrices and penalty",
    "no-balance": "without balance",
    "no-damping": "without damping",
    "no-damping-no-backtracking": "without damping and backtracking",
    "no-backtracking": "without backtracking",
    "no-renormalisation": "without renormalisation",
    "no-centring": "without centring",
}
STARTS: Mapping[Start, str] = {
    "spectral": "spectral start", "random": "random start", "saddle": "start at a saddle", "flipped": "start with wrong signs",
}  # fmt: skip
# parts without which it should be worse
HELPFUL: tuple[Variant, ...] = ("no-gram", "no-damping", "no-renormalisation", "no-centring")
HARMLESS: tuple[Variant, ...] = ("no-balance", "no-backtracking")
UNPENALISED: tuple[Variant, Variant] = ("no-gram", "no-gram-no-penalty")
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
            Grid(start="saddle", variant=list(UNPENALISED), condition=100.0, tokens=200, seeds=10),
        ),
        "full": (
            Grid(variant=list(VARIANTS), condition=[10.0, 100.0], seeds=20),
            Grid(variant=["full", "no-renormalisation"], size=16.0, seeds=20),
            Grid(start=list(get_args(Start)), condition=[1.0, 10.0, 100.0], seeds=40),
            Grid(start=["random"], variant="no-gram", condition=[1.0, 10.0, 100.0], seeds=40),
            Grid(start_samples=[12, 24, 48, 96, 192, 384], seeds=40),
            Grid(start="saddle", variant=list(UNPENALISED), condition=[1.0, 10.0, 100.0], seeds=20),
        ),
    }
    method_fields = frozenset({"variant", "start", "start_samples", "size"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionRegression
        from whichtoken.experiments.attention_regression._excess import TrainingSet
        from whichtoken.theory.attention_regression import excess_floor
        from whichtoken.training.factor_objectives import TokenObjective
        from whichtoken.training.structure_aware_descent import StructureAwareDescent

        generator = AttentionRegression(
            point.dim, tokens=point.tokens, covariance=point.condition, target=point.condition, noise=point.noise
        )
        problem = _scaled(generator.sample(rng), point.size)
        settings = dict(VARIANTS[point.variant])
        data = TrainingSet(problem, rng, center=settings.get("center", True))
        solver = StructureAwareDescent(
            iterations=CHECKPOINTS[-1], tolerance=0.0, start_samples=point.start_samples,
            start="random" if point.start == "random" else "spectral", **settings,
        )  # fmt: skip
        P, Q = _start(point.start, *solver.starting_factors(data.Z, data.Y, rng))
        descent = solver.minimise(TokenObjective(data.Z, data.Y), P, Q)
        path = descent.accepted
        after = [
            max((iterate for iterate in path if iterate.iteration <= n), key=lambda i: i.iteration) for n in CHECKPOINTS
        ]
        floor = excess_floor("stored", problem.whitened_target, problem.noise, point.tokens, 0.3) * 2 / data.size
        excess = [data.stored(iterate.P, iterate.Q) for iterate in after]
        return {
            "excess": excess,
            "floors": [value / floor for value in excess],
            "diverged": descent.status == "diverged",
            "success": descent.status != "diverged" and excess[-1] <= SUCCESS * floor,
            "imbalance": imbalance(after[-1].P, after[-1].Q),
            "start_distance": _distance_to_minimisers(P, Q, problem.target @ data.whitening.root),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        parts = rows.where(start="spectral", size=1.0, start_samples=Point.start_samples)
        for k in parts.levels("condition"):
            yield from _part_claims(parts.where(condition=k), k)
        yield from _size_claims(rows.where(start="spectral"))
        yield from _start_claims(rows.where(variant="full", size=1.0))
        yield from _penalty_claims(rows.where(size=1.0, start_samples=Point.start_samples))
        yield from _escape_claims(rows.where(size=1.0, start_samples=Point.start_samples))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        parts = rows.where(start="spectral", size=1.0)
        k = max(parts.levels("condition"), default=0.0)
        for variant in parts.levels("variant"):
            excess = np.array([row.measured["excess"] for row in parts.where(variant=variant, condition=k)])
            if len(excess):
                left.plot(CHECKPOINTS, np.median(excess, axis=0), marker="o", label=WORDS[variant])
        left.set(xscale="log", yscale="log", xlabel="iterations", title=f"Median excess, condition numbers {k:g}")
        starts = rows.where(variant="full", size=1.0)
        for start in starts.levels("start"):
            levels = starts.where(start=start).levels("condition")
            shares = [starts.where(start=start, condition=k).values("success").mean() for k in levels]
            right.plot(levels, shares, marker="o", label=STARTS[start])
        right.set(xscale="log", xlabel="condition number", title="Share of runs at the floor after 40 iterations")
        for axes in (left, right):
            if axes.has_data():
                axes.legend(fontsize=8)


def _scaled(problem: Any, size: float) -> Any:
    from dataclasses import replace

    return replace(problem, labels=size * problem.labels, target=size * problem.target, noise=size * problem.noise)


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


def _distance_to_minimisers(P: Any, Q: Any, target: Any) -> float:
    """Distance of the pair, in equal norms, to the nearest balanced factors of the target, relative to their size."""
    from scipy.linalg import svd

    from whichtoken.theory.attention_regression import balanced_factors

    scale = np.sqrt(np.linalg.norm(P) / np.linalg.norm(Q))
    pair, best = np.vstack([P / scale, Q * scale]), np.vstack(balanced_factors(target))
    left, _, right = svd(best.T @ pair)
    return float(np.linalg.norm(pair - best @ left @ right) / np.linalg.norm(best))


def _part_claims(rows: Rows[Point], k: float) -> Iterator[Claim]:
    def against_full(variant: str, place: int) -> Callable[[Rows[Point]], float | None]:
        def ratio(repeat: Rows[Point]) -> float | None:
            full, other = repeat.where(variant="full"), repeat.where(variant=variant)
            if not full or not other:
                return None
            return float(other[0].measured["excess"][place] / full[0].measured["excess"][place])

        return ratio

    for variant in HELPFUL:
        if rows.where(variant=variant):
            yield at_least(
                f"ablation.{variant}.k{k:g}",
                f"condition numbers {k:g}, {WORDS[variant]}: median excess after 3 steps, in multiples of the full method's",
                bound=1.2,
                measured=Resampled(rows.per_seed(against_full(variant, 0)), np.median),
            )
    for variant in HARMLESS:
        if rows.where(variant=variant):
            yield at_most(
                f"ablation.{variant}.k{k:g}",
                f"condition numbers {k:g}, {WORDS[variant]}: median excess after 40 steps, in multiples of the full method's",
                bound=1.1,
                measured=Resampled(rows.per_seed(against_full(variant, 2)), np.median),
            )
    if wild := rows.where(variant="no-damping-no-backtracking"):
        yield at_least(
            f"ablation.diverges.k{k:g}",
            f"condition numbers {k:g}: share of runs that diverge or end above two floors without damping and backtracking",
            bound=0.1,
            measured=Share(~wild.values("success")),
        )
    yield at_least(
        f"ablation.full.k{k:g}",
        f"condition numbers {k:g}: share of runs of the full method at the floor after 40 steps",
        bound=0.8,
        measured=Share(rows.where(variant="full").values("success")),
    )


def _penalty_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """What the penalty on the imbalance does, where the covariance alone preconditions."""
    for start in ("spectral", "saddle"):
        for k in rows.where(start=start, variant=UNPENALISED[1]).levels("condition"):
            yield agreement(
                f"ablation.penalty.{start}.k{k:g}",
                f"{start} start, condition numbers {k:g}, no Gram preconditioner: excess after 40 steps without the penalty"
                " over that with it",
                theory=1.0,
                measured=Mean(rows.where(start=start, condition=k).per_seed(_without_penalty)),
                tolerance=0.05,
            )


def _escape_claims(rows: Rows[Point]) -> Iterator[Claim]:
    """Whether the Gram preconditioner helps to leave saddles, as the source says: from one, and from a random start."""
    for start in ("saddle", "random"):
        for k in rows.where(start=start, variant="no-gram").levels("condition"):
            yield at_least(
                f"ablation.escape.{start}.k{k:g}",
                f"{start} start, condition numbers {k:g}: share of runs at the floor after 40 steps, minus that without the Gram"
                " preconditioner",
                bound=0.1,  # help that is worth the name: one run in ten
                measured=Mean(rows.where(start=start, condition=k).per_seed(_more_successes)),
            )


def _more_successes(repeat: Rows[Point]) -> float | None:
    full, without = (repeat.where(variant=variant) for variant in ("full", "no-gram"))
    return float(full[0].measured["success"]) - float(without[0].measured["success"]) if full and without else None


def _without_penalty(repeat: Rows[Point]) -> float | None:
    with_it, without = (repeat.where(variant=variant) for variant in UNPENALISED)
    return float(without[0].measured["excess"][-1] / with_it[0].measured["excess"][-1]) if with_it and without else None


def _size_claims(rows: Rows[Point]) -> Iterator[Claim]:
    def change(repeat: Rows[Point]) -> float | None:
        small, large = repeat.where(variant="full", size=1.0, condition=10.0), repeat.where(variant="full", size=16.0)
        if not small or not large:
            return None
        return float(np.max(np.abs(np.divide(large[0].measured["excess"], small[0].measured["excess"]) - 1.0)))

    if rows.where(size=16.0):
        few = rows.where(start_samples=Point.start_samples)
        yield at_most(
            "ablation.size.full",
            "largest relative change of the excess when target and noise are 16 times larger",
            bound=1e-6,
            measured=Mean(few.per_seed(change)),
        )
        yield at_least(
            "ablation.size.no-renormalisation",
            "the same problems without renormalisation: excess after 40 steps, in floors",
            bound=10.0,
            measured=Mean([row.measured["floors"][2] for row in few.where(variant="no-renormalisation", size=16.0)]),
        )


def _start_claims(rows: Rows[Point]) -> Iterator[Claim]:
    default = rows.where(start_samples=Point.start_samples)
    for start, bound in (("random", 0.8), ("saddle", 0.8), ("flipped", 0.8)):
        if runs := default.where(start=start):
            yield at_least(
                f"ablation.start.{start}",
                f"{start} start: share of runs at the floor after 40 steps, all condition numbers",
                bound=bound,
                measured=Share(runs.values("success")),
            )
    spectral = rows.where(start="spectral", condition=10.0)
    if len(spectral.levels("start_samples")) > 1:
        yield agreement(
            "ablation.start.distance",
            "distance of the spectral start to the minimisers, as a power of the number of pairs it is made of, 48 or more",
            theory=-0.5,
            measured=log_slope(
                Rows(row for row in spectral if row.point.start_samples >= 48), "start_samples", "start_distance"
            ),
            tolerance=0.1,
        )
        for samples in (12, 384):
            yield at_least(
                f"ablation.start.n{samples}",
                f"spectral start from {samples} pairs: share of runs at the floor after 40 steps",
                bound=0.8,
                measured=Share(spectral.where(start_samples=samples).values("success")),
            )
