"""Which tokens mirror descent selects depends on where it starts.

Claim   Mirror descent on attention selects the best token of most sequences, and more often from a zero start than from a
        large random one; what it selects is nearly always locally optimal.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581) prove convergence to
        locally optimal tokens; how often these are the best ones is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.display.figures import points_with_errors
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Rows, at_least

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL_AND_LARGE = (0.0, 1.0)  # the two starts that are compared


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    p: float = 2.0
    start: float = 0.0  # standard deviation of the entries of the initial matrix
    lr: float = 0.1
    steps: int = 2000


def _study(starts: list[float], seeds: int | tuple[int, int]) -> tuple[Grid, ...]:
    return (
        Grid(p=1.1, lr=0.01, steps=4000, start=starts, seeds=seeds),
        Grid(p=[1.75, 2.0], start=starts, seeds=seeds),
        Grid(p=3.0, steps=5000, start=starts, seeds=seeds),
    )


class MirrorInitialisation(Experiment[Point]):
    id = "mirror-descent/initialisation"
    version = 2
    presets = {
        "quick": _study([0.0, 1.0], (20, 40))[:-1],  # p = 3 is decided by more runs than `quick` has
        "full": (*_study([0.0], (100, 400)), *_study([1.0], 100), *_study([0.1, 0.3, 3.0], 40)),
    }
    method_fields = frozenset({"p", "start", "lr", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.data import AttentionTokens
        from whichtoken.flows.descent import attention_descent
        from whichtoken.margin import key_query_svm
        from whichtoken.theory.mirror_descent import globally_optimal, locally_optimal

        problem = AttentionTokens(point.sequences, point.length, point.dim).sample(rng)
        start = point.start * rng.standard_normal((point.dim, point.dim))
        descent = attention_descent(problem, start, p=point.p, lr=point.lr, steps=point.steps)
        limit = key_query_svm(problem.tokens, problem.queries, descent.selected, p=point.p)
        scores = problem.token_scores
        return {
            "best_tokens": float(np.mean(descent.selected == scores.argmax(axis=1))),
            "all_best": globally_optimal(scores, descent.selected),
            "locally_optimal": locally_optimal(scores, descent.selected, limit.support),
            "settled": descent.settled,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for p in rows.levels("p"):
            zero = rows.where(p=p, start=0.0)
            yield at_least(
                f"initialisation.best.p{p:g}",
                f"p = {p:g}, zero start: share of sequences that select their best token",
                bound=0.85,
                measured=Mean([*zero.values("best_tokens"), *[0.0] * len(zero.failed)]),
            )
        yield at_least(
            "initialisation.small",
            "share of sequences that select their best token, zero start minus standard normal start, mean over p",
            bound=0.0,
            measured=Mean(rows.per_seed(_gain_of_a_small_start)),
        )
        yield at_least(
            "initialisation.local",
            "share of all runs whose tokens are locally optimal",
            bound=0.85,
            measured=Mean([*rows.seed_means("locally_optimal"), *[0.0] * len(rows.failed)]),
        )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for p in rows.levels("p"):
            points_with_errors(left, rows.where(p=p), "start", "best_tokens", f"p = {p:g}")
            points_with_errors(right, rows.where(p=p), "start", "all_best", f"p = {p:g}")
        left.set(
            title="Sequences that select their best token", xlabel="standard deviation of the start", ylabel="share"
        )
        right.set(title="Runs in which all do", xlabel="standard deviation of the start", ylabel="share")
        left.legend()


def _gain_of_a_small_start(repeat: Rows[Point]) -> float | None:
    small, large = (repeat.where(start=start).values("best_tokens") for start in SMALL_AND_LARGE)
    return float(small.mean() - large.mean()) if len(small) and len(large) else None
