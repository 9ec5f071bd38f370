"""Hostile data files through the real commands: one sentence, exit code 2, in bounded time and memory, nothing written."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tally import tally

from whichtoken import BagClassifier, GroupClassifier, TextClassifier

MEMORY = 6 << 30  # bytes of address space
SECONDS = 10  # of computing

FIT = {"text": ["fit", "text"], "bags": ["fit", "bags"], "groups": ["fit", "groups", "--prefix", "_"]}
GOOD = {
    "text": pd.DataFrame({"text": ["good film", "bad plot"] * 20, "label": [1, 0] * 20}),
    "bags": pd.DataFrame(
        {"bag": np.repeat(np.arange(40), 2), "label": np.repeat([1, 0] * 20, 2), "u": np.arange(80.0)}
    ),
    "groups": pd.DataFrame({"a_1": np.arange(40.0), "b_1": np.arange(40.0) % 7, "label": [1, 0] * 20}),
}


def content(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


def bare_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def parquet(kind: str, damage: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        GOOD[kind].to_parquet(path)
        data = bytearray(path.read_bytes())
        damage(data)
        path.write_bytes(bytes(data))

    return write


def _footer(data: bytearray) -> slice:
    """Where the description of the columns begins."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return slice(start, start + 32)


def bomb(line: bytes, times: int) -> Callable[[Path], None]:
    """A gigabyte that is packed into a megabyte."""

    def write(path: Path) -> None:
        with gzip.open(path, "wb", 1) as file:
            for _ in range(times):
                file.write(line)

    return write


def arrays(shape: str, kind: str = "<f8", data: bytes = b"") -> Callable[[Path], None]:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("tokens", "labels"):
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00v\x00" + text.encode() + data)

    return write


def cells(kind: str, value: Any) -> Callable[[Path], None]:
    """A good table with one strange number."""

    def write(path: Path) -> None:
        frame = GOOD[kind].copy()
        frame[frame.columns[-1] if kind == "bags" else "a_1"] = [value, *[0] * (len(frame) - 1)]
        frame.to_csv(path, index=False)

    return write


