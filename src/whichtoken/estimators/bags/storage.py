"""A bag classifier as a model folder."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder as stored
from whichtoken.estimators.bags.classifier import BagClassifier
from whichtoken.estimators.bags.data import MAPS, InstanceMap, Scaling, linear_map
from whichtoken.estimators.bags.validation import BagChoice, ScoreChoice
from whichtoken.estimators.model_folder import OpenedFolder, load_model, save_model

KIND = "bag-classifier"
FITTED = ("classes", "n_features_in", "feature_names_in", "choices")
LOSSES = ("mean_loss", "attention_loss")  # nan, which JSON does not have, says that nothing was validated
RUN_ONLY = ("n_jobs", "verbose")  # how it was run belongs to the run, not to the model
Model = TypeVar("Model", bound=BagClassifier)


def save_bag_classifier(model: BagClassifier, folder: str | Path) -> None:
    """Write a model folder: safetensors and JSON."""
    fitted = {
        "classes": stored.classes_as_json(model.classes_),
        "n_features_in": model.n_features_in_,
        "feature_names_in": list(getattr(model, "feature_names_in_", [])),
        "choices": [_choice_as_json(choice) for choice in model.choice_.scores],
    }
    tensors = {"queries": model.queries_, "readouts": model.readouts_, "intercepts": model.query_intercepts_}
    if model.instance_map != "linear":
        tensors |= {
            "instance_mean": model.maps_[0].scaling.mean,
            "instance_scale": model.maps_[0].scaling.scale,
            "map_weights": np.stack([seen.weights for seen in model.maps_]),
            "map_offsets": np.stack([seen.offsets for seen in model.maps_]),
        }
    settings = {name: value for name, value in stored.storable(model.get_params()).items() if name not in RUN_ONLY}
    if not isinstance(model.cv, int | np.integer):
        del settings["cv"]  # splits belong to the training bags, not to the model
    save_model(folder, KIND, {"settings": settings, "fitted": fitted}, tensors)


def load_bag_classifier(cls: type[Model], folder: str | Path | OpenedFolder) -> Model:
    """The classifier that `save` wrote; executes no code."""
    _, parameters, tensors = load_model(folder, KIND)
    with stored.stored_fields(folder):
        parts = stored.section("parameters", parameters, ["settings", "fitted"])
        names = [name for name in cls().get_params() if name not in ("cv", *RUN_ONLY)]
        model = cls(**stored.section("settings", parts["settings"], names, ["cv"]))
        model._check_parameters()
        stored.check_seed(model.random_state)
        fitted = stored.section("fitted", parts["fitted"], FITTED)
        model.classes_ = stored.classes_from_json(fitted["classes"])
        model.n_features_in_ = stored.count("n_features_in", fitted["n_features_in"])
        if fitted["feature_names_in"]:
            columns = stored.texts("feature_names_in", fitted["feature_names_in"], model.n_features_in_)
            model.feature_names_in_ = np.array(columns, dtype=object)
        choices = [_choice_from_json(part, model.instance_map) for part in fitted["choices"]]
        model.choice_ = BagChoice(tuple(choices))
        if len(choices) != stored.scores(model.classes_):
            raise UsageError(f"'choices' has {len(choices)} entries for {len(model.classes_)} classes")
        _set_tensors(model, tensors)
    return model


def _set_tensors(model: BagClassifier, tensors: dict[str, Any]) -> None:
    scores = len(model.choice_.scores)
    dim = model.n_features_in_ if model.token_dim is None else stored.count("token_dim", model.token_dim)
    mapped = model.instance_map != "linear"
    width = tensors["map_offsets"].shape[-1] if mapped else dim
    queries = min(model.n_queries, tensors["queries"].shape[1])
    shapes: dict[str, tuple[int, ...]] = {
        "queries": (scores, queries, width),
        "readouts": (scores, queries, width),
        "intercepts": (scores, queries),
    }
    if mapped:
        shapes |= {"instance_mean": (dim,), "instance_scale": (dim,)}
        shapes |= {"map_weights": (scores, dim, width), "map_offsets": (scores, width)}
    model.queries_, model.readouts_, model.query_intercepts_, *rest = stored.arrays(tensors, shapes)
    model.maps_ = [linear_map(dim)] * scores
    if mapped:
        mean, scale, weights, offsets = rest
        if not (scale > 0).all():
            raise UsageError("array 'instance_scale' holds numbers that are not above 0")
        model.maps_ = [
            InstanceMap(model.instance_map, Scaling(mean, scale), *pair) for pair in zip(weights, offsets, strict=True)
        ]
    for choice, part in zip(model.choice_.scores, model.queries_, strict=True):
        if choice.pooling == "mean" and part.any():
            raise UsageError("'choices' says that the mean pools, but 'queries' are not 0")


def _choice_as_json(choice: ScoreChoice) -> dict[str, Any]:
    described = asdict(choice)
    return described | {name: None if np.isnan(described[name]) else described[name] for name in LOSSES}


def _choice_from_json(described: Any, instance_map: str) -> ScoreChoice:
    part = stored.section("choices", described, [field.name for field in fields(ScoreChoice)])
    if part["instance_map"] not in MAPS or part["instance_map"] != instance_map:
        raise UsageError(f"'choices' is for another instance_map than '{instance_map}'")
    known: dict[str, Any] = {"C": stored.number("C", part["C"], 0)}
    for name in ("temperature", "anchor", *LOSSES):
        known[name] = None if part[name] is None else stored.number(name, part[name], 0, include_low=True)
    known["bandwidth"] = None if part["bandwidth"] is None else stored.number("bandwidth", part["bandwidth"], 0)
    known["steps"] = None if part["steps"] is None else stored.count("steps", part["steps"])
    known |= {name: float("nan") for name in LOSSES if known[name] is None}
    return ScoreChoice(instance_map=instance_map, **known)
