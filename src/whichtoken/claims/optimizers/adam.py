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

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable, Part
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import each_point, group_by, mean_of_runs, resampled_runs
from whichtoken.claims.optimizers._methods import START, Method, margin_shares, train_with
from whichtoken.lab import Mean, Measured, Row, Rows

BETA1 = 0.9
# which claim a setting gets is decided before the run, by the margin that is usual at the default size
USUAL_MARGIN = 2.2
QUARTER, SHORTEST = 2, 8000  # place of a quarter of the steps in a curve; fewest steps after which a gain is judged
# lr * margin over the speed limit: below the first Adam is sign descent, above the second its lead grows at the limit, and
# above the third it stays nearer to l_2 for as long as we train
SLOW, FAST, FAR = 1.0, 4.0, 8.0
TABLE = ClaimTable(__name__)
NEAR_TOLERANCE = 0.075


@dataclass(frozen=True)
class Point(ProblemSize):
    beta2: float = 0.99
    lr: float = 0.02
    lr_power: float = 0.0  # step k has size lr * k**-lr_power
    eps: float = 0.0
    steps: int = 8000


class AdamGeometry(Claim[Point], table=TABLE):
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
            "speed": (leads[1] - leads[0]) / (point.steps - clock[-1]),  # growth of the lead, a step
            "ratio": point.lr * margin / speed_limit(point.beta2),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        constant = group_by(rows.where(lr_power=0.0, eps=0.0), "beta2", "lr")
        parts = [part for (beta2, lr), runs in constant for part in _constant_parts(beta2, lr, runs)]
        # below the speed limit first
        yield from sorted(
            parts, key=lambda part: (TABLE.sign, TABLE.speed, TABLE.short, TABLE.between).index(part.criterion)
        )
        for point, runs in each_point(rows.where(lr_power=0.5, eps=0.0)):
            for place, clock in ((QUARTER, point.steps // 4), (-1, point.steps)):  # a long run holds a shorter one
                if clock >= SHORTEST:
                    gained = mean_of_runs(runs, partial(_last_gain, place=place), failed=-1.0)
                    words = f"beta2 = {point.beta2:g}, steps {clock // 2} to {clock}"
                    yield TABLE.decay.part(f"b{point.beta2:g}.k{clock}", words, gained, on=runs)

        def excess(runs: Rows[Point]) -> Mean:
            return mean_of_runs(runs, lambda row: row.measured["l2"] - row.measured["linf"], failed=-1.0)

        yield from TABLE.eps.each(rows.where(eps=1e-8), "beta2", "b{:g}", "beta2 = {:g}", excess)

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


def _constant_parts(beta2: float, lr: float, runs: Rows[Point]) -> Iterator[Part]:
    limit = speed_limit(beta2)
    expected = lr * USUAL_MARGIN / limit
    far, ratios = expected > FAR, runs.values("ratio")
    reach = f", lr * margin {ratios.min():.2g} to {ratios.max():.2g} of the limit" if runs else ""
    label, words = f"b{beta2:g}.lr{lr:g}", f"beta2 = {beta2:g}, lr = {lr:g}{reach}"
    if expected > FAST:
        speed = resampled_runs(runs, lambda row: row.measured["speed"] / limit)
        yield TABLE.speed.part(label, words, speed, on=runs, tolerance=None if far else NEAR_TOLERANCE)
        worst = 1.0 if far else -1.0
        lead = mean_of_runs(runs, lambda row: row.measured["linf"] - row.measured["l2"], failed=worst)
        yield (TABLE.short if far else TABLE.between).part(label, words, lead, on=runs)
    if expected < SLOW:
        extrapolated = mean_of_runs(runs, lambda row: row.measured["linf"] + _last_gain(row))
        yield TABLE.sign.part(label, words, extrapolated, on=runs)


def speed_limit(beta2: float) -> float:
    """By how much log |G| can fall a step with second moments, averages of G^2, still falling as fast."""
    return math.log(1.0 / beta2) / 2.0


def _last_gain(row: Row[Point], place: int = -1) -> float:
    """l_inf share gained over the last doubling of steps before this place of the curve."""
    return float(row.measured["linf_curve"][place] - row.measured["linf_curve"][place - 1])
