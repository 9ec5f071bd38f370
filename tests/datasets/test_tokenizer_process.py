"""A tokenizers file is a program of someone else: whatever it does, the answer is tokens or one sentence."""

import json
import os

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from whichtoken.datasets import tokenizer_process
from whichtoken.datasets.tokenizer_process import encode_texts
from whichtoken.errors import UsageError
from whichtoken.estimators.text.counting import FileTokenizer

TEXTS = ["good film", " ".join(["a" * 300 + "!"] * 3), "", "bad plot"]


def words(**parts):
    """A plain tokenizer, with some parts of its file replaced."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "good": 1, "film": 2, "bad": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return json.dumps(json.loads(tokenizer.to_str()) | parts)


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


DOUBLING = {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 60}
HUGE_PADDING = {
    "strategy": {"Fixed": 1 << 40},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "x",
}
HOSTILE = {
    "replacements that double the text": words(normalizer=DOUBLING),
    "a replacement of nothing": words(normalizer=replace({"Regex": ""}, "x" * 100_000)),
    "a regular expression that never ends": words(pre_tokenizer=split(r"a+a+a+(\d|\s)")),
    "a normalizer that never ends": words(normalizer=replace({"Regex": "(a*)*$"}, "b")),
    "an invalid regular expression": words(pre_tokenizer=split("(")),
    "a text that grows": words(normalizer=replace({"Regex": "."}, "a " * 200)),
    "not JSON": "{",
    "nested too deeply": "[" * 100_000,
    "another value": "null",
    "an unknown model": words(model={"type": "Evil"}),
    "a truncation to less than its overlap": words(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 7}
    ),
    "a vocabulary without the token for the unknown": words(
        model={"type": "WordLevel", "vocab": {"good": 1}, "unk_token": "[UNK]"}
    ),
}


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(tokenizer_process, "SECONDS", 1)
    monkeypatch.setattr(tokenizer_process, "MEMORY", 1 << 28)


SAID = {
    "replacements that double the text": "GB of memory for",
    "a regular expression that never ends": "s of computing for",
    "a text that grows": "tokens of",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_gives_one_sentence_or_tokens(name, monkeypatch):
    if "memory" in SAID.get(name, ""):
        monkeypatch.setattr(tokenizer_process, "SECONDS", 60)  # a slow machine takes long to fill its memory
    try:
        (found,) = encode_texts(HOSTILE[name], [TEXTS])
    except UsageError as error:
        assert str(error).isprintable()
        assert str(error).startswith("the tokenizer fails: ")
        assert SAID.get(name, "") in str(error)
    else:
        assert name not in SAID
        assert found.lengths.sum() == len(found.ids) < 3000


def test_fillers_are_no_tokens():
    (found,) = encode_texts(words(padding=HUGE_PADDING), [TEXTS])
    assert found.lengths.tolist() == [2, 3, 0, 2]


def test_tokens_are_those_of_the_library_chunk_by_chunk():
    own = Tokenizer.from_str(words(normalizer=json.loads(normalizers.Lowercase().__getstate__())))
    (first, second) = encode_texts(own.to_str(), [["Good FILM bad"], ["bad", "odd"]], places=True)
    codes = own.encode_batch(["Good FILM bad", "bad", "odd"])
    assert [*first.ids, *second.ids] == [i for code in codes for i in code.ids]
    assert [*first.lengths, *second.lengths] == [3, 1, 1]
    assert list(zip(first.starts, first.stops, strict=True)) == codes[0].offsets
    assert second.names == {3: "bad", 0: "[UNK]"}


def test_an_enormous_id_costs_nothing():
    vocabulary = {"[UNK]": 0, "good": 200_000_000, "film": 4_000_000_000}
    tokenizer = FileTokenizer.parse(words(model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}))
    found = tokenizer.tokens(["good film", "film x film"])
    assert [found.names[i] for i in found.ids] == ["good", "film", "film", "[UNK]", "film"]
    assert len(found.names) == 3
    sequences, places = tokenizer.place(["x good"])
    assert [sequences.names[i] for i in sequences.ids] == ["[UNK]", "good"]
    assert (places.starts.tolist(), places.stops.tolist()) == ([0, 2], [1, 6])


def test_modules_of_the_working_folder_are_not_imported(tmp_path, monkeypatch):
    for name in ("tokenizers", "json", "array", "resource"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    list(encode_texts(words(), [TEXTS]))
    assert not (tmp_path / "ran").exists()


def test_no_process_is_left_when_the_caller_stops_early():
    stream = encode_texts(words(), [TEXTS, TEXTS])
    next(stream)
    before = children()
    stream.close()
    assert len(before - children()) == 1


def children():
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    if not os.path.exists(path):
        pytest.skip("this system does not list children")
    with open(path) as file:
        return set(file.read().split())
