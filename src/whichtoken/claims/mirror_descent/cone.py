"""Started near a max-margin direction, mirror descent stays with its tokens.

Claim   Started inside a cone around the max-margin direction of locally optimal tokens, far enough out, mirror descent
        converges to that direction while its norm grows without bound; from outside the cone it need not.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581), convergence and divergence
        of the norm inside the cone; how fast the norm grows, how wide the cone is, and what happens outside, is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whichtoken.claims._checks import AtLeast, AtMost, values_with_failures
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims.mirror_descent._problems import key_query_limit
from whichtoken.lab import Check, Experiment, Grid, Mean, Measured, Resampled, Rows

# divergence of the start from the direction
INSIDE, OUTSIDE = 0.05, 0.9
LOCAL = AtLeast("cone.local", 0.8, "share of the max-margin directions tried whose tokens are locally optimal")
KEEPS = AtLeast("cone.inside", 0.9, f"locally optimal: share of runs from divergence {INSIDE:g} that keep the tokens")
RETURNS = AtMost(
    "cone.outside", 0.6, f"locally optimal: share of runs from divergence {OUTSIDE:g} that end with the tokens"
)
# steps of the dual variable, of norm |W|_p^(p - 1), have one length: 1 at the end; a norm that levels off has 0
DIVERGES = AtLeast(
    "cone.diverges.p{p:g}",
    0.5,
    "p = {p:g}, locally optimal, all runs from inside: (p - 1) times the exponent of |W|_p in the number of steps",
)
LIMIT = AtMost(
    "cone.limit.p{p:g}", 1e-4, "p = {p:g}: final divergence from the direction, runs from inside that kept its tokens"
)


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    p: float = 2.0
    divergence: float = INSIDE  # of the start from the max-margin direction
    norm: float = 100.0  # |W|_p of the start
    lr: float = 0.05  # relative to |U|_q of the start
    steps: int = 2000


class Cone(Experiment[Point]):
    id = "mirror-descent/cone"
    version = 3
    presets = {
        "quick": (
            Grid(p=[1.1, 2.0, 3.0], seeds=(20, 80)),
            Grid(p=[1.1, 2.0, 3.0], divergence=OUTSIDE, seeds=(10, 80)),
        ),
        "full": (
            Grid(p=[1.1, 1.75, 2.0, 3.0], seeds=(100, 800)),
            Grid(p=[1.1, 1.75, 2.0, 3.0], divergence=OUTSIDE, seeds=50),
            Grid(p=[1.1, 1.75, 2.0, 3.0], divergence=[INSIDE, 0.2, 0.4, 0.6, OUTSIDE], norm=[10.0, 100.0], seeds=20),
        ),
    }
    method_fields = frozenset({"p", "divergence", "norm", "lr", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.datasets import AttentionTokens
        from whichtoken.flows.descent import attention_descent
        from whichtoken.theory.mirror_descent import directional_divergence, locally_optimal

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        elsewhere = rng.standard_normal((2, point.dim, point.dim))
        tokens = attention_descent(problem, elsewhere[0], p=point.p, lr=1.0, steps=1000).selected
        direction, limit = key_query_limit(problem, tokens, point.p)
        start = point.norm * _blend_at(direction, elsewhere[1], point.divergence, point.p)
        lr = point.lr * point.norm ** (point.p - 1.0)
        descent = attention_descent(problem, start, p=point.p, lr=lr, steps=point.steps, record=[point.steps // 2])
        (half,) = descent.snapshots
        return {
            "locally_optimal": locally_optimal(problem.token_scores, tokens, limit.support),
            "returned": bool(np.array_equal(descent.selected, tokens)),
            "divergence": directional_divergence(direction, descent.final.direction, point.p),
            # exponent of |W|_p in the number of steps
            "growth": (descent.final.log_norm - half.log_norm) / math.log(point.steps / (point.steps // 2)),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        far = rows.where(norm=max(rows.levels("norm"), default=None))  # the claim is about starts far from zero
        optimal = Rows(row for row in far if row.measured["locally_optimal"])
        inside, outside = (optimal.where(divergence=divergence) for divergence in (INSIDE, OUTSIDE))
        yield LOCAL(Resampled(values_with_failures(far, "locally_optimal"), np.mean))
        yield KEEPS(Resampled(inside.seed_means("returned"), np.mean))
        yield RETURNS(Resampled(outside.seed_means("returned"), np.mean))
        for p in inside.levels("p"):
            growth = inside.where(p=p).seed_means(lambda row: (row.point.p - 1.0) * row.measured["growth"])
            yield DIVERGES(Mean(growth), p=p)
        kept = Rows(row for row in inside if row.measured["returned"])
        for p in kept.levels("p"):
            yield LIMIT(Mean(kept.where(p=p).seed_means("divergence")), value=0.001 if p < 1.5 else None, p=p)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for p in rows.levels("p"):
            for norm, style in zip(sorted(rows.levels("norm"), reverse=True), ("o-", "x:", "+--"), strict=False):
                label = f"p = {p:g}, |W| = {norm:g}"
                plot_means(axes, rows.where(p=p, norm=norm), "divergence", "returned", style, label)
        x, y = "divergence of the start from a max-margin direction", "share of runs that end with its tokens"
        label_axes(axes, "How wide is the cone", x, y, ylim=(0, 1.03), legend=True)


def _blend_at(
    target: NDArray[np.float64], other: NDArray[np.float64], divergence: float, p: float
) -> NDArray[np.float64]:
    """The blend of two directions at a given divergence from the first (as near to it as the second allows)."""
    from whichtoken.norms import power_norm
    from whichtoken.theory.mirror_descent import directional_divergence

    other = other / power_norm(other, p)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if directional_divergence(target, (1 - middle) * target + middle * other, p) < divergence:
            low = middle
        else:
            high = middle
    blend: NDArray[np.float64] = (1 - high) * target + high * other
    return blend / power_norm(blend, p)
