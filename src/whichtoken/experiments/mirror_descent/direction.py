"""Mirror descent on attention ends in a max-margin direction.

Claim   Trained by normalised l_p mirror descent, the key-query matrix converges in direction to the minimal-l_p-norm matrix
        that separates the selected tokens from all others, and p alone decides which of these limits it is.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581); sizes, step sizes and
        numbers of steps as in their synthetic study, l_1.1 added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import (
    Claim,
    Exact,
    Experiment,
    Grid,
    Mean,
    Measured,
    Resampled,
    Row,
    Rows,
    Worst,
    agreement,
    at_least,
    at_most,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXPONENTS = (1.1, 1.75, 2.0, 3.0)  # the geometries whose limits are compared
SMALL = 2  # dimension of the problems whose limit is also found by search, without a solver
ROUNDS, TRIED = 40, 5000  # of a search: each round tries as many directions, closer and closer to the best
SMALL_GAP = 1e-6  # duality gap from which on a limit counts as known
PLANE = np.array([[1, 2], [3, 4]])  # the two entries of W whose plane the trajectories are drawn in, as in the source


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


def _searched(exponents: list[float], seeds: int) -> tuple[Grid, ...]:
    """Problems so small that their limit can be searched for, trained far enough to compare margins."""
    sizes = {"sequences": 2, "length": 3, "dim": SMALL, "steps": 20000, "seeds": seeds}
    return tuple(Grid(p=p, lr=10.0 ** (2.0 * max(p - 2.0, 0.0)), **sizes) for p in exponents)


class MirrorDirection(Experiment[Point]):
    id = "mirror-descent/direction"
    version = 4
    presets = {
        "quick": (*_study(EXPONENTS[:3], (10, 80)), *_searched([2.0], 3)),  # p = 3 is decided by hundreds of runs
        "full": (*_study(EXPONENTS, (100, 400)), *_searched([1.75, 2.0, 3.0], 10)),
        "paper": _study(EXPONENTS[1:], 100),
    }
    method_fields = frozenset({"p", "lr", "steps", "start"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionTokens
        from whichtoken.flows.descent import attention_descent
        from whichtoken.margin import key_query_svm
        from whichtoken.theory.mirror_descent import directional_divergence, globally_optimal, locally_optimal

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        start = point.start * rng.standard_normal((point.dim, point.dim))
        checkpoints = np.unique(np.geomspace(1, point.steps, 40).astype(int))
        descent = attention_descent(problem, start, p=point.p, lr=point.lr, steps=point.steps, record=checkpoints)
        limits = {
            q: key_query_svm(problem.tokens, problem.queries, descent.selected, p=q) for q in {*EXPONENTS, point.p}
        }
        directions = {q: limit.direction for q, limit in limits.items() if limit.direction is not None}
        if len(directions) < len(limits):
            raise ValueError(f"the selected tokens {descent.selected.tolist()} cannot be separated: no limit exists")
        own = directions[point.p]
        optimal = locally_optimal(problem.token_scores, descent.selected, limits[point.p].support)
        direction = descent.final.direction
        searched = {"share_by_search": _share_by_search(problem, descent, point.p, rng)} if point.dim == SMALL else {}
        return searched | {
            "divergence": directional_divergence(own, direction, point.p),
            "cosine": _cosine(own, direction),
            "gap": max(limit.gap for limit in limits.values()),
            "settled": descent.settled and optimal,
            "locally_optimal": optimal,
            "globally_optimal": globally_optimal(problem.token_scores, descent.selected),
            "tokens": descent.selected,
            "cross": {q: directional_divergence(directions[q], direction, point.p) for q in EXPONENTS},
            "steps": checkpoints,
            "curve": [directional_divergence(own, state.direction, point.p) for state in descent.snapshots],
            "trajectory": [_in_plane(state.direction) for state in descent.snapshots],
            "destination": _in_plane(own),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        searched = rows.where(dim=SMALL)
        if searched:
            yield agreement(
                "direction.brute-force",
                f"{SMALL} dimensions: margin of the trained matrix over the largest that a search without solver finds",
                theory=1.0,
                measured=Mean([*searched.seed_means("share_by_search"), *[0.0] * len(searched.failed)]),
                tolerance=0.01,
            )
        rows = Rows(
            (row for row in rows if row.point.dim != SMALL), (row for row in rows.failed if row.point.dim != SMALL)
        )
        for p in rows.levels("p"):
            runs = rows.where(p=p)
            yield at_most(
                f"direction.limit.p{p:g}",
                f"p = {p:g}: mean divergence from the l_{p:g} limit, all runs ({len(runs)}, and {len(runs.failed)} failed)",
                bound=0.045 if p < 1.5 else 0.008,
                measured=Mean([*runs.seed_means("divergence"), *[1.0] * len(runs.failed)]),
            )
            if p in EXPONENTS:
                yield at_least(
                    f"direction.dominance.p{p:g}",
                    f"p = {p:g}: by how much the nearest limit of another p is farther, mean",
                    bound=0.0,
                    measured=Mean(runs.seed_means(_advantage)),
                )
                yield at_least(
                    f"direction.nearest.p{p:g}",
                    f"p = {p:g}: by how much the nearest limit of another p is farther in the run where it is least, so that "
                    "in every run the own limit is the nearest",
                    bound=0.0,
                    measured=Worst(min([*map(_advantage, runs), *[-1.0] * len(runs.failed)])),
                )
        yield at_least(
            "direction.settled",
            "share of runs that settle on locally optimal tokens",
            bound=0.9,
            measured=Resampled([*rows.seed_means("settled"), *[0.0] * len(rows.failed)], np.mean),
        )
        if rows:
            yield at_most(
                "direction.certificate",
                "largest duality gap of the limits",
                bound=SMALL_GAP,
                measured=Exact(rows.values("gap").max()),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        rows = Rows(row for row in rows if row.point.dim != SMALL) or rows
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.1, 1.1, 1])
        _draw_cross_table(rows, left)
        _draw_curves(rows, middle)
        _draw_trajectories(Rows(row for row in rows if row.seed == rows[0].seed), right)


def _share_by_search(problem: Any, descent: Any, p: float, rng: np.random.Generator) -> float:
    """Margin of the trained direction over the largest of random directions, refined at random around the best one.

    Brute force: it shares no code with the solver of the limit.
    """

    def margins(weights: NDArray[np.float64]) -> Any:  # (k, d, d) -> (k,)
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


def _cosine(a: Any, b: Any) -> float:
    return float(np.vdot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def _in_plane(direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two entries of a direction (d, d); small matrices wrap around."""
    across: NDArray[np.float64] = direction[tuple(PLANE.T % len(direction))]
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
    axes.pcolormesh(np.log10(table), cmap="viridis_r", edgecolors="none")
    dark = np.log10(table) > np.log10(table).mean()  # the map runs from light (near) to dark (far)
    for (i, j), value in np.ndenumerate(table):
        colour = "white" if dark[i, j] else "black"
        axes.text(j + 0.5, i + 0.5, f"{value:.4f}", ha="center", va="center", color=colour)
    axes.set(title="Mean divergence from each limit", xlabel="max-margin limit in l_q, q", ylabel="trained in l_p, p")
    axes.set_xticks(np.arange(len(EXPONENTS)) + 0.5, [f"{q:g}" for q in EXPONENTS])
    axes.set_yticks(np.arange(len(ps)) + 0.5, [f"{p:g}" for p in ps])
    axes.invert_yaxis()
    axes.grid(False)


