"""Hostile transformers, tokenizers and small files: one sentence or the same numbers, in bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tally import tally

from whichtoken import TextClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import description_checksum

MEMORY = 6 << 30  # bytes that a command may take
SECONDS = 60  # of computing
TEXTS = ["good film the plot", "bad film", "a very bad plot a a a"]
STRANGE = (
    None, True, 0, -1, 3, 1000, 10**6, 10**9, 10**18, 10**400, 0.5, -0.5, 1e300, float("nan"), "", "x", "eager", "../x",
    "/etc/passwd", "a" * 5000, [], [1], [None], ["x"] * 50, {}, {"a": 1}, {"0": "x"}, [[1, 2], [3]],
)  # fmt: skip
ADDED = (
    "attn_implementation", "_attn_implementation", "quantization_config", "layer_types", "pruned_heads", "is_decoder",
    "text_config", "num_labels", "id2label", "dtype", "padding", "truncation", "normalizer", "post_processor", "added_tokens",
    "gguf_file", "subfolder", "model_max_length", "tokenizer_class", "added_tokens_decoder", "vocab_file", "per_layer_config",
    "transformers_weights", "auto_map",
)  # fmt: skip
# other words or labels make another model, not a damaged one
FREE = {"vocab", "pre_tokenizer", "architectures", "id2label", "label2id", "special_tokens", "post_processor"}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT classifier with a tokenizer of words."""
    transformers = pytest.importorskip("transformers", reason="pip install 'whichtoken[transformers]'")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("transformer") / "model"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(set(" ".join(TEXTS).split()))]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=24, **named).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def inspected(folder: Path) -> str:
    from whichtoken.inspection import inspect, load_tokenizer, load_transformer

    tokenizer, model = load_tokenizer(folder, TEXTS), load_transformer(folder)
    return json.dumps(inspect(model, TEXTS, tokenizer).as_json(shown=1))


@contextmanager
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, part in inner for leaf in leaves(part, (*path, key)))]


def edit(file: Path, rng: np.random.Generator) -> bool:
    """Change, add or delete something; whether the result may be another valid model."""
    described = json.loads(file.read_text("utf-8"))
    places = [path for path in leaves(described) if path]
    *parents, last = places[rng.integers(len(places))]
    target: Any = described
    for key in parents:
        target = target[key]
    kind, value = rng.integers(3), STRANGE[rng.integers(len(STRANGE))]
    if kind == 0 and isinstance(target, dict):
        target.pop(last)
    elif kind == 1 and isinstance(target, dict):
        last = ADDED[rng.integers(len(ADDED))]
        target[last] = value
    else:
        target[last] = value
    file.write_text(json.dumps(described), "utf-8")
    return bool(FREE & {*map(str, parents), str(last)})


def edit_config(folder: Path, rng: np.random.Generator) -> bool:
    return edit(folder / "config.json", rng)


def edit_tokenizer(folder: Path, rng: np.random.Generator) -> bool:
    edit(folder / ["tokenizer.json", "tokenizer_config.json"][rng.integers(2)], rng)
    return True  # other tokens are other numbers


def damage_weights(folder: Path, rng: np.random.Generator) -> bool:
    """Tensors lost, renamed, added, reshaped or not finite; a damaged header; a cut file."""
    from safetensors.numpy import load_file, save_file

    file = folder / "model.safetensors"
    arrays = load_file(file)
    name = sorted(arrays)[rng.integers(len(arrays))]
    match rng.integers(7):
        case 0:
            arrays = {key: array for key, array in arrays.items() if rng.random() < 0.5}
        case 1:
            arrays[name + "x"] = arrays.pop(name)
        case 2:
            arrays["encoder.stranger"] = arrays[name]
        case 3:
            arrays[name] = arrays[name][..., None]
        case 4:
            arrays[name] = np.full_like(arrays[name], np.nan)
        case 5:
            whole = bytearray(file.read_bytes())
            whole[rng.integers(8 + struct.unpack("<Q", whole[:8])[0])] ^= 1 << int(rng.integers(8))
            file.write_bytes(bytes(whole))
            return False
        case _:
            os.truncate(file, int(rng.integers(file.stat().st_size)))
            return False
    save_file({key: np.ascontiguousarray(array) for key, array in arrays.items()}, file)
    return False


