"""What can be wrong with a user's file, one sentence each, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from whichtoken import reading, tables
from whichtoken.app.readers import read_bags
from whichtoken.errors import UsageError
from whichtoken.reading import read_arrays, read_json, read_text, shown_as
from whichtoken.tables import numbers, read_table, stream_table


def said_of(read: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as error:  # a warning would be an error of its own
        read()
    assert str(error.value).isprintable()
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"text,label,text\na,1,b\n", "has 2 columns named 'text'; rename all but one"),
        ("a.csv", b"Text,label\na,1\n", "did you mean 'Text'?"),
        ("a.csv", b"txt,label\na,1\n", "did you mean 'txt'?"),
        ("a.csv", b"text,label\na,b,1\nc,d,0\n", "line 2 has 3 cells, the header names 2"),
        ("a.csv", b'text,label\na,1\n"b,0\nc,1\n', "the quote opened in line 3 is never closed"),
        ("a.csv", b'"text,label\na,1\n', "has no rows"),
        ("a.csv", b"text,label\na\0b,1\n", "it holds NUL bytes"),
        ("a.csv", b"PK\x03\x04...", "is a zip archive or a spreadsheet such as .xlsx, not plain text"),
        ("a.csv", b"PAR1...", "is a Parquet file, not plain text"),
        ("a.csv", "text,label\n".encode("utf-16"), "is UTF-16 text, not plain text"),
        ("a.csv", b"x" * 70_000_000, "has a line of more than 64 MB"),
        ("a.csv.gz", gzip.compress(b"x" * 70_000_000, 1), "has a line of more than 64 MB"),
        ("a.csv.gz", gzip.compress(b"\r\n" * 4_000_000, 1), "has 4 MB of empty lines in a row"),
        ("a.csv", ",".join(map(str, range(100_001))).encode(), "100001 columns, at most 100000 are read"),
        ("a.csv", b"text,\x1b[31m\na,1\n", r"no column 'label'; columns: text, \x1b[31m"),
        ("a.jsonl", b'{"text": "a", "text": "b", "label": 1}', "'text' appears twice in one object"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000, "line 1 cannot be read as JSON"),
        ("a.jsonl", b'{"text": "\\ud800", "label": 1}', "surrogates not allowed"),
        ("a.jsonl", b'{"text": "a", "label": ' + b"1" * 5000 + b"}", "line 1 cannot be read as JSON"),
        ("a.json", b'[{"text": "a"}]', "line 1 is list; one object per line is expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_tables(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert sentence in said_of(lambda: read_table(tmp_path / name, ["text", "label"]))


@pytest.mark.parametrize("separator", [",,", "", "§", '"', "\n", "\\s+"])
def test_a_separator_is_one_character(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    said = said_of(lambda: read_table(tmp_path / "a.csv", separator=separator))
    assert "must be one character, such as ; or a tab" in said


def test_cells_are_read_as_they_are(tmp_path: Path) -> None:
    cells = ['quoted "a", b', "two\r\nlines\rthree", "", "NA", " space ", "'", "ä\U0001f600", "1e5"]
    frame = pd.DataFrame({"": range(8), "text": cells, "x.1": cells})
    frame.to_csv(tmp_path / "a.csv", index=False, quoting=1)
    table = read_table(tmp_path / "a.csv")
    assert list(table.columns) == ["column 1", "text", "x.1"]
    assert table["text"].tolist() == table["x.1"].tolist() == cells


def test_rows_keep_their_number_over_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK", 2)
    frame = pd.DataFrame({"x": [1.0, 2, 3, 4, np.nan, 6]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False, na_rep="gap")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    for kind, cell in {"parquet": "nan", "csv": "'gap'", "jsonl": "nan"}.items():
        path = tmp_path / f"a.{kind}"
        pieces = list(stream_table(path, chunk=2))
        assert [list(piece.index) for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
        said = said_of(lambda: [numbers(path, piece, ["x"]) for piece in pieces])  # noqa: B023
        assert f"column 'x' holds {cell}" in said
        assert "in row 5; features must be finite numbers" in said


@pytest.mark.parametrize("value", [1e300, -1e101, 10**400, "1e400", "inf", "", "x", None, [1], {"a": 1}])
def test_features_that_no_sum_of_squares_can_hold(tmp_path: Path, value: Any) -> None:
    piece = pd.DataFrame({"x": [1, value, 3]}, dtype=object)
    said = said_of(lambda: numbers(tmp_path / "a.csv", piece, ["x"]))
    assert "column 'x' holds" in said
    assert "in row 2; features must be" in said


def test_a_pilot_of_huge_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", tokens=np.full((4, 2, 2), 1e300), labels=np.arange(4) % 2)
    assert "below 1e+100 in size" in said_of(lambda: read_bags(tmp_path / "a.npz"))


def test_a_pilot_of_the_wrong_shape(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", tokens=np.zeros((4, 2)), labels=np.arange(4))
    assert "a.npz: tokens of shape (4, 2) and labels" in said_of(lambda: read_bags(tmp_path / "a.npz"))


def zipped(path: Path, name: str, content: bytes, size: int | None = None) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    if size is not None:  # lie about the size, in both headers
        small, large = len(content).to_bytes(4, "little"), size.to_bytes(4, "little")
        path.write_bytes(path.read_bytes().replace(small, large))


def header(shape: str, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header("(2500000000,)"), "array 'a' declares 20000000000 bytes and has"),
        (header("(1000000000000000000000,)"), "array 'a' declares"),
        (header("(-1,)"), "cannot be read as npz"),
        (header("(2,)") + bytes(8), "expected 16 bytes got 8"),
        (header("(2,)", "|O") + bytes(16), "array 'a' holds Python objects, which are never loaded"),
        (header("(2,)", "nonsense"), "cannot be read as npz"),
        (header("(2,)").replace(b"\x01\x00", b"\x07\x00", 1), "cannot be read as npz"),
        (b"", "cannot be read as npz"),
        (b"\x93NUMPY", "cannot be read as npz"),
    ],
    ids=str,
)
def test_wrong_arrays(tmp_path: Path, content: bytes, sentence: str) -> None:
    zipped(tmp_path / "a.npz", "a.npy", content)
    assert sentence in said_of(lambda: read_arrays(tmp_path / "a.npz", ["a"]))


def test_a_zip_that_lies_about_its_size(tmp_path: Path) -> None:
    zipped(tmp_path / "a.npz", "a.npy", header("(400000000,)"), size=3_300_000_000)
    assert "a.npz" in said_of(lambda: read_arrays(tmp_path / "a.npz", ["a"]))


def test_what_does_not_fit_into_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**6))
    (tmp_path / "a.txt").write_text("word " * 10**6)
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 10**5)
    (tmp_path / "quote.csv").write_text('a,b\n"' + "1,2\n" * 10**6)
    monkeypatch.setattr(reading, "available_memory", lambda: 10**6)
    assert "array 'a' would take 0.008 GB, 0.001 GB are free" in said_of(lambda: read_arrays(tmp_path / "a.npz", ["a"]))
    assert "would take 0.02 GB" in said_of(lambda: read_text(tmp_path / "a.txt"))
    assert "the table would take" in said_of(lambda: read_table(tmp_path / "a.csv"))
    assert "is a quote never closed?" in said_of(lambda: read_table(tmp_path / "quote.csv"))


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.array([print, 1], dtype=object))
    assert "holds Python objects" in said_of(lambda: read_arrays(tmp_path / "a.npz", ["a"]))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"a": [1,\n 2', "is not valid JSON: line 2, column 3"),
        ('{"a": 1, "a": 2}', "'a' appears twice in one object"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5000, "cannot be read as JSON"),
    ],
)
def test_wrong_json(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert sentence in said_of(lambda: read_json(tmp_path / "a.json"))


def test_json_and_text_come_back(tmp_path: Path) -> None:
    value = {"a": [1, "ä", None], "b": {"c": 0.1}}
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps(value, ensure_ascii=False), "utf-8")
    assert read_json(tmp_path / "a.json") == value
    (tmp_path / "a.txt").write_bytes("ä\r\nb\rc\n".encode())
    assert read_text(tmp_path / "a.txt") == "ä\nb\nc\n"


def test_a_wide_table_is_read_in_seconds(tmp_path: Path) -> None:
    wide = 20_000
    rows = [[f"c{i}" for i in range(wide)], *([str(row * wide + i) for i in range(wide)] for row in range(5))]
    (tmp_path / "a.csv").write_text("\n".join(map(",".join, rows)))
    table = read_table(tmp_path / "a.csv")
    values = numbers(tmp_path / "a.csv", table, list(table.columns))
    assert values[4, -1] == pytest.approx(5 * wide - 1)


def test_a_copy_is_called_by_the_name_that_a_user_knows(tmp_path: Path) -> None:
    (tmp_path / "copy.csv").write_text("text,label\n")
    with shown_as(tmp_path / "copy.csv", "the file"):
        assert said_of(lambda: read_table(tmp_path / "copy.csv")) == "the file has no rows"
    assert said_of(lambda: read_table(tmp_path / "copy.csv")) == f"{tmp_path / 'copy.csv'} has no rows"


def test_a_long_name_of_a_column_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,1\n")
    with pytest.raises(UsageError) as caught:
        read_table(tmp_path / "a.csv", ["x" * 10**6])
    assert len(str(caught.value)) < 400
