"""Smaller p, sparser attention weights.

Claim   The effective number of non-zero entries of the max-margin limit falls as p falls to 1, down to that of the l_1
        linear program, and trained matrices are as sparse as their limits.
Source  Julistiono, Tarzanagh, Azizan, Optimizing Attention with Mirror Descent (arXiv 2410.14581) observe sparser weights
        at p = 1.1; the count against p and its linear-program end are measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Above, Below, Checks
from whichtoken.claims._figures import Figure, label_axes, plot_means
from whichtoken.claims._runs import pairs, rows_where
from whichtoken.claims.mirror_descent._problems import ProblemSize, Vector, draw_problem, key_query_limit
from whichtoken.lab import Experiment, Grid, Measured, Rows

SMALL = 0.01  # entries below this fraction of the largest count as zero
NEAR_ONE = 1.05
EXPONENTS = [1.0, NEAR_ONE, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0]
MONOTONE = Above(
    "sparsity.monotone", 0.95, "share of neighboring exponents at which the larger p has more effective entries"
)
LINEAR_PROGRAM = Below(
    "sparsity.linear-program", 1.3, f"effective entries of the l_{NEAR_ONE:g} limit over those of the linear program"
)
GAIN = Above("sparsity.gain", 3.0, "effective entries of the l_2 limit over those of the l_1.1 limit")
TRAINED = Below("sparsity.trained", 0.01, "relative difference of effective entries, trained matrix against its limit")


@dataclass(frozen=True)
class Point(ProblemSize):
    p: float = 2.0
    steps: int = 3000


class Sparsity(Experiment[Point]):
    id = "mirror-descent/sparsity"
    version = 2
    presets = {
        # the step from 1.05 to the linear program is decided by hundreds of problems
        "quick": (Grid(p=[p for p in EXPONENTS if p != NEAR_ONE], seeds=(10, 20)),),
        "full": (Grid(p=EXPONENTS, seeds=100), Grid(p=[1.0, NEAR_ONE], seeds=(100, 400))),
        "map": (Grid(p=[1.1, 1.5, 2.0, 3.0], seeds=12),),
    }
    ranges = {"dim": (2, 24), "length": (2, 32), "sequences": (1, 24), "steps": (100, 10_000)}
    method_fields = frozenset({"p", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent

        problem, start = draw_problem(point, rng, 1e-3)
        # one selection for every p, so that only the norm changes
        best, _ = key_query_limit(problem, problem.token_scores.argmax(axis=1), point.p)
        measured = _sparsity(best, "limit")
        if point.p > 1:
            # the geometric rule is a hundred times faster for p > 2, where constant steps let W grow as a root only
            rule: Literal["geometric", "normalized"] = "geometric" if point.p > 2 else "normalized"
            lr = 0.01 if point.p > 2 else 1.0
            descent = attention_descent(problem, start, p=point.p, lr=lr, steps=point.steps, rule=rule)
            own, _ = key_query_limit(problem, descent.selected, point.p)
            measured |= _sparsity(descent.final.direction, "trained") | _sparsity(own, "own_limit")
        return measured

    def judge(self, rows: Rows[Point]) -> Checks:
        yield MONOTONE(rows.per_seed(_share_of_increases), on=rows)
        for criterion, pair in ((LINEAR_PROGRAM, (NEAR_ONE, 1.0)), (GAIN, (2.0, 1.1))):
            if pair[0] in rows.levels("p"):
                both = Rows.sorted(row for row in (*rows, *rows.failed) if row.point.p in pair)
                larger, smaller = ({"p": p} for p in pair)
                yield criterion(np.divide(*pairs(both, "limit_nonzeros", larger, smaller)), on=both)
        trained = rows_where(rows, lambda point: point.p > 1)
        difference = trained.seed_means(
            lambda row: abs(row.measured["trained_nonzeros"] / row.measured["own_limit_nonzeros"] - 1)
        )
        yield TRAINED(difference, on=trained)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for axes, name in ((left, "nonzeros"), (right, "small")):
            plot_means(axes, rows, "p", f"limit_{name}", "o-", "max-margin limit")
            plot_means(axes, rows, "p", f"trained_{name}", "x", "trained")
        label_axes(left, "Effective entries", "p", ylim=(0, None), legend=True)
        label_axes(right, f"Share below {SMALL:.0%} of the largest", "p", ylim=(0, None))
        left.axhline(rows[0].point.dim ** 2, ls=":", color="grey", lw=1)


def _sparsity(weights: Vector, name: str) -> dict[str, float]:
    from whichtoken.theory.mirror_descent import effective_nonzeros

    magnitudes = np.abs(weights)
    return {
        f"{name}_nonzeros": effective_nonzeros(weights),
        f"{name}_small": float(np.mean(magnitudes < SMALL * magnitudes.max())),
    }


def _share_of_increases(repeat: Rows[Point]) -> float | None:
    counts = [row.measured["limit_nonzeros"] for row in sorted(repeat, key=lambda row: row.point.p)]
    return float(np.mean(np.diff(counts) > 0)) if len(counts) > 1 else None
