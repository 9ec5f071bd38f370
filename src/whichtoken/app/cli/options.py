"""Options that several commands share, and their checks, which run before any work is done."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

from whichtoken.display.text import visible
from whichtoken.errors import ColumnError, UsageError
from whichtoken.files import check_place

if TYPE_CHECKING:
    from whichtoken.tables import TableForm

PICTURES = (".svg", ".png", ".pdf")


def parser(kind: Callable[[str], Any], accepted: str, test: Callable[[Any], bool] = lambda _: True) -> Any:
    """A parser for the values of an option, which says what is accepted."""

    def parse(text: str) -> Any:
        with suppress(ValueError):
            if test(value := kind(text)):
                return value
        raise typer.BadParameter(f"'{visible(text)}' is not {accepted}")

    return parse


whole_number = parser(int, "a whole number")
positive_number = parser(int, "a whole number of at least 1", lambda value: value >= 1)
number = parser(float, "a finite number", math.isfinite)
probability = parser(float, "a probability; give a number from 0 to 1", lambda value: 0 <= value <= 1)
class_weight_name = parser(str, "a class weight; the only one is balanced", lambda value: value == "balanced")


def size(text: str) -> int:
    """Bytes, of a text such as 4GB or 500MB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MG])i?B?\s*", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise typer.BadParameter(f"'{visible(text)}' is not a size; give one such as 4GB or 500MB")
    return int(float(found[1]) * {"M": 1e6, "G": 1e9}[found[2].upper()])


def text_encoding(text: str) -> str:
    """The name of a text encoding."""
    from whichtoken.reading import check_encoding

    try:
        return check_encoding(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None


def single_char(text: str) -> str:
    r"""A separator of columns: one character, or \t for a tab."""
    character = text.replace("\\t", "\t")
    if len(character) != 1 or character in '"\r\n\0':
        raise typer.BadParameter(
            f"'{visible(text, keep='')}' cannot separate columns; give one character, such as ';', or \\t for a tab"
        )
    return character


def read_file(path: Path | None) -> Path | None:
    """A file to read, which must exist and not be empty."""
    from whichtoken.reading import check_regular

    if path is not None:
        check_regular(path)
    return path


def read_tables(context: typer.Context, paths: list[Path]) -> list[Path]:
    """One path that stands for all that were named: files, a folder, a pattern, or - for standard input."""
    from whichtoken.reading import check_regular
    from whichtoken.tables import table_files

    if not paths:  # while a shell completes the command
        return paths
    if paths == [Path("-")]:
        return [_standard_input(context)]
    files = [file for path in paths for file in table_files(path)]
    for file in files:
        check_regular(file)
    return paths if len(paths) == 1 else [_folder_of(context, files)]


def read_table_or_text(context: typer.Context, path: Path | None) -> Path | None:
    """As `read_tables`, for an option."""
    return None if path is None else read_tables(context, [path])[0]


def _folder_of(context: typer.Context, files: Sequence[Path]) -> Path:
    """A folder of links to files, for as long as the command runs; messages call them by their own names."""
    from tempfile import TemporaryDirectory

    from whichtoken.reading import shown_as

    folder = Path(context.with_resource(TemporaryDirectory(prefix="whichtoken-")))
    context.with_resource(shown_as(folder, f"{files[0]} and {len(files) - 1} more"))
    for place, file in enumerate(files):
        link = folder / f"{place:06d}-{file.name}"
        link.symlink_to(file.resolve())
        context.with_resource(shown_as(link, str(file)))
    return folder


def _standard_input(context: typer.Context) -> Path:
    """A copy of standard input, which is read more than once; its first bytes say what it is."""
    import sys
    from tempfile import TemporaryDirectory

    from whichtoken.reading import shown_as

    source = sys.stdin.buffer
    first = source.read(1 << 16)
    if not first:
        raise UsageError("standard input is empty; pipe a table into the command, or name a file")
    packed = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
    ending = next((ending for magic, ending in packed.items() if first.startswith(magic)), "")
    folder = Path(context.with_resource(TemporaryDirectory(prefix="whichtoken-")))
    copy = folder / f"input{ending}"
    with copy.open("wb") as file:
        while first:
            file.write(first)
            first = source.read(1 << 20)
    from whichtoken.reading import unpack

    with unpack(copy) as content:
        start = content.read(1 << 12).lstrip()
    kind = ".parquet" if start.startswith(b"PAR1") else ".jsonl" if start.startswith(b"{") else ".csv"
    named = copy.rename(folder / f"input{kind}{ending}")
    context.with_resource(shown_as(named, "standard input"))
    return named


def new_model(path: Path) -> Path:
    """A folder for a model, refused at the start if it cannot be created."""
    home = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if home != path.absolute() and not home.is_dir():
        raise UsageError(f"{path} cannot be created: {home.name} is a file")
    if not os.access(home, os.W_OK):
        raise UsageError(f"{path} cannot be written: permission denied")
    return path


def new_file(path: Path | None) -> Path | None:
    """A file to write, refused at the start if it cannot be written."""
    if path is not None:
        check_place(path)
    return path


def new_picture(path: Path | None) -> Path | None:
    """A figure to write; its ending decides the format."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path}: a figure is written as {', '.join(PICTURES)}; give the file one of these endings")
    return new_file(path)


def new_table(path: Path | None) -> Path | None:
    """A table to write; its ending decides the format."""
    from whichtoken.tables import check_table_suffix

    if path is not None:
        check_table_suffix(path)
    return new_file(path)


def new_table_or_folder(path: Path | None) -> Path | None:
    """A table to write, or, without an ending, a folder for one table for each file; - is standard output, as without."""
    if path == Path("-"):
        return None
    return path if path is not None and (path.is_dir() or not path.suffix) else new_table(path)


def new_file_or_folder(path: Path | None) -> Path | None:
    """A file to write, or, without an ending, a folder for one file for each file."""
    if path == Path("-"):
        raise UsageError("- does not name a file or a folder; name one, such as why.json or why")
    return path if path is not None and (path.is_dir() or not path.suffix) else new_file(path)


def help_if_no_command(context: typer.Context) -> None:
    """Show the help if no command is named."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


def require_distinct_paths(read: Mapping[str, Path | None], written: Mapping[str, Path | None]) -> None:
    """Refuse to write two results into one file, or a result over a file that is read."""
    from whichtoken.tables import table_files

    inputs = [(role, file) for role, path in read.items() if path is not None for file in table_files(path)]
    taken: dict[Path, str] = {}
    for role, path in [*inputs, *written.items()]:
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), role)
        if role in written and other != role:
            raise UsageError(f"{other} and {role} name the same file, {path}; give {role} another name")


