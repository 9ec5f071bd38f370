"""When Adam is sign descent, and when it is not.

Claim   Without eps, Adam maximises the l_inf margin as long as its second moments forget faster than gradients fall: lr
        times the margin below log(1 / beta2) / 2. Above that, whatever lr, the lead of the selected tokens grows by log(1 /
        beta2) / 2 a step, and far above, within any usual training, W stays nearer to the l_2 margin. Step sizes that decay
        lead back to l_inf; eps ends in l_2.
Source  l_inf under decaying step sizes: Gronich, Vardi (arXiv 2602.16340) and, for linear models, Fan, Schmidt,
        Thrampoulidis (arXiv 2502.04664). l_2 with eps: Wang, Meng, Chen, Liu (arXiv 2012.06244), for RMSProp on homogeneous
        networks. The speed limit, and where the two regimes meet, are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.optimisers._methods import Method, all_runs, draw_problem, train_with
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Resampled, Row, Rows, agreement, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETA1 = 0.9
# which claim a setting gets is decided before the run, by the margin that is usual at the default size
USUAL_MARGIN = 2.2
QUARTER, SHORTEST = 2, 8000  # place of a quarter of the steps in a curve; fewest steps after which a gain is judged
# lr * margin over the speed limit: below the first Adam is sign descent, above the second its lead grows at the limit, and
# above the third it stays nearer to l_2 for as long as we train
SLOW, FAST, FAR = 1.0, 4.0, 8.0
NEAR_TOLERANCE, TOLERANCE = 0.075, 0.05  # of the speed; not far above the limit, pilots were 4 % below it


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    beta2: float = 0.99
    lr: float = 0.02
    lr_power: float = 0.0  # step k has size lr * k**-lr_power
    eps: float = 0.0
    steps: int = 8000


class AdamGeometry(Experiment[Point]):
    id = "optimisers/adam"
    version = 2
    presets = {
        "quick": (
            Grid(beta2=[0.9, 0.99], seeds=(10, 20)),
            Grid(beta2=0.999, steps=32000, seeds=(10, 20)),
            Grid(lr=0.2, lr_power=0.5, seeds=(10, 20)),
            Grid(beta2=0.9, eps=1e-8, seeds=(10, 20)),
        ),
        "full": (
            Grid(beta2=[0.9, 0.95, 0.98, 0.99, 0.999], lr=[0.002, 0.005, 0.02, 0.05], steps=32000, seeds=20),
            Grid(beta2=[0.9, 0.99, 0.999], steps=32000, seeds=30),
            Grid(beta2=[0.9, 0.99, 0.999], lr=0.2, lr_power=0.5, steps=128000, seeds=30),
            Grid(beta2=[0.9, 0.999], eps=1e-8, steps=32000, seeds=30),
        ),
    }
    method_fields = frozenset({"beta2", "lr", "lr_power", "eps", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.margin_norms import NORMS, margin_scale

        problem, start = draw_problem(point, rng)
        options = {"lr": point.lr, "lr_power": point.lr_power, "betas": (BETA1, point.beta2), "eps": point.eps}
        clock = [point.steps // 16, point.steps // 8, point.steps // 4, point.steps // 2]
        run = train_with(Method("Adam", "adam", options), problem, start, point.steps, clock)
        norms = {name: NORMS[name] for name in ("l2", "linf")}
        scale = margin_scale(problem.tokens, problem.queries, run.selected, norms)
        curve = [scale.shares(state.direction) for state in (*run.snapshots, run.final)]
        leads = [scale.least_lead(state.weights) for state in (run.snapshots[-1], run.final)]
        margin = scale.certificates["linf"].margin
        return {
            "linf": curve[-1]["linf"],
            "l2": curve[-1]["l2"],
            "clock": [*clock, point.steps],
            "linf_curve": [shares["linf"] for shares in curve],
            "l2_curve": [shares["l2"] for shares in curve],
            "speed": (leads[1] - leads[0]) / (point.steps - clock[-1]),  # growth of the lead, a step
            "ratio": point.lr * margin / speed_limit(point.beta2),
            "gap": scale.gap,
            "settled": run.settled,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        constant = rows.where(lr_power=0.0, eps=0.0)
        for beta2, lr in dict.fromkeys((row.point.beta2, row.point.lr) for row in constant):
            yield from self._judge_constant(beta2, lr, constant.where(beta2=beta2, lr=lr))
        decaying = rows.where(lr_power=0.5, eps=0.0)
        for beta2, steps in dict.fromkeys((row.point.beta2, row.point.steps) for row in decaying):
            runs = decaying.where(beta2=beta2, steps=steps)
            for place, clock in ((QUARTER, steps // 4), (-1, steps)):  # a long run holds a shorter one
                if clock >= SHORTEST:
                    yield at_least(
                        f"adam.decay.b{beta2:g}.k{clock}",
                        f"beta2 = {beta2:g}, lr = 0.2 k^-1/2: l_inf share gained between {clock // 2} and {clock} steps",
                        bound=0.0,
                        measured=Mean(all_runs(runs, partial(_gained, place=place), failed=-1.0)),
                    )
        for beta2 in rows.where(eps=1e-8).levels("beta2"):
            runs = rows.where(eps=1e-8, beta2=beta2)
            yield at_least(
                f"adam.eps.b{beta2:g}",
                f"beta2 = {beta2:g}, eps = 1e-8: by how much the l_2 share exceeds the l_inf share",
                bound=0.05,
                measured=Mean(all_runs(runs, lambda row: row.measured["l2"] - row.measured["linf"], failed=-1.0)),
            )

    def _judge_constant(self, beta2: float, lr: float, runs: Rows[Point]) -> Iterator[Claim]:
        ratios = runs.values("ratio")
        code, words = f"b{beta2:g}.lr{lr:g}", f"beta2 = {beta2:g}, lr = {lr:g}"
        where = f"lr * margin {ratios.min():.2g} to {ratios.max():.2g} of the limit"
        expected = lr * USUAL_MARGIN / speed_limit(beta2)
        if expected > FAST:
            yield agreement(
                f"adam.speed.{code}",
                f"{words} ({where}): growth of the lead a step, over log(1 / beta2) / 2, median over problems",
                theory=1.0,
                # a median, for a run whose tokens change late has no speed yet
                measured=Resampled(all_runs(runs, lambda row: row.measured["speed"] / speed_limit(beta2)), np.median),
                tolerance=TOLERANCE if expected > FAR else NEAR_TOLERANCE,
            )
            worst = 1.0 if expected > FAR else -1.0
            lead = Mean(all_runs(runs, lambda row: row.measured["linf"] - row.measured["l2"], failed=worst))
            if expected > FAR:
                yield at_most(
                    f"adam.short.{code}", f"{words} ({where}): l_inf share less l_2 share", bound=0.0, measured=lead
                )
            else:
                yield at_least(
                    f"adam.between.{code}",
                    f"{words} ({where}, not far above it): l_inf share less l_2 share",
                    bound=0.0,
                    measured=lead,
                )
        if expected < SLOW:
            yield agreement(
                f"adam.sign.{code}",
                f"{words} ({where}): l_inf share, extrapolated to endless training",
                theory=1.0,
                measured=Mean(all_runs(runs, lambda row: row.measured["linf"] + _gained(row))),
                tolerance=0.02,
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_phases(rows.where(eps=0.0, lr_power=0.0), left)
        _draw_curves(rows, right)


def speed_limit(beta2: float) -> float:
    """By how much log |G| can fall a step with second moments, averages of G^2, still falling as fast."""
    return math.log(1.0 / beta2) / 2.0


def _gained(row: Row[Point], place: int = -1) -> float:
    """l_inf share gained over the last doubling of steps before this place of the curve."""
    return float(row.measured["linf_curve"][place] - row.measured["linf_curve"][place - 1])


def _draw_phases(rows: Rows[Point], axes: Axes) -> None:
    """Every run: how far above the speed limit it would like to go, and in which norm it ends."""
    for beta2 in rows.levels("beta2"):
        runs = rows.where(beta2=beta2)
        axes.plot(runs.values("ratio"), runs.values("linf"), "o", ms=3, label=f"beta2 = {beta2:g}")
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="step size times margin, over log(1 / beta2) / 2", ylabel="share of the l_inf margin")
    axes.set(title="Constant step size, eps = 0")
    axes.legend(fontsize="small")


def _draw_curves(rows: Rows[Point], axes: Axes) -> None:
    for point in dict.fromkeys(row.point for row in rows):
        if point.lr not in {0.02, 0.2}:
            continue
        runs = Rows(row for row in rows if row.point == point)
        name = f"beta2 {point.beta2:g}" + (", decaying" if point.lr_power else "") + (", eps" if point.eps else "")
        axes.plot(runs[0].measured["clock"], np.mean([row.measured["linf_curve"] for row in runs], axis=0), label=name)
    axes.set(xscale="log", xlabel="step", ylabel="mean share of the l_inf margin", title="On the way")
    axes.legend(fontsize="small")
