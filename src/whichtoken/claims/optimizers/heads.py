"""Muon on every head or on all heads at once: two different limits.

Claim   Started apart, so that heads select different tokens, Muon that orthogonalizes every head's matrix maximizes the
        spectral margin of each head; on all heads stacked into one matrix it maximizes the spectral margin of the stack.
        Each ends nearer to its own problem than the other does.
Source  Muon and the spectral norm: Gronich, Vardi (arXiv 2602.16340), for homogeneous networks. Heads of attention are
        measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import Above, AtLeast, Checks, pool_parts
from whichtoken.claims._figures import Figure, label_axes
from whichtoken.claims._runs import group_by, pairs, resampled_runs
from whichtoken.claims.mirror_descent._problems import draw_problem
from whichtoken.claims.optimizers._methods import START
from whichtoken.lab import Experiment, Grid, Measured, Resampled, Rows

NAMES = {"each": "every head", "whole": "all heads at once"}
# medians, for a run whose tokens change late is far from its course
OWN = Above("heads.own", 0.95, "Muon, started apart: share of the largest margin of its own problem, median")
APART = AtLeast("heads.apart", 0.0, "lead of Muon on all heads at once in the problem of the stack, median")


@dataclass(frozen=True)
class Point:
    sequences: int = 4
    length: int = 6
    dim: int = 8
    heads: int = 2
    seen: Literal["each", "whole"] = "each"
    steps: int = 8000


class MuonHeads(Experiment[Point]):
    id = "optimizers/heads"
    version = 2
    presets = {
        "quick": (Grid(seen=["each", "whole"], steps=4000, seeds=12),),
        "full": (Grid(seen=["each", "whole"], heads=[2, 3], seeds=30),),
    }
    method_fields = frozenset({"seen", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent
        from whichtoken.flows.margin_norms import NORMS, margin_scale, stacked_heads

        problem, _ = draw_problem(point, rng, START)
        # from a small start, heads would be copies of each other
        start = rng.standard_normal((point.heads, point.dim, point.dim))
        run = attention_descent(
            problem, start, "muon", lr=0.1, steps=point.steps, momentum=0.0, heads=point.seen, record=[point.steps // 2]
        )
        spectral = {"spectral": NORMS["spectral"]}
        alone = [margin_scale(problem.tokens, problem.queries, chosen, spectral) for chosen in run.selected]
        stack = margin_scale(*stacked_heads(problem.tokens, problem.queries, run.selected), spectral)

        def shares(weights: Any) -> dict[str, float]:
            # margins of heads trained apart grow at their own speed: what counts is the least share of any
            each = min(scale.shares(matrix)["spectral"] for scale, matrix in zip(alone, weights, strict=True))
            padded = np.zeros((point.heads * point.dim,) * 2)
            padded[:, : point.dim] = weights.reshape(-1, point.dim)
            return {"each": each, "whole": stack.shares(padded)["spectral"]}

        half, final = (shares(state.direction) for state in (*run.snapshots, run.final))
        return {
            "shares": final,
            "half": half,
            "gap": max(stack.gap, *[scale.gap for scale in alone]),
            "settled": run.settled,
            "same_tokens": float(np.mean(run.selected[0] == run.selected[1])),
        }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        for (heads, seen), runs in group_by(rows, "heads", "seen"):
            share = resampled_runs(runs, lambda row: row.measured["shares"][row.point.seen])
            yield OWN.part(f"{seen}.h{heads}", f"{heads} heads, Muon on {NAMES[seen]}", share, on=runs)

        def lead(runs: Rows[Point]) -> Resampled:
            whole = pairs(runs, lambda row: row.measured["shares"]["whole"], {"seen": "whole"}, {"seen": "each"})
            return Resampled(np.subtract(*whole), np.median)

        yield from APART.each(rows, "heads", "h{}", "{} heads", lead)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for seen, label in (("each", "Muon on every head"), ("whole", "Muon on all heads")):
            if shares := [row.measured["shares"] for row in rows.where(seen=seen)]:
                each, whole = ([share[problem] for share in shares] for problem in ("each", "whole"))
                axes.plot(each, whole, "o", label=label)
        x, y = "share of the margin, every head", "share of the margin, all heads as one matrix"
        label_axes(axes, "Two limits of Muon", x, y, legend=True)
