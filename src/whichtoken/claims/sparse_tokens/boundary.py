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

from whichtoken.claims._shared import Array, Checks, Figure, above, below, check, checks, group_by, pairs
from whichtoken.claims.sparse_tokens._tasks import (
    Statistic,
    attention,
    best_threshold,
    draw_scores,
    error_at,
    mean_token,
)
from whichtoken.display.figures import legend, points_with_errors
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
            Grid(length=100_000, sparsity=SPARSITIES, excess=2.2, tuning=60, draws=60, seeds=8),
            Grid(length=1_000_000, sparsity=[0.7, 0.9], excess=2.2, tuning=30, draws=30, seeds=4),
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

    def judge(self, rows: Rows[Point]) -> Checks:
        for sparsity, runs in group_by(rows.where(excess=2.2), "sparsity"):
            where = f"sparsity {sparsity:g}, 2.2 times the boundary"
            lengths = sorted(runs.levels("length"))
            for length in lengths:
                if length >= LONG:
                    yield from _comparisons(runs.where(length=length), f"beta{sparsity:g}.L{length}")
            if len(lengths) > 1:
                shortest, longest = pairs(runs, "attention", {"length": lengths[0]}, {"length": lengths[-1]})
                sentence = f"{where}: change of attention's error from L = {lengths[0]} to {lengths[-1]}"
                yield check(f"boundary.above.beta{sparsity:g}", sentence, below(0.0), longest - shortest)
        for sparsity, runs in group_by(rows.where(excess=0.4), "sparsity"):
            length = max(runs.levels("length"))
            sentence = f"sparsity {sparsity:g}, 0.4 times the boundary: error of attention at L = {length}"
            measured = runs.where(length=length).values("attention")
            yield check(f"boundary.below.beta{sparsity:g}", sentence, above(0.35), measured)

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


def _comparisons(runs: Rows[Point], code: str) -> Checks:
    """Attention beside the other detectors, at one sparsity and length."""
    point, ours = runs[0].point, runs.values("attention")
    yield from checks(
        "boundary",
        *((other, f"error of the {DETECTORS[other]} minus attention's", above(0.0), runs.values(other) - ours)
          for other in ("criticism", "largest", "mean")),
        ("optimal", "error of attention minus the likelihood ratio's", below(0.03), ours - runs.values("likelihood")),
        where=f"sparsity {point.sparsity:g}, L = {point.length}, 2.2 times the boundary", ending=f".{code}",
    )  # fmt: skip


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
