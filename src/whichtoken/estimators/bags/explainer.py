"""A classifier of bags as one HTML file: a pasted bag, the instances that decide, and the smallest deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError
from whichtoken.estimators import explainer_page as page
from whichtoken.estimators.bags.training import Score
from whichtoken.estimators.explainer_page import PageColumns, SavedPage

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier

ARITHMETIC = ("numbers.js", "scores.js", "cells.js", "bags.js")
SCRIPTS = (*ARITHMETIC, "elements.js", "bags_page.js")


def save_explainer(model: BagClassifier, path: str | Path, examples: Sequence[Any] = (), **about: Any) -> SavedPage:
    """Write the page; see `BagClassifier.save_explainer`."""
    text = page.page_html(pack_bags(model, examples, **about), page.script_of(SCRIPTS))
    kind, dim = model.maps_[0].kind, model.maps_[0].dim
    advice = f"for {dim} features behind the instance map '{kind}'; "
    advice += "give it fewer features or examples" if kind == "linear" else "instance_map='linear' takes the least"
    return SavedPage(Path(path), page.write_page(path, text, advice))


def pack_bags(
    model: BagClassifier,
    examples: Sequence[Any] = (),
    *,
    title: str | None = None,
    bag: str = "bag",
    table: Mapping[str, Any] | None = None,
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a page has to know, as JSON can hold it."""
    if (queries := model.queries_.shape[1]) > 1:
        raise UsageError(
            f"the model has {queries} queries per class; the page shows models with one, whose smallest deletions are exact: "
            "fit with {n_queries}",
            n_queries=1,
        )
    # bags in rows of a 2-D array have features of their own, as an instance has none
    dim = model.maps_[0].dim
    columns = PageColumns.of(model, range(dim), table)
    classes = [str(name) for name in model.classes_.tolist()]
    return {
        "title": title or f"Which instances decide: {page.alternatives(classes)}",
        "classes": classes,
        "inputs": columns.inputs,
        "bag": bag,
        "dropMissing": model.drop_missing,
        "map": model.maps_[0].kind,
        "scores": [_packed_score(score) for score in model._scores()],
        "examples": [columns.cells(example) for example in examples],
        "card": page.shown_card(card),
        "notes": [],
    }


def _packed_score(score: Score) -> dict[str, Any]:
    seen, pooling = score.map, score.pooling
    packed = page.packed_numbers
    layers = [
        {"wide": weights.shape[1], "narrow": weights.shape[2], "weights": packed(weights), "offsets": packed(offsets)}
        for weights, offsets in seen.layers
    ]
    scaling = {"mean": packed(seen.scaling.mean), "scale": packed(seen.scaling.scale)}
    mapped = {"kind": seen.kind, "gate": seen.gate, **scaling, "layers": layers}
    return {
        "query": packed(pooling.queries[0]),
        "readout": packed(pooling.readouts[0]),
        "bias": pooling.bias,
        "map": {**mapped, "copies": len(seen.layers[0][0])} if layers else None,
    }
