"""The scripts of an explainer page in V8, without a browser: what they compute, beside what Python computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from whichtoken.estimators.explainer_page import script_of
from whichtoken.estimators.text.explainer import ARITHMETIC, pack_model, page_script

REPORT = """
// Python counts characters, JavaScript UTF-16 units
const characterAt = (text, unit) => [...text.slice(0, unit)].length;
const answer = (text) => {
  const found = explain(model, text), placed = (places) => places.map(([a, b]) => [characterAt(text, a), characterAt(text, b)]);
  return {
    label: found.winner, decision: found.decision, bias: found.bias, probabilities: found.probabilities,
    reasons: found.reasons.map((one) => [one.name, one.count, one.attention, one.contribution, placed(one.places)]),
    deletion: found.change ? found.change.names : [], to: found.change ? found.change.to : null, certificate: found.certificate,
  };
};
"""


def new_context() -> Any:
    """V8 without a browser."""
    racer = pytest.importorskip("py_mini_racer", reason="mini-racer is not installed: pip install mini-racer")
    return racer.MiniRacer()


class TableEngine:
    """A packed model of rows or bags in V8; `read` and `explain` name the functions of its page."""

    def __init__(self, scripts: Sequence[str], packed: dict[str, Any], read: str, explain: str) -> None:
        self._context, text = new_context(), json.dumps(packed)
        self._context.eval(f"{script_of(scripts)}\nconst model = {read}(JSON.parse({json.dumps(text)}));0")
        self._explain = explain

    def explain_rows(self, cells: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """What the page says of each row of cells."""
        return self._json(f"encode(model.inputs, {json.dumps(cells)}).map((row) => {self._explain}(model, row))")

    def explain_bag(self, cells: Sequence[Sequence[str]]) -> dict[str, Any]:
        """What the page says of one bag of cells."""
        return self._json(f"{self._explain}(model, encode(model.inputs, {json.dumps(cells)}))")

    def read(self, text: str) -> Any:
        """Numbers of a pasted table, or what is wrong with it."""
        call = f"encode(model.inputs, readTable(model.inputs, {json.dumps(text)}).rows).map((row) => [...row])"
        return self._json(f"(() => {{ try {{ return {call}; }} catch (error) {{ return error.message; }} }})()")

    def _json(self, call: str) -> Any:
        return json.loads(str(self._context.eval(f"JSON.stringify({call})")))


class PageEngine:
    """A packed model of texts in V8."""

    def __init__(self, model: Any) -> None:
        self._context = new_context()
        scripts = page_script(model.stemmer, ARITHMETIC)
        packed = json.dumps(pack_model(model))
        self._context.eval(
            f"{scripts}\nconst model = readModel(JSON.parse({json.dumps(packed)}), makeStemmer());{REPORT}0"
        )

    def explain(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What the page says of each text."""
        return [answer for k in range(0, len(texts), 500) for answer in self._call("answer", texts[k : k + 500])]

    def labels(self, texts: Sequence[str]) -> list[int]:
        """Number of the class of each text."""
        return [
            label
            for k in range(0, len(texts), 500)
            for label in self._call(
                "((text) => decide(outputsOf(model, findTokens(model, text).entries)))", texts[k : k + 500]
            )
        ]

    def _call(self, function: str, texts: Sequence[str]) -> Any:
        return json.loads(str(self._context.eval(f"JSON.stringify({json.dumps(list(texts))}.map({function}))")))
