"""From one start, optimisers select different tokens.

Claim   Optimisers that start from the same matrix on the same problem do not always select the same tokens, wherever they
        start; each selects the best token of most sequences.
Source  Gradient descent may end with tokens that are only locally optimal: Tarzanagh, Li, Thrampoulidis, Oymak (arXiv
        2308.16898). How often optimisers differ is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from whichtoken.experiments.optimisers._methods import METHODS, all_runs, draw_problem, train_with
from whichtoken.experiments.optimisers.margins import MethodName
from whichtoken.lab import Claim, Experiment, Grid, Measured, Resampled, Rows, Share, at_least, at_most

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ["normalized-gd", "sign", "coordinate", "adam", "adam-default", "muon", "keys-queries"]


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    start: float = 1e-3  # standard deviation of the entries of the initial matrix
    method: MethodName = "sign"
    steps: int = 4000


class SelectedTokens(Experiment[Point]):
    id = "optimisers/tokens"
    version = 2
    presets = {
        "quick": (Grid(method=COMPARED, start=[1e-3, 1.0], seeds=(12, 24)),),
        "full": (Grid(method=COMPARED, start=[1e-3, 1.0], steps=8000, seeds=60),),
    }
    method_fields = frozenset({"method", "steps", "start"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        problem, start = draw_problem(point, rng, point.start)
        run = train_with(METHODS[point.method], problem, start, point.steps)
        return {
            "tokens": run.selected,
            "best": np.mean(run.selected == problem.token_scores.argmax(axis=1)),
            "settled": run.settled,
        }

    def judge(self, rows: Rows[Point]) -> Iterator[Claim]:
        for start in rows.levels("start"):
            runs = rows.where(start=start)
            compared = len(runs.levels("method"))
            same = runs.per_seed(lambda repeat: float(len({tuple(row.measured["tokens"]) for row in repeat}) == 1))
            yield at_most(
                f"tokens.same.start{start:g}",
                f"start of size {start:g}: share of problems on which all {compared} optimisers select the same tokens",
                bound=0.9,
                measured=Share(same > 0),
            )
            for method in runs.levels("method"):
                own = runs.where(method=method)
                yield at_least(
                    f"tokens.best.{method}.start{start:g}",
                    f"start of size {start:g}, {METHODS[method].label}: share of sequences whose best token is selected",
                    bound=0.7,
                    measured=Resampled(all_runs(own, "best"), np.mean),
                )

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        panels = figure.subplots(1, len(rows.levels("start")), squeeze=False)[0]
        for axes, start in zip(panels, rows.levels("start"), strict=True):
            runs = rows.where(start=start)
            names = runs.levels("method")
            labels = [METHODS[name].label for name in names]
            table = np.array([[agreement_of(runs, one, other) for other in names] for one in names])
            axes.pcolormesh(table, cmap="viridis", vmin=0.0, vmax=1.0, edgecolors="none")
            for (i, j), value in np.ndenumerate(table):
                colour = "black" if value > 0.6 else "white"
                axes.text(j + 0.5, i + 0.5, f"{value:.2f}", ha="center", va="center", color=colour, fontsize="small")
            axes.set_xticks(np.arange(len(names)) + 0.5, labels, rotation=45, ha="right")
            axes.set_yticks(np.arange(len(names)) + 0.5, labels)
            axes.set(title=f"Share of sequences with the same token, start {start:g}")
            axes.grid(False)


def agreement_of(runs: Rows[Point], one: str, other: str) -> float:
    """Share of sequences in which two methods select the same token."""
    chosen = [{row.seed: row.measured["tokens"] for row in runs.where(method=method)} for method in (one, other)]
    shared = sorted(set(chosen[0]) & set(chosen[1]))
    return float(np.mean([np.equal(chosen[0][seed], chosen[1][seed]).mean() for seed in shared])) if shared else np.nan
