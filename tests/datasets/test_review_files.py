"""Reviews in every published form, and every way in which a file can be wrong."""

import gzip
import io
import json
import tarfile

import numpy as np
import pandas as pd
import pytest

from whichtoken.datasets.review_files import read_imdb, read_reviews, read_yelp
from whichtoken.errors import UsageError
from whichtoken.tables import read_table, stream_table

FILES = {  # in the order in which they are read
    "train/neg/0_2.txt": "dull<br />film",
    "train/neg/10_1.txt": "NA",
    "train/pos/3_9.txt": "great, really",
    "test/neg/1_1.txt": "bad",
    "test/pos/2_10.txt": "schön",
}
LABELS = [-1, -1, 1, -1, 1]
OTHERS = {
    "train/unsup/0_0.txt": "no label",
    "README": "read me",
    "train/urls_pos.txt": "http",
    "train/pos/notes.txt": "x",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in {**FILES, **OTHERS}.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "aclImdb"


@pytest.fixture
def archive(folder, tmp_path):
    path = tmp_path / "aclImdb_v1.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, "aclImdb")
    return path


def test_published_folder_and_archive_are_the_same(folder, archive):
    for path in (folder, archive):
        reviews = read_imdb(path)
        assert reviews.texts == list(FILES.values())
        np.testing.assert_array_equal(reviews.labels, LABELS)
        assert reviews.split.tolist() == ["train"] * 3 + ["test"] * 2
        assert reviews.part("test").texts == ["bad", "schön"]
    assert not list(archive.parent.glob("*/*/*.part"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl", "csv.gz", "jsonl.gz"])
def test_tables_of_every_kind_are_the_same(tmp_path, kind):
    table = pd.DataFrame(
        {"extra": 0, "review": list(FILES.values()), "sentiment": ["negative", "positive"] * 2 + ["negative"]}
    )
    path = tmp_path / f"reviews.{kind}"
    write(table, path)
    reviews = read_imdb(path)
    assert reviews.texts == list(FILES.values())
    np.testing.assert_array_equal(reviews.labels, [-1, 1, -1, 1, -1])
    assert reviews.split is None
    assert reviews.classes == ("negative", "positive")
    pieces = list(stream_table(path, ["review"], chunk=2))
    assert [len(piece) for piece in pieces] == [2, 2, 1]
    assert list(pieces[0].columns) == ["review"]


def write(table, path):
    match path.name.split(".")[1]:
        case "parquet":
            table.to_parquet(path)
        case "jsonl":
            table.to_json(path, orient="records", lines=True, force_ascii=False)
        case kind:
            table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")


def test_columns_label_split_and_other_names(tmp_path):
    table = pd.DataFrame({"text": ["a", "b", "c"], "label": [1, 0, 1], "split": ["train", "test", "test"]})
    table.to_parquet(tmp_path / "imdb.parquet")
    reviews = read_imdb(tmp_path / "imdb.parquet")
    np.testing.assert_array_equal(reviews.labels, [1, -1, 1])
    assert reviews.part("train").texts == ["a"]
    with pytest.raises(UsageError, match="no split 'dev'; splits: test, train"):
        reviews.part("dev")
    table.assign(label=["spam", "ham", "spam"]).to_csv(tmp_path / "mail.csv", sep=";", index=False)
    mail = read_reviews(tmp_path / "mail.csv", "text", "label", separator=";")
    assert mail.classes == ("ham", "spam")
    np.testing.assert_array_equal(mail.labels, [1, -1, 1])
    # the same labels as whole numbers, decimals and strings
    for values in ([1.0, 0.0, 1.0], ["1", "0", "1"]):
        table.assign(label=values).to_parquet(tmp_path / "other.parquet")
        assert read_reviews(tmp_path / "other.parquet", "text", "label").classes == ("0", "1")


@pytest.mark.parametrize("classes", [("-1", "+1"), ("2", "10"), ("0.5", "1e1"), ("-1", "1")])
def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path, classes):
    path = tmp_path / "numbers.csv"
    path.write_text(f"text,label\ngood,{classes[1]}\nbad,{classes[0]}\n")
    reviews = read_reviews(path, "text", "label")
    assert reviews.classes == classes
    np.testing.assert_array_equal(reviews.labels, [1, -1])


@pytest.mark.parametrize("name", ["marked.jsonl", "marked.jsonl.gz", "marked.csv"])
def test_a_byte_order_mark_is_no_part_of_the_table(tmp_path, name):
    table = pd.DataFrame({"text": ["a", "b"], "label": [1, 0]})
    write(table, tmp_path / name.removesuffix(".gz"))
    marked = b"\xef\xbb\xbf" + (tmp_path / name.removesuffix(".gz")).read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(marked) if name.endswith(".gz") else marked)
    assert read_reviews(tmp_path / name, "text", "label").texts == ["a", "b"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_yelp_rules_of_length_and_stars(tmp_path, kind):
    lengths = [999, 1000, 1500, 1501, 1200, 1200, 1200]
    stars = [5, 5, 4, 1, 3, 1, 2]
    table = pd.DataFrame({"stars": np.array(stars, float), "text": ["x" * n for n in lengths], "useful": 1})
    path = tmp_path / f"yelp_academic_dataset_review.{kind}"
    write(table, path.with_suffix(".jsonl") if kind == "json" else path)
    if kind == "json":
        path.with_suffix(".jsonl").rename(path)
    reviews = read_yelp(path)
    assert [len(text) for text in reviews.texts] == [1000, 1500, 1200, 1200]
    np.testing.assert_array_equal(reviews.labels, [1, 1, -1, -1])


def test_a_broken_line_and_only_short_reviews_of_yelp_are_named(tmp_path):
    path = tmp_path / "yelp.jsonl"
    path.write_text(json.dumps({"text": "x" * 999, "stars": 5}))
    with pytest.raises(UsageError, match="no review of 1000 to 1500 characters"):
        read_yelp(path)
    path.write_text("\n".join([json.dumps({"text": "x" * 1100, "stars": 5})] * 8193 + ["not json"]))
    with pytest.raises(UsageError, match="line 8194 is not valid JSON: column 1"):
        read_yelp(path)


def parquet_bytes(table):
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


GOOD = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
# A fixed time stamp: the bytes are part of the test's name, which every worker must agree on.
TRUNCATED_GZIP = gzip.compress(b'{"text": "a", "label": 1}\n' * 99, mtime=0)[:-12]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"review,label\na,1\nb,0\n", "has no column 'text'; columns: review, label"),
        ("a.csv", "text,label\nschön,1\n".encode("latin-1"), "is not UTF-8 (byte 0xf6 does not fit)"),
        ("a.jsonl", '{"text": "schön"}'.encode("latin-1"), "is not UTF-8"),
        ("a.csv", b"text,label\na,1\nb,0,3,4\n", "line 3 has 4 cells, the header names 2"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"text,label\na,1\nb,\n", "row 2 has no label in column 'label'"),
        ("a.csv", b"text,label\na,1\nb,2\nc,3\n", "has 3 different labels (1, 2, 3); two are expected"),
        ("a.csv", b"text,label\na,1\n", "has 1 different labels (1)"),
        ("a.parquet", parquet_bytes(GOOD)[:-40], "cannot be read as parquet"),
        ("a.parquet", parquet_bytes(GOOD)[:100], "cannot be read as parquet"),
        ("a.parquet", parquet_bytes(GOOD.drop(columns="label")), "has no column 'label'; columns: text"),
        ("a.parquet", parquet_bytes(GOOD.assign(text=[1, 2])), "row 1 holds 1 in column 'text'; texts are expected"),
        ("a.parquet", parquet_bytes(GOOD.assign(text=["a", None])), "row 2 holds "),  # nan or None, as pandas has it
        ("a.jsonl", b'{"text": "a", "label": 1}\n[1]\n', "line 2 is list; one object per line is expected"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "has no column 'label'; columns: text (line 2)"),
        ("a.jsonl.gz", TRUNCATED_GZIP, "cannot be read as jsonl"),
        ("a.xls", b"x", "a table must be .csv, .tsv, .parquet or .jsonl"),
    ],
)
def test_wrong_tables_are_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_reviews(tmp_path / name, "text", "label")
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_an_archive_that_is_cut_anywhere_is_broken(archive):
    whole = archive.read_bytes()
    for end in range(20, len(whole), 7):
        archive.write_bytes(whole[:end])
        with pytest.raises(UsageError, match=r"is damaged after \d reviews .* download it again"):
            read_imdb(archive)


def test_broken_archives_and_folders_are_one_sentence(tmp_path, archive):
    with pytest.raises(UsageError, match="does not exist"):
        read_imdb(tmp_path / "none.tar.gz")
    whole = archive.read_bytes()
    for broken in (whole[: len(whole) // 2], b"no archive at all"):
        archive.write_bytes(broken)
        with pytest.raises(UsageError, match=r"is damaged after \d reviews .* download it again"):
            read_imdb(archive)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no reviews; expected files such as train/pos/0_9\.txt"):
        read_imdb(tmp_path / "empty")
    (tmp_path / "yelp.csv").write_text("text,stars\nfine,7\n")
    with pytest.raises(UsageError, match="row 1 has '7' stars; 1 to 5 are expected"):
        read_yelp(tmp_path / "yelp.csv")


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_one_column_cannot_be_text_and_label(tmp_path, kind):
    path = tmp_path / f"reviews.{kind}"
    write(GOOD, path)
    with pytest.raises(UsageError, match="columns label, label must be different ones"):
        read_reviews(path, "label", "label")


def test_a_table_without_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="has no rows"):
        read_table(tmp_path / "a.jsonl")
