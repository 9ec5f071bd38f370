"""Gaps and texts in columns: read as they are, and turned into numbers by what the training rows say."""

import numpy as np
import pandas as pd
import pytest

from whichtoken.app.readers import without_gaps
from whichtoken.errors import UsageError
from whichtoken.estimators.columns import ColumnEncoding, ColumnReader
from whichtoken.tables import stream_table

TABLE = pd.DataFrame(
    {"size": ["1", "", "3.5", "NA", "2"], "color": ["red", "blue", " red", "", "green"], "plain": [1, 2, 3, 4, 5]}
)


def read(path, columns=("size", "color", "plain"), chunk=8192):
    reader = ColumnReader(path, columns)
    for piece in stream_table(path, list(columns), chunk=chunk):
        reader.add(piece)
    return reader.finish()


@pytest.fixture(params=[".csv", ".parquet", ".jsonl"])
def path(request, tmp_path):
    place = tmp_path / f"t{request.param}"
    write = {".csv": TABLE.to_csv, ".parquet": TABLE.to_parquet}.get(request.param)
    if write:
        write(place, index=False)
    else:
        TABLE.to_json(place, orient="records", lines=True)
    return place


@pytest.mark.parametrize("chunk", [1, 2, 8192])
def test_what_columns_hold_does_not_depend_on_the_pieces(path, chunk):
    found = read(path, chunk=chunk)
    assert found.levels == {"color": ("blue", "green", "red")}
    np.testing.assert_array_equal(
        found.values,
        [[1, 2, 1], [np.nan, 0, 2], [3.5, 2, 3], [np.nan, np.nan, 4], [2, 1, 5]],
    )
    assert found.gaps == {"size": 2, "color": 1}


def test_the_training_rows_fix_fills_and_levels(path):
    table = read(path)
    encoding = ColumnEncoding.of(table.rows(np.array([0, 1, 2])))
    assert encoding.names == ["size", "color=blue", "color=red", "plain"]
    encoded = encoding.encode(table)
    np.testing.assert_array_equal(encoded[:, 0], [1, 2.25, 3.5, 2.25, 2])  # the median of 1 and 3.5
    np.testing.assert_array_equal(encoded[:, 1:3], [[0, 1], [1, 0], [0, 1], [0, 0], [0, 0]])  # green is unknown
    assert ColumnEncoding.from_json(encoding.as_json()) == encoding
    assert encoding.part(["plain"]).names == ["plain"]
    np.testing.assert_array_equal(encoding.part(["color"]).encode(table), encoded[:, 1:3])


def test_texts_that_look_like_numbers_are_found_again(tmp_path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"code": ["a", "b", "c", "d", "1234567", "01"]}).to_csv(path, index=False)
    encoding = ColumnEncoding.of(read(path, ["code"]))
    pd.DataFrame({"code": ["1234567", "01", "2"]}).to_csv(path, index=False)  # no other texts: read as numbers
    encoded = encoding.encode(read(path, ["code"]))
    found = [[name for name, on in zip(encoding.names, row, strict=True) if on] for row in encoded]
    assert found == [["code=1234567"], ["code=01"], []]


def test_rows_with_gaps_can_be_left_out_and_keep_their_numbers():
    kept = without_gaps(TABLE, ["size", "color"])
    assert kept.index.tolist() == [0, 2, 4]
    assert without_gaps(TABLE, ["plain"]).equals(TABLE)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (["1", "2", "x"], "column 'u' holds 'x' in row 3; features must be finite numbers"),
        (["1", "2", "inf"], "column 'u' holds 'inf' in row 3; features must be finite numbers"),
        (["1", "", "1e300"], "column 'u' holds '1e300' in row 3; features must be below 1e\\+100"),
        (["", "NA", "null"], "column 'u' is empty in every row"),
        ([f"n{i}" for i in range(60)], "column 'u' holds 60 or more different texts, such as 'n0', 'n1', 'n2'"),
    ],
)
def test_slips_are_not_categories(cells, sentence, tmp_path):
    pd.DataFrame({"u": cells, "v": 1}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path / "t.csv", ["u", "v"])


@pytest.mark.parametrize("stored", [None, {}, {"columns": ["a"], "fills": {}, "levels": {}}, {"columns": 3}])
def test_a_damaged_description_is_refused(stored):
    with pytest.raises(UsageError, match="'table'"):
        ColumnEncoding.from_json(stored)
