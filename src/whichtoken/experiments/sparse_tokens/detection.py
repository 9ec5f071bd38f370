"""How strong one signal token must be: a logarithm of the length for attention, a square root for linear scores.

Claim   With the signal's direction known, one token of strength log L among L is enough for attention, whose error tends to
        zero, while every linear score, pooled or with a weight per position, needs a strength of order sqrt L. At its best
        temperature attention needs no more than a constant above sqrt(2 log L), and below that it fails.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), section 3; the threshold sqrt(2 log L) and the search over position weights are added here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.experiments.sparse_tokens._comparison import legend, versus_theory
from whichtoken.experiments.sparse_tokens._scores import attention, best_threshold, draw_scores, error_at, mean
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Predicted, Rows, Share, at_least, at_most
from whichtoken.lab.samples import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

RULES = {"log": "log L", "above": "1.5 sqrt(2 log L)", "below": "0.75 sqrt(2 log L)", "root": "sqrt L"}
TEMPERATURES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # multiples of the strength, tried on the tuning draws
# The oracle is judged where it errs often enough for a relative tolerance, at lengths cheap enough for many draws of it
ORACLE_LENGTHS = {"log": 100, "above": 100, "below": 100, "root": 10}
ORACLE_TOLERANCE = 0.06  # relative; a temperature and a threshold from some hundred draws cost one or two percent
ORACLE_DRAWS = {10: 1 << 16, 100: 1 << 15}  # per class: the prediction's own error stays below 3 %
FEW_DRAWS = 1 << 11  # at other lengths, where nothing but the picture needs it


@dataclass(frozen=True)
class Point:
    length: int = 100
    rule: str = "log"  # that gives the strength; see RULES
    tuning: int = 500  # draws per class that choose temperature and threshold
    draws: int = 1000  # and those that give the error


class Detection(Experiment[Point]):
    id = "sparse-tokens/detection"
    version = 2  # predictions from more draws
    presets = {
        "quick": (
            Grid(rule=list(RULES), length=[10, 100], tuning=500, draws=2000, seeds=(8, 64)),
            Grid(rule=list(RULES), length=1000, tuning=500, draws=2000, seeds=8),
        ),
        "full": (
            Grid(rule=list(RULES), length=[10, 100, 1000], tuning=2000, draws=4000, seeds=(10, 40)),
            Grid(rule=list(RULES), length=10_000, tuning=500, draws=2000, seeds=6),
        ),
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        strength = _strength(point)
        candidates = {f"{multiple:g}": attention(multiple * strength) for multiple in TEMPERATURES}
        tuned = {
            name: best_threshold(*scores)
            for name, scores in draw_scores(candidates, point.length, 1, strength, point.tuning, rng).items()
        }
        best = min(tuned, key=lambda name: tuned[name][0])
        statistics = {"attention": candidates[best], "mean": mean}
        scores = draw_scores(statistics, point.length, 1, strength, point.draws, rng)
        return {
            "attention_error": error_at(*scores["attention"], tuned[best][1]),
            "linear_error": error_at(*scores["mean"], strength / (2 * point.length)),
            "weighted_error": _best_weights(strength, point.length, rng),
            "inverse_temperature": float(best) * strength,
        }

    def predict(self, point: Point) -> Mapping[str, Predicted]:
        from whichtoken.theory.sparse_tokens import attention_oracle, linear_oracle

        task: dict[str, Any] = {
            "length": point.length,
            "signal_tokens": 1,
            "strength": _strength(point),
            "prevalence": 0.5,
        }
        oracle = attention_oracle(**task, points=ORACLE_DRAWS.get(point.length, FEW_DRAWS))
        return {
            "linear_error": Predicted(linear_oracle(**task)),
            "attention_error": Predicted(oracle.error, 2 * oracle.standard_error),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        longest = max(rows.levels("length"), default=0)
        end = {rule: rows.where(rule=rule, length=longest) for rule in RULES}
        at_end = f"at the longest sequences (L = {longest})"
        for rule, largest in (("log", 0.01), ("root", 0.001)):
            claim = f"error of attention {at_end} at strength {RULES[rule]}"
            yield at_most(f"detection.attention.{rule}", claim, bound=largest, measured=_Mistakes(end[rule]))
        yield at_least(
            "detection.linear.log",
            f"error of the mean token {at_end} at strength log L",
            bound=0.43,
            measured=Mean(end["log"].values("linear_error")),
        )
        yield versus_theory(
            "detection.linear.root",
            "error of the mean token at strength sqrt L, the same for every L",
            rows.where(rule="root"),
            "linear_error",
            relative=0.02,
        )
        for rule, bound, sign in (("above", at_most, "falls"), ("below", at_least, "does not fall")):
            claim = f"change of attention's error from L = 10 to {longest} at strength {RULES[rule]}: it {sign}"
            change = rows.where(rule=rule).per_seed(_change)
            yield bound(f"detection.threshold.{rule}", claim, bound=0.0, measured=Mean(change))
        for rule, length in ORACLE_LENGTHS.items():
            yield versus_theory(
                f"detection.oracle.{rule}",
                f"error of attention with a tuned temperature at strength {RULES[rule]}, L = {length}, against the oracle's",
                rows.where(rule=rule, length=length),
                "attention_error",
                relative=ORACLE_TOLERANCE,
            )
        gains = [row.measured["weighted_error"] / row.predicted["linear_error"].value for row in rows if row.predicted]
        yield at_least(
            "detection.weights",
            "least error found with free weights per position, over that of equal weights",
            bound=1 - 1e-6,
            measured=Mean(gains),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_rules(rows, ("log", "root"), left)
        _draw_rules(rows, ("above", "below"), right)
        left.set(title="log L suffices for attention, not for linear scores", ylabel="error", ylim=(-0.01, 0.52))
        right.set(title="The finer threshold: sqrt(2 log L)")


def _strength(point: Point) -> float:
    logarithm = math.log(point.length)
    strengths = {
        "log": logarithm,
        "above": 1.5 * math.sqrt(2 * logarithm),
        "below": 0.75 * math.sqrt(2 * logarithm),
        "root": math.sqrt(point.length),
    }
    if point.rule not in strengths:
        raise ValueError(f"rule={point.rule!r} must be one of {', '.join(strengths)}")
    return strengths[point.rule]


def _best_weights(strength: float, length: int, rng: np.random.Generator) -> float:
    """Least error of a linear score with unit weights u and threshold t, from uneven random weights.

    For one signal token at a random place it is Phi(-t)/2 + mean_l Phi(t - strength u_l)/2: not convex, hence a search.
    """
    from scipy.optimize import minimize
    from scipy.special import ndtr

    def error(x: Array) -> tuple[float, Array]:
        norm, threshold = float(np.linalg.norm(x[:-1])), x[-1]
        weights = x[:-1] / norm
        gap = threshold - strength * weights
        density = np.exp(-(gap**2) / 2) / math.sqrt(2 * math.pi)
        slope = -strength * density / (2 * length)
        along_weights = (slope - (slope @ weights) * weights) / norm
        at_threshold = (density.mean() - math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)) / 2
        return float(ndtr(-threshold) + ndtr(gap).mean()) / 2, np.append(along_weights, at_threshold)

    start = np.append(rng.exponential(size=length), strength / (2 * math.sqrt(length)))
    start[:-1] /= np.linalg.norm(start[:-1])
    return float(minimize(error, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-12, "ftol": 1e-15}).fun)


class _Mistakes(Mean):
    """Mean error over repeats, whose interval is never narrower than that of all their draws.

    The draws of a repeat share a tuned threshold, so repeats are the units; where errors are rare, repeats without any would
    look certain, and the draws say what they can exclude.
    """

    def __init__(self, runs: Rows[Point]) -> None:
        super().__init__(runs.values("attention_error"))
        draws = [2 * row.point.draws for row in runs]
        self.draws = Share(np.arange(sum(draws)) < round(float(np.dot(draws, self.values))))

    def interval(self, level: float) -> Interval:
        found, drawn = super().interval(level), self.draws.interval(level)
        if found.low is None or found.high is None or drawn.low is None or drawn.high is None:
            return found
        return Interval(found.measured, min(found.low, drawn.low), max(found.high, drawn.high))


def _change(repeat: Rows[Point]) -> float | None:
    """Of attention's error, from the shortest to the longest sequences of one repeat."""
    ordered = sorted(repeat, key=lambda row: row.point.length)
    if len(ordered) < 2:
        return None
    return float(ordered[-1].measured["attention_error"] - ordered[0].measured["attention_error"])


def _draw_rules(rows: Rows[Point], rules: tuple[str, str], axes: Axes) -> None:
    from whichtoken.display.figures import points_with_errors

    for colour, rule in zip(("C0", "C1"), rules, strict=True):
        runs = rows.where(rule=rule)
        if not runs:
            continue
        lengths = np.geomspace(10, 1e4, 60)
        points_with_errors(axes, runs, "length", "attention_error", f"attention, {RULES[rule]}", color=colour, ms=4)
        known = [(row.point.length, row.predicted["attention_error"].value) for row in runs if row.predicted]
        axes.plot(*zip(*sorted(set(known)), strict=True), color=colour, lw=1.5)
        axes.plot(lengths, _linear(rule, lengths), color=colour, ls="--", lw=1.5, label=f"linear, {RULES[rule]}")
    axes.set(xscale="log", xlabel="length L")
    legend(axes, fontsize=8)


def _linear(rule: str, lengths: Array) -> list[float]:
    from whichtoken.theory.sparse_tokens import linear_oracle

    points = [Point(length=round(length), rule=rule) for length in lengths]
    return [
        linear_oracle(length=point.length, signal_tokens=1, strength=_strength(point), prevalence=0.5)
        for point in points
    ]
