"""Columns of CSV, TSV, Parquet and JSON-lines files, read piece by piece; what can be wrong with a file is one sentence."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from whichtoken import reading
from whichtoken.display.text import visible
from whichtoken.errors import ColumnError, UsageError
from whichtoken.extras import needed_by, require
from whichtoken.files import replacing
from whichtoken.reading import check_fits, check_proportion, open_text, readable, shown

if TYPE_CHECKING:
    import pandas as pd

KINDS = ".csv, .tsv, .parquet or .jsonl, the text forms also as .gz or .zst"
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".json")
PACKED = (".gz", ".zst")
CHUNK = 8192  # rows
CELLS = 1 << 21  # of a piece, however wide the table
TEXT_CELL = 64  # bytes that a short text takes
MOST_COLUMNS = 100_000
LARGEST = 1e100  # of a feature: squares and sums of larger ones leave the range of floating point
SEPARATORS = {"\t": "a tab", ";": "';'", ",": "','", "|": "'|'"}
END = "\0"  # no text file holds it


class TableForm(TypedDict, total=False):
    """What the name of a table does not say: options of every function that reads one."""

    separator: str | None  # of the columns of a .csv or .tsv
    encoding: str | None  # of a text form; UTF-8 by default
    rows: int | None  # read only so many, the first ones


def table_kind(path: Path) -> str:
    """The ending that says how a table is written, without that of its compression; "" if it is none of ours."""
    ending = path.suffix.lower()
    packed = ending in PACKED
    kind = Path(path.stem).suffix.lower() if packed else ending
    return kind if kind in TABLES and not (packed and kind == ".parquet") else ""


def is_several(path: Path) -> bool:
    """Whether a path is a folder or a pattern instead of one file."""
    return path.is_dir() or (bool(re.search(r"[*?[]", str(path))) and not path.exists())


def table_files(path: Path) -> list[Path]:
    """The tables that a path stands for: one file, those in a folder and below it, or those that fit a pattern; by name."""
    if not is_several(path):
        return [path]
    if path.is_dir():
        found = [file for file in path.rglob("*") if table_kind(file) and file.is_file()]
        files = [file for file in found if not any(part[0] in "._" for part in file.relative_to(path).parts)]
    else:
        files = [file for file in map(Path, glob(str(path), recursive=True)) if file.is_file()]
    if not files:
        raise UsageError(f"{shown(path)} has no tables to read; accepted are {KINDS}")
    return sorted(files)


def stream_table(
    path: Path, columns: Sequence[str] | None = None, *, chunk: int = CHUNK, **form: Unpack[TableForm]
) -> Iterator[pd.DataFrame]:
    """Pieces of a table with the named columns (all by default), of at most `chunk` rows, which are numbered from 0.

    The cells of text forms stay strings ("NA" is a word, not a gap); those of Parquet and JSON keep their type. A folder or
    a pattern is one table in several files with the same columns; `attrs` of a piece has its file and the rows before that.
    """
    most, before = form.get("rows"), 0
    files = table_files(path)
    known: tuple[Path, set[Any]] | None = None
    for file in files:
        first = before
        rest: TableForm = {**form, "rows": None if most is None else most - before}
        for piece in _stream_file(file, columns, chunk, rest):
            if columns is None and len(files) > 1 and table_kind(file) not in (".json", ".jsonl"):
                known = known or (file, set(piece.columns))
                _check_same_columns(file, set(piece.columns), *known)
            piece.index = range(before, before + len(piece))  # type: ignore[assignment]
            piece.attrs = {"file": str(file), "first": first}
            before += len(piece)
            yield piece
        if before == most:
            return
        if before == first:
            raise UsageError(f"{shown(file)} has no rows")


def _check_same_columns(file: Path, names: set[Any], other: Path, wanted: set[Any]) -> None:
    if names != wanted:
        lacking, more = sorted(map(str, wanted - names)), sorted(map(str, names - wanted))
        what = f"no column '{shown(lacking[0])}'" if lacking else f"a column '{shown(more[0])}'"
        raise UsageError(f"{shown(file)} has {what}, unlike {shown(other)}; files of one table have the same columns")


def _stream_file(path: Path, columns: Sequence[str] | None, chunk: int, form: TableForm) -> Iterator[pd.DataFrame]:
    separator, encoding, most = form.get("separator"), form.get("encoding"), form.get("rows")
    readers: dict[str, Callable[[], Iterator[pd.DataFrame]]] = {
        ".csv": lambda: _read_delimited(path, columns, separator, ",", chunk, encoding),
        ".tsv": lambda: _read_delimited(path, columns, separator, "\t", chunk, encoding),
        ".parquet": lambda: _read_parquet(path, columns, chunk),
        ".jsonl": lambda: _read_json_lines(path, columns, chunk, encoding),
        ".json": lambda: _read_json_lines(path, columns, chunk, encoding),
    }
    kind = table_kind(path)
    if separator is not None and (len(separator) != 1 or not separator.isascii() or separator in '"\r\n\0'):
        raise UsageError(f"separator '{visible(separator, keep='')}' must be one character, such as ; or a tab")
    first = taken = 0
    with readable(path, kind[1:]):
        if not kind:
            raise UsageError(f"{shown(path)}: a table must be {KINDS}")
        for read in readers[kind]():
            taken += len(read) * _row_size(read)
            check_proportion(path, taken, "the table")
            piece = read if most is None else read[: most - first]
            first += len(piece)
            yield piece
            if first == most:
                return


def read_table(path: Path, columns: Sequence[str] | None = None, **form: Unpack[TableForm]) -> pd.DataFrame:
    """The whole table at once."""
    import pandas as pd

    pieces: list[pd.DataFrame] = []
    names: dict[str, None] = {}
    rows = size = 0
    for piece in stream_table(path, columns, **form):
        pieces.append(piece)
        names |= dict.fromkeys(piece.columns)
        rows += len(piece)
        size += len(piece) * _row_size(piece)
        # a row may have columns that no other has
        check_fits(Path(piece.attrs["file"]), max(size, 8 * rows * len(names)), "the table")
    if not pieces:
        raise UsageError(f"{shown(path)} has no rows")
    return pd.concat(pieces, ignore_index=True)


def _row_size(piece: pd.DataFrame) -> int:
    """Bytes of a row in memory, about."""
    return sum(8 if kind.kind in "biuf" else TEXT_CELL for kind in piece.dtypes)


def column_names(path: Path, **form: Unpack[TableForm]) -> list[str]:
    """Names of the columns, from the first rows."""
    for piece in stream_table(path, chunk=1, **form):
        return [str(name) for name in piece.columns]
    raise UsageError(f"{shown(path)} has no rows")


def check_columns(path: Path, wanted: Sequence[str] | None, present: Sequence[Any], hint: str = "") -> None:
    """Refuse a table without a wanted column, or with two of its name, and say what it has."""
    if len(present) > MOST_COLUMNS:
        raise UsageError(
            f"{shown(path)} has {len(present)} columns, at most {MOST_COLUMNS} are read; are rows and columns swapped?"
        )
    counts = Counter(present)
    for column in counts if wanted is None else wanted:
        if column not in counts:
            raise ColumnError(
                f"{shown(path)} has no column '{shown(column[:100])}'; {_suggest(column[:100], counts)}{hint}", column
            )
        if counts[column] > 1:
            said = f"{shown(path)} has {counts[column]} columns named '{shown(column)}'; rename all but one"
            raise ColumnError(said, column)


def _suggest(column: str, present: Sequence[Any] | Counter[Any]) -> str:
    names = [str(name)[:60] for name in list(present)[:1000]]
    same = [name for name in names if name.strip().lower() == column.strip().lower()]
    close = same or get_close_matches(column, names, n=1, cutoff=0.6)
    hint = f"did you mean '{shown(close[0])}'? " if close else ""
    return f"{hint}columns: {', '.join(map(shown, names[:12]))}"


def numbers(path: Path, piece: pd.DataFrame, columns: Sequence[str], what: str = "features") -> NDArray[np.float64]:
    """Columns of a table as finite numbers, (rows, columns); a cell that is none is named in the error."""
    try:
        values = piece[list(columns)].to_numpy(dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.array([[as_number(cell) for cell in piece[column]] for column in columns]).T
    wrong = np.argwhere(~(np.abs(values) <= LARGEST))  # also nan
    if len(wrong):
        row, place = wrong[0]
        cell, huge = piece[columns[place]].iloc[row], np.isfinite(values[row, place])
        said = visible((repr(cell) if isinstance(cell, str) else str(cell))[:60])
        wanted = f"be below {LARGEST:g} in size; rescale the column" if huge else "be finite numbers"
        source, first = piece.attrs.get("file", path), piece.attrs.get("first", 0)
        raise ColumnError(
            f"{shown(source)}: column '{shown(columns[place])}' holds {said} in row"
            f" {piece.index[row] + 1 - first}; {what} must {wanted}",
            columns[place],
        )
    return values


def row_place(path: Path, values: Any, i: int, first: int = 0) -> str:
    """File and row of the i-th of some values of a table, for a sentence; `first` rows came before, if they do not say so."""
    found = getattr(values, "attrs", {})
    if "file" not in found:
        return f"{shown(path)}: row {first + i + 1}"
    return f"{shown(found['file'])}: row {values.index[i] + 1 - found['first']}"


def as_number(cell: Any) -> float:
    """What a cell says as a number; nan if it says none."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def has_label(value: Any) -> bool:
    """Whether a cell of a column of labels holds one."""
    return value is not None and str(value).strip() not in ("", "nan", "<NA>")


