"""From one start, optimizers select different tokens.

Claim   Optimizers that start from the same matrix on the same problem do not always select the same tokens, wherever they
        start; each selects the best token of most sequences.
Source  Gradient descent may end with tokens that are only locally optimal: Tarzanagh, Li, Thrampoulidis, Oymak (arXiv
        2308.16898). How often optimizers differ is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, values_with_failures
from whichtoken.claims._figures import Figure, draw_table
from whichtoken.claims.mirror_descent._problems import draw_problem
from whichtoken.claims.optimizers._methods import METHODS, train_with
from whichtoken.claims.optimizers.margins import MethodName
from whichtoken.lab import Check, Experiment, Grid, Measured, Resampled, Rows, Share

COMPARED = ["normalized-gd", "sign", "coordinate", "adam", "adam-default", "muon", "keys-queries"]
SAME = AtMost(
    "tokens.same.start{start:g}", 0.9, "start {start:g}: share of problems on which all {compared} optimizers agree"
)
BEST = AtLeast(
    "tokens.best.{method}.start{start:g}", 0.7, "start {start:g}, {label}: share of sequences with the best token"
)


@dataclass(frozen=True)
class Point:
    sequences: int = 6
    length: int = 8
    dim: int = 10
    start: float = 1e-3  # standard deviation of the entries of the initial matrix
    method: MethodName = "sign"
    steps: int = 4000


class SelectedTokens(Experiment[Point]):
    id = "optimizers/tokens"
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

    def judge(self, rows: Rows[Point]) -> Iterator[Check]:
        for start in rows.levels("start"):
            runs = rows.where(start=start)
            same = runs.per_seed(lambda repeat: float(len({tuple(row.measured["tokens"]) for row in repeat}) == 1))
            yield SAME(Share(same > 0), start=start, compared=len(runs.levels("method")))
            for method in runs.levels("method"):
                best = Resampled(values_with_failures(runs.where(method=method), "best"), np.mean)
                yield BEST(best, method=method, start=start, label=METHODS[method].label)

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
