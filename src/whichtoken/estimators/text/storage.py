"""A text model as a folder, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from whichtoken.data.reading import shown
from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.errors import UsageError
from whichtoken.estimators import model_values as stored
from whichtoken.estimators.model_folder import OpenedFolder, load_model, save_model
from whichtoken.estimators.text.learning import Memory
from whichtoken.estimators.text.model import TextModel
from whichtoken.estimators.text.tokens import CallableTokenizer, FileTokenizer, Tokenizer, Vocabulary, WordTokenizer
from whichtoken.estimators.text.validation import Choice
from whichtoken.training.dual_ascent import ReadoutLoss

Model = TypeVar("Model", bound=TextModel)

KIND = "text-classifier"
SETTINGS = (
    "ngrams", "least_count", "stemmer", "sublinear", "idf", "C", "null", "loss", "attention_C", "n_queries", "dim", "max_epochs",
    "batch_size", "min_class",
)  # fmt: skip
SWITCHES = ("sublinear", "idf")


def save(model: TextModel, folder: str | Path) -> None:
    """Write the model; word pieces and tokenizers files travel with it."""
    parameters: dict[str, Any] = {
        "settings": {name: getattr(model, name) for name in SETTINGS},
        "classes": stored.classes_as_json(model.classes_),
        "choice": {**asdict(model.choice_), "C": str(model.choice_.C)},
        "log_null": str(model.log_null_),  # may be -inf, which JSON cannot say
        "tokens": list(model.token_names_),
        "tokenizer": _describe(model._vocabulary.tokenizer) if hasattr(model, "_vocabulary") else None,
    }
    counts, shares, sizes = model._statistics
    tensors = {
        "selection": model.selection_,
        "values": model.values_,
        "bias": model.bias_,
        "counts": counts,
        "shares": shares,
        "sizes": sizes,
    }
    if model._memory is not None:
        tensors |= {"precision": model._memory.precision, "mean_attention": model._memory.mean}
    save_model(folder, KIND, parameters, tensors)


def load(
    kind: type[Model], folder: str | Path | OpenedFolder, analyzer: Callable[[str], Sequence[str]] | None = None
) -> Model:
    """Read the model."""
    _, parameters, tensors = load_model(folder, KIND)
    if analyzer is None and parameters.get("tokenizer") == {"kind": "callable"}:
        raise UsageError(
            f"{shown(str(folder))} was fitted with an analyzer function, which cannot be saved; load it with analyzer="
        )
    with stored.stored_fields(folder):
        parts = stored.section(
            "parameters", parameters, ["settings", "classes", "choice", "log_null", "tokens", "tokenizer"]
        )
        model = kind(**stored.section("settings", parts["settings"], SETTINGS))
        model._check_parameters()
        for name in SWITCHES:
            if not isinstance(getattr(model, name), bool):
                raise UsageError(f"'{name}' is neither true nor false")
        model.classes_ = stored.classes_from_json(parts["classes"])
        model.choice_, model.log_null_ = _choice(parts["choice"]), float(parts["log_null"])
        if np.isnan(model.log_null_) or model.log_null_ == np.inf:
            raise UsageError(f"'log_null' is {model.log_null_}, not a finite number or -inf")
        described = parts["tokenizer"]
        names = tuple(stored.texts("tokens", parts["tokens"], unique=described is not None))
        _take_arrays(model, len(names), tensors)
        if described is None:
            model.n_features_in_ = len(names)
            if names != tuple(map(str, range(len(names)))):
                model.feature_names_in_ = np.array(names, dtype=object)
            return model
        tokenizer = _rebuild(described, analyzer, model)
        if not isinstance(tokenizer, FileTokenizer) and names != _ordered(names, model.ngrams):
            raise UsageError("'tokens' are not in their order")
        model._vocabulary, model.vocabulary_ = Vocabulary(tokenizer, names, model.ngrams), names
    return model


def _choice(described: Any) -> Choice:
    part = stored.section("choice", described, [field.name for field in fields(Choice)])
    C = float(part["C"])  # may be infinite, which JSON cannot say
    if not C > 0:
        raise UsageError(f"'C' is {C}, not above 0")
    if part["loss"] not in get_args(ReadoutLoss):
        raise UsageError(f"'loss' is {part['loss']!r}, not one of {', '.join(get_args(ReadoutLoss))}")
    if not isinstance(part["attention_step"], bool):
        raise UsageError("'attention_step' is neither true nor false")
    null = stored.number("null", part["null"], 0, include_low=True)
    temperature = stored.number("temperature", part["temperature"], 0)
    losses = {name: stored.number("losses", loss, 0, include_low=True) for name, loss in part["losses"].items()}
    return Choice(C, part["loss"], null, part["attention_step"], temperature, losses)


def _take_arrays(model: TextModel, tokens: int, tensors: dict[str, NDArray[Any]]) -> None:
    classes, queries = len(model.classes_), model.n_queries
    outputs = stored.scores(model.classes_)
    shapes = {
        "selection": (tokens, queries),
        "values": (tokens, queries, outputs),
        "bias": (outputs,),
        "counts": (tokens, classes),
        "shares": (tokens, classes),
        "sizes": (classes,),
    }
    if queries == 1 and model.dim is None:
        shapes |= {"precision": (tokens + 1, outputs), "mean_attention": (tokens,)}
    model.selection_, model.values_, model.bias_, *statistics = stored.arrays(tensors, shapes)
    if any((array < 0).any() for array in statistics):
        raise UsageError("arrays 'counts', 'shares', 'sizes', 'precision' and 'mean_attention' hold numbers below 0")
    model._statistics = tuple(statistics[:3])
    model._memory = Memory(*statistics[3:]) if len(statistics) > 3 else None
    if model._memory is not None and not model._memory.precision.all():
        raise UsageError("array 'precision' holds 0")


def _ordered(names: Sequence[str], ngrams: int) -> tuple[str, ...]:
    """As a fit leaves them: shorter n-grams first, then by the alphabet."""
    return tuple(sorted((name for name in names if name.count(" ") < ngrams), key=lambda name: (name.count(" "), name)))


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    match tokenizer:
        case WordTokenizer(pipeline):
            stop_words, spelling = list(pipeline.stop_words), list(pipeline.spelling)
            return {"kind": "words", "stop_words": stop_words, "stemmer": pipeline.stemmer, "word_pieces": spelling}
        case FileTokenizer(json):
            return {"kind": "file", "json": json}
        case _:
            return {"kind": "callable"}


def _rebuild(described: Any, analyzer: Callable[[str], Sequence[str]] | None, model: TextModel) -> Tokenizer:
    match described["kind"]:
        case "words":
            stored.section("tokenizer", described, ["kind", "stop_words", "stemmer", "word_pieces"])
            # lists, never names of files: nothing outside the folder is opened
            model.stop_words = stored.texts("stop_words", described["stop_words"], unique=False)
            model.word_pieces = stored.texts("word_pieces", described["word_pieces"], unique=False) or None
            if described["stemmer"] != model.stemmer:
                raise UsageError("'stemmer' is not the same in 'settings' and 'tokenizer'")
            return WordTokenizer(
                TextPipeline(model.word_pieces, model.stop_words, stemmer=model.stemmer, least_count=1)
            )
        case "file":
            stored.section("tokenizer", described, ["kind", "json"])
            return FileTokenizer.parse(described["json"])
        case "callable":
            stored.section("tokenizer", described, ["kind"])
        case _:
            raise UsageError("'tokenizer' is of an unknown kind")
    assert analyzer is not None
    model.analyzer = analyzer
    return CallableTokenizer(analyzer)
