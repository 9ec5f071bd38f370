"""The classifier that users fit reaches the error that theory predicts for it.

Claim   `BagClassifier` with two-step training, some bags for the query and the others for the readout, has the alignment and
        the test error of the theory, and mean pooling by the same class has its own predicted error.
Source  Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention for Sparse-Token Classification (arXiv
        2509.25153) for the training; the formulas are derived here, and here for the estimator, which standardizes its instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from whichtoken.claims._checks import Checks, Equals, Predictions, as_predicted, pool_parts
from whichtoken.claims._figures import Figure, legend, points_on_theory
from whichtoken.claims.sparse_tokens._tasks import OTHER_TASK, OneSignalToken, sequences_of, split_tasks, task_of
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Rows

TOLERANCE = {"test_error": 0.06, "alignment": 0.02}  # relative; fixed before the run
TEST_ERROR = Equals("estimator.test-error", None, "test error of BagClassifier in two steps, against the theory")
ALIGNMENT = Equals(
    "estimator.alignment", None, "alignment of the query of BagClassifier in two steps, against the theory"
)


@dataclass(frozen=True)
class Point(OneSignalToken):
    dim: int = 200
    samples_per_dim: float = 4.0  # of query and readout together
    query_share: float = 0.5
    pooling: Literal["attention", "mean"] = "attention"
    inverse_temperature: float = 1.0
    ridge: float = 1e-2


class Estimator(Experiment[Point]):
    id = "sparse-tokens/estimator"
    version = 2
    presets = {
        "quick": (Grid(pooling=["attention", "mean"], seeds=(16, 64)),),
        "full": (
            Grid(pooling=["attention", "mean"], samples_per_dim=[2.0, 4.0, 8.0], seeds=(40, 80)),
            Grid(**OTHER_TASK, inverse_temperature=1.5, query_share=0.6, samples_per_dim=6.0, seeds=(40, 80)),
        ),
    }
    method_fields = frozenset({"pooling", "inverse_temperature", "ridge", "query_share"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.estimators import BagClassifier
        from whichtoken.theory.sparse_tokens import exact_error

        # a direction of its own for every run: coordinates are standardized, so that none may be special
        data = sequences_of(point, signal=rng.standard_normal(point.dim))
        tokens, labels = data.sample(round(point.samples_per_dim * point.dim), rng)
        readout_bags = round((1 - point.query_share) * len(labels))
        model = BagClassifier(
            training="two-step",
            query_share=point.query_share,
            inverse_temperature=point.inverse_temperature if point.pooling == "attention" else 0.0,
            C=1 / (point.ridge * readout_bags),
            random_state=int(rng.integers(2**31)),
        ).fit(tokens, labels)
        query, readout, bias = model.queries_[0, 0], model.readouts_[0, 0], float(model.intercept_[0])
        error = exact_error(readout, bias, data.direction, query=query, **task_of(point))
        norm = np.linalg.norm(query)
        return {"test_error": error} | ({"alignment": float(query @ data.direction / norm)} if norm else {})

    def predict(self, point: Point) -> Predictions:
        from whichtoken.datasets.sparse_tokens import Task
        from whichtoken.theory.sparse_tokens import erm
        from whichtoken.theory.sparse_tokens.design import query_steps

        learning = {
            **task_of(point),
            "samples_per_dim": (1 - point.query_share) * point.samples_per_dim,
            "ridge": point.ridge,
        }
        if point.pooling == "mean":
            found = erm(model="pooled", **learning)
            return {"test_error": Predicted(found.test_error, found.error_estimate)}
        steps = query_steps(Task(**task_of(point)), point.query_share * point.samples_per_dim, bias_correction=True)
        found = erm(**learning, alignment=steps.alignment, inverse_temperature=point.inverse_temperature)
        return {
            "test_error": Predicted(found.test_error, found.error_estimate),
            "alignment": Predicted(steps.alignment),
        }

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        for pooling in ("attention", "mean"):
            for ending, runs in split_tasks(rows.where(pooling=pooling)):
                label, words = f"{pooling}{ending}", f"{pooling}{ending}".replace(".", ", ")
                for criterion, quantity in ((TEST_ERROR, "test_error"), (ALIGNMENT, "alignment")):
                    if quantity == "test_error" or pooling == "attention":
                        expected = as_predicted(runs, quantity, relative=TOLERANCE[quantity])
                        yield criterion.part(label, words, runs.values(quantity), on=runs, **expected)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        tasks = list(split_tasks(rows, "pooling", "samples_per_dim"))
        _, runs = max(tasks, key=lambda task: len(task[1].levels("samples_per_dim")), default=("", Rows()))
        for color, pooling in (("C0", "attention"), ("C1", "mean")):
            label, theory = f"{pooling}, BagClassifier", f"{pooling}, theory"
            some = runs.where(pooling=pooling)
            points_on_theory(axes, some, "samples_per_dim", "test_error", label, color, theory)
        axes.set(xlabel="bags per dimension", ylabel="test error", xscale="log", ylim=(0, None))
        legend(axes)
