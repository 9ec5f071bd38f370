"""Three hundred damaged model folders: each is refused in a sentence, or predicts what it predicted before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tally import tally

from whichtoken import BagClassifier, GroupClassifier, TextClassifier
from whichtoken.app.cli.models import apply_model
from whichtoken.app.evaluation import add_predictions
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import description_checksum

KINDS = ("text", "bags", "groups")
STRANGE = (None, -1, 0, 2.5, "x", [], {}, True, [["x", 1]], 1 << 60, "../../etc/passwd", ["x", "x"])
FREE = {
    "temperature",
    "sublinear_tf",
    "tokens",
    "stop_words",
    "tokenizer",
}  # other values make another model, not a damaged one
SECONDS = 10


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path, pd.DataFrame]]:
    """By kind: a model folder, a file to predict, and what is predicted."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    texts = [f"{word} film number {i % 5}" for i, word in enumerate(["good", "bad"] * 20)]
    y = np.arange(40) % 2
    TextClassifier(max_epochs=2, random_state=0).fit(texts, y).save(folder / "text")
    pd.DataFrame({"text": texts}).to_csv(folder / "text.csv", index=False)
    X = rng.standard_normal((40, 3, 2))
    X[y == 1, 0] += 3
    model = BagClassifier(C=1.0, refine_steps=2, cv=2).fit(X, y)
    model.feature_names_in_ = np.array(["u", "v"], dtype=object)
    model.save(folder / "bags")
    rows = pd.DataFrame(X.reshape(-1, 2), columns=["u", "v"]).assign(bag=np.repeat(np.arange(40), 3))
    rows.to_csv(folder / "bags.csv", index=False)
    table = pd.DataFrame(rng.standard_normal((60, 6)), columns=[f"{name}_{i}" for name in "abc" for i in (1, 2)])
    groups = {name: [f"{name}_1", f"{name}_2"] for name in "abc"}
    GroupClassifier(groups, cv=2).fit(table, table["b_1"] > 0).save(folder / "groups")
    table.to_csv(folder / "groups.csv", index=False)
    found = {kind: (folder / kind, folder / f"{kind}.csv") for kind in KINDS}
    return {kind: (*paths, predicted(*paths)) for kind, paths in found.items()}


def predicted(folder: Path, data: Path) -> pd.DataFrame:
    found = apply_model(folder, data)
    return add_predictions(found.table, found.classes, found.probabilities())


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


def outcome(folder: Path, data: Path, expected: pd.DataFrame) -> str:
    """What became of it: "refused", "unchanged", or what went wrong."""
    try:
        with alarm():
            found = predicted(folder, data)
    except UsageError as error:
        return "refused" if str(error).isprintable() and folder.name in str(error) else f"strange sentence: {error}"
    except Exception as error:
        return f"traceback: {error!r}"
    return "unchanged" if found.equals(expected) else "silently different"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    description = json.loads((folder / "model.json").read_text("utf-8"))
    change(description)
    (folder / "model.json").write_text(
        json.dumps({**description, "sha256": description_checksum(description)}), "utf-8"
    )


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, part in inner for leaf in leaves(part, (*path, key)))]


def edit_a_value(folder: Path, rng: np.random.Generator) -> None:
    def change(description: dict[str, Any]) -> None:
        choices = [path for path in leaves(description["parameters"], ("parameters",)) if not FREE & set(path)]
        *parents, last = choices[rng.integers(len(choices))]
        target: Any = description
        for key in parents:
            target = target[key]
        target[last] = STRANGE[rng.integers(len(STRANGE))]

    rewrite(folder, change)


def exchange_values(folder: Path, rng: np.random.Generator) -> None:
    """Lists turned round: classes, tokens, names of groups."""

    def change(description: dict[str, Any]) -> None:
        lists = []
        for path in leaves(description["parameters"]):
            target = description["parameters"]
            for key in path:
                target = target[key]
            if isinstance(target, list) and len(target) > 1 and path[-1] in ("values", "tokens", "group_names"):
                lists.append(target)
        lists[rng.integers(len(lists))].reverse()

    rewrite(folder, change)


def own_files(folder: Path) -> list[Path]:
    """Description and arrays; the card is for people and is not read."""
    return sorted(file for file in folder.iterdir() if not file.name.startswith("model-card"))


def flip_a_bit(folder: Path, rng: np.random.Generator) -> None:
    file = own_files(folder)[rng.integers(2)]
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(content))


def truncate(folder: Path, rng: np.random.Generator) -> None:
    file = own_files(folder)[rng.integers(2)]
    os.truncate(file, int(rng.integers(file.stat().st_size)))


def put_something_else(folder: Path, rng: np.random.Generator) -> None:
    file = own_files(folder)[rng.integers(2)]
    shutil.copy(file, folder.parent / "outside")
    file.unlink()
    match rng.integers(6):
        case 0:
            file.symlink_to(folder.parent / "outside")
        case 1:
            file.symlink_to("/dev/zero")
        case 2:
            os.mkfifo(file)
        case 3:
            file.mkdir()
        case 4:
            file.symlink_to(file)


FAULTS = {
    flip_a_bit: (45, "a flipped bit in a model folder"),
    truncate: (15, "a truncated file in a model folder"),
    put_something_else: (15, "a link, pipe, device or nothing in a model folder"),
    edit_a_value: (20, "an edited value in a model folder, checksum computed anew"),
    exchange_values: (5, "exchanged values in a model folder, checksum computed anew"),
}  # together 100, for each of three kinds of model


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_damaged_folders_are_refused_or_harmless(fault: Any, places: Any, tmp_path: Path) -> None:
    times, what = FAULTS[fault]
    rng, found = np.random.default_rng(0), []
    for kind in KINDS:
        original, data, expected = places[kind]
        for _ in range(times):
            shutil.rmtree(tmp_path / "model", ignore_errors=True)
            shutil.copytree(original, tmp_path / "model")
            fault(tmp_path / "model", rng)
            found.append(outcome(tmp_path / "model", data, expected))
    wrong = [what for what in found if what not in ("refused", "unchanged")]
    tally(what, len(found), len(found) - len(wrong), len(wrong))
    assert not wrong
    assert found.count("refused") > 0.6 * len(found)


def test_the_command_says_so_too(places: Any, tmp_path: Path) -> None:
    lost = 0
    for kind in KINDS:
        original, data, _ = places[kind]
        shutil.copytree(original, tmp_path / kind)
        flip_a_bit(tmp_path / kind, np.random.default_rng(1))
        command = [sys.executable, "-m", "whichtoken", "predict", str(tmp_path / kind), str(data)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        lost += result.returncode != 2 or result.stderr.count("\n") != 1 or "whichtoken: " not in result.stderr
    tally("a damaged model folder given to a command", len(KINDS), len(KINDS) - lost, lost)
    assert not lost
