"""What the command line does with saved models: which program reads which kind of folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whichtoken.data.reading import shown
from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.estimators.loading import load_estimator
from whichtoken.estimators.model_folder import OpenedFolder, read_folder

if TYPE_CHECKING:
    import pandas as pd

    from whichtoken.estimators import Explanation
    from whichtoken.estimators.text.classifier import TextClassifier

TABLE_KINDS = ("bag-classifier", "group-classifier")
WHOLE_TEXTS = (".txt", ".md", "")  # endings of files that are one text


def predict_file(folder: Path, path: Path, *, column: str | None = None, separator: str | None = None) -> pd.DataFrame:
    """Labels and probabilities of the rows (or bags) of a file; `column` names the text, or the bag."""
    opened = read_folder(folder)
    _check_options(opened, path, column, separator)
    model = load_estimator(opened)
    match opened.kind:
        case "text-classifier":
            from whichtoken.estimators.text.fitting import predict_text

            return predict_text(_reads_texts(opened, model), path, text=column or "text", separator=separator)
        case "bag-classifier":
            from whichtoken.estimators.table_fits import predict_bags

            return predict_bags(model, path, bag=column or "bag", separator=separator)
        case "group-classifier":
            from whichtoken.estimators.table_fits import predict_groups

            return predict_groups(model, path, separator=separator)
        case kind:
            raise UsageError(f"{folder} holds a model of kind '{visible(kind)}', which predicts from Python only")


def explain_data(
    folder: Path, argument: str, file: Path | None, *, column: str | None = None, separator: str | None = None
) -> Sequence[Explanation]:
    """Why texts, or the rows of a file, get their labels."""
    if (file is None) == (not argument):
        raise UsageError("give either a TEXT or --file FILE")
    if file is None and names_a_file(argument):
        raise UsageError(f"{argument} is a file; to explain what is in it, write --file {argument}")
    if file is None and (column is not None or separator is not None):
        raise UsageError("--column and --separator say how to read a table; give it as --file FILE")
    opened = read_folder(folder)
    if opened.kind in TABLE_KINDS and file is None:
        raise UsageError(
            f"{folder} holds a {opened.kind}, which explains the rows of a table; give --file FILE and no TEXT"
        )
    if file is not None:
        _check_options(opened, file, column, separator)
    model = load_estimator(opened)
    match opened.kind:
        case "text-classifier":
            texts = texts_of(argument, file, column or "text", separator)
            return _reads_texts(opened, model).explain(texts)
        case "group-classifier":
            from whichtoken.estimators.table_fits import explain_groups

            assert file is not None
            return explain_groups(model, file, separator=separator)
        case "bag-classifier":
            from whichtoken.estimators.table_fits import explain_bags

            assert file is not None
            return explain_bags(model, file, bag=column or "bag", separator=separator)
        case kind:
            raise UsageError(f"{folder} holds a model of kind '{visible(kind)}', which has no explanations")


def _check_options(opened: OpenedFolder, path: Path, column: str | None, separator: str | None) -> None:
    """Refuse options that would be ignored."""
    kind = opened.kind
    if column is not None and kind == "group-classifier":
        raise UsageError(f"{opened} holds a {kind}, which knows its columns by name; leave out --column")
    if column is not None and not column.strip():
        raise UsageError(f"--column '{column}' has no name; name a column of {path}")
    whole = kind == "text-classifier" and path.suffix in WHOLE_TEXTS
    if whole and column is not None:
        raise UsageError(f"{path} is read as one text and has no columns; leave out --column")
    check_separator(path, separator)


def check_separator(path: Path, separator: str | None) -> None:
    """Refuse a separator for a file that has none."""
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if separator is not None and kind not in (".csv", ".tsv"):
        raise UsageError(f"--separator is for .csv and .tsv files; leave it out for {path}")


def names_a_file(text: str) -> bool:
    """Whether a text is the name of a file that exists."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a sign that no name has
        return False


def _reads_texts(opened: OpenedFolder, model: TextClassifier) -> TextClassifier:
    if not hasattr(model, "vocabulary_"):
        raise UsageError(f"{shown(opened.folder)} was fitted on counts and cannot read texts; use it from Python")
    return model


def texts_of(argument: str, file: Path | None, column: str, separator: str | None) -> list[str]:
    """The text of the argument, the rows of a table, or a whole text file."""
    from whichtoken.data.reading import read_text
    from whichtoken.data.review_files import text_values
    from whichtoken.data.table_files import stream_table

    if file is None:
        return [argument]
    if file.suffix in WHOLE_TEXTS:
        return [read_text(file)]
    texts: list[str] = []
    for piece in stream_table(file, [column], separator=separator):
        texts += text_values(file, piece[column], column, len(texts))
    if not texts:
        raise UsageError(f"{shown(file)} has no rows")
    return texts
