"""Each optimiser maximises the margin in its own norm.

Claim   Trained by an optimiser whose steps are the steepest of a norm, the key-query matrix comes as close as one likes to
        the largest margin in that norm for the tokens it selects, and stays clearly below it in every other norm; the
        distance falls as 1 / steps.
Source  Proven for homogeneous networks: Tsilivis, Vardi, Kempe, Flavors of Margin (arXiv 2410.22069), Gronich, Vardi (arXiv
        2602.16340, Adam, Muon, signum). For attention: Frobenius norm for W, nuclear norm for K and Q, Tarzanagh, Li,
        Thrampoulidis, Oymak, Transformers as Support Vector Machines (arXiv 2308.16898). All others, and the rate, are
        measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.experiments.optimisers._methods import (
    METHODS,
    OWN_NORMS,
    all_runs,
    draw_problem,
    printed_norm,
    train_with,
)
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
    agreement,
    at_least,
    at_most,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MethodName = Literal[
    "gd", "normalized-gd", "sign", "coordinate", "adam", "adam-default", "lion", "muon", "muon-momentum", "muon-torch",
    "shampoo", "soap", "schatten", "keys-queries", "keys-queries-muon",
]  # fmt: skip
DOMINANCE = 0.05  # by which the share in the own norm should exceed that in every other
DEAR = ("schatten", "shampoo", "soap")  # decompose a matrix in every step
NEIGHBOURS = {"schatten"}  # whose norm lies between two of the map: a small lead over them will do


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    method: MethodName = "sign"
    steps: int = 8000


class Margins(Experiment[Point]):
    id = "optimisers/margins"
    version = 2
    presets = {
        "quick": (
            # keys and queries have claims of their own, at more steps
            Grid(method=["normalized-gd", "sign", "coordinate", "adam", "muon"], seeds=(12, 24)),
        ),
        "full": (
            Grid(method=[name for name in METHODS if name not in DEAR], steps=16000, seeds=(30, 60)),
            Grid(method=list(DEAR), steps=16000, seeds=12),
        ),
    }
    method_fields = frozenset({"method", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import NORMS, margin_scale

        problem, start = draw_problem(point, rng)
        method = METHODS[point.method]
        clock = [point.steps // 16, point.steps // 8, point.steps // 4, point.steps // 2]
        run = train_with(method, problem, start, point.steps, clock)
        own = {method.norm: OWN_NORMS[method.norm]} if method.norm in OWN_NORMS else {}
        scale = margin_scale(problem.tokens, problem.queries, run.selected, {**NORMS, **own})
        curve = [scale.shares(state.direction) for state in (*run.snapshots, run.final)]
        return {
            "shares": curve[-1],
            "half": curve[-2],
            "clock": [*clock, point.steps],
            "curves": {name: [shares[name] for shares in curve] for name in curve[-1]},
            "gap": scale.gap,
            "margins": {name: certificate.margin for name, certificate in scale.certificates.items()},
            "unique": {name: certificate.unique for name, certificate in scale.certificates.items()},
            "settled": run.settled,
            "tokens": run.selected,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for name in rows.levels("method"):
            method, runs = METHODS[name], rows.where(method=name)
            if not method.norm:
                continue
            lost = f", {len(runs.failed)} failed" if runs.failed else ""
            yield at_least(
                f"margins.own.{name}",
                f"{method.label}: share of the largest {printed_norm(method.norm)} margin ({len(runs)} runs{lost})",
                bound=0.93 if method.factors > 1 else 0.95,
                measured=Mean(all_runs(runs, _own)),
            )
            yield agreement(
                f"margins.limit.{name}",
                f"{method.label}: that share, extrapolated to endless training, median over problems",
                theory=1.0,
                # medians, for a run whose tokens change late is far from its course; `own` takes every run as it is
                measured=Resampled(all_runs(runs, _extrapolated), np.median),
                tolerance=0.02,
            )
            yield at_least(
                f"margins.dominance.{name}",
                f"{method.label}: lead over the share in the nearest other norm",
                bound=0.01 if name in NEIGHBOURS else DOMINANCE,
                measured=Mean(all_runs(runs, _dominance)),
            )
            if method.rate:
                yield agreement(
                    f"margins.rate.{name}",
                    f"{method.label}: exponent of the missing share in the number of steps, median over problems",
                    theory=-1.0,
                    measured=Resampled(runs.seed_means(_exponent), np.median),
                    tolerance=0.075,
                )
        if rows:
            yield at_most(
                "margins.certificate",
                "largest duality gap of the margins",
                bound=1e-6,
                measured=Exact(rows.values("gap").max()),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1])
        draw_map(rows, left)
        _draw_curves(rows, right)


def _own(row: Row[Point]) -> float:
    return float(row.measured["shares"][METHODS[row.point.method].norm])


def _extrapolated(row: Row[Point]) -> float:
    """Twice the share at the end less that at half of the steps: exact if what is missing falls as 1 / steps."""
    return 2.0 * _own(row) - float(row.measured["half"][METHODS[row.point.method].norm])


def _dominance(row: Row[Point]) -> float:
    own = METHODS[row.point.method].norm
    others = [share for norm, share in row.measured["shares"].items() if norm != own]
    return _own(row) - float(max(others))


def _exponent(row: Row[Point]) -> float:
    """Slope of log(1 - share) in the logarithm of steps over the last two doublings."""
    missing = 1.0 - np.array(row.measured["curves"][METHODS[row.point.method].norm][-3:])
    steps = np.log(row.measured["clock"][-3:])
    return float(np.polyfit(steps, np.log(np.maximum(missing, 1e-12)), 1)[0])


def draw_map(rows: Rows[Point], axes: Axes) -> None:
    """Methods over norms: mean share of the best margin."""
    from whichtoken.display.figures import printed
    from whichtoken.flows.margin_norms import NORMS

    names = rows.levels("method")
    table = np.array(
        [
            [np.mean([row.measured["shares"][norm] for row in rows.where(method=name)]) for norm in NORMS]
            for name in names
        ]
    )
    axes.pcolormesh(table, cmap="viridis", vmin=0.0, vmax=1.0, edgecolors="none")
    for (i, j), value in np.ndenumerate(table):
        own = METHODS[names[i]].norm == list(NORMS)[j]
        axes.text(
            j + 0.5, i + 0.5, f"{value:.3f}", ha="center", va="center", color="black" if value > 0.6 else "white",
            weight="bold" if own else "normal",
        )  # fmt: skip
    axes.set_xticks(np.arange(len(NORMS)) + 0.5, [printed(printed_norm(name)) for name in NORMS])
    axes.set_yticks(np.arange(len(names)) + 0.5, [METHODS[name].label for name in names])
    axes.set(title="Share of the largest margin (bold: own norm)")
    axes.invert_yaxis()
    axes.grid(False)


def _draw_curves(rows: Rows[Point], axes: Axes) -> None:
    for name in rows.levels("method"):
        norm: Any = METHODS[name].norm
        if not norm:
            continue
        runs = rows.where(method=name)
        missing = 1.0 - np.mean([row.measured["curves"][norm] for row in runs], axis=0)
        axes.plot(runs[0].measured["clock"], missing, marker="o", ms=3, label=METHODS[name].label)
    axes.set(
        xscale="log",
        yscale="log",
        title="Missing share, own norm",
        xlabel="step",
        ylabel="share of the largest margin still missing",
    )
    axes.legend(fontsize="small")
