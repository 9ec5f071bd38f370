"""The estimator reaches the excess error that is predicted for its layer.

Claim   `AttentionRegressor`, as a user fits it, has on fresh queries the excess error that is predicted for its training tokens
        as context: it falls as 1/n with the predicted constant, and given fresh tokens as context it is that of a fresh one.
Source  The order: Goel, Soltanolkotabi, Bartlett (arXiv 2603.01514, workshop abstract); the constants are derived here, and
        the estimator is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whichtoken.claims._checks import Checks, Equals, pool_parts
from whichtoken.claims._figures import Figure, level_ticks, points_with_errors
from whichtoken.claims._runs import rows_where
from whichtoken.claims.attention_regression._training import exponents, sample_problem
from whichtoken.lab import Experiment, Grid, Measured, Rows

QUERIES = 400
MANY = 1000  # tokens from which on the constant is read off
CONTEXTS: Mapping[str, str] = {"stored": "training tokens as context", "fresh": "fresh tokens as context"}
SLOPE = Equals("estimator.slope", -1.0, "exponent of the estimator's excess in n, all condition numbers", tolerance=0.1)
FLOOR = Equals(
    "estimator.floor",
    1.0,
    f"excess of the estimator over its prediction, n >= {MANY}, all condition numbers",
    tolerance=0.2,
)


@dataclass(frozen=True)
class Point:
    dim: int = 6
    tokens: int = 800
    condition: float = 1.0  # of target and covariance
    noise: float = 0.1


class RegressorFloor(Experiment[Point]):
    id = "attention-regression/estimator"
    version = 2
    needs = "torch"
    presets = {
        "quick": (Grid(dim=16, tokens=1600, seeds=16),),  # many features: a run scatters less
        "full": (Grid(tokens=[250, 1000, 4000], condition=[1.0, 10.0, 100.0], seeds=32),),
    }

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken import AttentionRegressor
        from whichtoken.theory.attention_regression import excess_floor

        problem = sample_problem(point, rng)
        model = AttentionRegressor().fit(problem.tokens, problem.labels)
        queries, clean = problem.draw(QUERIES, rng)
        contexts = {"stored": None, "fresh": problem.draw(point.tokens, rng)[0]}
        measured: dict[str, float] = {}
        for kind, context in contexts.items():
            error = model.predict(queries, context) - clean
            measured[kind] = float(np.mean(np.sum(error**2, axis=1)))
            # the target is drawn with the data, so its floor belongs to the run; the theory's excess has a half before it
            floor = excess_floor(kind, problem.whitened_target, point.noise, point.tokens, model.choice_.logit_norm)
            measured[f"{kind}_share"] = measured[kind] / (2 * floor)
        return measured

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        longest = rows_where(rows, lambda point: point.tokens >= MANY)
        for kind, words in CONTEXTS.items():
            if len(rows.levels("tokens")) > 1:
                yield SLOPE.part(kind, words, exponents(rows, kind), on=rows)
            yield FLOOR.part(kind, words, longest.seed_means(f"{kind}_share"), on=longest)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        for kind, context in CONTEXTS.items():
            points_with_errors(axes, rows, "tokens", f"{kind}_share", context)
        axes.axhline(1.0, ls="--", color="grey")
        axes.set(xscale="log", xlabel="training tokens", title="Excess of the estimator over its prediction")
        level_ticks(axes, rows.levels("tokens"))
        axes.legend()
