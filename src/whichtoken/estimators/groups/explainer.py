"""A classifier of rows as one HTML file: fields with curves, what each group adds, and what would change the label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.errors import UsageError
from whichtoken.estimators import explainer_page as page
from whichtoken.estimators.explainer_page import PageColumns, SavedPage

if TYPE_CHECKING:
    from whichtoken.estimators.groups.classifier import GroupClassifier

ARITHMETIC = ("numbers.js", "scores.js", "cells.js", "rows.js")
SCRIPTS = (*ARITHMETIC, "elements.js", "rows_page.js")


def save_explainer(model: GroupClassifier, path: str | Path, examples: Any = (), **about: Any) -> SavedPage:
    """Write the page; see `GroupClassifier.save_explainer`."""
    text = page.page_html(pack_groups(model, examples, **about), page.script_of(SCRIPTS))
    kept = len(model.selected_groups_)
    return SavedPage(
        Path(path), page.write_page(path, text, f"for {kept} groups; {{n_groups}} would fit", n_groups=kept)
    )


def pack_groups(
    model: GroupClassifier,
    examples: Any = (),
    *,
    title: str | None = None,
    table: Mapping[str, Any] | None = None,
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a page has to know of the selected groups, as JSON can hold it."""
    *groups, covariates = model._parts()
    used = np.concatenate([*groups, covariates]).astype(int).tolist()
    if not used:
        raise UsageError("the model selected no group, so every row gets the same label and a page would show nothing")
    columns = PageColumns.of(model, used, table)
    place_of = {feature: place for place, feature in enumerate(columns.features)}
    attention = dict(zip(model.group_names_, model.attention_.tolist(), strict=True))
    parts = [
        {"name": str(name), "attention": attention[name], "columns": [place_of[k] for k in part.tolist()]}
        for name, part in zip(model.selected_groups_, groups, strict=True)
        # a group whose columns all count for others adds nothing of its own
        if len(part)
    ]
    if len(covariates):
        parts.append({"name": "covariates", "attention": None, "columns": [place_of[k] for k in covariates.tolist()]})
    width = model.n_features_in_
    bends = model._features[model._features >= width] - width
    directions = model.map_.directions[:, bends].tocsc()
    classes = [str(name) for name in model.classes_.tolist()]
    return {
        "title": title or f"Which groups of columns decide: {page.alternatives(classes)}",
        "classes": classes,
        "inputs": columns.inputs,
        "parts": parts,
        "means": page.packed_numbers(model.column_means_[columns.features]),
        "ranges": page.packed_numbers(model.column_ranges_[:, columns.features].T),
        "coef": page.packed_numbers(model.coef_[:, columns.features]),
        "intercept": model.intercept_.tolist(),
        "bends": {
            "kind": model.map_.kind,
            "starts": directions.indptr.tolist(),
            "columns": [place_of[k] for k in directions.indices.tolist()],
            "weights": page.packed_numbers(directions.data),
            "offsets": page.packed_numbers(model.map_.offsets[bends]),
            "coef": page.packed_numbers(model.coef_[:, width + bends]),
        },
        "examples": columns.cells(examples) if len(examples) else [],
        "card": page.shown_card(card),
        "notes": [],
    }
