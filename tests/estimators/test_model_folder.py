"""A model folder comes back as it was saved, and anything wrong with one is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder
from whichtoken.estimators.model_folder import (
    check_writable,
    classes_as_json,
    classes_from_json,
    load_model,
    save_model,
)

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.int32), "empty": np.zeros((0, 4))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", "toy", {"name": "ä", "size": np.int64(3), "rate": 0.1}, TENSORS)
    return tmp_path / "model"


def test_comes_back_as_it_was_saved(folder: Path) -> None:
    kind, parameters, tensors = load_model(folder, "toy")
    assert kind == "toy"
    assert parameters == {"name": "ä", "size": 3, "rate": 0.1}
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array, strict=True)


def test_transposed_arrays_keep_their_order(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3).T
    save_model(tmp_path / "m", "toy", {}, {"a": array})
    np.testing.assert_array_equal(load_model(tmp_path / "m")[2]["a"], array)


@pytest.mark.parametrize(
    "classes",
    [
        np.array([0, 1]),
        np.array(["no", "yes"]),
        np.array([False, True]),
        np.array([0.5, 2.0]),
        np.array(["a", "b"], dtype=object),
    ],
    ids=str,
)
def test_classes_keep_their_dtype(classes: np.ndarray) -> None:
    stored = json.loads(json.dumps(classes_as_json(classes)))
    np.testing.assert_array_equal(classes_from_json(stored), classes, strict=True)


def test_saving_again_replaces_and_leaves_nothing_else(folder: Path) -> None:
    save_model(folder, "toy", {"second": True}, {})
    assert load_model(folder)[1:] == ({"second": True}, {})
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", "toy", {}, {})
    assert load_model(tmp_path / "m")[0] == "toy"


@pytest.mark.parametrize("failing", ["write_bytes", "write_text", "rename"])
def test_a_failure_keeps_the_old_model_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    original = getattr(Path, failing)

    def fail(self: Path, *arguments: object, **options: object) -> object:
        if failing == "rename" and self.parent == folder.parent and self.name.startswith(".model-"):
            raise OSError("disk full")
        if failing != "rename":
            raise OSError("disk full")
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(folder, "other", {}, {})
    monkeypatch.undo()
    assert load_model(folder)[0] == "toy"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_parameters_that_are_not_json_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"parameters must be JSON; got .* of type set"):
        save_model(tmp_path / "m", "toy", {"a": {1}}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"not a model folder \(it holds 'notes.txt'\)"):
        save_model(tmp_path, "toy", {}, {})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_programs_model_json_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"layers": 3}')
    with pytest.raises(UsageError, match="not one of whichtoken's"):
        check_writable(tmp_path)


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("")
    with pytest.raises(UsageError, match="is a file; a model needs a folder"):
        save_model(tmp_path / "m", "toy", {}, {})
    with pytest.raises(UsageError, match="not a model folder: a file"):
        load_model(tmp_path / "m")
    with pytest.raises(UsageError, match="it is not there"):
        load_model(tmp_path / "absent")


def test_another_kind(folder: Path) -> None:
    with pytest.raises(UsageError, match="holds a toy, not a bag-classifier"):
        load_model(folder, "bag-classifier")


def test_a_newer_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "VERSION", 0)
    with pytest.raises(UsageError, match=r"newer version \(format 1, this program knows 0\); upgrade whichtoken"):
        load_model(folder)


def test_a_tampered_tensor(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="does not match the checksum"):
        load_model(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "whichtoken-model"}'])
def test_a_damaged_description(folder: Path, content: str) -> None:
    (folder / "model.json").write_text(content)
    with pytest.raises(UsageError, match=r"model\.json"):
        load_model(folder)


def test_missing_tensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"no readable model\.safetensors"):
        load_model(folder)
