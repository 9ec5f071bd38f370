"""Files of word vectors from elsewhere: read as they are, or refused in one sentence."""

import gzip
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from whichtoken import reading
from whichtoken.datasets.word_vectors import read_vectors
from whichtoken.errors import UsageError


def test_a_first_line_of_counts_is_no_word(tmp_path):
    (tmp_path / "some.vec").write_text("3 2\ngood 1 2\nbad -2 1\nfilm 0.1 1\n")
    found = read_vectors(tmp_path / "some.vec")
    assert (found.words, found.dim) == (("good", "bad", "film"), 2)


def test_a_first_word_with_one_number_is_a_word(tmp_path):
    (tmp_path / "some.txt").write_text("good 1\nbad -2\n")
    assert read_vectors(tmp_path / "some.txt").words == ("good", "bad")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("4 2\ngood 1 2\nbad -2 1\n", "has 2 vectors of 2 numbers, its first line says 4 vectors of 2 numbers"),
        ("2000000000 2000000000\ngood 1 2\n", "has 1 vectors of 2 numbers, its first line says 2000000000 vectors"),
        ("good 1 2\nbad 1 2 3\n", "line 2: 3 numbers instead of 2"),
        ("good 1 nan\nbad 1 2\n", "not finite"),
        ("good one two\n", "cannot be read as word vectors: could not convert string to float: 'one'"),
        ("3 2\n", "holds no vectors"),
        ("9" * 6000 + " 2\ngood 1 2\n", "cannot be read as word vectors"),
    ],
    ids=["cut off", "huge counts", "ragged", "nan", "words", "only counts", "long count"],
)
def test_damaged_files_are_one_sentence(tmp_path, text, sentence):
    (tmp_path / "some.txt").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_vectors(tmp_path / "some.txt")


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "some.txt")
    with pytest.raises(UsageError, match="not a regular file"):
        read_vectors(tmp_path / "some.txt")


def test_what_unpacks_to_too_much_is_refused_while_it_is_read(tmp_path, monkeypatch):
    with gzip.open(tmp_path / "some.txt.gz", "wb") as file:
        file.write((b"w" + b" 0" * 50 + b"\n") * 5000)
    monkeypatch.setattr(reading, "BUDGET", 10_000)
    monkeypatch.setattr(reading, "EXPANSION", 10)
    with pytest.raises(UsageError, match=r"the content would take .* GB, but the file has only"):
        read_vectors(tmp_path / "some.txt.gz")


def test_a_damaged_tokenizer_is_named(tmp_path):

    save_file({"v": np.ones((3, 2), np.float32)}, tmp_path / "v.safetensors")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(UsageError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        read_vectors(tmp_path / "v.safetensors")