def _draw_curves(rows: Rows[Point], axes: Axes) -> None:
    for p, last in dict.fromkeys((row.point.p, row.point.steps) for row in rows):
        runs = rows.where(p=p, steps=last)
        curves = np.array([row.measured["curve"] for row in runs])
        steps = runs[0].measured["steps"]
        (line,) = axes.plot(steps, np.median(curves, axis=0), label=f"p = {p:g}")
        axes.fill_between(steps, *np.quantile(curves, [0.25, 0.75], axis=0), color=line.get_color(), alpha=0.15, lw=0)
    axes.set(
        xscale="log",
        yscale="log",
        title="Divergence from the certified limit",
        xlabel="step",
        ylabel="median over runs, middle half shaded",
    )
    axes.legend()


def _draw_trajectories(rows: Rows[Point], axes: Axes) -> None:
    """One run per geometry, from the start it shares with the others to its own limit."""
    for row in rows:
        (line,) = axes.plot(*np.transpose(row.measured["trajectory"]), lw=1, label=f"p = {row.point.p:g}")
        axes.plot(*row.measured["destination"], "*", ms=11, color=line.get_color())
    (a, b), (c, d) = PLANE.tolist()
    axes.set(
        title="Two entries of the direction W / |W|, limit as a star",
        xlabel=f"entry ({a}, {b}) of W / |W|",
        ylabel=f"entry ({c}, {d}) of W / |W|",
    )
    axes.legend()
