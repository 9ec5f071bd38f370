"""Mirror descent on attention ends in a max-margin direction.

Claim   Trained by normalized l_p mirror descent, the key-query matrix converges in direction to the minimal-l_p-norm matrix
        that separates the selected tokens from all others, and p alone decides which of these limits it is.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581); sizes, step sizes and
        numbers of steps as in their synthetic study, l_1.1 added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Axes, Figure, draw_table, label_axes, plot_medians
from whichtoken.claims._problems import ProblemSize, Vector, cosine, draw_problem, key_query_limit
from whichtoken.claims._runs import group_by, mean_of_runs, resampled_runs, worst_of_runs
from whichtoken.lab import Measured, Row, Rows

EXPONENTS = (1.1, 1.75, 2.0, 3.0)  # the geometries whose limits are compared
PLANE = np.array([[1, 2], [3, 4]])  # the two entries of W whose plane the trajectories are drawn in, as in the source

FIGURE = (1.75, 2.0, 3.0)  # those of the source's figure
TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    start: float = 1.0  # standard deviation of the entries of the initial matrix
    p: float = 2.0
    lr: float = 0.1
    steps: int = 2000


class MirrorDirection(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent
        from whichtoken.theory.mirror_descent import directional_divergence, locally_optimal

        problem, start = draw_problem(point, rng, point.start)
        checkpoints = np.unique(np.geomspace(1, point.steps, 40).astype(int))
        descent = attention_descent(problem, start, p=point.p, lr=point.lr, steps=point.steps, record=checkpoints)
        limits = {q: key_query_limit(problem, descent.selected, q) for q in {*EXPONENTS, point.p}}
        own, certificate = limits[point.p]
        optimal = locally_optimal(problem.token_scores, descent.selected, certificate.support)
        direction = descent.final.direction
        return {
            "divergence": directional_divergence(own, direction, point.p),
            "cosine": cosine(own, direction),
            "gap": max(limit.gap for _, limit in limits.values()),
            "settled": descent.settled and optimal,
            "cross": {q: directional_divergence(limits[q][0], direction, point.p) for q in EXPONENTS},
            "steps": checkpoints,
            "curve": [directional_divergence(own, state.direction, point.p) for state in descent.snapshots],
            "trajectory": [_plane_entries(state.direction) for state in descent.snapshots],
            "destination": _plane_entries(own),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        groups = [(p, f"p{p:g}", f"p = {p:g}, {len(runs)} runs, {len(runs.failed)} failed", runs)
                  for p, runs in group_by(rows, "p")]  # fmt: skip
        for p, code, words, runs in groups:
            if p in FIGURE:
                yield TABLE.dominance.part(code, words, mean_of_runs(runs, _advantage, failed=-1.0), on=runs)
        for p, code, words, runs in groups:
            yield TABLE.falls.part(code, words, resampled_runs(runs, _last_fall, failed=1.0), on=runs)
            divergence = mean_of_runs(runs, "divergence", failed=1.0)
            yield TABLE.limit.part(code, words, divergence, on=runs, value=0.045 if p < 1.5 else None)
            if p in EXPONENTS:
                yield TABLE.nearest.part(code, words, worst_of_runs(runs, _advantage, failed=-1.0), on=runs)
        yield TABLE.settled(resampled_runs(rows, "settled", statistic=np.mean), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
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


def _plane_entries(direction: Vector) -> Vector:
    """Two entries of a direction (d, d); small matrices wrap around."""
    across: Vector = direction[tuple(PLANE.T % len(direction))]
    return across


def _last_fall(row: Row[Point]) -> float:
    """Divergence at the end over that at half of the steps."""
    half = int(np.searchsorted(row.measured["steps"], row.measured["steps"][-1] / 2))
    return float(row.measured["curve"][-1] / row.measured["curve"][half])


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
