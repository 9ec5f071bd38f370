"""The scripts of an explainer page in V8, without a browser: what they compute, beside what Python computes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from whichtoken.estimators.text.explainer import pack_model, page_script

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


class PageEngine:
    """A packed model in V8."""

    def __init__(self, model: Any) -> None:
        racer = pytest.importorskip("py_mini_racer", reason="mini-racer is not installed: pip install mini-racer")
        self._context = racer.MiniRacer()
        scripts = page_script(model.stemmer, ("tokenize.js", "model.js", "decide.js"))
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
