"""Every reader of files, against every kind of file that is not what its name says: one sentence, never a traceback.

A new reader adds one line to READERS.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from whichtoken.app.fitting import read_mapping
from whichtoken.app.readers import read_bags
from whichtoken.datasets import TokenCodes
from whichtoken.datasets import pictures as labeled_pictures
from whichtoken.datasets.pictures import CIFAR_FILE, cifar_images, cifar_pictures
from whichtoken.datasets.review_files import read_imdb, read_reviews, read_yelp
from whichtoken.datasets.text_pipeline import read_word_pieces
from whichtoken.errors import UsageError
from whichtoken.estimators.text.counting import FileTokenizer
from whichtoken.reading import read_text
from whichtoken.tables import read_table
from whichtoken.theory.trained_embeddings.training_loop import load_checkpoint, save_checkpoint

REVIEWS = pd.DataFrame({"text": ["good film", "bad, dull"] * 8, "label": [1, 0] * 8, "stars": [5, 1] * 8})
BAGS = pd.DataFrame({"bag": np.repeat(np.arange(6), 2), "label": np.repeat([1, -1] * 3, 2), "x": np.arange(12) / 7})


def in_data_folder(read: Callable[[], Any]) -> Callable[[Path], Any]:
    """A reader of a file that lies in the folder named by WHICHTOKEN_DATA."""

    def read_there(path: Path) -> Any:
        with patch.dict(os.environ, WHICHTOKEN_DATA=str(path.parent)):
            return read()

    return read_there


def table(frame: pd.DataFrame) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        match [*path.suffixes, ".gz"][0]:
            case ".csv":
                frame.to_csv(path, index=False)
            case ".tsv":
                frame.to_csv(path, index=False, sep="\t")
            case ".parquet":
                frame.to_parquet(path, index=False)
            case ".jsonl":
                frame.to_json(path, orient="records", lines=True)

    return write


def archive(path: Path) -> None:
    with tarfile.open(path, "w:gz") as file:
        for place in ("train/pos/0_9.txt", "test/neg/1_2.txt"):
            member = tarfile.TarInfo(f"aclImdb/{place}")
            member.size = 9
            file.addfile(member, io.BytesIO(b"good film"))


def pictures(path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(buffer, "jpeg")
    names = ["frog", "airplane"] * 2
    frame = pd.DataFrame({"split": "train", "class": names, "label": [6, 0] * 2, "jpeg": [buffer.getvalue()] * 4})
    frame.to_parquet(path)


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content, "utf-8") and None


@dataclass(frozen=True)
class Reader:
    """A name that the file must have, a good file, and the call; `any_text` is right where every text is."""

    file: str
    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    any_text: bool = False


PIECES = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "film"])
TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "good": 1}, "unk_token": "[UNK]"}}
)
READERS = [
    Reader("t.csv", table(REVIEWS), lambda path: read_reviews(path, "text", "label")),
    Reader("t.tsv", table(REVIEWS), lambda path: read_reviews(path, "text", "label")),
    Reader("t.csv.gz", table(REVIEWS), lambda path: read_reviews(path, "text", "label")),
    Reader("t.jsonl", table(REVIEWS), lambda path: read_reviews(path, "text", "label")),
    Reader("t.jsonl.gz", table(REVIEWS), lambda path: read_table(path, ["text", "label"])),
    Reader("t.parquet", table(REVIEWS), lambda path: read_reviews(path, "text", "label")),
    Reader("imdb.csv", table(REVIEWS), read_imdb),
    Reader("aclImdb.tar.gz", archive, read_imdb),
    Reader("yelp.jsonl", table(REVIEWS.assign(text=REVIEWS["text"].str.repeat(120))), lambda path: read_yelp(path)),
    Reader("bags.csv", table(BAGS), read_bags),
    Reader("bags.parquet", table(BAGS), read_bags),
    Reader("bags.jsonl", table(BAGS), read_bags),
    Reader("pilot.csv", table(BAGS), read_bags),
    Reader("pilot.parquet", table(BAGS), read_bags),
    Reader("pilot.npz", lambda path: np.savez(path, tokens=np.zeros((2, 3, 1)), labels=np.arange(2)), read_bags),
    Reader("groups.json", text('{"a": ["x", "y"], "b": ["z"]}'), read_mapping),
    Reader("letter.txt", text("good film"), read_text, any_text=True),
    Reader("pieces.txt", text(PIECES), read_word_pieces),
    Reader("codes.txt", text(PIECES), lambda path: TokenCodes(9, vocabulary=path)),
    Reader("tokenizer.json", text(TOKENIZER), FileTokenizer.read),
    Reader(CIFAR_FILE, pictures, in_data_folder(cifar_images)),
    Reader(CIFAR_FILE, pictures, in_data_folder(lambda: cifar_pictures("train"))),
    Reader("run.safetensors", lambda path: save_checkpoint(path, {"a": np.zeros(3)}, {"b": 1}), load_checkpoint),
]
NAMES = [f"{number}-{reader.file}" for number, reader in enumerate(READERS)]
NOTHING = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
}
CONTENTS = {
    "binary": bytes(range(256)) * 9,
    "zeros": bytes(5000),
    "latin-1": "text,label\nschön,1\n".encode("latin-1"),
    "UTF-16": "text,label\na,1\n".encode("utf-16"),
    "spreadsheet": b"PK\x03\x04" + bytes(range(1, 200)),
    "zip of nothing": b"PK\x05\x06" + bytes(18),
    "npy": b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }",
    "pickle": pickle.dumps(os.getcwd),
    "deep": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "huge number": b'{"text": ' + b"9" * 10_000 + b"}",
    "parquet of nothing": b"PAR1" + bytes(40) + b"PAR1",
    "gzip cut": gzip.compress(b"text,label\na,1\n" * 99)[:-9],
    "escape": b"text\x1b[31m,label\na,1\n",
}
PLAIN = {"deep", "deep object", "huge number", "escape"}  # are texts


def sentence(reader: Reader, path: Path) -> str | None:
    """What is said of a file, None if it can be read; anything but a `UsageError` fails."""
    labeled_pictures._decode.cache_clear()
    try:
        reader.read(path)
    except UsageError as error:
        said = str(error)
        assert path.name in said or path.suffix == ".safetensors", said
        assert said.isprintable(), said
        assert len(said) < 1000, said[:2000]
        return said
    return None


@cache
def good(number: int) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / READERS[number].file
        READERS[number].write(path)
        assert sentence(READERS[number], path) is None
        return path.read_bytes()


@pytest.mark.parametrize("number", range(len(READERS)), ids=NAMES)
def test_hostile_files_are_one_sentence(number: int, tmp_path: Path) -> None:
    reader = READERS[number]
    assert good(number)
    for place, (name, make) in enumerate(NOTHING.items()):
        path = tmp_path / str(place) / reader.file
        path.parent.mkdir()
        make(path)
        if name == "folder" and reader.read is read_imdb:
            continue  # the reviews may be a folder
        assert sentence(reader, path) is not None, name
    path = tmp_path / reader.file
    for name, content in CONTENTS.items():
        path.write_bytes(content)
        assert sentence(reader, path) is not None or (reader.any_text and name in PLAIN), name


@pytest.mark.parametrize("number", range(len(READERS)), ids=NAMES)
def test_damaged_files_are_read_or_one_sentence(number: int, tmp_path: Path) -> None:
    reader, whole = READERS[number], good(number)
    path, rng = tmp_path / reader.file, np.random.default_rng(number)
    for kind in range(30):
        content = bytearray(whole)
        start, stop = np.sort(rng.integers(0, len(whole) + 1, 2))
        match kind % 4:
            case 0:
                content[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
            case 1:
                del content[start:]
            case 2:
                del content[start:stop]
            case 3:
                content[start:start] = rng.bytes(int(rng.integers(1, 20)))
        path.write_bytes(bytes(content))
        sentence(reader, path)
