"""Forecasts of the planner page: quick ones while a slider moves, exact ones when it rests; computed in a worker."""

from __future__ import annotations

from dataclasses import asdict, astuple
from functools import lru_cache
from typing import Any

from whichtoken.app.pages import planning as pages
from whichtoken.app.workbench.planner import DEFAULT_DESIGNS, Designs, StudyNumbers
from whichtoken.files import finite
from whichtoken.theory.sparse_tokens import Task, erm, plan
from whichtoken.theory.sparse_tokens.design import LOSS, RIDGE, Design, SharedDesign, query_steps
from whichtoken.theory.sparse_tokens.planner import bag_error

QUICK_POINTS = 1 << 9
LONG = 300  # tokens, beyond which fewer points are used to save time
QUICK_CURVE = (0.25, 1.0, 4.0)
CURVE = (0.25, 0.5, 1.0, 2.0, 4.0)  # multiples of the samples
NAMES = {**pages.WAYS, **pages.MODELS}  # of the fields of a plan


def quick_forecast(numbers: StudyNumbers, designs: Designs = DEFAULT_DESIGNS) -> dict[str, Any]:
    """Learning curves with the designs of the last exact plan, accurate to about a tenth of the error."""
    split, shared = Design(*designs[0]), SharedDesign(*designs[1])
    sizes = [max(4, round(multiple * numbers.samples)) for multiple in QUICK_CURVE]
    points = QUICK_POINTS if numbers.length <= LONG else QUICK_POINTS // 2
    curves = {
        "reuse": [shared.error(numbers.task, n / numbers.dim, points) for n in sizes],
        "attention": [split.error(numbers.task, n / numbers.dim, points) for n in sizes],
    }
    for model in ("pooled", "vectorized"):
        curves[model] = [_linear_error(numbers, model, n) for n in sizes]
    curves = _with_bags(numbers.task, curves)
    middle = QUICK_CURVE.index(1.0)
    steps = query_steps(numbers.task, numbers.samples / numbers.dim, shared.bias_correction)
    least = min(curves[name][middle] for name in ("reuse", "attention", "bag_classifier"))
    return {
        "answer": pages.answer_in_words(numbers.samples, least, numbers.task.trivial_error),
        "approximate": True, "samples": sizes, "curves": finite(curves), "names": NAMES,
        "errors": finite({name: curve[middle] for name, curve in curves.items()}),
        "alignment": steps.alignment, "trivial": numbers.task.trivial_error, "capacities": dict.fromkeys(pages.MODELS),
    }  # fmt: skip


# several clients may ask for the same forecast while it is computed
@lru_cache(maxsize=64)
def exact_forecast(numbers: StudyNumbers) -> tuple[dict[str, Any], Designs]:
    """The plan as `whichtoken plan` makes it, with its learning curves, and the designs that it chose."""
    with pages.planning_errors():
        made = plan(**asdict(numbers))
    sizes = [max(4, round(multiple * made.samples)) for multiple in CURVE]
    curves = {name: [pages.predicted_error(made, name, n) for n in sizes] for name in pages.MODELS}
    curves["reuse"] = [pages.predicted_error(made, "shared", n) for n in sizes]
    forecast = {
        "answer": pages.answer(made), "approximate": False,
        "samples": sizes, "curves": finite(_with_bags(numbers.task, curves)), "names": NAMES,
        "errors": finite({name: getattr(made, name).error for name in NAMES}),
        "alignment": made.shared_design.alignment, "trivial": numbers.task.trivial_error, "floor": made.bayes_floor,
        "capacities": finite({name: getattr(made, name).capacity for name in pages.MODELS}),
        "headings": pages.forecast_headings(made), "rows": pages.forecast_rows(made), "protocol": pages.protocol(made),
        "warnings": list(made.warnings),
    }  # fmt: skip
    return forecast, (astuple(made.design), astuple(made.shared_design))


def _with_bags(task: Task, curves: dict[str, list[float]]) -> dict[str, list[float]]:
    """The curves with that of `BagClassifier`, which follows from attention on all samples, in the order of the page."""
    bags = [bag_error(task, error) for error in curves["reuse"]]
    return {name: bags if name == "bag_classifier" else curves[name] for name in NAMES}


def _linear_error(numbers: StudyNumbers, model: str, samples: int) -> float:
    found = erm(
        model=model, **asdict(numbers.task), samples_per_dim=samples / numbers.dim, ridge=RIDGE, loss=LOSS, accuracy=1e-2
    )  # fmt: skip
    return float(found.test_error)
