"""How strong one signal token must be: a logarithm of the length for attention, a square root for linear scores.

Claim   With the signal's direction known, one token of strength log L among L is enough for attention, whose error tends to
        zero, while every linear score, pooled or with a weight per position, needs a strength of order sqrt L. At its best
        temperature attention needs no more than a constant above sqrt(2 log L), and below that it fails.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153), abstract: logarithm and square root. The threshold sqrt(2 log L), the oracle's error and the search over
        position weights are added here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from whichtoken.checks import check_choice
from whichtoken.claims._checks import Checks, Claim, ClaimTable, Predictions, as_predicted
from whichtoken.claims._figures import Axes, Figure, legend, points_on_theory
from whichtoken.claims._runs import Array, rows_where
from whichtoken.claims.sparse_tokens._tasks import attention, best_threshold, draw_scores, error_at, mean_token
from whichtoken.lab import Mean, Measured, Predicted, Rows, Share
from whichtoken.lab.samples import Interval
from whichtoken.lab.verdicts import points_of
from whichtoken.theory import sparse_tokens

RULES = {"log": "log L", "above": "1.5 sqrt(2 log L)", "below": "0.75 sqrt(2 log L)", "root": "sqrt L"}
TEMPERATURES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # multiples of the strength, tried on the tuning draws
# The oracle is judged where it errs often enough for a relative tolerance, at lengths cheap enough for many draws of it
ORACLE_LENGTHS = {"log": 100, "above": 100, "below": 100, "root": 10}
SHORTEST = 10  # tokens from which the change with the length is counted
LINEAR_TOLERANCE = 0.02  # relative
ORACLE_TOLERANCE = 0.06  # relative; a temperature and a threshold from some hundred draws cost one or two percent
ORACLE_DRAWS = {10: 1 << 16, 100: 1 << 15}  # per class: the prediction's own error stays below 3 %
FEW_DRAWS = 1 << 11  # at other lengths, where nothing but the picture needs it

TABLE = ClaimTable(__name__)
VANISHED = {"log": 0.01, "root": 0.001}  # errors below which attention counts as having found the signal


@dataclass(frozen=True)
class Point:
    length: int = 100
    rule: str = "log"  # that gives the strength; see RULES
    tuning: int = 500  # draws per class that choose temperature and threshold
    draws: int = 1000  # and those that give the error


class Detection(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        strength = _strength(point)
        candidates = {f"{multiple:g}": attention(multiple * strength) for multiple in TEMPERATURES}
        tuned = {
            name: best_threshold(*scores)
            for name, scores in draw_scores(candidates, point.length, 1, strength, point.tuning, rng).items()
        }
        best = min(tuned, key=lambda name: tuned[name][0])
        statistics = {"attention": candidates[best], "mean": mean_token}
        scores = draw_scores(statistics, point.length, 1, strength, point.draws, rng)
        return {
            "attention_error": error_at(*scores["attention"], tuned[best][1]),
            "linear_error": error_at(*scores["mean"], strength / (2 * point.length)),
            "weighted_error": _best_weights(strength, point.length, rng),
            "inverse_temperature": float(best) * strength,
        }

    def predict(self, point: Point) -> Predictions:

        oracle = sparse_tokens.attention_oracle(**_task(point), points=ORACLE_DRAWS.get(point.length, FEW_DRAWS))
        return {
            "linear_error": Predicted(sparse_tokens.linear_oracle(**_task(point))),
            "attention_error": Predicted(oracle.error, 2 * oracle.standard_error),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        longest = max((row.point.length for row in (*rows, *rows.failed)), default=0)
        rules = {rule: rows.where(rule=rule) for rule in RULES}
        ends = {rule: runs.where(length=longest) for rule, runs in rules.items()}
        for rule, bound in VANISHED.items():
            words = f"L = {longest}, strength {RULES[rule]}"
            yield TABLE.attention.part(rule, words, _Mistakes(ends[rule]), on=ends[rule], value=bound)
        if points_of(ends["log"]):
            yield TABLE.linear_fails(ends["log"].values("linear_error"), on=ends["log"])
        expected = as_predicted(rules["root"], "linear_error", relative=LINEAR_TOLERANCE)
        if points_of(rules["root"]):
            yield TABLE.linear_root(rules["root"].values("linear_error"), on=rules["root"], **expected)
        if predicted := Rows(row for row in rows if row.predicted):
            gains = predicted.seed_means(
                lambda row: row.measured["weighted_error"] / row.predicted["linear_error"].value
            )
            yield TABLE.weights(gains, on=rows)
        for rule, criterion in (("above", TABLE.falls), ("below", TABLE.stays)):
            apart = rows_where(rules[rule], lambda point: point.length in (SHORTEST, longest))
            if len({point.length for point in points_of(apart)}) == 2:
                yield criterion(apart.per_seed(_change), on=apart)
        for rule, length in ORACLE_LENGTHS.items():
            runs, words = rules[rule].where(length=length), f"L = {length}, strength {RULES[rule]}"
            expected = as_predicted(runs, "attention_error", relative=ORACLE_TOLERANCE)
            yield TABLE.oracle.part(rule, words, runs.values("attention_error"), on=runs, **expected)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _draw_rules(rows, ("log", "root"), left)
        _draw_rules(rows, ("above", "below"), right)
        left.set(title="log L suffices for attention, not for linear scores", ylabel="error", ylim=(-0.01, 0.52))
        right.set(title="The finer threshold: sqrt(2 log L)")


def _strength(point: Point) -> float:
    check_choice("rule", point.rule, RULES)
    logarithm = math.log(point.length)
    strengths = {
        "log": logarithm,
        "above": 1.5 * math.sqrt(2 * logarithm),
        "below": 0.75 * math.sqrt(2 * logarithm),
        "root": math.sqrt(point.length),
    }
    return strengths[point.rule]


def _task(point: Point) -> dict[str, Any]:
    return {"length": point.length, "signal_tokens": 1, "strength": _strength(point), "prevalence": 0.5}


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
    """Change of attention's error from the shortest to the longest sequences of one repeat."""
    ordered = sorted(repeat, key=lambda row: row.point.length)
    if len(ordered) < 2:
        return None
    return float(ordered[-1].measured["attention_error"] - ordered[0].measured["attention_error"])


def _draw_rules(rows: Rows[Point], rules: tuple[str, str], axes: Axes) -> None:

    lengths = np.geomspace(10, 1e4, 60)
    for color, rule in zip(("C0", "C1"), rules, strict=True):
        if runs := rows.where(rule=rule):
            points_on_theory(axes, runs, "length", "attention_error", f"attention, {RULES[rule]}", color)
            linear = [
                sparse_tokens.linear_oracle(**_task(Point(length=round(length), rule=rule))) for length in lengths
            ]
            axes.plot(lengths, linear, color=color, ls="--", lw=1.5, label=f"linear, {RULES[rule]}")
    axes.set(xscale="log", xlabel="length L")
    legend(axes, fontsize=8)
