"""Files of bags in every format that is read, and every way in which one can be wrong."""

import numpy as np
import pandas as pd
import pytest

from whichtoken.app.readers import read_bags
from whichtoken.errors import UsageError


@pytest.fixture
def pilot():
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 4, 3)), np.array([1.0, -1, 1, -1, 1, -1])


def table(tokens, labels):
    n, length, dim = tokens.shape
    frame = pd.DataFrame(tokens.reshape(n * length, dim), columns=[f"x{j}" for j in range(dim)])
    return frame.assign(bag=np.repeat(np.arange(n), length), label=np.repeat(labels, length))


@pytest.mark.parametrize("kind", ["npz", "csv", "tsv", "parquet", "jsonl", "csv.gz"])
def test_every_format_gives_the_same_bags(pilot, tmp_path, kind):
    path = tmp_path / f"pilot.{kind}"
    shuffled = table(*pilot).sample(frac=1, random_state=1).sort_index(level=0)
    match kind:
        case "npz":
            np.savez(path, tokens=pilot[0], labels=pilot[1])
        case "parquet":
            shuffled.to_parquet(path)
        case "jsonl":
            shuffled.to_json(path, orient="records", lines=True)
        case _:
            shuffled.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    found = read_bags(path)
    # pandas writes ten digits into JSON
    np.testing.assert_allclose(found.bags.vectors.reshape(pilot[0].shape), pilot[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.labels.astype(float), pilot[1])


def test_ragged_bags_and_named_columns(pilot, tmp_path):
    frame = table(*pilot).iloc[1:].rename(columns={"bag": "molecule", "label": "active"})
    frame.to_csv(tmp_path / "pilot.csv", index=False)
    found = read_bags(tmp_path / "pilot.csv", "molecule", "active", ["x0", "x2"])
    assert found.bags.lengths.tolist() == [3, 4, 4, 4, 4, 4]
    assert found.features == ("x0", "x2")
    np.testing.assert_allclose(found.bags[1], pilot[0][1][:, [0, 2]], rtol=1e-12)


def test_texts_and_gaps_are_encoded_and_said(pilot, tmp_path):
    frame = table(*pilot).assign(x1=["red", "blue"] * 12)
    frame.loc[3, "x2"] = np.nan
    frame.to_csv(tmp_path / "pilot.csv", index=False)
    found = read_bags(tmp_path / "pilot.csv")
    assert found.features == ("x0", "x1=blue", "x1=red", "x2")
    assert found.bags[0][3, 3] == pytest.approx(np.nanmedian(frame["x2"]))
    assert len(found.notes) == 2
    found = read_bags(tmp_path / "pilot.csv", drop_missing=True, rows=8)
    assert found.bags.lengths.tolist() == [3, 4]
    assert found.notes[-1] == "1 row with a gap was left out"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop(columns="bag"), "no column 'bag'"),
        (
            lambda frame: frame.assign(x1=["word", *frame["x1"][1:]]),
            "column 'x1' holds 'word' in row 1; features must be finite numbers",
        ),
        (lambda frame: frame.assign(label=range(len(frame))), "has several labels"),
        (lambda frame: frame[["bag", "label"]], "has no feature columns besides bag, label"),
        (
            lambda frame: frame.assign(bag=frame["bag"].where(frame["bag"] < 3)),
            "row 13 has no bag in column 'bag'",
        ),
        (
            lambda frame: frame.assign(label=frame["label"].where(frame["bag"] > 0)),
            "row 1 has no label in column 'label'",
        ),
        (lambda frame: frame.iloc[:0], "has no rows"),
    ],
)
def test_wrong_tables_are_one_sentence(pilot, tmp_path, change, sentence):
    change(table(*pilot)).to_csv(tmp_path / "pilot.csv", index=False)
    with pytest.raises(UsageError) as error:
        read_bags(tmp_path / "pilot.csv")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_files(tmp_path, pilot):
    with pytest.raises(UsageError, match="does not exist"):
        read_bags(tmp_path / "none.csv")
    np.savez(tmp_path / "half.npz", tokens=pilot[0])
    with pytest.raises(UsageError, match="no array 'labels'"):
        read_bags(tmp_path / "half.npz")
    table(*pilot).to_parquet(tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "cut.parquet").read_bytes()[:-50])
    with pytest.raises(UsageError, match="cannot be read as"):
        read_bags(tmp_path / "cut.parquet")
    (tmp_path / "pilot.xls").write_text("x")
    with pytest.raises(UsageError, match=r"must be \.npz"):
        read_bags(tmp_path / "pilot.xls")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0", "1", "-3"], [0, 1, -3]),
        (["01", "1"], ["01", "1"]),  # two names, not one number
        (["007"], ["007"]),
        (["-0", "0"], ["-0", "0"]),
        (["1" * 19], ["1" * 19]),
    ],
)
def test_labels_become_numbers_only_if_they_are_written_as_numbers(labels, expected):
    from whichtoken.app.readers import as_int_if_integral

    assert as_int_if_integral(labels).tolist() == expected
