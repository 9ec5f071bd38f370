"""When Adam is sign descent, and when it is not.

Claim   Without eps, Adam maximizes the l_inf margin as long as its second moments forget faster than gradients fall: lr
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
from typing import Any

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, Criterion, Equals, each_point, group_by, values_with_failures
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims.mirror_descent._problems import draw_problem
from whichtoken.claims.optimizers._methods import START, Method, margin_shares, train_with
from whichtoken.lab import Check, Experiment, Grid, Measured, Resampled, Row, Rows

BETA1 = 0.9
# which claim a setting gets is decided before the run, by the margin that is usual at the default size
USUAL_MARGIN = 2.2
QUARTER, SHORTEST = 2, 8000  # place of a quarter of the steps in a curve; fewest steps after which a gain is judged
# lr * margin over the speed limit: below the first Adam is sign descent, above the second its lead grows at the limit, and
# above the third it stays nearer to l_2 for as long as we train
SLOW, FAST, FAR = 1.0, 4.0, 8.0
SIGN = Equals(
    "adam.sign", 1.0, "constant steps below the speed limit: l_inf share, extrapolated to endless training",
    tolerance=0.02,
)  # fmt: skip
# A median, for a run whose tokens change late has no speed yet. Not far above the limit, pilots were 4 % below it.
SPEED = Equals(
    "adam.speed", 1.0, "constant steps above the limit: growth of the lead a step, over log(1 / beta2) / 2, median",
    tolerance=0.05,
)  # fmt: skip
NEAR_TOLERANCE = 0.075
SHORT = AtMost("adam.short", 0.0, "constant steps far above the limit: l_inf share less l_2 share")
BETWEEN = AtLeast("adam.between", 0.0, "constant steps not far above it: l_inf share less l_2 share")
DECAY = AtLeast(
    "adam.decay", 0.0, "steps that decay, lr = 0.2 k^-1/2: l_inf share gained over the last doubling of steps",
    kind="paper-statement", regime="beyond-hypotheses",
)  # fmt: skip
EPS = AtLeast(
    "adam.eps", 0.0, "eps = 1e-8: by how much the l_2 share exceeds the l_inf share",
    kind="paper-statement", regime="beyond-hypotheses",
)  # fmt: skip


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
    id = "optimizers/adam"
    version = 2
    presets = {
        "quick": (
            Grid(beta2=[0.9, 0.99], seeds=(10, 20)),
            Grid(beta2=0.999, steps=32000, seeds=(10, 20)),
            Grid(lr=0.2, lr_power=0.5, seeds=(10, 20)),
            Grid(beta2=0.9, eps=1e-8, seeds=(10, 20)),
        ),
        "full": (
            Grid(beta2=[0.9, 0.95, 0.98, 0.99, 0.999], lr=[0.002, 0.005, 0.02, 0.05], steps=32000, seeds=(20, 80)),
            Grid(beta2=[0.9, 0.99, 0.999], steps=32000, seeds=30),
            Grid(beta2=[0.9, 0.99, 0.999], lr=0.2, lr_power=0.5, steps=128000, seeds=30),
            Grid(beta2=[0.9, 0.999], eps=1e-8, steps=32000, seeds=30),
        ),
    }
    method_fields = frozenset({"beta2", "lr", "lr_power", "eps", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        problem, start = draw_problem(point, rng, START)
        options = {"lr": point.lr, "lr_power": point.lr_power, "betas": (BETA1, point.beta2), "eps": point.eps}
        clock = [point.steps // 16, point.steps // 8, point.steps // 4, point.steps // 2]
        run = train_with(Method("Adam", "adam", options), problem, start, point.steps, clock)
        scale, curve = margin_shares(problem, run, ("l2", "linf"))
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

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        constant = group_by(rows.where(lr_power=0.0, eps=0.0), "beta2", "lr")
        parts = [part for (beta2, lr), runs in constant for part in _constant_parts(beta2, lr, runs)]
        for point, runs in each_point(rows.where(lr_power=0.5, eps=0.0)):
            for place, clock in ((QUARTER, point.steps // 4), (-1, point.steps)):  # a long run holds a shorter one
                if clock >= SHORTEST:
                    gained = values_with_failures(runs, partial(_last_gain, place=place), failed=-1.0)
                    words = f"beta2 = {point.beta2:g}, steps {clock // 2} to {clock}"
                    parts.append(DECAY.part(f"b{point.beta2:g}.k{clock}", words, gained, on=runs, counts_failed=True))
        for beta2, runs in group_by(rows.where(eps=1e-8), "beta2"):
            excess = values_with_failures(runs, lambda row: row.measured["l2"] - row.measured["linf"], failed=-1.0)
            parts.append(EPS.part(f"b{beta2:g}", f"beta2 = {beta2:g}", excess, on=runs, counts_failed=True))
        for criterion in (SIGN, SPEED, SHORT, BETWEEN, DECAY, EPS):
            if own := [part for part in parts if part.code.startswith(criterion.code)]:
                yield criterion.pool(own)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        # every run: how far above the speed limit it would go, and in which norm it ends
        constant = rows.where(eps=0.0, lr_power=0.0)
        for beta2 in constant.levels("beta2"):
            runs = constant.where(beta2=beta2)
            left.plot(runs.values("ratio"), runs.values("linf"), "o", ms=3, label=f"beta2 = {beta2:g}")
        left.axvline(1.0, color="black", lw=0.8)
        x, y = "step size times margin, over log(1 / beta2) / 2", "share of the l_inf margin"
        label_axes(left, "Constant step size, eps = 0", x, y, log="x")
        for point in dict.fromkeys(row.point for row in rows if row.point.lr in {0.02, 0.2}):
            runs = Rows(row for row in rows if row.point == point)
            name = f"beta2 {point.beta2:g}" + (", decaying" if point.lr_power else "") + (", eps" if point.eps else "")
            right.plot(runs[0].measured["clock"], runs.values("linf_curve").mean(axis=0), label=name)
        label_axes(right, "On the way", "step", "mean share of the l_inf margin", log="x")
        for axes in (left, right):
            axes.legend(fontsize="small")


def _constant_parts(beta2: float, lr: float, runs: Rows[Point]) -> Iterator[Check]:
    limit = speed_limit(beta2)
    expected = lr * USUAL_MARGIN / limit
    ratios = runs.values("ratio")
    reach = f", lr * margin {ratios.min():.2g} to {ratios.max():.2g} of the limit" if runs else ""

    def part(criterion: Criterion, sample: Any, **options: Any) -> Check:
        words = f"beta2 = {beta2:g}, lr = {lr:g}{reach}"
        return criterion.part(f"b{beta2:g}.lr{lr:g}", words, sample, on=runs, counts_failed=True, **options)

    if expected > FAST:
        far = expected > FAR
        speed = Resampled(values_with_failures(runs, lambda row: row.measured["speed"] / limit), np.median)
        yield part(SPEED, speed, tolerance=None if far else NEAR_TOLERANCE)
        worst = 1.0 if far else -1.0
        lead = values_with_failures(runs, lambda row: row.measured["linf"] - row.measured["l2"], failed=worst)
        yield part(SHORT if far else BETWEEN, lead)
    if expected < SLOW:
        yield part(SIGN, values_with_failures(runs, lambda row: row.measured["linf"] + _last_gain(row)))


def speed_limit(beta2: float) -> float:
    """By how much log |G| can fall a step with second moments, averages of G^2, still falling as fast."""
    return math.log(1.0 / beta2) / 2.0


def _last_gain(row: Row[Point], place: int = -1) -> float:
    """l_inf share gained over the last doubling of steps before this place of the curve."""
    return float(row.measured["linf_curve"][place] - row.measured["linf_curve"][place - 1])
