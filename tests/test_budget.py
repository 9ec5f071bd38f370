"""Small files that would take huge memory are refused before it is taken, whatever their form."""

import json
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from whichtoken import reading, tables
from whichtoken.app.readers import read_bags
from whichtoken.datasets.review_files import read_texts
from whichtoken.errors import UsageError
from whichtoken.reading import read_json
from whichtoken.tables import read_table, stream_table

MOST = 100 << 20  # bytes of memory while a file is refused


@pytest.fixture(autouse=True)
def small_budget(monkeypatch):
    """As for files a hundred times as large; what is refused must not be in memory first."""
    monkeypatch.setattr(reading, "BUDGET", 5 << 20)
    monkeypatch.setattr(reading, "EXPANSION", 100)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


def other_keys(path, rows, width=1):
    path.write_text("\n".join(json.dumps({f"{row}-{i}": 1 for i in range(width)}) for row in range(rows)))


@pytest.mark.parametrize(("rows", "width"), [(2_500, 1), (800, 8)])
def test_json_lines_with_other_keys_in_every_row(tmp_path, rows, width, monkeypatch):
    monkeypatch.setattr(tables, "CELLS", 1 << 17)
    other_keys(tmp_path / "t.jsonl", rows, width)
    with pytest.raises(UsageError, match=r"the table would take .* GB, but the file has only"):
        read_table(tmp_path / "t.jsonl")


def test_columns_are_counted_over_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_COLUMNS", 1_000)
    monkeypatch.setattr(tables, "CELLS", 1_000)
    for rows in (21, 30):  # also by what is left at the end
        other_keys(tmp_path / "t.jsonl", rows, 50)
        with pytest.raises(UsageError, match=r"has 1\d\d\d columns, at most 1000 are read"):
            list(stream_table(tmp_path / "t.jsonl"))


def test_rows_with_some_keys_of_their_own_are_read(tmp_path):
    lines = [{"text": "good", f"extra {i % 7}": i} for i in range(3_000)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table = read_table(tmp_path / "t.jsonl")
    assert table.shape == (3_000, 8)
    assert table["extra 3"].notna().sum() == sum(i % 7 == 3 for i in range(3_000))


def repeated(path, text, rows):
    """One text many times."""
    indices = pyarrow.array(np.zeros(rows, np.int32))
    column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array([text]))
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path, **options)
    assert path.stat().st_size < 10_000


@pytest.mark.parametrize(("length", "rows"), [(1_000_000, 8192), (1, 2_000_000)])
def test_a_parquet_dictionary_with_one_text(tmp_path, length, rows):
    repeated(tmp_path / "t.parquet", "x" * length, rows)
    for read in (lambda path: read_table(path), lambda path: read_texts(path, "text", None, 10_000)):
        with pytest.raises(UsageError, match=r"t.parquet: the table would take .* GB, but the file has only \d+ bytes"):
            read(tmp_path / "t.parquet")


def test_a_parquet_file_with_enormous_lists(tmp_path):
    ends = pyarrow.array(np.arange(41, dtype=np.int32) * 100_000)
    column = pyarrow.ListArray.from_arrays(ends, pyarrow.array(np.zeros(4_000_000, np.int8)))
    pyarrow.parquet.write_table(pyarrow.table({"lists": column}), tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(UsageError, match=r"the table would take 0.032 GB, but the file has only"):
        read_table(tmp_path / "t.parquet")


def test_texts_of_a_parquet_file_keep_their_kind(tmp_path):
    texts = ["good film", None, "bad", "good film"]
    table = pyarrow.table(
        {
            "plain": texts,
            "large": pyarrow.array(texts, pyarrow.large_string()),
            "bytes": pyarrow.array([b"a", None, b"b", b"a"]),
            "coded": pyarrow.array(texts).dictionary_encode(),
            "number": [1, 2, 3, 4],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    read, expected = read_table(tmp_path / "t.parquet"), table.to_pandas()
    assert read.equals(expected)
    assert read.dtypes.equals(expected.dtypes)


def test_an_array_of_zeros(tmp_path):
    header = "{'descr': '|i1', 'fortran_order': False, 'shape': (100, 1000, 200), }".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "t.npz", "w", zipfile.ZIP_BZIP2) as archive:
        for name in ("tokens", "labels"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
                for _ in range(20 if name == "tokens" else 1):
                    file.write(bytes(1_000_000))
    with pytest.raises(UsageError, match=r"array 'tokens' would take 0.02 GB, but the file has only"):
        read_bags(tmp_path / "t.npz")


def test_json_of_many_small_values(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "available_memory", lambda: 10**6)
    (tmp_path / "t.json").write_text("[" + ",".join(["[]"] * 20_000) + "]")
    with pytest.raises(UsageError, match=r"t.json: the content would take .* GB, .* GB are free"):
        read_json(tmp_path / "t.json")
