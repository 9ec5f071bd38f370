"""Saved models on the command line: load one, and apply it to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Unpack

from whichtoken.app.applying import Applied, apply_to_table, check_classifier, explainer_settings, remembered_roles
from whichtoken.app.cli.options import check_form
from whichtoken.display.terminal import say
from whichtoken.display.text import pluralize, visible
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import CARD, OpenedFolder, load_to_answer, read_card, read_folder
from whichtoken.tables import TableForm, check_columns, is_several, read_table

WHOLE_TEXTS = (".txt", ".md", "")  # endings of files that hold one text


def is_whole_text(path: Path) -> bool:
    """Whether a file is read as one text, not as a table."""
    return path.suffix.lower() in WHOLE_TEXTS and not is_several(path)


def apply_model(folder: Path, path: Path, column: str | None = None, **form: Unpack[TableForm]) -> Applied:
    """The model of a folder on a table; `column` names the text, or the bag."""
    opened = read_folder(folder)
    model = load_to_answer(opened)
    check_options(opened, path, column, form)
    return apply_to_table(opened, model, path, column, **form)


def answer_by_file(
    answer: Callable[..., int], folder: Path, data: Path, column: str | None, form: TableForm, settings: dict[str, Any],
    to: Path | None, engine: str | None, ending: str = "",
) -> None:  # fmt: skip
    """Answer each file of a table into a folder, and say how many there were."""
    from whichtoken.app.partitions import Request, by_file, write_partitions

    if to is None or not by_file(data, to):
        raise UsageError("--engine writes one file for each file of DATA; name a folder for them")
    opened = read_folder(folder)
    check_options(opened, data, column, form)
    now, before = write_partitions(answer, Request(opened, column, form, settings), data, to, engine, ending)
    say(f"wrote {pluralize(now, 'file')} to {to}" + (f"; {before} were there already" if before else ""))


def check_options(opened: OpenedFolder, path: Path, column: str | None, form: TableForm) -> None:
    """Refuse options that would be ignored."""
    if column is not None and opened.kind == "group-classifier":
        raise UsageError(f"{opened} holds a {opened.kind}, which finds its columns by name; leave out --text and --bag")
    if column is not None and not column.strip():
        raise UsageError(f"--text or --bag '{column}' has no name; name a column of {path}")
    if opened.kind.startswith("text-") and is_whole_text(path):
        if column is not None:
            raise UsageError(f"{path} is read as one text and has no columns; leave out --text")
        if form.get("encoding") or form.get("rows"):
            raise UsageError(f"{path} is read as one text, in UTF-8; leave out --encoding and --rows")
    check_form(path, form)


def write_explainer(
    folder: Path, page: Path, examples: Any, compare_on: Iterable[str] | None, options: dict[str, Any]
) -> None:
    """Write the page of a saved model, and say what is left out of it."""
    opened = read_folder(folder)
    model = load_to_answer(opened)
    check_classifier(opened, model)
    card = read_card(folder) if (folder / CARD).is_file() else None
    about = options | ({} if compare_on is None else {"compare_on": compare_on}) | explainer_settings(opened)
    saved = model.save_explainer(page, examples, card=card, **about)
    for sentence in saved.sentences():
        say(visible(sentence))
    if any("fewer" in reason for reason in getattr(saved, "left_out", ())) and (saved.changed or not saved.compared):
        unknown = "" if saved.compared else "give texts as --file FILE to see how many decisions this changes; "
        say(f"{unknown}a lower --min-df keeps more tokens, but every reader of the page can read them")
    say(f"explainer: {page}")


def first_examples(folder: Path, data: Path, most: int, column: str | None = None, **form: Unpack[TableForm]) -> Any:
    """The first rows of a table, or its first bags, with the columns that a model reads: for a page that offers them."""
    opened = read_folder(folder)
    if opened.kind == "group-classifier":
        form["rows"] = most
        return read_table(data, None, **form)
    column = column or remembered_roles(opened).get("bag", "bag")
    table = read_table(data, None, **form)
    check_columns(data, [column], list(table.columns))
    return [bag for _, bag in table.groupby(column, sort=False)][:most]
