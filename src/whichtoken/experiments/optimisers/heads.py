"""Muon on every head or on all heads at once: two different limits.

Claim   Started apart, so that heads select different tokens, Muon that orthogonalises every head's matrix maximises the
        spectral margin of each head; on all heads stacked into one matrix it maximises the spectral margin of the stack.
        Each ends nearer to its own problem than the other does.
Source  Muon and the spectral norm: Gronich, Vardi (arXiv 2602.16340), for homogeneous networks. Heads of attention are
        measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whichtoken.experiments.optimisers._methods import all_runs, draw_problem
from whichtoken.lab import Claim, Experiment, Grid, Mean, Measured, Row, Rows, at_least

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Seen = Literal["each", "whole"]


@dataclass(frozen=True)
class Point:
    sequences: int = 4
    length: int = 6
    dim: int = 8
    heads: int = 2
    seen: Seen = "each"
    steps: int = 8000


class MuonHeads(Experiment[Point]):
    id = "optimisers/heads"
    version = 2
    presets = {
        "quick": (Grid(seen=["each", "whole"], seeds=(6, 48)),),
        "full": (Grid(seen=["each", "whole"], heads=[2, 3], seeds=30),),
    }
    method_fields = frozenset({"seen", "steps"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.flows.descent import attention_descent
        from whichtoken.flows.margin_norms import NORMS, margin_scale, stacked_heads

        problem, _ = draw_problem(point, rng)
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

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for heads in rows.levels("heads"):
            for seen in rows.levels("seen"):
                runs = rows.where(heads=heads, seen=seen)
                name = "every head" if seen == "each" else "all heads at once"
                yield at_least(
                    f"heads.own.{seen}.h{heads}",
                    f"{heads} heads, Muon on {name}: share of the largest margin of its own problem",
                    bound=0.95,
                    measured=Mean(all_runs(runs, _own)),
                )
            both = rows.where(heads=heads)
            yield at_least(
                f"heads.apart.h{heads}",
                f"{heads} heads: by how much Muon on all heads at once leads in the problem of the stack",
                bound=0.0,
                measured=Mean(both.per_seed(_lead)),
            )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for seen in rows.levels("seen"):
            runs = rows.where(seen=seen)
            axes.plot(
                [row.measured["shares"]["each"] for row in runs], [row.measured["shares"]["whole"] for row in runs], "o",
                label="Muon on every head" if seen == "each" else "Muon on all heads",
            )  # fmt: skip
        axes.set(xlabel="share of the margin, every head", ylabel="share of the margin, all heads as one matrix")
        axes.set(title="Two limits of Muon")
        axes.legend()


def _own(row: Row[Point]) -> float:
    return float(row.measured["shares"][row.point.seen])


def _lead(repeat: Rows[Point]) -> float | None:
    found = {row.point.seen: row.measured["shares"]["whole"] for row in repeat}
    return found["whole"] - found["each"] if len(found) == 2 else None
