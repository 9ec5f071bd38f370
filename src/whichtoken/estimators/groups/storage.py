"""A group model as a folder, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators._explanation import plain_label
from whichtoken.estimators.groups.selection import ATTENTIONS, Comparison, GroupChoice
from whichtoken.estimators.model_folder import OpenedFolder, load_model, save_model

if TYPE_CHECKING:
    from whichtoken.estimators.groups.classifier import GroupClassifier

KIND = "group-classifier"
TENSORS = ("coef", "intercept", "attention", "column_means")
FITTED = ("classes", "n_features_in", "feature_names_in", "group_names", "selected_groups", "choice", "comparison")
NAMED = ("groups", "covariates", "keep", "class_weight")  # settings that may be mappings, whose names may be numbers

Model = TypeVar("Model", bound="GroupClassifier")


def save_groups(model: GroupClassifier, folder: str | Path) -> None:
    """Write the model."""
    settings = stored.storable(model.get_params())
    for name in NAMED:
        settings[name] = _as_json(settings[name])
    fitted = {
        "classes": stored.classes_as_json(model.classes_),
        "n_features_in": model.n_features_in_,
        "feature_names_in": list(getattr(model, "feature_names_in_", [])),
        "group_names": list(model.group_names_),
        "selected_groups": list(model.selected_groups_),
        "choice": vars(model.choice_),
        "comparison": None if model.comparison_ is None else vars(model.comparison_),
    }
    tensors = {name: getattr(model, f"{name}_") for name in TENSORS}
    save_model(folder, KIND, {"settings": settings, "fitted": fitted}, tensors)


def load_groups(kind: type[Model], folder: str | Path | OpenedFolder) -> Model:
    """Read the model, looking at every value."""
    _, parameters, tensors = load_model(folder, KIND)
    with stored.stored_fields(folder):
        parts = stored.section("parameters", parameters, ["settings", "fitted"])
        settings = stored.section("settings", parts["settings"], list(kind().get_params()))
        for name in ("groups", "class_weight"):
            if isinstance(settings[name], list) and isinstance(settings[name][0], list):
                settings[name] = dict(settings[name])
        model, fitted = kind(**settings), stored.section("fitted", parts["fitted"], FITTED)
        model.classes_ = stored.classes_from_json(fitted["classes"])
        model.n_features_in_ = stored.count("n_features_in", fitted["n_features_in"])
        if fitted["feature_names_in"]:
            columns = stored.texts("feature_names_in", fitted["feature_names_in"], model.n_features_in_)
            model.feature_names_in_ = np.array(columns, dtype=object)
        model.choice_ = _choice_from_json(fitted["choice"])
        model.comparison_ = _comparison_from_json(fitted["comparison"])
        _take_selection(model, fitted["group_names"], fitted["selected_groups"], tensors)
    return model


def _take_selection(
    model: GroupClassifier, names: list[Any], selected: list[Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """The stored groups and arrays, if they fit together."""
    layout, scores = model._layout(), stored.scores(model.classes_)
    model._check_parameters(layout)
    stored.check_seed(model.random_state)
    model.group_names_, model.selected_groups_ = tuple(names), list(selected)
    if model.group_names_ != layout.names:
        raise UsageError("'group_names' are not those of 'groups'")
    places = [layout.names.index(name) for name in selected]
    shapes = {
        "coef": (scores, model.n_features_in_),
        "intercept": (scores,),
        "attention": (len(names),),
        "column_means": (model.n_features_in_,),
    }
    model.coef_, model.intercept_, model.attention_, model.column_means_ = stored.arrays(tensors, shapes)
    falling = model.attention_[places]
    if len(set(places)) != model.choice_.count or (np.diff(falling) > 0).any():
        raise UsageError("'selected_groups' are not as many as were chosen, in the order of their attention")
    model._columns = layout.columns(places)
    if (np.delete(model.coef_, model._columns, axis=1) != 0).any():
        raise UsageError("array 'coef' is not 0 outside the selected groups")


def _as_json(value: Any) -> Any:
    """Groups, covariates, names or weights as JSON keeps them: a mapping as pairs, whose names may be numbers."""
    if isinstance(value, Mapping):
        return [[plain_label(name), _as_json(part)] for name, part in value.items()]
    if value is None or isinstance(value, str | int | float | np.generic):
        return plain_label(value)
    return [plain_label(item) for item in value]


def _choice_from_json(described: Any) -> GroupChoice:
    part = stored.section("choice", described, ["attention", "count", "C"])
    if part["attention"] not in ("kept", *ATTENTIONS):
        raise UsageError(f"'attention' is not one of kept, {', '.join(ATTENTIONS)}")
    return GroupChoice(part["attention"], stored.count("count", part["count"]), stored.number("C", part["C"], 0))


def _comparison_from_json(described: Any) -> Comparison | None:
    if described is None:
        return None
    part = stored.section("comparison", described, ["count", "fewer", "whole", "error"])
    losses = (stored.number(name, part[name], 0, include_low=True) for name in ("fewer", "whole", "error"))
    return Comparison(stored.count("count", part["count"]), *losses)
