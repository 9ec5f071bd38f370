"""Mirror descent on attention ends in a max-margin direction.

Claim   Trained by normalized l_p mirror descent, the key-query matrix converges in direction to the minimal-l_p-norm matrix
        that separates the selected tokens from all others, and p alone decides which of these limits it is.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581); sizes, step sizes and
        numbers of steps as in their synthetic study, l_1.1 added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, Equals, rows_where, values_with_failures
from whichtoken.claims._figures import Axes, Figure, draw_table, label_axes, plot_medians
from whichtoken.claims.mirror_descent._problems import Vector, cosine, draw_problem, key_query_limit
from whichtoken.lab import Check, Exact, Experiment, Grid, Mean, Measured, Resampled, Row, Rows, Worst

EXPONENTS = (1.1, 1.75, 2.0, 3.0)  # the geometries whose limits are compared
SMALL = 2  # dimension of the problems whose limit is also found by search, without a solver
ROUNDS, TRIED = 40, 5000  # rounds of a search, and directions per round, closer and closer to the best
PLANE = np.array([[1, 2], [3, 4]])  # the two entries of W whose plane the trajectories are drawn in, as in the source

SEARCH = Equals(
    "direction.brute-force", 1.0, f"{SMALL} dimensions: trained margin over the largest one found", tolerance=0.01
)
LIMIT = AtMost(
    "direction.limit.p{p:g}", 0.008, "p = {p:g}: mean divergence from the l_{p:g} limit ({runs} runs, {failed} failed)"
)
DOMINANCE = AtLeast(
    "direction.dominance.p{p:g}", 0.0, "p = {p:g}: how much farther the nearest limit of another p is, mean"
)
NEAREST = AtLeast(
    "direction.nearest.p{p:g}", 0.0, "p = {p:g}: how much farther the nearest limit of another p is, in the worst run"
)
SETTLED = AtLeast("direction.settled", 0.9, "share of runs that settle on locally optimal tokens")
CERTIFICATE = AtMost("direction.certificate", 1e-6, "largest duality gap of the limits")


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    start: float = 1.0  # standard deviation of the entries of the initial matrix
    p: float = 2.0
    lr: float = 0.1
    steps: int = 2000


# Larger p needs more steps, because the matrix grows as steps**(1 / (p - 1)).
SETTINGS = {1.1: (0.01, 4000), 1.75: (0.1, 1500), 2.0: (0.1, 2000), 3.0: (0.1, 20000)}


def _study(exponents: tuple[float, ...], seeds: int | tuple[int, int]) -> tuple[Grid, ...]:
    """One grid per geometry, with its step size and number of steps."""
    return tuple(Grid(p=p, lr=SETTINGS[p][0], steps=SETTINGS[p][1], seeds=seeds) for p in exponents)


def _small_study(exponents: list[float], seeds: int) -> tuple[Grid, ...]:
    """Small problems, whose limit a search finds too, trained long enough to compare margins."""
    sizes = {"sequences": 2, "length": 3, "dim": SMALL, "steps": 20000, "seeds": seeds}
    return tuple(Grid(p=p, lr=10.0 ** (2.0 * max(p - 2.0, 0.0)), **sizes) for p in exponents)


class MirrorDirection(Experiment[Point]):
    id = "mirror-descent/direction"
    version = 4
    presets = {
        "quick": (*_study(EXPONENTS[:3], (10, 80)), *_small_study([2.0], 3)),  # p = 3 needs hundreds of runs
        "full": (*_study(EXPONENTS, (100, 400)), *_small_study([1.75, 2.0, 3.0], 10)),
        "paper": _study(EXPONENTS[1:], 100),
    }
    method_fields = frozenset({"p", "lr", "steps", "start"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent
        from whichtoken.theory.mirror_descent import directional_divergence, globally_optimal, locally_optimal

        problem, start = draw_problem(point, rng, point.start)
        checkpoints = np.unique(np.geomspace(1, point.steps, 40).astype(int))
        descent = attention_descent(problem, start, p=point.p, lr=point.lr, steps=point.steps, record=checkpoints)
        limits = {q: key_query_limit(problem, descent.selected, q) for q in {*EXPONENTS, point.p}}
        own, certificate = limits[point.p]
        optimal = locally_optimal(problem.token_scores, descent.selected, certificate.support)
        direction = descent.final.direction
        searched = {"share_by_search": _share_by_search(problem, descent, point.p, rng)} if point.dim == SMALL else {}
        return searched | {
            "divergence": directional_divergence(own, direction, point.p),
            "cosine": cosine(own, direction),
            "gap": max(limit.gap for _, limit in limits.values()),
            "settled": descent.settled and optimal,
            "locally_optimal": optimal,
            "globally_optimal": globally_optimal(problem.token_scores, descent.selected),
            "tokens": descent.selected,
            "cross": {q: directional_divergence(limits[q][0], direction, point.p) for q in EXPONENTS},
            "steps": checkpoints,
            "curve": [directional_divergence(own, state.direction, point.p) for state in descent.snapshots],
            "trajectory": [_plane_entries(state.direction) for state in descent.snapshots],
            "destination": _plane_entries(own),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        if searched := rows.where(dim=SMALL):
            yield SEARCH(Mean(values_with_failures(searched, "share_by_search")))
        rows = rows_where(rows, lambda point: point.dim != SMALL)
        for p in rows.levels("p"):
            runs = rows.where(p=p)
            divergence = Mean(values_with_failures(runs, "divergence", failed=1.0))
            yield LIMIT(divergence, value=0.045 if p < 1.5 else None, p=p, runs=len(runs), failed=len(runs.failed))
            if p in EXPONENTS:
                yield DOMINANCE(Mean(runs.seed_means(_advantage)), p=p)
                yield NEAREST(Worst(min([*map(_advantage, runs), *[-1.0] * len(runs.failed)])), p=p)
        yield SETTLED(Resampled(values_with_failures(rows, "settled"), np.mean))
        if rows:
            yield CERTIFICATE(Exact(rows.values("gap").max()))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        rows = rows_where(rows, lambda point: point.dim != SMALL) or rows
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 1.1, 1])
        _draw_cross_table(rows, left)
        for p, last in dict.fromkeys((row.point.p, row.point.steps) for row in rows):
            runs = rows.where(p=p, steps=last)
            plot_medians(middle, runs[0].measured["steps"], runs.values("curve"), f"p = {p:g}", shade=True)
        y = "median over runs, middle half shaded"
        label_axes(middle, "Divergence from the certified limit", "step", y, log="xy", legend=True)
        # one run per geometry, from the start it shares with the others to its own limit
        for row in rows:
            if row.seed == rows[0].seed:
                (line,) = right.plot(*np.transpose(row.measured["trajectory"]), lw=1, label=f"p = {row.point.p:g}")
                right.plot(*row.measured["destination"], "*", ms=11, color=line.get_color())
        x, y = (f"entry ({i}, {j}) of W / |W|" for i, j in PLANE.tolist())
        label_axes(right, "Two entries of the direction W / |W|, limit as a star", x, y, legend=True)


def _share_by_search(problem: Any, descent: Any, p: float, rng: np.random.Generator) -> float:
    """Margin of the trained direction over the largest of random directions, refined at random around the best one.

    Brute force: it shares no code with the solver of the limit.
    """

    def margins(weights: Vector) -> Any:  # (k, d, d) -> (k,)
        scores = np.einsum("ntd,kde,ne->knt", problem.tokens, weights, problem.queries)
        leads = [scores[:, i, [k]] - np.delete(scores[:, i], k, axis=1) for i, k in enumerate(descent.selected)]
        return np.concatenate(leads, axis=1).min(axis=1) / (np.abs(weights) ** p).sum(axis=(1, 2)) ** (1 / p)

    trained = descent.final.direction
    best = rng.standard_normal(trained.shape)
    for spread in 0.75 ** np.arange(ROUNDS):
        tried = best + spread * np.abs(best).max() * rng.standard_normal((TRIED, *trained.shape))
        tried[0] = best
        best = tried[margins(tried).argmax()]
    return float(margins(trained[None])[0] / margins(best[None])[0])


def _plane_entries(direction: Vector) -> Vector:
    """Two entries of a direction (d, d); small matrices wrap around."""
    across: Vector = direction[tuple(PLANE.T % len(direction))]
    return across


def _advantage(row: Row[Point]) -> float:
    """How much farther the nearest of the other limits is than its own."""
    cross, p = row.measured["cross"], row.point.p
    others = [value for q, value in cross.items() if float(q) != p]
    return float(min(others) - cross[str(p)])


def _draw_cross_table(rows: Rows[Point], axes: Axes) -> None:
    ps = rows.levels("p")
    table = np.array(
        [[np.mean([row.measured["cross"][str(q)] for row in rows.where(p=p)]) for q in EXPONENTS] for p in ps]
    )
    far = np.log10(table)
    # the color map runs from light (near) to dark (far)
    mesh = {"colors": far, "white": far > far.mean(), "cmap": "viridis_r"}
    draw_table(axes, table, [f"{p:g}" for p in ps], [f"{q:g}" for q in EXPONENTS], 4, **mesh)
    label_axes(axes, "Mean divergence from each limit", "max-margin limit in l_q, q", "trained in l_p, p")
    axes.invert_yaxis()
