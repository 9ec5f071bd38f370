"""Which tokens mirror descent selects depends on where it starts.

Claim   Mirror descent on attention selects the best token of most sequences, and more often from a zero start than from a
        large random one; what it selects is nearly always locally optimal.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581) prove convergence to
        locally optimal tokens; how often these are the best ones is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, label_axes, points_with_errors
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import mean_of_runs, pairs, rows_where
from whichtoken.lab import Measured, Rows

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    p: float = 2.0
    start: float = 0.0  # standard deviation of the entries of the initial matrix
    lr: float = 0.1
    steps: int = 2000


class MirrorInitialization(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent
        from whichtoken.margin import key_query_svm
        from whichtoken.theory.mirror_descent import globally_optimal, locally_optimal

        problem, start = draw_problem(point, rng, point.start)
        descent = attention_descent(problem, start, p=point.p, lr=point.lr, steps=point.steps)
        limit = key_query_svm(problem.tokens, problem.queries, descent.selected, p=point.p)
        scores = problem.token_scores
        return {
            "best_tokens": float(np.mean(descent.selected == scores.argmax(axis=1))),
            "all_best": globally_optimal(scores, descent.selected),
            "locally_optimal": locally_optimal(scores, descent.selected, limit.support),
        }

    def judge(self, rows: Rows[Point]) -> Checks:
        best = partial(mean_of_runs, quantity="best_tokens")
        yield from TABLE.best.each(rows.where(start=0.0), "p", "p{:g}", "p = {:g}", best)
        ends = rows_where(rows, lambda point: point.start in (0.0, 1.0))
        yield TABLE.small(np.subtract(*pairs(rows, "best_tokens", {"start": 0.0}, {"start": 1.0})), on=ends)
        yield TABLE.local(mean_of_runs(rows, "locally_optimal"), on=rows)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for p in rows.levels("p"):
            points_with_errors(left, rows.where(p=p), "start", "best_tokens", f"p = {p:g}")
            points_with_errors(right, rows.where(p=p), "start", "all_best", f"p = {p:g}")
        label_axes(
            left, "Sequences that select their best token", "standard deviation of the start", "share", legend=True
        )
        label_axes(right, "Runs in which all do", "standard deviation of the start", "share")
