"""In the limit of many tokens structure-aware descent trains attention at a geometric rate, whatever the conditioning.

Claim   With Gram preconditioning the loss of the long-context limit shrinks by (1 - 2 step)^2 per iteration for any condition
        number of target and covariance, with the covariance alone in proportion to it; on tokens, structure-aware descent
        reaches its floor in a quarter of the gradients that a tuned Adam needs from the same start.
Source  Geometric rate: Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514, abstract). The two preconditioners, their rates and
        the comparison are derived and measured here; the paper's own experiments are not reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Axes, Figure, legend
from whichtoken.claims._runs import Array, group_by, rows_where
from whichtoken.claims.attention_regression._training import GRIDS, WORDS, run_population, run_rate, run_tokens
from whichtoken.lab import Measured, Resampled, Row, Rows, log_slope
from whichtoken.theory.attention_regression import gram_rate

ADAMS = ("adam", "adam-raw")
RATE_STEPS = 3  # by which the excess is still well above the floor
NEAR = 1.2  # times the best excess: the floor counts as reached

TABLE = ClaimTable(__name__)
RIVALS = {
    TABLE.rival: ("gradient", "gradient-raw", "muon", "lbfgs"),
    TABLE.second_order: ("alternating", "gauss-newton"),
}


@dataclass(frozen=True)
class Point:
    setting: Literal["population", "tokens", "rate"] = "population"  # rate: step by step on tokens, from a wrong map
    dim: int = 8
    outputs: int = 0  # as many as features
    tokens: int = 160  # of which the start of the population runs is made
    noise: float = 0.0
    target: float = 1.0  # condition numbers
    covariance: float = 1.0
    method: str = "gram"
    start: Literal["same", "own"] = "same"  # crude spectral start for every method, or its own
    budget: int = 60  # gradient evaluations


class Convergence(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        if point.setting == "rate":
            return run_rate(point, rng)
        return run_population(point, rng) if point.setting == "population" else run_tokens(point, rng)

    def judge(self, rows: Rows[Point]) -> Checks:
        rate, population = rows.where(setting="rate"), rows.where(setting="population")
        yield from _rate_checks(rate)
        yield from _population_checks(population.where(outputs=Point.outputs))
        narrow = rows_where(population, lambda point: point.outputs > 0)
        theory = gram_rate([1.0], 0.25, dim=2)  # any more features than singular values
        yield TABLE.narrow(narrow.seed_means(_factor), value=theory, tolerance=0.02 * theory, on=narrow)
        yield from _comparison_checks(rows.where(setting="tokens", start="same"))

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _draw_population(rows.where(setting="population", outputs=Point.outputs), left)
        _draw_tokens(rows.where(setting="tokens", start="same"), right)


def _population_checks(rows: Rows[Point]) -> Checks:
    for method, bound in (("gram-quarter", 20), ("gram", 5)):
        runs = rows.where(method=method)
        worst = runs.per_seed(lambda repeat: max(map(_arrival, repeat)))
        yield TABLE.iterations(worst, value=bound, on=runs, method=method, step=GRIDS[method][0])
    quarter = rows.where(method="gram-quarter")
    yield TABLE.factor(quarter.seed_means(_factor), on=quarter)
    conditioned = rows_where(rows.where(method="covariance", covariance=1.0), lambda point: point.target > 1)
    arrived = Rows(replace(row, measured={"iterations": _arrival(row)}) for row in conditioned)
    yield TABLE.growth(log_slope(arrived, "target", "iterations"), on=conditioned)


def _factor(row: Row[Point]) -> float:
    """Loss factor per iteration; a run too short for one counts with 1: it has not shrunk its loss."""
    factor = row.measured["factor"]
    return 1.0 if factor is None else float(factor)


def _arrival(row: Row[Point]) -> float:
    """Iterations until the run arrives, its budget if it does not."""
    iterations = row.measured["iterations"]
    return float(row.point.budget if iterations is None else iterations)


def _rate_checks(rows: Rows[Point]) -> Checks:
    """The geometric rate on the tokens themselves: what of it is left, and where it ends."""

    def factors(runs: Rows[Point], name: str = "excess") -> Array:
        """Factor per step over the first steps."""
        paths = [row.measured[name] for row in runs]
        return np.array([(path[RATE_STEPS] / path[0]) ** (1 / RATE_STEPS) for path in paths])

    limit, where = gram_rate([1.0], 0.25), ("target", "k{:g}", "condition number {:g}")
    yield from TABLE.rate.each(rows, *where, factors)
    yield from TABLE.like_limit.each(rows, *where, factors, value=limit, tolerance=0.1 * limit)
    yield from TABLE.damped.each(rows, *where, lambda runs: factors(runs) / factors(runs, "predicted"))
    yield from TABLE.ends.each(
        rows, *where, lambda runs: [row.measured["excess"][-1] / row.measured["excess"][-6] for row in runs]
    )


def _comparison_checks(rows: Rows[Point]) -> Checks:
    """Ours beside other methods from the same start, each at its best step size."""
    for k in sorted({row.point.target for row in rows if row.point.method in ADAMS}):
        runs = _runs_of(rows.where(target=k), "gram", *ADAMS)
        ratio = Resampled(runs.per_seed(partial(_ratio, rivals=ADAMS)), np.median)
        yield TABLE.adam.part(f"k{k:g}", f"condition numbers {k:g}", ratio, on=runs)
    for criterion, methods in RIVALS.items():
        for method in methods:
            if rows.where(method=method):
                runs = _runs_of(rows, "gram", method, *ADAMS)
                ratios = _values_by_problem(runs, partial(_ratio, rivals=(method,)))
                yield criterion.part(method, WORDS[method], Resampled(ratios, np.median), on=runs)
    for method in ("last-layer", "lbfgs", "adam"):
        if rows.where(method=method):
            runs = _runs_of(rows, "gram", method)
            yield TABLE.lowest.part(
                method, WORDS[method], _values_by_problem(runs, partial(_floor_ratio, rival=method)), on=runs
            )


def _runs_of(rows: Rows[Point], *methods: str) -> Rows[Point]:
    return rows_where(rows, lambda point: point.method in methods)


def _floor(row: Row[Point]) -> float:
    return float(min(min(curve) for curve in row.measured["curves"].values() if curve))


def _floors(repeat: Rows[Point], methods: Sequence[str]) -> list[float]:
    return [_floor(row) for method in methods for row in repeat.where(method=method)]


def _gradients(row: Row[Point], goal: float) -> tuple[int, str]:
    """Fewest evaluations to the goal over the step sizes (the budget if none gets there), and the best step size."""
    best = row.point.budget, ""
    for rate, curve in row.measured["curves"].items():
        reached = (n for n, value in zip(row.measured["counts"], curve, strict=False) if value <= goal)
        best = min(best, (next(reached, row.point.budget), rate))
    return best


def _values_by_problem(rows: Rows[Point], statistic: Callable[[Rows[Point]], float | None]) -> list[float]:
    """A statistic of every training set: each seed of each condition number."""
    return [value for k in rows.levels("target") for value in rows.where(target=k).per_seed(statistic)]


def _ratio(repeat: Rows[Point], rivals: Sequence[str]) -> float | None:
    """Evaluations of structure-aware descent over those of the quickest rival, to near the best of it and Adam.

    A rival that does not arrive counts with its budget. If structure-aware descent does not, the ratio is at least 1.
    """
    theirs = [row for method in rivals for row in repeat.where(method=method)]
    ours = repeat.where(method="gram")
    if not ours or not theirs:
        return None
    goal = NEAR * min(_floors(repeat, ("gram", *ADAMS)))
    count, rate = _gradients(ours[0], goal)
    ratio = max(count, 1) / max(min(_gradients(row, goal)[0] for row in theirs), 1)
    return ratio if rate else max(ratio, 1.0)


def _floor_ratio(repeat: Rows[Point], rival: str) -> float | None:
    ours, theirs = _floors(repeat, ("gram",)), _floors(repeat, (rival,))
    return ours[0] / min(theirs) if ours and theirs else None


def _draw_population(rows: Rows[Point], axes: Axes) -> None:
    for index, (method, runs) in enumerate(group_by(rows, "method")):
        for field, other, style in (("target", "covariance", "-"), ("covariance", "target", "--")):
            there = Rows(row for row in runs.where(**{other: 1.0}) if row.measured["iterations"] is not None)
            levels = sorted(there.levels(field))
            medians = [np.median(there.where(**{field: level}).values("iterations")) for level in levels]
            label, color, marker = WORDS[method] if style == "-" else None, f"C{index % 7}", "os"[index // 7]
            axes.plot(levels, medians, style, marker=marker, ms=4, color=color, label=label)
    axes.set(xscale="log", xlabel="condition number of the target (dashed: covariance)")
    axes.set(yscale="log", ylabel="median iterations", title="Infinite context: iterations to an error of 1e-6")
    legend(axes, fontsize=8)


def _draw_tokens(rows: Rows[Point], axes: Axes) -> None:
    k = max(rows.levels("target"), default=1.0)
    for index, (method, runs) in enumerate(group_by(rows.where(target=k), "method")):
        curves = [min(row.measured["curves"].values(), key=min) for row in runs]
        shortest = min(map(len, curves))
        medians = np.median([curve[:shortest] for curve in curves], axis=0)
        counts, style = runs[0].measured["counts"][:shortest], "-" if index < 7 else "--"
        axes.plot(counts, medians, style, label=WORDS[method], marker=".", ms=4)
    axes.set(xscale="symlog", yscale="log", xlabel="gradient evaluations")
    axes.set_title(f"Tokens, condition numbers {k:g}: median excess, best step size")
    legend(axes, fontsize=8)
