"""What the planner promises is what training then gives, for each of the three ways to train attention.

Claim   With the planner's own designs, attention with the samples split, attention with all samples for query and readout, and
        `BagClassifier` have the test errors that the plan predicts, but for a split with few sequences of the rarer class, of
        which the plan warns; using all samples for both is never worse than the split.
Source  The planner is ours. The split is the protocol of Barnfield, Cui, Lu, High-Dimensional Analysis of Single-Layer Attention
        for Sparse-Token Classification (arXiv 2509.25153); the theory of reuse is derived here, what BagClassifier adds to it is
        fitted. What fails here fails in our plans, not in their paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np

from whichtoken.claims._checks import AtLeast, AtMost, Below, Checks, Equals, Predictions, as_predicted, pool_parts
from whichtoken.claims._figures import Figure, legend
from whichtoken.claims._runs import each_point, pairs, rows_where
from whichtoken.claims.sparse_tokens._tasks import OTHER_TASK, sequences_of, task_code, task_of, task_words
from whichtoken.lab import Experiment, Grid, Measured, Predicted, Rows

# relative; the planner asks for a percent, d = 100 costs a few, and BagClassifier, whose part is measured, has more room
TOLERANCE = {"split": 0.08, "reuse": 0.08, "BagClassifier": 0.1}
WAYS = {"split": "samples split", "reuse": "all samples for both", "BagClassifier": "BagClassifier"}
EQUAL = {
    way: Equals(f"planned.{way.lower()}", None, f"test error of attention, {words}, as planned")
    for way, words in WAYS.items()
}
FEW = AtLeast(
    "planned.few", None, "test error with the samples split where the plan warns of few: what is planned, or more",
    regime="beyond-hypotheses",
)  # fmt: skip
KEPT = Below("planned.kept", 1.1, "test error of BagClassifier over the planned one")
BETTER = AtMost("planned.better", 0.0, "test error with all samples for query and readout minus that of the best split")


@dataclass(frozen=True)
class Point:
    length: int = 10
    signal_tokens: int = 1
    strength: float = 4.0
    prevalence: float = 0.5
    dim: int = 100
    samples_per_dim: float = 4.0  # in all
    way: Literal["split", "reuse", "BagClassifier"] = "reuse"


TASKS: tuple[dict[str, Any], ...] = (
    {},
    {"length": 20, "strength": 4.5, "prevalence": 0.3},
    OTHER_TASK,
)


def _name(point: Point) -> str:
    return f"{task_code(point)}.a{point.samples_per_dim:g}"


class Planned(Experiment[Point]):
    id = "sparse-tokens/planned"
    presets = {
        "quick": (Grid(way=list(WAYS), seeds=(16, 32)),),
        "full": tuple(
            Grid(**task, samples_per_dim=samples, way=list(WAYS), seeds=(32, 128))
            for task in TASKS
            for samples in (2.0, 6.0)
        ),
    }  # fmt: skip
    method_fields = frozenset({"way"})

    def run(self, point: Point, rng: np.random.Generator) -> Measured:
        from whichtoken.theory.sparse_tokens import exact_error

        data = sequences_of(point, signal=rng.standard_normal(point.dim))
        tokens, labels = data.sample(round(point.samples_per_dim * point.dim), rng)
        if point.way == "BagClassifier":
            from whichtoken.estimators import BagClassifier

            model = BagClassifier(instance_map="linear", random_state=int(rng.integers(2**31))).fit(tokens, labels)
            query, readout, bias = model.queries_[0, 0], model.readouts_[0, 0], float(model.intercept_[0])
        else:
            query, readout, bias = _two_step(point, tokens, labels)
        return {"test_error": exact_error(readout, bias, data.direction, query=query, **task_of(point))}

    def predict(self, point: Point) -> Predictions:
        from whichtoken.theory.sparse_tokens import Task
        from whichtoken.theory.sparse_tokens.planner import POINTS, bag_error

        task = Task(**task_of(point))
        error = _design(point).error(task, point.samples_per_dim, POINTS)
        return {"test_error": Predicted(bag_error(task, error) if point.way == "BagClassifier" else error)}

    @pool_parts
    def judge(self, rows: Rows[Point]) -> Checks:
        points = [(point, _name(point), _words(point), runs) for point, runs in each_point(rows)]
        for way, criterion in (*EQUAL.items(), ("split", FEW)):
            for point, name, words, runs in points:
                if point.way == way and _has_few(point) == (criterion is FEW):
                    planned = as_predicted(runs, "test_error", relative=TOLERANCE[way])
                    if criterion is FEW and planned["value"] is not None:
                        planned["theory_error"] = planned.pop("tolerance")
                    yield criterion.part(name, words, runs.values("test_error"), on=runs, **planned)
        for point, name, words, runs in points:
            if point.way == "BagClassifier":
                expected = runs.predicted("test_error")
                ratios = runs.values("test_error") / (1.0 if expected is None else expected.value)
                yield KEPT.part(name, words, ratios, on=runs)
        for point, name, words, _ in points:
            split, reuse = pairs(rows, "test_error", {**vars(point), "way": "split"}, vars(point))
            if point.way == "reuse" and len(split):
                compared = (point, replace(point, way="split"))
                both = rows_where(rows, lambda other, compared=compared: other in compared)  # type: ignore[misc]
                yield BETTER.part(name, words, reuse - split, on=both)

    def draw(self, rows: Rows[Point], figure: Figure) -> None:
        axes = figure.subplots()
        names = {
            _name(point): f"{point.signal_tokens} of {point.length} tokens,\nsignal {point.strength:g}, "
            f"{100 * point.prevalence:g} % positive,\n{point.samples_per_dim:g} samples per dimension"
            for point in (row.point for row in rows)
        }
        for shift, (way, label) in enumerate(WAYS.items()):
            for place, name in enumerate(names):
                runs = Rows(row for row in rows.where(way=way) if _name(row.point) == name)
                predicted = runs.predicted("test_error")
                if predicted is None:
                    continue
                ratio = runs.values("test_error") / predicted.value
                error = 2 * ratio.std() / len(ratio) ** 0.5
                here = label if place == 0 else None
                height = place + 0.2 * (shift - 1)
                axes.errorbar(ratio.mean(), height, xerr=error, fmt="o", color=f"C{shift}", label=here)
        axes.axvline(1, color="grey", ls=":")
        axes.set_yticks(range(len(names)), list(names.values()), fontsize=8)
        axes.set(title="Trained as planned, with two standard errors", xlabel="test error over the predicted one")
        legend(axes)


def _has_few(point: Point) -> bool:
    """Whether the plan warns that the split leaves one of its stages too few sequences of the rarer class."""
    from whichtoken.theory.sparse_tokens import Task
    from whichtoken.theory.sparse_tokens.planner import small_stage_warnings

    if point.way != "split":
        return False
    samples = round(point.samples_per_dim * point.dim)
    return any(small_stage_warnings(Task(**task_of(point)), samples, _design(point)))


def _words(point: Point) -> str:
    samples = f"{point.samples_per_dim:g} samples per dimension"
    return f"{task_words(point)}, {100 * point.prevalence:g} % positive, {samples}, d = {point.dim}"


@cache
def _design(point: Point) -> Any:
    """The planner's design: of the split, or of the same samples for query and readout."""
    from whichtoken.theory.sparse_tokens import Task
    from whichtoken.theory.sparse_tokens.design import best_design, best_shared_design

    best: Any = best_design if point.way == "split" else best_shared_design
    return best(Task(**task_of(point)), point.samples_per_dim)


def _two_step(point: Point, tokens: Any, labels: Any) -> tuple[Any, Any, float]:
    """Query, readout and bias by the planner's design."""
    from whichtoken.theory.sparse_tokens.two_step import fit_attention

    design = _design(point)
    first, second = [(tokens, labels)], None
    if point.way == "split":
        query = round(design.query_share * len(labels))
        first, second = [(tokens[:query], labels[:query])], [(tokens[query:], labels[query:])]
    fit = fit_attention(
        first,
        second,
        ridge=design.ridge,
        target_temperature=design.inverse_temperature,
        lr_readout=design.learning_rate,
        bias_correction=design.bias_correction,
    )
    return fit.query, fit.readout, fit.bias
