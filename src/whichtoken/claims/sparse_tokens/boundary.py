"""Attention at the boundary of what can be detected at all.

Claim   With L^(1-beta) signal tokens of strength sqrt(2 r log L), attention along the signal, at a temperature chosen on
        other draws, detects above the boundary r*(beta) of sparse-mixture detection and fails below it; just above, it does
        better than higher criticism and the mean token, better than the largest token but for the sparsest signals, where
        the two are alike, and hardly worse than the likelihood ratio.
Source  The boundary is that of Ingster, and Donoho and Jin (2004, Higher criticism); that a tilted mean, which is what the
        attention of Barnfield, Cui, Lu (arXiv 2509.25153) computes, attains it is a heuristic of ours, measured here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Above, AtLeast, AtMost, Below, Checks, pool_parts
from whichtoken.claims._figures import Figure, legend, points_with_errors
from whichtoken.claims._runs import Array, each_point, group_by, pairs, rows_where
from whichtoken.claims.sparse_tokens._tasks import (
    Statistic,
    attention,
    best_threshold,
    draw_scores,
    error_at,
    mean_token,
)
from whichtoken.lab import Experiment, Grid, Measured, Rows

DETECTORS = {
    "attention": "attention",
    "criticism": "higher criticism",
    "largest": "largest token",
    "mean": "mean token",
    "likelihood": "likelihood ratio",
}
TEMPERATURES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5)  # multiples of the strength, tried on the tuning draws
LONG = 10_000  # tokens from which detectors are compared
SPARSITIES = [0.6, 0.7, 0.8, 0.9]
FEW_SIGNALS = 0.85  # sparsity from which a handful of tokens carry the signal, and the largest one says nearly all
HARDLY = 0.03  # difference of errors that counts as hardly any

OTHERS = {
    other: AtLeast(
        f"boundary.{other}", 0.0, f"error of the {DETECTORS[other]} minus attention's, at 2.2 times the boundary"
    )
    for other in ("criticism", "largest", "mean")
}
SPARSEST = Above(
    "boundary.sparsest", -HARDLY, "error of the largest token minus attention's for the sparsest signals: hardly less, if at all",
)  # fmt: skip
OPTIMAL = Below(
    "boundary.optimal", HARDLY, "error of attention minus the likelihood ratio's, at 2.2 times the boundary"
)
ABOVE = AtMost(
    "boundary.above", 0.0, "change of attention's error with the length, at 2.2 times the boundary: it falls"
)
BELOW = Above("boundary.below", 0.35, "error of attention on the longest sequences, at 0.4 times the boundary")


@dataclass(frozen=True)
class Point:
    length: int = 10_000
    sparsity: float = 0.8  # beta: L^(1 - beta) tokens carry the signal
    excess: float = 2.2  # r / r*: below 1 nothing can detect
    tuning: int = 100  # draws per class that choose temperature and thresholds
    draws: int = 100  # and those that give the errors


class Boundary(Experiment[Point]):
    id = "sparse-tokens/boundary"
    version = 2
    presets = {
        "quick": (
            Grid(length=1000, sparsity=[0.7, 0.9], excess=[0.4, 2.2], seeds=10),
            Grid(sparsity=0.7, excess=2.2, seeds=10),
        ),
        "full": (
            Grid(length=[1000, 10_000], sparsity=SPARSITIES, excess=[0.4, 2.2], seeds=20),
            Grid(length=100_000, sparsity=SPARSITIES, excess=2.2, tuning=60, draws=60, seeds=20),
        ),
    }  # fmt: skip

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        signal_tokens = max(1, round(point.length ** (1 - point.sparsity)))
        strength = math.sqrt(2 * point.excess * threshold(point.sparsity) * math.log(point.length))
        others: dict[str, Statistic] = {
            "criticism": higher_criticism,
            "largest": lambda tokens: tokens.max(axis=1),
            "mean": mean_token,
            "likelihood": lambda tokens: _log_likelihood(tokens, signal_tokens / point.length, strength),
        }
        tilted = {f"{multiple:g}": attention(multiple * strength) for multiple in TEMPERATURES}
        tuned = {
            name: best_threshold(*scores)
            for name, scores in draw_scores(
                tilted | others, point.length, signal_tokens, strength, point.tuning, rng
            ).items()
        }
        best = min(tilted, key=lambda name: tuned[name][0])
        tuned["attention"] = tuned[best]
        statistics = {"attention": tilted[best], **others}
        scores = draw_scores(statistics, point.length, signal_tokens, strength, point.draws, rng)
        return {
            "inverse_temperature": float(best) * strength,
            **{name: error_at(*scores[name], tuned[name][1]) for name in DETECTORS},
        }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        detectable = rows.where(excess=2.2)
        long = list(each_point(rows_where(detectable, lambda point: point.length >= LONG)))
        for criterion, one, other in (
            *((criterion, other, "attention") for other, criterion in OTHERS.items()),
            (SPARSEST, "largest", "attention"),
            (OPTIMAL, "attention", "likelihood"),
        ):
            for point, runs in long:
                # the sparsest signals have a criterion of their own for the largest token
                if one != "largest" or (point.sparsity >= FEW_SIGNALS) == (criterion is SPARSEST):
                    label, lead = f"beta{point.sparsity:g}.L{point.length}", runs.values(one) - runs.values(other)
                    yield criterion.part(label, _words(point), lead, on=runs)
        for sparsity, runs in group_by(detectable, "sparsity"):
            lengths = sorted({row.point.length for row in (*runs, *runs.failed)})
            if len(lengths) > 1:
                first, last = lengths[0], lengths[-1]
                ends = rows_where(runs, lambda point, ends=(first, last): point.length in ends)  # type: ignore[misc]
                change = np.subtract(*pairs(ends, "attention", {"length": last}, {"length": first}))
                words = f"sparsity {sparsity:g}, from L = {first} to {last}"
                yield ABOVE.part(f"beta{sparsity:g}", words, change, on=ends)
        for sparsity, runs in group_by(rows.where(excess=0.4), "sparsity"):
            point, longest = max(each_point(runs), key=lambda pair: pair[0].length)
            yield BELOW.part(f"beta{sparsity:g}", _words(point), longest.values("attention"), on=longest)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        detectable = rows.where(excess=2.2)
        longest = min(max(detectable.levels("length"), default=0), 100_000)  # at which every sparsity is drawn
        left, right = figure.subplots(1, 2, sharey=True)
        for color, (name, label) in enumerate(DETECTORS.items()):
            for axes, runs, field in (
                (left, detectable.where(length=longest), "sparsity"),
                (right, detectable.where(sparsity=max(detectable.levels("sparsity"), default=0)), "length"),
            ):
                if runs:
                    points_with_errors(axes, runs, field, name, label, color=f"C{color}", ms=4, ls="-", lw=1)
        left.set(title=f"2.2 times the boundary, L = {longest}", ylabel="error", ylim=(0, 0.55))
        left.set(xlabel="sparsity beta: L^(1 - beta) signal tokens of L")
        right.set(title="The same at the sparsest signal, by length", xlabel="length L", xscale="log")
        legend(left, fontsize=8)


def _words(point: Point) -> str:
    return f"sparsity {point.sparsity:g}, L = {point.length}"


def threshold(sparsity: float) -> float:
    """r*: signal strength, in units of 2 log L, below which no test detects."""
    if not 0.5 < sparsity < 1:
        raise ValueError(f"sparsity={sparsity} must lie in (0.5, 1)")
    return sparsity - 0.5 if sparsity <= 0.75 else (1 - math.sqrt(1 - sparsity)) ** 2


def higher_criticism(tokens: Array) -> Array:
    """Largest standardized excess of small p-values, over those from 1/L to 1/2 (Donoho and Jin, 2004)."""
    from scipy.special import ndtr

    length = tokens.shape[1]
    count = length // 2
    p = ndtr(-np.sort(tokens, axis=1)[:, : -count - 1 : -1])  # ascending
    expected = np.arange(1, count + 1) / length
    excess = math.sqrt(length) * (expected - p) / np.sqrt(p * (1 - p))
    largest: Array = np.where(p >= 1 / length, excess, -np.inf).max(axis=1)
    return largest


def _log_likelihood(tokens: Array, share: float, strength: float) -> Array:
    """Log-likelihood ratio of the mixture in which each token carries the signal with probability `share`."""
    tilt = np.exp(strength * tokens - strength**2 / 2)
    ratio: Array = np.log1p(share * (tilt - 1)).sum(axis=1)
    return ratio
