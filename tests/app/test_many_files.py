"""One table in several files: folders, patterns, lists of files and standard input are read like one file."""

import gzip
import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
import zstandard
from huggingface_hub import ModelCard

from whichtoken.errors import UsageError
from whichtoken.tables import read_table, stream_table, table_files

THINGS = ["film", "story", "plot", "cast", "song", "actor", "scene", "music", "end", "start"]


def reviews(count, seed):
    rng = np.random.default_rng(seed)
    good = rng.integers(0, 2, count)
    words = rng.choice(THINGS, (count, 3))
    texts = [f"a {'good' if k else 'bad'} {' '.join(row)}" for k, row in zip(good, words, strict=True)]
    return pd.DataFrame({"text": texts, "label": np.where(good, "+", "-")})


def write(frame, path):
    plain = frame.to_csv(index=False).encode()
    match path.name.partition(".")[2]:
        case "csv":
            path.write_bytes(plain)
        case "csv.gz":
            path.write_bytes(gzip.compress(plain))
        case "csv.zst":
            path.write_bytes(zstandard.compress(plain[:200]) + zstandard.compress(plain[200:]))  # two frames
        case "jsonl":
            frame.to_json(path, orient="records", lines=True)
        case "parquet":
            frame.to_parquet(path, index=False)


@pytest.fixture
def folder(tmp_path):
    """Five files of one table, one of them deeper, and things beside them that are no tables."""
    (tmp_path / "many" / "deeper").mkdir(parents=True)
    parts = [reviews(30, seed) for seed in range(5)]
    names = ["a.csv", "b.csv.gz", "c.csv.zst", "d.jsonl", "deeper/e.parquet"]
    for part, name in zip(parts, names, strict=True):
        write(part, tmp_path / "many" / name)
    (tmp_path / "many" / "_SUCCESS").touch()
    (tmp_path / "many" / ".a.csv.crc").touch()
    (tmp_path / "many" / "notes.txt").write_text("no table")
    pd.concat(parts).to_csv(tmp_path / "one.csv", index=False)
    return tmp_path / "many"


def test_a_folder_is_one_table(folder):
    whole, one = read_table(folder), read_table(folder.parent / "one.csv")
    pd.testing.assert_frame_equal(whole.astype(object), one.astype(object), check_index_type=False)
    assert [len(piece) for piece in stream_table(folder, rows=70)] == [30, 30, 10]
    assert list(pd.concat(stream_table(folder, ["text"], chunk=7)).index) == list(range(150))
    assert [file.name for file in table_files(folder.parent / "many" / "[ab].*")] == ["a.csv", "b.csv.gz"]


def test_what_is_wrong_is_said_of_the_file(folder, whichtoken):
    cells = reviews(30, 9).astype(object)
    cells.loc[12, "label"] = None
    cells.to_csv(folder / "b2.csv", index=False)
    done = whichtoken("fit", "text", "many", "--model", "m")
    assert (done.returncode, done.stderr) == (
        2, "whichtoken: many/b2.csv: row 13 has no label in column 'label'; --label chooses the column\n",
    )  # fmt: skip
    reviews(3, 9).rename(columns={"text": "review"}).to_csv(folder / "b2.csv", index=False)
    done = whichtoken("fit", "text", "many", "--model", "m")
    assert "whichtoken: many/b2.csv has no column 'text'; columns: review, label" in done.stderr
    with pytest.raises(
        UsageError, match=r"b2.csv has no column 'text', unlike .*a.csv; files of one table have the same"
    ):
        read_table(folder)
    (folder / "b2.csv").write_bytes(b"")
    assert "many/b2.csv is empty" in whichtoken("fit", "text", "many", "--model", "m").stderr
    (folder / "b2.csv.zst").write_bytes((folder / "c.csv.zst").read_bytes()[:-20])
    (folder / "b2.csv").unlink()
    assert "many/b2.csv.zst cannot be read as csv: " in whichtoken("fit", "text", "many", "--model", "m").stderr
    assert not (folder.parent / "m").exists()


def test_nothing_to_read_is_a_sentence(tmp_path, whichtoken):
    (tmp_path / "empty").mkdir()
    assert "empty has no tables" in whichtoken("fit", "text", "empty", "--model", "m").stderr
    assert "*.csv has no tables" in whichtoken("fit", "text", "*.csv", "--model", "m").stderr
    (tmp_path / "head.csv").write_text("text,label\n")
    assert "head.csv has no rows" in whichtoken("fit", "text", "head.csv", "--model", "m").stderr
    for name in ("a", "b"):
        reviews(30, 0).to_csv(tmp_path / f"{name}.csv", index=False)
    # the same rule as for predictions by file, also behind files with rows
    (tmp_path / "head.csv").rename(tmp_path / "c.csv")
    assert "c.csv has no rows" in whichtoken("fit", "text", ".", "--model", "m").stderr
    assert not (tmp_path / "m").exists()


