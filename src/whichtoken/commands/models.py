"""What the command line does with saved models: which program reads which kind of folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from whichtoken.data.reading import read_text
from whichtoken.data.table_files import TableForm
from whichtoken.errors import UsageError
from whichtoken.estimators.applying import Applied, apply_to_table, check_classifier, check_reads_texts
from whichtoken.estimators.loading import load_to_answer
from whichtoken.estimators.model_folder import OpenedFolder, read_folder

if TYPE_CHECKING:
    from whichtoken.estimators import Explanation

WHOLE_TEXTS = (".txt", ".md", "")  # endings of files that are one text


def applied(folder: Path, path: Path, column: str | None = None, **form: Unpack[TableForm]) -> Applied:
    """The model of a folder on a table; `column` names the text, or the bag."""
    opened = read_folder(folder)
    model = load_to_answer(opened)
    _check_options(opened, path, column, form)
    return apply_to_table(opened, model, path, column, **form)


def explain_data(
    folder: Path, argument: str | None, file: Path | None, column: str | None = None, **form: Unpack[TableForm]
) -> Sequence[Explanation]:
    """Why texts, or the rows of a file, get their labels."""
    if (file is None) == (argument is None):
        raise UsageError("give either a TEXT or --file FILE")
    if argument is not None and not argument.strip():
        raise UsageError("the text is empty; give one with words in it")
    if argument is not None and _names_a_file(argument):
        raise UsageError(f"{argument} is a file; to explain what is in it, write --file {argument}")
    if file is None and (column is not None or any(form.values())):
        raise UsageError("--column, --separator, --encoding and --rows say how to read a table; give it as --file FILE")
    opened = read_folder(folder)
    model = load_to_answer(opened)
    check_classifier(opened)
    if opened.kind != "text-classifier" and file is None:
        raise UsageError(
            f"{folder} holds a {opened.kind}, which explains the rows of a table; give --file FILE and no TEXT"
        )
    if file is not None:
        _check_options(opened, file, column, form)
    if opened.kind == "text-classifier" and (file is None or _is_one_text(file)):
        check_reads_texts(opened, model)
        return model.explain([argument if file is None else read_text(file)])  # type: ignore[no-any-return]
    assert file is not None
    return apply_to_table(opened, model, file, column, **form).explain()


def _check_options(opened: OpenedFolder, path: Path, column: str | None, form: TableForm) -> None:
    """Refuse options that would be ignored."""
    if column is not None and opened.kind == "group-classifier":
        raise UsageError(f"{opened} holds a {opened.kind}, which knows its columns by name; leave out --column")
    if column is not None and not column.strip():
        raise UsageError(f"--column '{column}' has no name; name a column of {path}")
    if opened.kind == "text-classifier" and _is_one_text(path):
        if column is not None:
            raise UsageError(f"{path} is read as one text and has no columns; leave out --column")
        if form.get("encoding") or form.get("rows"):
            raise UsageError(f"{path} is read as one text, in UTF-8; leave out --encoding and --rows")
    check_form(path, form)


def check_form(path: Path, form: TableForm) -> None:
    """Refuse a separator or an encoding for a file that has none."""
    name = Path(path.name.lower())
    kind = Path(name.stem).suffix if name.suffix == ".gz" else name.suffix
    if form.get("separator") is not None and kind not in (".csv", ".tsv"):
        raise UsageError(f"--separator is for .csv and .tsv files; leave it out for {path}")
    if form.get("encoding") is not None and kind == ".parquet":
        raise UsageError(f"--encoding is for text files; leave it out for {path}")


def _is_one_text(path: Path) -> bool:
    return path.suffix.lower() in WHOLE_TEXTS


def _names_a_file(text: str) -> bool:
    """Whether a text is the name of a file that exists."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a sign that no name has
        return False
