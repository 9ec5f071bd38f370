"""Tables written for users: the file's suffix says in which form, and the file is whole or not there."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whichtoken.display.text import visible
from whichtoken.errors import UsageError
from whichtoken.extras import require
from whichtoken.files import replacing

if TYPE_CHECKING:
    import pandas as pd

FORMULA_SIGNS = ("=", "+", "-", "@", "\N{MINUS SIGN}")  # a spreadsheet takes a cell that starts so for a formula
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_table(frame: pd.DataFrame, path: str | Path, *, spreadsheet_safe: bool = False) -> None:
    """Write a table without its index.

    Parameters
    ----------
    frame : pd.DataFrame
        Its column names must differ.
    path : path
        Ends in .csv, .tsv, .parquet or .jsonl; an older file is replaced once the new one is whole.
    spreadsheet_safe : bool, default=False
        Put an apostrophe before texts that a spreadsheet would run as a formula. Numbers stay as they are, also those
        that are stored as text.

    Examples
    --------
    >>> import pandas as pd
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from whichtoken.data import write_table
    >>> with TemporaryDirectory() as folder:
    ...     write_table(pd.DataFrame({"word": ["good"], "weight": [1.5]}), Path(folder) / "words.csv")
    ...     (Path(folder) / "words.csv").read_text().split()
    ['word,weight', 'good,1.5']
    """
    target = Path(path)
    check_table_suffix(target)
    if doubled := [str(name) for name in frame.columns[frame.columns.duplicated()]]:
        raise UsageError(f"{target} would have two columns named '{visible(doubled[0])}'; rename one of them")
    table = _without_formulas(frame) if spreadsheet_safe else frame
    with replacing(target) as fresh:
        try:
            WRITERS[target.suffix.lower()](table, fresh)
        except (TypeError, ValueError) as error:  # such as numbers and texts mixed in a column of a .parquet
            raise UsageError(f"{target} cannot hold this table: {visible(' '.join(str(error).split()))}") from error


def check_table_suffix(path: str | Path) -> None:
    """Refuse a file name whose form of table cannot be written; call it before the work whose result goes there."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITERS:
        raise UsageError(f"{path}: a table is written as {', '.join(WRITERS)}; give the file one of these endings")
    if suffix == ".parquet":
        require("pyarrow", str(path))


def _delimited(separator: str) -> Callable[[pd.DataFrame, Path], None]:
    def write(table: pd.DataFrame, path: Path) -> None:
        # csv leaves a lone carriage return bare, and readers take it for the end of a row
        bare = any("\r" in cell for name in table for cell in [name, *table[name]] if isinstance(cell, str))
        quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL
        # half a surrogate pair, which JSON can hold and UTF-8 cannot, is written as its escape
        table.to_csv(path, sep=separator, index=False, quoting=quoting, errors="backslashreplace", lineterminator="\n")

    return write


def _parquet(table: pd.DataFrame, path: Path) -> None:
    table.to_parquet(path, index=False)


def _json_lines(table: pd.DataFrame, path: Path) -> None:
    import pandas as pd

    names = [str(name) for name in table.columns]
    # as Python's own numbers, which keep all digits
    columns = [table.iloc[:, place].tolist() for place in range(len(names))]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for cells in zip(*columns, strict=True):
            row = {
                name: None if pd.api.types.is_scalar(cell) and pd.isna(cell) else cell
                for name, cell in zip(names, cells, strict=True)
            }
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".parquet": _parquet,
    ".jsonl": _json_lines,
}


def _without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    safe = frame.rename(columns=_quoted)
    for place in range(safe.shape[1]):
        column = safe.iloc[:, place]
        if column.dtype.kind == "O" or column.dtype.name.startswith(("str", "category")):
            safe.isetitem(place, column.astype(object).map(_quoted).to_numpy())
    return safe


def _quoted(cell: Any) -> Any:
    if isinstance(cell, str) and _is_formula(cell) and not NUMBER.fullmatch(cell):
        return "'" + cell
    return cell


def _is_formula(cell: str) -> bool:
    """Whether a cell starts as a formula, behind what a spreadsheet may pass over and in any width of the signs."""
    first = next((sign for sign in cell if not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf")), "")
    return cell.startswith(("\t", "\r", "\n")) or unicodedata.normalize("NFKC", first).startswith(FORMULA_SIGNS)