def check_form(path: Path, form: TableForm) -> None:
    """Refuse a separator or an encoding for a file without one."""
    from whichtoken.tables import is_several, table_kind

    kind = table_kind(path)
    if is_several(path):
        return
    if form.get("separator") is not None and kind not in (".csv", ".tsv"):
        raise UsageError(f"--separator is for .csv and .tsv files; leave it out for {path}")
    if form.get("encoding") is not None and kind == ".parquet":
        raise UsageError(f"--encoding is for text files; leave it out for {path}")


def page_options(page: Path | None, min_df: int | None, redact: Path | None, most_words: int | None) -> dict[str, Any]:
    """What `save_explainer` is told, of options that are refused without a page."""
    flags = {"--min-df": min_df, "--redact": redact, "--most-words": most_words}
    if page is None and (unused := [flag for flag, value in flags.items() if value is not None]):
        raise UsageError(f"{unused[0]} says what a page holds; give the page as --explainer FILE")
    from whichtoken.reading import read_text

    lines = [] if redact is None else [line for line in read_text(redact).splitlines() if line.strip()]
    given = {"redact": lines, "most_words": most_words, "min_df": min_df}
    return {name: value for name, value in given.items() if value not in (None, [])}


def whole(metavar: str, help: str) -> Any:
    """An option for a whole number."""
    return typer.Option(metavar=metavar, parser=whole_number, help=help)


def real(metavar: str, help: str) -> Any:
    """An option for a finite number."""
    return typer.Option(metavar=metavar, parser=number, help=help)


def value(metavar: str, help: str, *flags: str) -> Any:
    """An option for a value that the library checks."""
    return typer.Option(*flags, metavar=metavar, help=help)


def column_name(help: str, *flags: str) -> Any:
    """An option for the name of a column; an error about the column names the option."""
    return value("COLUMN", help, *flags)


def new_output(help: str, *flags: str, check: Callable[..., Any] = new_file) -> Any:
    """An option for a file to write, refused at the start if it cannot be written."""
    return typer.Option(*flags, metavar="FILE", callback=check, help=help)


def input_file(help: str, metavar: str = "FILE", check: Callable[..., Any] = read_file, flag: str = "") -> Any:
    """An option for a file to read, which must exist."""
    return typer.Option(*filter(None, [flag]), metavar=metavar, callback=check, help=help)


