"""Load the estimator of a model folder, of whatever kind."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import OpenedFolder, read_folder
from whichtoken.reading import shown

HOMES = {
    "text-classifier": ("text.classifier", "TextClassifier"),
    "bag-classifier": ("bags.classifier", "BagClassifier"),
    "group-classifier": ("groups.classifier", "GroupClassifier"),
    "attention-regressor": ("regression", "AttentionRegressor"),
}


def load_estimator(folder: str | Path | OpenedFolder) -> Any:
    """Load a saved estimator when you do not know, or do not care, of which kind it is; runs no code of the folder.

    Parameters
    ----------
    folder : str or Path
        What `save` of an estimator, or `whichtoken fit`, wrote.

    Returns
    -------
    TextClassifier, BagClassifier, GroupClassifier or AttentionRegressor
        Ready to predict and explain.

    Raises
    ------
    UsageError
        If the folder does not exist, is damaged, or is of a kind that this version does not know.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.estimators import load_estimator
    >>> model = TextClassifier(random_state=0).fit(["a good film", "a bad film"] * 10, [1, 0] * 10)
    >>> with TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     load_estimator(f"{folder}/model").predict(["good"]).tolist()
    [1]
    """
    return _load(folder, HOMES)


def load_to_answer(folder: str | Path | OpenedFolder) -> Any:
    """As `load_estimator`, for predictions and reasons alone: a text model is then loaded without scikit-learn."""
    return _load(folder, HOMES | {"text-classifier": ("text.model", "TextModel")})


def _load(folder: str | Path | OpenedFolder, homes: Mapping[str, tuple[str, str]]) -> Any:
    opened = folder if isinstance(folder, OpenedFolder) else read_folder(folder)
    if opened.kind not in HOMES:
        raise UsageError(
            f"{shown(opened.folder)} holds a model of kind '{shown(opened.kind)}', which this version cannot use"
        )
    module, name = homes[opened.kind]
    return getattr(import_module(f"whichtoken.estimators.{module}"), name).load(opened)
