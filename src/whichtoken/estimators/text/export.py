"""The scorer of a text model for other programs: plain JSON, or one SQL query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from whichtoken.estimators.text.model import TextModel


def as_json(model: TextModel) -> str:
    """Everything that is needed to compute a decision from counts, with the formula in words."""
    highest = model.selection_.max(axis=0)
    weights = np.exp(model.selection_ - highest)
    record = {
        "classes": model.classes_.tolist(),
        "amount": "log2(1 + count)" if model.sublinear and model.dim is None else "count",
        "decision": (
            "for each query: sum(amount * weight * value) / (null + sum(amount * weight)) over the tokens of a document, or 0 "
            "without any; add the queries and the bias; two classes: the second if positive, otherwise the class of the "
            "largest output"
        ),
        "temperature": model.choice_.temperature,
        "null": np.exp(model.log_null_ - highest).tolist(),
        "bias": model.bias_.tolist(),
        "tokens": {
            name: {"weight": weights[s].tolist(), "value": model.values_[s].tolist()}
            for s, name in enumerate(model.token_names_)
        },
    }
    return json.dumps(record, ensure_ascii=False)


def as_sql(model: TextModel) -> str:
    """A query on `token_counts(document, token, count)` that gives `document, decision`; two classes and one query only.

    Standard SQL (tested with SQLite). A document without known tokens is not in the result: its decision is the bias.
    """
    if len(model.classes_) > 2 or model.selection_.shape[1] > 1:
        raise ValueError(
            f"SQL is written for two classes and one query; this model has {len(model.classes_)} classes and "
            f"{model.selection_.shape[1]} queries, use kind='json'"
        )
    weights = np.exp(model.selection_[:, 0] - model.selection_.max())
    null = float(np.exp(model.log_null_ - model.selection_.max()))
    rows = ",\n".join(
        f"('{name.replace(chr(39), chr(39) * 2)}', {weight!r}, {value!r})"
        for name, weight, value in zip(
            model.token_names_, weights.tolist(), model.values_[:, 0, 0].tolist(), strict=True
        )
    )
    amount = "LN(1 + count) / LN(2)" if model.sublinear and model.dim is None else "count"
    return (
        f"WITH scores(token, weight, value) AS (VALUES\n{rows}\n),\n"
        f"shares AS (SELECT document, {amount} * weight AS share, value FROM token_counts JOIN scores USING (token))\n"
        f"SELECT document, SUM(share * value) / ({null!r} + SUM(share)) + ({float(model.bias_[0])!r}) AS decision\n"
        "FROM shares GROUP BY document"
    )