ANYWHERE: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: None,
    "empty": content(b""),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "zeros": content(bytes(10**6)),
    "binary": content(np.random.default_rng(0).bytes(10**6)),
}
TEXT: dict[str, Callable[[Path], Any]] = {
    "spreadsheet": content(b"PK\x03\x04" + bytes(range(1, 256)) * 99),
    "latin-1": content("text,label\nschön,1\n".encode("latin-1")),
    "UTF-16": content("text,label\na,1\n".encode("utf-16")),
    "NUL": content(b"text,label\ngood\0film,1\n"),
    "unclosed quote": content(b'text,label\n"good,1\n' + b"bad,0\n" * 10**6),
    "one line of 200 MB": content(b"text,label\n" + b"x" * (200 << 20)),
    "million columns": content(b"text," + b",".join(b"c%d" % i for i in range(10**6)) + b"\n" + b"1," * 10**6 + b"1\n"),
    "doubled column": content(b"text,label,label,bag,bag,a_1,a_1\n" + b"a,1,1,1,1,1,1\n" * 9),
    "space in a name": content(b"text ,label ,bag \n" + b"a,1,1\n" * 9),
    "too many cells": content(b"text,label\n" + b"a,b,1\n" * 9),
    "escape in a name": content(b"\x1b[31mtext,\xe2\x80\xaelabel\n" + b"a,1\n" * 9),
}
CASES: list[tuple[list[str], str, Callable[[Path], Any]]] = [
    *((FIT["text"], f"{name}.csv", make) for name, make in [*ANYWHERE.items(), *TEXT.items()]),
    *(
        (FIT["bags"], f"{name}.csv", TEXT[name])
        for name in ("spreadsheet", "NUL", "million columns", "doubled column", "space in a name")
    ),
    *(
        (FIT["groups"], f"{name}.csv", TEXT[name])
        for name in ("UTF-16", "million columns", "doubled column", "too many cells")
    ),
    *(
        (FIT["bags"], f"{name}.csv", cells("bags", value))
        for name, value in {"1e300": 1e300, "inf": "inf", "word": "x"}.items()
    ),
    *(
        (FIT["groups"], f"{name}.csv", cells("groups", value))
        for name, value in {"1e300": 1e300, "infinite": "inf"}.items()
    ),
    (FIT["text"], "bomb.csv.gz", bomb(b"x" * 10**6, 1000)),
    (FIT["text"], "blank.csv.gz", bomb(b"\n" * 10**6, 200)),
    (FIT["text"], "bomb.jsonl.gz", bomb(b'{"text": "' + b"x" * 10**6, 1000)),
    (FIT["text"], "cut.csv.gz", content(gzip.compress(b"text,label\na,1\n" * 9999)[:-20])),
    (FIT["text"], "plain.csv.gz", content(b"text,label\na,1\n")),
    (FIT["text"], "deep.jsonl", content(b'{"text": ' + b"[" * 10**6)),
    (FIT["text"], "huge.jsonl", content(b'{"text": "a", "label": ' + b"9" * 10**5 + b"}")),
    (FIT["text"], "half.jsonl", content(b'{"text": "a", "label": 1}\n{"text": "b", "lab')),
    (FIT["text"], "list.json", content(b'[{"text": "a", "label": 1}]')),
    (FIT["text"], "surrogate.jsonl", content(b'{"text": "\\ud800", "label": 1}\n' * 9)),
    (FIT["text"], "twice.jsonl", content(b'{"text": "a", "text": "b", "label": 1}\n' * 9)),
    *(
        (FIT[kind], f"{name}.parquet", parquet(kind, damage))
        for kind in FIT
        for name, damage in {
            "cut": lambda data: data.__delitem__(slice(len(data) // 2, None)),
            "footer": lambda data: data.__setitem__(_footer(data), b"\xff" * 32),
            "length": lambda data: data.__setitem__(slice(-8, -4), b"\xff\xff\xff\x7f"),
        }.items()
    ),
    *((["plan", "--pilot"], f"{name}.npz", ANYWHERE[name]) for name in ("folder", "device", "zeros", "binary")),
    (["plan", "--pilot"], "declared.npz", arrays("(2500000000,)")),
    (["plan", "--pilot"], "objects.npz", arrays("(2,)", "|O", bytes(16))),
    (["plan", "--pilot"], "short.npz", arrays("(2,)", data=bytes(3))),
    (["plan", "--pilot"], "negative.npz", arrays("(-5,)")),
    (["plan", "--pilot"], "flat.npz", arrays("(2,)", data=bytes(16))),
    (["plan", "--pilot"], "array.npz", bare_array),
    (["plan", "--pilot"], "1e300.csv", cells("bags", 1e300)),
    (["fit", "groups", "good.csv", "--groups"], "deep.json", content(b"[" * 10**6)),
    (["fit", "groups", "good.csv", "--groups"], "half.json", content(b'{"a": ["a_1"')),
    (["fit", "groups", "good.csv", "--groups"], "numbers.json", content(b'{"a": [1, 2]}')),
    (["fit", "groups", "good.csv", "--groups"], "device.json", ANYWHERE["device"]),
    (["predict", "text-model"], "device.csv", ANYWHERE["device"]),
    (["predict", "text-model"], "spreadsheet.csv", TEXT["spreadsheet"]),
    (["predict", "bags-model"], "spreadsheet.csv", TEXT["spreadsheet"]),
    (["predict", "bags-model"], "pipe.parquet", os.mkfifo),
    (["predict", "groups-model"], "cut.parquet", parquet("groups", lambda data: data.__delitem__(slice(99, None)))),
    (["predict", "groups-model"], "1e300.csv", cells("groups", 1e300)),
    (["explain", "text-model", "--file"], "letter.txt", content(bytes(range(256)))),
    (["explain", "text-model", "--file"], "pipe.txt", os.mkfifo),
    (["explain", "text-model", "--file"], "device.md", ANYWHERE["device"]),
    (["explain", "bags-model", "--file"], "binary.csv", ANYWHERE["binary"]),
    (["explain", "groups-model", "--file"], "escape.csv", TEXT["escape in a name"]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    y = GOOD["text"]["label"]
    TextClassifier(max_epochs=1, min_df=1, random_state=0).fit(GOOD["text"]["text"].tolist(), y).save(
        place / "text-model"
    )
    bags = BagClassifier(C=1.0, inverse_temperature=1.0, refine_steps=0, cv=2)
    bags.fit(GOOD["bags"]["u"].to_numpy().reshape(40, 2, 1), y)
    bags.feature_names_in_ = np.array(["u"], dtype=object)
    bags.save(place / "bags-model")
    GroupClassifier(C=1.0, n_groups=1, cv=2, random_state=0).fit(GOOD["groups"][["a_1", "b_1"]], y).save(
        place / "groups-model"
    )
    GOOD["groups"].to_csv(place / "good.csv", index=False)
    return place


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))  # whoever takes longer is killed

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "whichtoken", *command], capture_output=True, text=True, cwd=folder, env=environment,
        preexec_fn=limits, timeout=600, check=False,
    )  # fmt: skip


