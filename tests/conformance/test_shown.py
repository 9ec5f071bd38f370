"""Everything a user gets back shows itself: one short line in a console, a table in a notebook that obeys no text."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from returned_types import returned_types

from whichtoken.display.shown import LONGEST, Shown

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m" + "long" * 500
STATE = SimpleNamespace(step=900, p=2.0, log_norm=3.0)
DESCENT = {"final": STATE, "snapshots": (), "selected": np.array([0, 2]), "last_change": 40, "settled": True}
SAYS = "900 steps, the same tokens selected since step 40; selects 0, 2"
FORECASTS = {name: SimpleNamespace(error=0.1) for name in ("attention", "pooled", "vectorized")}
MEASURED = SimpleNamespace(name="majority", accuracy=0.9)
NUMBERS = {"theory": 0.5, "measured": 0.51, "low": 0.49, "high": 0.53}

# what says in a sentence what it found: fields that the sentence needs, and the sentence
OWN_PAGE = ("Inspection", "HeadFigure")  # a page and a picture, not a table of fields
SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "JointConditions": (
        {"separable": True, "classifiable": True, "every_sequence_supports": False, "best_tokens": True},
        "missing: every_sequence_supports",
    ),
    "ClsPath": (
        {"arc": np.array([0.0, 7.0]), "log_losses": np.array([-1.0, -5.0])},
        "arc length 7, loss e^-5, 2 recorded points",
    ),
    "StressResult": (
        {"claim": "toy/mean", "borders": [], "counterexamples": [], "trials": [1, 2], "rows": 6},
        "toy/mean: nothing that breaks it was found (2 trials, 6 rows)",
    ),
    "DescentResult": (DESCENT, SAYS),
    "FactorDescent": (
        {"status": "diverged", "trace": (1, 2, 3), "final": SimpleNamespace(loss=0.25), "message": "too fast"},
        "diverged after 2 steps, loss 0.25: too fast",
    ),
    "FitReport": (
        {"ours": MEASURED, "baseline": None, "majority": MEASURED, "test": 60, "judged_by": "25% held out at random"},
        "accuracy 0.900 on 60 rows (majority 0.900), judged by 25% held out at random",
    ),
    "Inspection": ({"summary": lambda: ["12 heads", "layer 0"]}, "12 heads; layer 0"),
    "LimitProblem": ({"statement": "W tends to the best margin."}, "W tends to the best margin."),
    "LinearResult": ({"final": STATE}, "900 steps of l_2 mirror descent, norm e^3"),
    "MarginCertificate": (
        {"status": "optimal", "support": [0, 1], "multipliers": [1, 1, 1], "margin": 1.5, "dual_bound": 1.5, "gap": 0.0},
        "optimal, margin 1.5 (at most 1.5, gap 0.0e+00); 2 of 3 constraints hold it",
    ),
    "Plan": (
        {**FORECASTS, "samples": 80, "bayes_floor": 0.02},
        "predicted test errors with 80 sequences: attention 0.1, mean pooling 0.1, all tokens 0.1; no classifier below 0.02",
    ),
    "RegularizationPath": ({"radii": np.array([1.0, 8.0]), "p": 1.5}, "2 radii up to 8 in the l_1.5 norm"),
    "Result": (
        {"id": "a/b", "preset": "quick", "failed": 1, "seconds": 2.0, "all_rows": [1, 2, 3], "fault": "",
         "verdicts": [SimpleNamespace(state="agrees", claim=HOSTILE, _short_headline=lambda: HOSTILE)] * 2,
         "experiment": SimpleNamespace(title=HOSTILE, claim=HOSTILE)},
        "a/b (quick): 2 agree; 3 rows, 1 failed in 2.0 s",
    ),
    "StudyPlan": ({"recommendation": "Collect 300 bags."}, "Collect 300 bags."),
    "Verdict": (
        {"state": "agrees", "claim": "fair", "relation": "=", "note": "", **NUMBERS},
        "agrees: fair; measured 0.51 (0.49 to 0.53), theory 0.5",
    ),
}  # fmt: skip
# of fitted models, in tests/app/pages/test_hidden_signs.py
EXPLANATIONS = {
    "BagExplanation",
    "BagNumberExplanation",
    "NumberExplanation",
    "Reasons",
    "RowExplanation",
    "TextExplanation",
}


def kinds() -> list[Any]:
    return [
        pytest.param(module, name, id=f"{module.removeprefix('whichtoken.')}.{name}")
        for module, name in returned_types()
    ]


def made(kind: Any, **values: Any) -> Any:
    """One with these values, and in every other field a hostile text or something large."""
    others = [HOSTILE, np.zeros((300, 200)), [HOSTILE] * 50, {HOSTILE: 1}]
    filled = {field.name: others[number % 4] for number, field in enumerate(dataclasses.fields(kind))} | values
    # properties that a sentence needs are given, too
    part = type(
        kind.__name__, (kind,), {name: value for name, value in filled.items() if name not in kind.__dataclass_fields__}
    )
    item = object.__new__(part)
    for name, value in filled.items():
        if name in kind.__dataclass_fields__:
            object.__setattr__(item, name, value)
    return item


@pytest.mark.parametrize(("module", "name"), kinds())
def test_shows_itself(module: str, name: str) -> None:
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, Shown), f"let {name} inherit whichtoken.display.shown.Shown"
    assert kind.__repr__ is Shown.__repr__, "a dataclass's own repr prints every array"
    if inspect.isabstract(kind) or name in EXPLANATIONS:
        return
    own = kind._headline is not Shown._headline
    assert own == (name in SENTENCES), f"a row in SENTENCES for each type with a sentence, and for no other: {name}"
    values, sentence = SENTENCES.get(name, ({}, ""))
    item = made(kind, **{key: (staticmethod(value) if callable(value) else value) for key, value in values.items()})
    line = repr(item)
    assert (
        line == f"<{name}: {sentence}>" if own else line.startswith(f"{name}(") and len(line) <= LONGEST + len(name) + 2
    )
    table = "" if name in OWN_PAGE else item._repr_html_()
    assert "<script" not in table
    assert not {"\u202e", "\x1b"} & set(line + table)
