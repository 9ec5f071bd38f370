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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Resampled, Rows, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSIDE, OUTSIDE = 0.05, 0.9  # divergence of the start from the direction


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
            Grid(p=[1.1, 2.0, 3.0], seeds=20),
            Grid(p=[1.1, 2.0, 3.0], divergence=OUTSIDE, seeds=(10, 20)),
        ),
        "full": (
            Grid(p=[1.1, 1.75, 2.0, 3.0], seeds=(100, 800)),
            Grid(p=[1.1, 1.75, 2.0, 3.0], divergence=OUTSIDE, seeds=50),
            Grid(p=[1.1, 1.75, 2.0, 3.0], divergence=[INSIDE, 0.2, 0.4, 0.6, OUTSIDE], norm=[10.0, 100.0], seeds=20),
        ),
    }
    method_fields = frozenset({"p", "divergence", "norm", "lr", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionTokens
        from whichtoken.flows.descent import attention_descent
        from whichtoken.margin import key_query_svm
        from whichtoken.theory.mirror_descent import directional_divergence, locally_optimal

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        elsewhere = rng.standard_normal((2, point.dim, point.dim))
        tokens = attention_descent(problem, elsewhere[0], p=point.p, lr=1.0, steps=1000).selected
        limit = key_query_svm(problem.tokens, problem.queries, tokens, p=point.p)
        if limit.direction is None:
            raise ValueError(f"the selected tokens {tokens.tolist()} cannot be separated: no limit exists")
        start = point.norm * _at_divergence(limit.direction, elsewhere[1], point.divergence, point.p)
        lr = point.lr * point.norm ** (point.p - 1.0)
        descent = attention_descent(problem, start, p=point.p, lr=lr, steps=point.steps, record=[point.steps // 2])
        (half,) = descent.snapshots
        return {
            "locally_optimal": locally_optimal(problem.token_scores, tokens, limit.support),
            "returned": bool(np.array_equal(descent.selected, tokens)),
            "divergence": directional_divergence(limit.direction, descent.final.direction, point.p),
            # exponent of |W|_p in the number of steps
            "growth": (descent.final.log_norm - half.log_norm) / math.log(point.steps / (point.steps // 2)),
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        far = rows.where(norm=max(rows.levels("norm"), default=None))  # the claim is for starts far enough out
        optimal = Rows(row for row in far if row.measured["locally_optimal"])
        inside, outside = (optimal.where(divergence=divergence) for divergence in (INSIDE, OUTSIDE))
        yield at_least(
            "cone.local",
            "share of the max-margin directions that were looked for whose tokens are locally optimal, as the claim supposes",
            bound=0.8,
            measured=Resampled([*far.seed_means("locally_optimal"), *[0.0] * len(far.failed)], np.mean),
        )
        yield at_least(
            "cone.inside",
            f"locally optimal tokens: share of runs from divergence {INSIDE:g} that keep the tokens of the direction",
            bound=0.9,
            measured=Resampled(inside.seed_means("returned"), np.mean),
        )
        yield at_most(
            "cone.outside",
            f"locally optimal tokens: share of runs from divergence {OUTSIDE:g} that come to the tokens of the direction",
            bound=0.6,
            measured=Resampled(outside.seed_means("returned"), np.mean),
        )
        for p in inside.levels("p"):
            yield at_least(
                f"cone.diverges.p{p:g}",
                f"p = {p:g}, locally optimal tokens: exponent of |W|_p in the number of steps over their last doubling, times "
                f"p - 1, all runs from divergence {INSIDE:g}",
                # steps of the dual variable, of norm |W|_p^(p - 1), have one length: 1 at the end; a norm that levels off has 0
                bound=0.5,
                measured=Mean(inside.where(p=p).seed_means(lambda row: (row.point.p - 1.0) * row.measured["growth"])),
            )
        kept = Rows(row for row in inside if row.measured["returned"])
        for p in kept.levels("p"):
            yield at_most(
                f"cone.limit.p{p:g}",
                f"p = {p:g}: final divergence from the direction, of runs from inside that kept its tokens",
                bound=0.001 if p < 1.5 else 1e-4,
                measured=Mean(kept.where(p=p).seed_means("divergence")),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for p in rows.levels("p"):
            for norm, line in zip(sorted(rows.levels("norm"), reverse=True), ("o-", "x:", "+--"), strict=False):
                runs = rows.where(p=p, norm=norm)
                found = sorted(
                    (d, runs.where(divergence=d).values("returned").mean()) for d in runs.levels("divergence")
                )
                axes.plot(*zip(*found, strict=True), line, label=f"p = {p:g}, |W| = {norm:g}")
        axes.set(
            title="How wide is the cone",
            xlabel="divergence of the start from a max-margin direction",
            ylabel="share of runs that end with its tokens",
            ylim=(0, 1.03),
        )
        axes.legend()


def _at_divergence(
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
