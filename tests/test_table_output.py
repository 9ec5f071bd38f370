"""Tables written by suffix: they read back as they were, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from whichtoken.errors import UsageError
from whichtoken.tables import read_table, write_table

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".CSV")


@pytest.fixture
def frame() -> pd.DataFrame:
    texts = ["plain", 'quoted "a", b;\tc\nd', "äöü 中 \U0001f600", "", "NA", "=2+2"]
    return pd.DataFrame({"text": texts, "score": [0.1, 1 / 3, -2.0, 1e300, 5e-324, 0.0], "n": np.arange(6)})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_reads_back_as_it_was(suffix: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / f"table{suffix}"
    write_table(frame, path)
    table = pd.read_csv(path, keep_default_na=False) if suffix == ".CSV" else read_table(path)
    assert table["text"].tolist() == frame["text"].tolist()
    assert table["score"].astype(float).tolist() == frame["score"].tolist()
    assert table["n"].astype(int).tolist() == frame["n"].tolist()


@pytest.mark.parametrize("name", ["table.xlsx", "table", "table.csv.zip", "table.json"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(name: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.csv, \.tsv, \.parquet, \.jsonl"):
        write_table(frame, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_formulas_get_an_apostrophe_and_numbers_do_not(suffix: str, tmp_path: Path) -> None:
    texts = ["=1+1", "+cmd", "-x", "@sum", "\tx", "\rx", "-3.5", "+1e5", "safe", "a=b", ""]
    frame = pd.DataFrame({"=name": texts, "score": np.linspace(-1, 1, len(texts))})
    path = tmp_path / f"table{suffix}"
    write_table(frame, path, spreadsheet_safe=True)
    table = pd.read_csv(path, keep_default_na=False, dtype=str) if suffix == ".CSV" else read_table(path)
    expected = ["'=1+1", "'+cmd", "'-x", "'@sum", "'\tx", "'\rx", "-3.5", "+1e5", "safe", "a=b", ""]
    assert table["'=name"].tolist() == expected
    assert table["score"].astype(float).tolist() == frame["score"].tolist()
    assert frame["=name"].tolist() == texts


@pytest.mark.parametrize("sign", ["=", "＝", "﹦", "+", "＋", "﹢", "-", "－", "﹣", "−", "@", "＠", "﹫"])
@pytest.mark.parametrize(
    "before", ["", " ", "\n", "\r\n", "\t", "\xa0", "\u3000", "\ufeff", "\u200b", "\x00", "\x0b \u2060"]
)
def test_no_disguise_of_a_formula_passes(sign: str, before: str, tmp_path: Path) -> None:
    write_table(pd.DataFrame({"text": [f"{before}{sign}1+1"]}), tmp_path / "t.jsonl", spreadsheet_safe=True)
    assert read_table(tmp_path / "t.jsonl")["text"][0] == f"'{before}{sign}1+1"


def test_a_failed_write_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_table(pd.DataFrame({"a": [1]}), path)
    with pytest.raises(UsageError, match="cannot hold this table"):
        write_table(pd.DataFrame({"a": [1, "one"]}), path)
    assert pd.read_parquet(path)["a"].tolist() == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["table.parquet"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two columns named 'label'"):
        write_table(pd.DataFrame([[1, 2]], columns=["label", "label"]), tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_half_a_surrogate_pair_is_written_as_its_escape(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    write_table(pd.DataFrame({"text": ["a\ud800b"]}, dtype=object), path)
    assert "a\\ud800b" in path.read_text("utf-8")


def test_gaps_are_null_in_json_lines(tmp_path: Path) -> None:
    write_table(pd.DataFrame({"a": [np.nan, 1.0], "b": [None, "x"], "c": [[1], {"d": 2}]}), tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert rows == [{"a": None, "b": None, "c": [1]}, {"a": 1.0, "b": "x", "c": {"d": 2}}]