def fault_of(number: int, folder: Path) -> str:
    """What is wrong with the answer to a hostile file; nothing if it is as it should be."""
    command, file, make = CASES[number]
    path, model = folder / str(number) / file, folder / f"model-{number}"
    path.parent.mkdir()
    make(path)
    name = str(path.relative_to(folder))
    table_first = command[0] == "fit" and "--groups" not in command
    arguments = [*command[:2], name, *command[2:]] if table_first else [*command, name]
    result = run([*arguments, *(["--model", model.name] if command[0] == "fit" else [])], folder)
    if path.is_file() and not path.is_symlink():
        path.unlink()  # some are large
    said = result.stderr
    faults = {
        f"exit code {result.returncode}": result.returncode != 2,
        "not one line": said.count("\n") != 1 or not said.startswith("whichtoken: "),
        "does not name the file": name not in said,
        "hidden signs": not said.strip().isprintable(),
        "something on standard output": bool(result.stdout),
        "a model was written": model.exists(),
    }
    wrong = [name for name, is_so in faults.items() if is_so]
    return f"{' '.join(arguments)}: {', '.join(wrong)}: {said[-500:]}" if wrong else ""


def test_hostile_files_are_one_sentence(folder: Path) -> None:
    assert len(CASES) >= 75
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(partial(fault_of, folder=folder), range(len(CASES))))
    faults = [fault for fault in found if fault]
    tally("a hostile file given to a command", len(CASES), len(CASES) - len(faults), len(faults))
    assert not faults, "\n".join(faults)


def test_an_archive_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    from whichtoken.datasets.review_files import read_imdb
    from whichtoken.errors import UsageError

    with tarfile.open(tmp_path / "aclImdb.tar.gz", "w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("aclImdb/train/pos/0_9.txt")
        member.size = 20 << 30
        archive.addfile(member)
    with pytest.raises(UsageError, match="unpacks to more than 2 GB"):
        read_imdb(tmp_path / "aclImdb.tar.gz")
    tally("an archive of 20 GB", 1, 1, 0)


def test_the_good_files_are_read(folder: Path) -> None:
    """Otherwise every refusal above would be worth nothing."""
    for kind, frame in GOOD.items():
        frame.to_csv(folder / f"{kind}.csv", index=False)
        result = run(["predict", f"{kind}-model", f"{kind}.csv"], folder)
        assert result.returncode == 0, result.stderr
    (folder / "groups.json").write_text(json.dumps({"a": ["a_1"], "b": ["b_1"]}))
    result = run(["fit", "groups", "good.csv", "--groups", "groups.json", "--model", "fitted"], folder)
    assert result.returncode == 0, result.stderr