def field_values(settings: list[str]) -> dict[str, str]:
    """The fields that --set changes, with their values as texts."""
    fields: dict[str, str] = {}
    for setting in settings:
        name, sign, value = (part.strip() for part in setting.partition("="))
        if not (name and sign and value):
            raise UsageError(f"--set '{setting}': write it as field=value, or field=value,value for a grid")
        if name in fields:
            raise UsageError(f"--set {name} is given twice; write --set {name}={fields[name]},{value} for a grid")
        fields[name] = value
    return fields


DataFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="DATA",
        callback=read_tables,
        help="Tables to read: .csv, .tsv, .parquet or .jsonl files, a folder or a pattern of them, or - for standard input.",
    ),
]
ModelFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the saved model.")]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", parser=single_char, help="Separator of a .csv or .tsv file, if it is not detected."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", parser=text_encoding, help="Encoding of the file; default: UTF-8."),
]
FIRST_ROWS = typer.Option("--rows", metavar="N", parser=positive_number, help="Read only the first N rows.")
RowCount = Annotated[int | None, FIRST_ROWS]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with a missing value in a column that is used.")
]
MetricsFile = Annotated[Path | None, new_output("Write the metrics as JSON.", "--json")]
Column = Annotated[
    str | None,
    column_name(
        "Column of the texts or of the bags; default: the column used in the fit, else text or bag.", "--text", "--bag"
    ),
]
BagFileColumn = Annotated[
    str | None, column_name("Column with the file of each bag (.npy, .npz, .h5, .pt), if each row is a bag.")
]
DaskScheduler = Annotated[
    str | None,
    typer.Option("--engine", metavar="dask://HOST:PORT", help="Process the files on the workers of a Dask scheduler."),
]
Engine = Annotated[str, value("local|dask|dask://H:P", "Where to compute the points.")]
Workers = Annotated[int | None, whole("N", "Number of worker processes; default: one per core.")]
OutFolder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the results and the report.")]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe", help="Mark texts that a spreadsheet would run as formulas as text (.csv, .tsv)."
    ),
]

ExplainerPage = Annotated[
    Path | None, new_output("Write one HTML file that contains the model and explains texts, rows or bags offline.")
]
PageMinDf = Annotated[
    int | None,
    whole(
        "N", "With --explainer: keep out of the page tokens that occur in fewer than N training documents; default: 5."
    ),
]
PageRedact = Annotated[Path | None, input_file("With --explainer: text file with words to keep out of the page.")]
PageExamples = Annotated[int, whole("N", "Offer the first N rows or bags as examples in the page.")]
PageMostWords = Annotated[int | None, whole("N", "With --explainer: keep only the N most telling tokens in the page.")]


# arguments of the library beside the parameters of commands that set them
SET_BY = {"n_queries": "queries", "overrides": "set_", "map_fields": "map_", "ngram_range": "ngrams"}
DEFAULT_COLUMNS = ("text", "bag")  # of --text and --bag


def in_flags(error: UsageError, parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> str:
    """The sentence of an error of the library, with the flags of a command that set its arguments or chose its column."""
    flags, columns = {}, []
    for name, parameter in parameters.items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                declared = (option.default, *(option.param_decls or ()))  # typer takes the first flag for a default
                named = [flag for flag in declared if isinstance(flag, str) and flag.startswith("--")]
                flags[name] = " or ".join(named) if named else "--" + name.strip("_").replace("_", "-")
                columns += [name] if option.metavar == "COLUMN" else []
    flags |= {name: flags[set_by] for name, set_by in SET_BY.items() if set_by in flags}
    sentence = error.describe(lambda name, value: f"{flags[name]} {value}" if name in flags else f"{name}={value}")
    if isinstance(error, ColumnError):
        chosen = [
            flags[name] for name in columns if error.column in _column_names(name, given[name], given.get("model"))
        ]
        if chosen:
            sentence += f"; {' and '.join(chosen)} {'chooses' if len(chosen) == 1 else 'choose'} the column"
    return sentence


def _column_names(option: str, value: str | Sequence[str] | None, model: Path | None) -> Sequence[str]:
    """Columns that an option names; without a value those of the fit of a saved model, or the usual ones."""
    if value is not None:
        return [value] if isinstance(value, str) else value
    parts = DEFAULT_COLUMNS if option == "column" else (option,) if option == "label" else ()
    if not parts or model is None or not model.is_dir():
        return parts
    from whichtoken.app.applying import remembered_roles
    from whichtoken.estimators.model_folder import read_folder

    roles = remembered_roles(read_folder(model))
    return [roles.get(part, part) for part in parts]