def test_many_files_give_the_model_of_one(folder, whichtoken, monkeypatch):
    """A folder, files one by one, and standard input; the card says what was read."""
    ways = {"one.csv": "one.csv", "many": "many"}
    for name, data in ways.items():
        done = whichtoken("fit", "text", data, "--model", f"model-{name}", "--no-baseline")
        assert done.returncode == 0, done.stderr
    listed = sorted(str(file.relative_to(folder.parent)) for file in table_files(folder))
    done = whichtoken("fit", "text", *listed, "--model", "model-listed", "--no-baseline")
    assert done.returncode == 0, done.stderr
    tensors = [next(folder.parent.glob(f"model-{name}/*.safetensors")).name for name in ("one.csv", "many", "listed")]
    assert len(set(tensors)) == 1
    card = json.loads((folder.parent / "model-listed" / "model-card.json").read_text())
    assert (card["data"]["file"], card["data"]["rows"]) == ("a.csv and 4 more", 150)

    asked = whichtoken("evaluate", "model-many", "many")
    assert "the model was trained on rows of this very file" in asked.stdout
    expected = whichtoken("predict", "model-many", "one.csv").stdout
    # cells of a .jsonl and a .csv are the same texts
    assert whichtoken("predict", "model-many", "many").stdout == expected
    for content in (
        (folder.parent / "one.csv").read_bytes(),
        zstandard.compress((folder.parent / "one.csv").read_bytes()),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert whichtoken("predict", "model-many", "-", "--to", "-").stdout == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text,label\nfine")))
    wrong = whichtoken("predict", "model-many", "-", "--text", "review")
    assert "standard input has no column 'review'" in wrong.stderr
    assert "'many'" not in whichtoken("explain", "model-many", "--file", "many/*.csv").stdout
    assert (
        "- does not name a file or a folder"
        in whichtoken("explain", "model-many", "--file", "many", "--json", "-").stderr
    )
    plans = [whichtoken("plan", "--pilot", data, "--text", "text").stdout for data in ("one.csv", "many")]
    assert plans[0] == plans[1]
    assert "TextClassifier" in plans[0]


def test_a_result_is_never_written_over_a_file_of_the_table(folder, whichtoken):
    done = whichtoken("fit", "text", "many", "--model", "m", "--json", "many/d.jsonl")
    assert (done.returncode, "name the same file" in done.stderr) == (2, True)


def test_hubs_read_the_card(folder, whichtoken):
    assert whichtoken("fit", "text", "many", "--model", "m").returncode == 0
    card = ModelCard.load(folder.parent / "m" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("whichtoken", "text-classification")
    scores = json.loads((folder.parent / "m" / "model-card.json").read_text())["evaluation"]["ours"]
    assert [result.metric_value for result in card.data.eval_results] == [scores["accuracy"], scores["log_loss"]]
    assert "| `most frequent class` |" in card.text
    again = whichtoken("fit", "text", "many", "--model", "m")
    assert again.returncode == 0, again.stderr


def test_a_folder_with_a_readme_of_its_own_is_not_taken(tmp_path, folder, whichtoken):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    done = whichtoken("fit", "text", "many", "--model", "project")
    assert (done.returncode, "is not a model folder (it holds 'README.md')" in done.stderr) == (2, True)
    assert (tmp_path / "project" / "README.md").read_text() == "mine"


def test_texts_that_do_not_fit_are_learned_in_parts(tmp_path, whichtoken, monkeypatch):
    """A fit on what there is room for and updates by the rest come near the fit on all; too little is refused."""
    from whichtoken.app import fitting

    table = reviews(400, 3)
    rng = np.random.default_rng(0)
    table["text"] += [f" w{k}" for k in rng.integers(0, 200, 400)]
    wrong = rng.random(400) < 0.1
    table["label"] = np.where(wrong, np.where(table["label"] == "+", "-", "+"), table["label"])
    table.sort_values("label").to_csv(
        tmp_path / "t.csv", index=False
    )  # a first part in the order of the file has one class
    monkeypatch.setattr(fitting, "LEAST_PART", 50)
    monkeypatch.setattr(fitting, "PART", 64)
    monkeypatch.setattr(fitting, "LIBRARIES", 10**6 - 600 * fitting.WORD - 400 * fitting.TEXT)
    few = whichtoken("fit", "text", "t.csv", "--model", "few", "--memory", "1MB", "--json", "few.json")
    assert few.returncode == 0, few.stderr
    assert "the texts do not fit into 0.001 GB: learned from 100 at random" in few.stdout
    assert whichtoken("fit", "text", "t.csv", "--model", "all", "--json", "all.json").returncode == 0
    parts, whole = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("few", "all"))
    assert parts["training"] == whole["training"]
    assert parts["ours"]["log_loss"] < whole["ours"]["log_loss"] + 0.1
    monkeypatch.setattr(fitting, "LIBRARIES", 640 << 20)
    said = whichtoken("fit", "text", "t.csv", "--model", "none", "--memory", "500MB").stderr
    assert "--memory 0.5GB is too little for these texts; give at least 0.67GB" in said
    assert "is not a size" in whichtoken("fit", "text", "t.csv", "--model", "none", "--memory", "lots").stderr
    assert not (tmp_path / "none").exists()
