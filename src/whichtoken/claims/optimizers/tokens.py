"""From one start, optimizers select different tokens.

Claim   Optimizers that start from the same matrix on the same problem do not always select the same tokens, wherever they
        start; each selects the best token of most sequences.
Source  Gradient descent may end with tokens that are only locally optimal: Tarzanagh, Li, Thrampoulidis, Oymak (arXiv
        2308.16898). How often optimizers differ is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Claim, ClaimTable
from whichtoken.claims._figures import Figure, draw_table
from whichtoken.claims._problems import ProblemSize, draw_problem
from whichtoken.claims._runs import group_by, resampled_runs
from whichtoken.claims.optimizers._methods import METHODS, train_with
from whichtoken.claims.optimizers.margins import MethodName
from whichtoken.lab import Measured, Rows, Share

TABLE = ClaimTable(__name__)


@dataclass(frozen=True)
class Point(ProblemSize):
    start: float = 1e-3  # standard deviation of the entries of the initial matrix
    method: MethodName = "sign"
    steps: int = 4000


class SelectedTokens(Claim[Point], table=TABLE):
    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        problem, start = draw_problem(point, rng, point.start)
        run = train_with(METHODS[point.method], problem, start, point.steps)
        return {"tokens": run.selected, "best": np.mean(run.selected == problem.token_scores.argmax(axis=1))}

    def judge(self, rows: Rows[Point]) -> Checks:
        for start, runs in group_by(rows, "start"):
            words = f"start {start:g}"
            agree = runs.per_seed(lambda repeat: float(len({tuple(row.measured["tokens"]) for row in repeat}) == 1))
            compared = f"{words}, {len(runs.levels('method'))} optimizers"
            yield TABLE.same.part(f"start{start:g}", compared, Share(agree > 0), on=runs)
            for method, own in group_by(runs, "method"):
                share, label = resampled_runs(own, "best", statistic=np.mean), f"{words}, {METHODS[method].label}"
                yield TABLE.best.part(f"{method}.start{start:g}", label, share, on=own)
        for start, own in group_by(rows.where(method="normalized-gd"), "start"):
            missed = Share([row.measured["best"] < 1.0 for row in own])
            yield TABLE.local.part(f"start{start:g}", f"start {start:g}", missed, on=own)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        panels = figure.subplots(1, len(rows.levels("start")), squeeze=False)[0]
        for axes, start in zip(panels, rows.levels("start"), strict=True):
            runs = rows.where(start=start)
            names = runs.levels("method")
            labels = [METHODS[name].label for name in names]
            table = np.array([[share_of_same_tokens(runs, one, other) for other in names] for one in names])
            draw_table(
                axes, table, labels, labels, 2, white=table <= 0.6, slant=True, cmap="viridis", vmin=0.0, vmax=1.0
            )
            axes.set(title=f"Share of sequences with the same token, start {start:g}")


def share_of_same_tokens(runs: Rows[Point], one: str, other: str) -> float:
    """Share of sequences in which two methods select the same token."""
    chosen = [{row.seed: row.measured["tokens"] for row in runs.where(method=method)} for method in (one, other)]
    shared = sorted(set(chosen[0]) & set(chosen[1]))
    return float(np.mean([np.equal(chosen[0][seed], chosen[1][seed]).mean() for seed in shared])) if shared else np.nan
