"""Columns of CSV, TSV, Parquet and JSON-lines files, read piece by piece; what can be wrong with a file is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

KINDS = ".csv, .tsv, .parquet or .jsonl, the text forms also as .gz"
CHUNK = 8192  # rows
SEPARATORS = {"\t": "a tab", ";": "';'", ",": "','", "|": "'|'"}


def stream_table(
    path: Path, columns: Sequence[str] | None = None, *, separator: str | None = None, chunk: int = CHUNK
) -> Iterator[pd.DataFrame]:
    """Pieces of a table with the named columns (all by default), of at most `chunk` rows.

    The cells of text forms stay strings ("NA" is a word, not a gap); those of Parquet and JSON keep their type.
    """
    readers: dict[str, Callable[[], Iterator[pd.DataFrame]]] = {
        ".csv": lambda: _delimited(path, columns, separator or ",", chunk),
        ".tsv": lambda: _delimited(path, columns, separator or "\t", chunk),
        ".parquet": lambda: _parquet(path, columns, chunk),
        ".jsonl": lambda: _json_lines(path, columns, chunk),
        ".json": lambda: _json_lines(path, columns, chunk),
    }
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if not path.is_file():
        raise UsageError(f"{path} is not there")
    if kind not in readers:
        raise UsageError(f"{path}: a table must be {KINDS}")
    try:
        yield from readers[kind]()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 (byte 0x{error.object[error.start]:02x} does not fit); save it as UTF-8 and try again"
        ) from error
    except (OSError, EOFError, ValueError) as error:  # pandas, pyarrow and zlib all speak through these
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} cannot be read as {kind[1:]}: {' '.join(str(error).split())}") from error


def read_table(path: Path, columns: Sequence[str] | None = None, *, separator: str | None = None) -> pd.DataFrame:
    """The whole table at once."""
    import pandas as pd

    pieces = list(stream_table(path, columns, separator=separator))
    if not pieces:
        raise UsageError(f"{path} holds no rows")
    return pd.concat(pieces, ignore_index=True)


def column_names(path: Path, *, separator: str | None = None) -> list[str]:
    """Names of the columns, from the first rows."""
    for piece in stream_table(path, separator=separator, chunk=1):
        return [str(name) for name in piece.columns]
    raise UsageError(f"{path} holds no rows")


def check_columns(path: Path, wanted: Sequence[str] | None, present: Sequence[Any], hint: str = "") -> None:
    """Refuse a table without a wanted column, and say what it has."""
    for column in wanted or ():
        if column not in present:
            shown = ", ".join(str(name)[:60] for name in list(present)[:12])
            raise UsageError(f"{path} has no column '{column}'; columns: {shown}{hint}")


def _delimited(path: Path, columns: Sequence[str] | None, separator: str, chunk: int) -> Iterator[pd.DataFrame]:
    import pandas as pd

    options: dict[str, Any] = {"sep": separator, "dtype": str, "keep_default_na": False}
    header = list(pd.read_csv(path, nrows=0, **options).columns)
    others = [name for sign, name in SEPARATORS.items() if sign != separator and sign in str(header[0])]
    hint = f"; is {others[0]} the separator?" if len(header) == 1 and others else ""
    check_columns(path, columns, header, hint)
    # without usecols, which would let rows of too many fields pass
    with pd.read_csv(path, chunksize=chunk, **options) as pieces:
        for piece in pieces:
            yield piece if columns is None else piece[list(columns)]


def _parquet(path: Path, columns: Sequence[str] | None, chunk: int) -> Iterator[pd.DataFrame]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        check_columns(path, columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=chunk, columns=None if columns is None else list(columns)):
            yield batch.to_pandas()


def _json_lines(path: Path, columns: Sequence[str] | None, chunk: int) -> Iterator[pd.DataFrame]:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(
                f"{path}: line {number} is no JSON ({error.msg}); one object per line is expected"
            ) from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}: line {number} is {type(row).__name__}; one object per line is expected")
        check_columns(path, columns, list(row), f" (line {number})")
        rows.append(row if columns is None else {column: row[column] for column in columns})
        if len(rows) == chunk:
            yield pd.DataFrame(rows)
            rows = []
    if rows:
        yield pd.DataFrame(rows)


def _lines(path: Path) -> Iterator[str]:
    import gzip

    # -sig: a mark at the beginning, which spreadsheets write, is no part of the first line
    coding = "utf-8-sig"
    with gzip.open(path, "rt", encoding=coding) if path.suffix == ".gz" else path.open(encoding=coding) as file:
        yield from file
