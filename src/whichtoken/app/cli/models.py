"""Saved models on the command line: load one, and apply it to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from whichtoken.app.applying import Applied, apply_to_table
from whichtoken.app.cli.options import check_form
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import OpenedFolder, load_to_answer, read_folder
from whichtoken.tables import TableForm

WHOLE_TEXTS = (".txt", ".md", "")  # endings of files that hold one text


def apply_model(folder: Path, path: Path, column: str | None = None, **form: Unpack[TableForm]) -> Applied:
    """The model of a folder on a table; `column` names the text, or the bag."""
    opened = read_folder(folder)
    model = load_to_answer(opened)
    check_options(opened, path, column, form)
    return apply_to_table(opened, model, path, column, **form)


def check_options(opened: OpenedFolder, path: Path, column: str | None, form: TableForm) -> None:
    """Refuse options that would be ignored."""
    if column is not None and opened.kind == "group-classifier":
        raise UsageError(f"{opened} holds a {opened.kind}, which finds its columns by name; leave out --column")
    if column is not None and not column.strip():
        raise UsageError(f"--column '{column}' has no name; name a column of {path}")
    if opened.kind == "text-classifier" and path.suffix.lower() in WHOLE_TEXTS:
        if column is not None:
            raise UsageError(f"{path} is read as one text and has no columns; leave out --column")
        if form.get("encoding") or form.get("rows"):
            raise UsageError(f"{path} is read as one text, in UTF-8; leave out --encoding and --rows")
    check_form(path, form)
