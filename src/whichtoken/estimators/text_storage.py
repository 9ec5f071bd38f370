"""A text model as a folder, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whichtoken.data.text_pipeline import TextPipeline
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import classes_as_json, classes_from_json, load_model, save_model
from whichtoken.estimators.text_classifier import TextClassifier
from whichtoken.estimators.text_tokens import CallableTokenizer, FileTokenizer, Tokenizer, Vocabulary, WordTokenizer
from whichtoken.estimators.text_validation import Choice

KIND = "text-classifier"
SETTINGS = (
    "ngrams", "least_count", "stemmer", "sublinear", "idf", "C", "attention_C", "n_queries", "dim", "max_epochs", "batch_size",
    "early_stopping", "validation_fraction",
)  # fmt: skip


def save(model: TextClassifier, folder: str | Path) -> None:
    """Write the model; word pieces and tokenizers files travel with it."""
    parameters: dict[str, Any] = {
        "settings": {name: getattr(model, name) for name in SETTINGS},
        "classes": classes_as_json(model.classes_),
        "choice": {
            **asdict(model.choice_),
            "C": str(model.choice_.C),
            "losses": {str(C): loss for C, loss in model.choice_.losses.items()},
        },
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
    save_model(folder, KIND, parameters, tensors)


def load(folder: str | Path, analyzer: Callable[[str], Sequence[str]] | None = None) -> TextClassifier:
    """Read the model; it predicts, explains and exports, but its training cannot go on."""
    _, parameters, tensors = load_model(folder, KIND)
    try:
        model = TextClassifier(**parameters["settings"])
        model.classes_ = classes_from_json(parameters["classes"])
        model.choice_ = Choice(**{**parameters["choice"], "C": float(parameters["choice"]["C"])})  # C may be infinite
        names = tuple(parameters["tokens"])
        model.selection_, model.values_, model.bias_ = (tensors[name] for name in ("selection", "values", "bias"))
        model._statistics = tuple(tensors[name] for name in ("counts", "shares", "sizes"))
        described = parameters["tokenizer"]
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder} is damaged: {error} is missing or strange") from error
    if described is None:
        model.n_features_in_ = len(names)
    else:
        model._vocabulary = Vocabulary(_rebuild(described, analyzer, folder, model), names, model.ngrams)
        model.vocabulary_ = names
    return model


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    match tokenizer:
        case WordTokenizer(pipeline):
            stop_words, spelling = list(pipeline.stop_words), list(pipeline.spelling)
            return {"kind": "words", "stop_words": stop_words, "stemmer": pipeline.stemmer, "word_pieces": spelling}
        case FileTokenizer(json):
            return {"kind": "file", "json": json}
        case _:
            return {"kind": "callable"}


def _rebuild(
    described: dict[str, Any],
    analyzer: Callable[[str], Sequence[str]] | None,
    folder: str | Path,
    model: TextClassifier,
) -> Tokenizer:
    match described["kind"]:
        case "words":
            model.stop_words = described["stop_words"]
            model.word_pieces = described["word_pieces"] or None
            return WordTokenizer(
                TextPipeline(model.word_pieces, model.stop_words, stemmer=described["stemmer"], least_count=1)
            )
        case "file":
            return FileTokenizer(described["json"])
    if analyzer is None:
        raise UsageError(
            f"{folder} was fitted with an analyzer function, which no folder can hold; load it with analyzer="
        )
    model.analyzer = analyzer
    return CallableTokenizer(analyzer)