FAULTS = {
    edit_config: (80, "an edited config.json of a transformer"),
    edit_tokenizer: (60, "an edited tokenizer of a transformer"),
    damage_weights: (60, "weights of a transformer lost, renamed, added, reshaped or damaged"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_edited_transformers_are_refused_or_give_the_same_numbers(
    fault: Any, transformer: Path, tmp_path: Path
) -> None:
    times, what = FAULTS[fault]
    rng, found, expected = np.random.default_rng(0), [], inspected(transformer)
    for _ in range(times):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        shutil.copytree(transformer, tmp_path / "model")
        other = fault(tmp_path / "model", rng)
        try:
            with alarm(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                same = inspected(tmp_path / "model") == expected
            found.append("the same" if same else "another model" if other else "silently different")
        except UsageError as error:
            found.append("refused" if str(error).isprintable() and len(str(error)) < 600 else f"strange: {error}")
        except BaseException as error:
            found.append(f"traceback: {error!r}")
    good = Counter(found)
    survived = good["refused"] + good["the same"] + good["another model"]
    tally(what, times, survived, times - survived)
    assert survived == times, [text for text in found if text not in ("refused", "the same", "another model")]
    assert good["refused"] > 0.3 * times


def tokenizers_file(**parts: Any) -> str:
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "good": 1, "bad": 2, "film": 3}, "unk_token": "[UNK]"}
    plain = {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model, "added_tokens": []}
    rest = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    return json.dumps(plain | rest | parts)


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def splitting(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
TOKENIZERS = {
    "doubling": tokenizers_file(
        normalizer={"type": "Sequence", "normalizers": [replacing({"String": "o"}, "oo")] * 60}
    ),
    "long replacement": tokenizers_file(normalizer=replacing({"Regex": ""}, "x" * 1_000_000)),
    "no end": tokenizers_file(normalizer=replacing({"Regex": "(.*)*x"}, "y")),
    "slow": tokenizers_file(pre_tokenizer=splitting(r"a+a+a+(\d|\s)")),
    "bad regular expression": tokenizers_file(pre_tokenizer=splitting("(")),
    "padding": tokenizers_file(padding=PADDING | {"strategy": {"Fixed": 1 << 40}}),
    "padding to a multiple": tokenizers_file(
        padding=PADDING | {"strategy": "BatchLongest", "pad_to_multiple_of": 1 << 40}
    ),
    "truncation": tokenizers_file(
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 9}
    ),
    "no unknown token": tokenizers_file(model={"type": "WordLevel", "vocab": {"good": 1}, "unk_token": "[UNK]"}),
    "enormous id": tokenizers_file(
        model={"type": "WordLevel", "vocab": {"[UNK]": 0, "good": 200_000_000, "bad": 4_000_000_000}, "unk_token": "[UNK]"}
    ),
    "nested": "[" * 100_000,
    "nothing": "",
}  # fmt: skip


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def ends_well(arguments: list[str]) -> bool:
    """Exit code 0, or 2 with one line."""
    command = [sys.executable, "-m", "whichtoken", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, preexec_fn=limited)
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    return (result.returncode == 0 and not lines) or (
        result.returncode == 2 and len(lines) == 1 and lines[0].startswith("whichtoken: ")
    )


def test_hostile_tokenizers_in_text_models(tmp_path: Path) -> None:
    texts, labels = ["good film", "bad film", "good", "bad bad"] * 5, [1, 0, 1, 0] * 5
    (tmp_path / "tokenizer.json").write_text(tokenizers_file())
    model = TextClassifier(C=1.0, random_state=0, min_df=1, analyzer=tmp_path / "tokenizer.json").fit(texts, labels)
    (tmp_path / "t.csv").write_text("text\n" + "\n".join([*texts, *["a" * 300] * 30]) + "\n")
    wrong = []
    for name, content in TOKENIZERS.items():
        model.save(tmp_path / "model")
        file = tmp_path / "model" / "model.json"
        description = json.loads(file.read_text("utf-8"))
        description["parameters"]["tokenizer"]["json"] = content
        file.write_text(json.dumps({**description, "sha256": description_checksum(description)}), "utf-8")
        if not ends_well(["predict", str(tmp_path / "model"), str(tmp_path / "t.csv")]):
            wrong.append(name)
    tally("a hostile tokenizer in a text model", len(TOKENIZERS), len(TOKENIZERS) - len(wrong), len(wrong))
    assert not wrong


def other_keys(path: Path, rows: int, width: int) -> None:
    rest = [{f"{row}-{i}": 1 for i in range(width)} | {"text": "good", "label": row % 2} for row in range(rows)]
    path.write_text("\n".join(map(json.dumps, rest)))


def one_text(path: Path, length: int, rows: int) -> None:
    column = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pyarrow.array(["x" * length]))
    table = pyarrow.table({"text": column, "label": np.arange(rows) % 2})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False, write_statistics=False)


SMALL = {
    "keys.jsonl": lambda path: other_keys(path, 65_000, 1),
    "wide.jsonl": lambda path: other_keys(path, 3_000, 40),
    "long.parquet": lambda path: one_text(path, 1_000_000, 8192),
    "many.parquet": lambda path: one_text(path, 1, 200_000_000),
    "short.csv": lambda path: path.write_text(
        ",".join(["text", "label", *(f"c{i}" for i in range(90_000))]) + "\n" + "good,1\n" * 20_000
    ),
}


def test_small_files_take_no_huge_memory(tmp_path: Path) -> None:
    TextClassifier(max_epochs=2, random_state=0).fit(["good film", "bad film"] * 20, [1, 0] * 20).save(
        tmp_path / "model"
    )
    wrong = []
    for name, write in SMALL.items():
        write(tmp_path / name)
        if not ends_well(["predict", str(tmp_path / "model"), str(tmp_path / name)]):
            wrong.append(name)
    tally("a small file of huge content given to a command", len(SMALL), len(SMALL) - len(wrong), len(wrong))
    assert not wrong