def has_text(value: Any) -> bool:
    """Whether a cell of a column of texts holds one: not if it is empty, blank or null; what is no text counts, to be refused."""
    if isinstance(value, str):
        return bool(value.strip())
    return value is not None and str(value) not in ("nan", "<NA>", "NaT")


def label_names(path: Path, values: Any, column: str, first: int) -> list[str]:
    """Labels as strings, so that 1, 1.0 and "1" of different file formats are the same; gaps are refused."""
    names = []
    for i, value in enumerate(values):
        if not has_label(value):
            place = row_place(path, values, i, first)
            raise ColumnError(f"{place} has no label in column '{shown(column)}'", column)
        whole = isinstance(value, float) and value.is_integer()
        names.append(str(int(value)) if whole else str(value).strip())
    return names


def text_values(path: Path, values: Any, column: str, first: int) -> list[str]:
    """Texts of a column; anything else is refused. `first` rows came before."""
    texts = values.tolist()
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            cell = f"{visible(repr(text)[:60])} in column '{shown(column)}'"
            raise ColumnError(f"{row_place(path, values, i, first)} holds {cell}; texts are expected", column)
    return texts  # type: ignore[no-any-return]


def _read_delimited(
    path: Path, columns: Sequence[str] | None, separator: str | None, usual: str, chunk: int, encoding: str | None
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    csv.field_size_limit(max(csv.field_size_limit(), reading.LONGEST_LINE))
    with open_text(path, encoding) as (file, source):
        before: list[str] = []
        for line in file:
            before.append(line)
            if line.strip("\r\n"):
                separator = separator or _separator_of(line, columns, usual)
                break
        # if a quote is still open, the end becomes part of its cell instead of a row of its own
        lines = csv.reader(chain(before, file, [END]), delimiter=separator or usual)
        header = _name_columns(next((row for row in lines if row), [END]))
        if header[-1].endswith(END):
            raise UsageError(f"{shown(path)} has no rows")
        others = [name for sign, name in SEPARATORS.items() if sign != separator and sign in header[0]]
        hint = f"; is {others[0]} the separator?" if len(header) == 1 and others else ""
        kept = list(header if columns is None else columns)
        check_columns(path, None if columns is None else [name.strip() for name in kept], header, hint)
        where = {name: place for place, name in enumerate(header)}
        places = [where[name.strip()] for name in kept]
        rows, most = [], max(1, min(chunk, CELLS // max(1, len(kept))))
        last = lines.line_num
        for row in lines:
            if row == [END]:
                break
            if row and row[-1].endswith(END):
                raise UsageError(f"{shown(path)}: the quote opened in line {last + 1} is never closed")
            last = lines.line_num
            if not row:
                continue
            rows.append(_cells(path, row, places, len(header), last))
            if len(rows) == most:
                yield pd.DataFrame(np.array(rows, dtype=object), columns=kept, dtype=object)
                rows = []
                source.rows_done()
        if rows:
            yield pd.DataFrame(np.array(rows, dtype=object), columns=kept, dtype=object)


def _separator_of(line: str, columns: Sequence[str] | None, usual: str) -> str:
    """The usual separator, unless the first line has the wanted columns, or several instead of one, with another one only."""
    found = {sign: [name.strip() for name in next(csv.reader([line], delimiter=sign), [])] for sign in SEPARATORS}
    wanted = {name.strip() for name in columns or ()}
    if len(found[usual]) > 1 and wanted <= set(found[usual]):
        return usual
    several = [sign for sign, names in found.items() if len(names) > 1]
    fitting = [sign for sign in several if wanted <= set(found[sign])]
    return max(fitting or several, key=lambda sign: len(found[sign]), default=usual)


def _name_columns(header: list[str]) -> list[str]:
    """Names without spaces around them; columns without one, such as the row numbers of spreadsheets, are numbered."""
    return [name.strip(" \t") or (name if END in name else f"column {place}") for place, name in enumerate(header, 1)]


def _cells(path: Path, row: list[str], places: list[int], width: int, line: int) -> list[str | None]:
    if len(row) > width:
        raise UsageError(
            f"{shown(path)}: line {line} has {len(row)} cells, the header names {width}; put quotes around texts that hold"
            " the separator"
        )
    if len(row) < width:
        padded = [*row, *[None] * (width - len(row))]
        return [padded[place] for place in places]
    return [row[place] for place in places]


def _read_parquet(path: Path, columns: Sequence[str] | None, chunk: int) -> Iterator[pd.DataFrame]:
    with needed_by(shown(path)):
        import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        schema, described = file.schema_arrow, file.metadata
    names = schema.names
    check_columns(path, columns, names)
    kept = list(names if columns is None else columns)
    check_proportion(path, _declared_size(described, set(kept)), "the table")
    texts = [name for name in kept if _is_text(schema.field(name).type)]
    rows = max(1, min(chunk, CELLS // max(1, len(kept))))
    taken = 0
    # texts stay numbers in a dictionary until it is known how long they are all together
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(batch_size=rows, columns=kept, use_threads=False):
            batch.validate(full=True)
            taken += sum(map(_decoded_size, batch.columns))
            check_proportion(path, taken, "the table")
            plain = [batch.column(name).cast(schema.field(name).type) for name in batch.schema.names]
            wanted = pyarrow.schema([schema.field(name) for name in batch.schema.names], schema.metadata)
            yield pyarrow.RecordBatch.from_arrays(plain, schema=wanted).to_pandas()


def _declared_size(described: Any, kept: set[str]) -> int:
    """Bytes that the kept columns of a Parquet file say they have, or need for as many numbers."""
    total = 0
    for group in map(described.row_group, range(described.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.split(".")[0] in kept:
                total += max(column.total_uncompressed_size, 8 * column.num_values)
    return total


def _is_text(kind: Any) -> bool:
    import pyarrow.types as known

    return bool(known.is_string(kind) or known.is_large_string(kind) or known.is_binary(kind))


def _decoded_size(column: Any) -> int:
    """Bytes of a column once its texts are written out."""
    import pyarrow.compute
    import pyarrow.types

    if not pyarrow.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return int(column.nbytes)
    lengths = pyarrow.compute.binary_length(column.dictionary).take(column.indices)
    return int(pyarrow.compute.sum(lengths.cast("int64")).as_py() or 0)


def _read_json_lines(
    path: Path, columns: Sequence[str] | None, chunk: int, encoding: str | None
) -> Iterator[pd.DataFrame]:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    own: dict[str, None] = {}  # columns of these rows
    every: dict[str, None] = {}  # and of all before
    keys: Any = None  # columns of the row before
    with open_text(path, encoding) as (file, source):
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = _parse_line(path, line, number)
            new = row.keys() != keys
            if new:
                check_columns(path, columns, list(row), f" (line {number})")
                keys = row.keys()
            rows.append(row if columns is None else {column: row[column] for column in columns})
            if new:
                own |= dict.fromkeys(rows[-1])
            if len(rows) == chunk or len(rows) * len(own) >= CELLS:
                every |= own
                check_columns(path, None, list(every))
                yield pd.DataFrame(rows)
                rows, own, keys = [], {}, None
                source.rows_done()
    if rows:
        check_columns(path, None, list(every | own))
        yield pd.DataFrame(rows)


def _parse_line(path: Path, line: str, number: int) -> dict[str, Any]:
    cause: Exception | None = None
    try:
        row = reading.parse_json(line)
        if isinstance(row, dict):
            return row
        fault = f"is {type(row).__name__}; one object per line is expected"
    except json.JSONDecodeError as error:
        fault, cause = f"is not valid JSON: column {error.colno} ({error.msg}); one object per line is expected", error
    except (ValueError, RecursionError) as error:
        fault, cause = f"cannot be read as JSON: {reading.reason(error)}", error
    raise UsageError(f"{shown(path)}: line {number} {fault}") from cause


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
    >>> from whichtoken.tables import write_table
    >>> with TemporaryDirectory() as folder:
    ...     write_table(pd.DataFrame({"word": ["good"], "weight": [1.5]}), Path(folder) / "words.csv")
    ...     (Path(folder) / "words.csv").read_text().split()
    ['word,weight', 'good,1.5']
    """
    target = Path(path)
    check_table_suffix(target)
    if doubled := [str(name) for name in frame.columns[frame.columns.duplicated()]]:
        raise UsageError(f"{target} would have two columns named '{visible(doubled[0])}'; rename one of them")
    table = _escape_formulas(frame) if spreadsheet_safe else frame
    with replacing(target) as fresh:
        try:
            WRITERS[target.suffix.lower()](table, fresh)
        except (TypeError, ValueError) as error:  # such as numbers and texts mixed in a column of a .parquet
            raise UsageError(f"{target} cannot hold this table: {visible(' '.join(str(error).split()))}") from error


def check_table_suffix(path: str | Path) -> None:
    """Refuse a file name whose form of table cannot be written; call it before the work whose result goes there."""
    suffix = Path(path).suffix.lower()
    if suffix not in WRITERS:
        raise UsageError(
            f"{shown(path)}: a table is written as {', '.join(WRITERS)}; give the file one of these endings"
        )
    if suffix == ".parquet":
        require("pyarrow", str(path))


def _write_delimited(separator: str) -> Callable[[pd.DataFrame, Path], None]:
    def write(table: pd.DataFrame, path: Path) -> None:
        # csv leaves a lone carriage return bare, and readers take it for the end of a row
        bare = any("\r" in cell for name in table for cell in [name, *table[name]] if isinstance(cell, str))
        quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL
        # half a surrogate pair, which JSON can hold and UTF-8 cannot, is written as its escape
        table.to_csv(path, sep=separator, index=False, quoting=quoting, errors="backslashreplace", lineterminator="\n")

    return write


def _write_json_lines(table: pd.DataFrame, path: Path) -> None:
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
    ".csv": _write_delimited(","),
    ".tsv": _write_delimited("\t"),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
    ".jsonl": _write_json_lines,
}


def _escape_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    safe = frame.rename(columns=_escape_formula)
    for place in range(safe.shape[1]):
        column = safe.iloc[:, place]
        if column.dtype.kind == "O" or column.dtype.name.startswith(("str", "category")):
            safe.isetitem(place, column.astype(object).map(_escape_formula).to_numpy())
    return safe


def _escape_formula(cell: Any) -> Any:
    if isinstance(cell, str) and _is_formula(cell) and not NUMBER.fullmatch(cell):
        return "'" + cell
    return cell


def _is_formula(cell: str) -> bool:
    """Whether a cell starts as a formula, behind what a spreadsheet may pass over and in any width of the signs."""
    first = next((sign for sign in cell if not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf")), "")
    return cell.startswith(("\t", "\r", "\n")) or unicodedata.normalize("NFKC", first).startswith(FORMULA_SIGNS)
