"""A model folder comes back as it was saved, and anything wrong with one is a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whichtoken import BagClassifier, GroupClassifier, TextClassifier
from whichtoken.errors import UsageError
from whichtoken.estimators import model_folder
from whichtoken.estimators.model_folder import (
    check_writable,
    classes_as_json,
    classes_from_json,
    description_checksum,
    load_model,
    save_model,
    tensors_name,
)

FILES = 5  # description, arrays, and the card in three forms
TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.int32), "empty": np.zeros((0, 4))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", "toy", {"name": "ä", "size": np.int64(3), "rate": 0.1}, TENSORS)
    return tmp_path / "model"


def tensors_of(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit the JSON by hand, with a checksum that fits again."""
    description = json.loads((folder / "model.json").read_text("utf-8"))
    change(description)
    (folder / "model.json").write_text(
        json.dumps({**description, "sha256": description_checksum(description)}), "utf-8"
    )


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


def test_labels_that_would_fill_the_memory_are_refused() -> None:
    with pytest.raises(UsageError, match="'classes' are not two or more texts or numbers"):
        classes_from_json({"dtype": "<U250000", "values": sorted(map(str, range(10_000)))})


def test_saving_again_replaces_and_leaves_nothing_else(folder: Path) -> None:
    save_model(folder, "toy", {"second": True}, {})
    assert load_model(folder)[1:] == ({"second": True}, {})
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert len(list(folder.iterdir())) == FILES


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", "toy", {}, {})
    assert load_model(tmp_path / "m")[0] == "toy"


@pytest.mark.parametrize("failing", ["write_bytes", "write_text"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_keeps_the_old_model_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, exists: bool
) -> None:
    place = tmp_path / "deep" / "model"
    if exists:
        save_model(place, "toy", {}, {"a": np.zeros(3)})

    def fail(self: Path, *arguments: object, **options: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(UsageError, match="no space left on device; the old file is unchanged"):
        save_model(place, "other", {}, {"a": np.ones(3)})
    monkeypatch.undo()
    if exists:
        assert load_model(place)[0] == "toy"
        save_model(place, "other", {}, {})
        assert len(list(place.iterdir())) == FILES
    else:
        assert list(tmp_path.iterdir()) == []


DEATHS = """
import os, sys
import numpy as np
from pathlib import Path
from safetensors.numpy import save
from whichtoken.estimators.model_folder import load_model, save_model

place = Path(sys.argv[1])
save_model(place / "m", "old", {}, {"a": np.zeros(3)})
seen, steps, done = [], 0, False

while not done:
    steps += 1
    child = os.fork()
    if not child:
        left = steps
        def hook(event, arguments):
            global left
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate"):
                left -= 1
                if not left:
                    os.kill(os.getpid(), 9)
        sys.addaudithook(hook)
        save_model(place / "m", "new", {}, {"a": np.full(3, float(steps))})
        os._exit(0)
    done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kind, _, tensors = load_model(place / "m")
    seen.append((kind, tensors["a"][0] == (steps if kind == "new" else 0)))
    if not done:
        save_model(place / "m", "old", {}, {"a": np.zeros(3)})
        assert len(list((place / "m").iterdir())) == 5
print(steps, sum(kind == "old" for kind, _ in seen), all(right for _, right in seen), [p.name for p in place.iterdir()])
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_death_at_every_step_leaves_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", DEATHS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=100
    )
    steps, old, right, left = result.stdout.split(maxsplit=3)
    assert int(steps) > 6  # arrays: open, flush, rename; the same for the description; then the old arrays go
    assert 3 < int(old) < int(steps)
    assert right == "True"
    assert left.strip() == "['m']"


def test_death_in_the_first_save_leaves_a_folder_that_can_be_saved_to(folder: Path) -> None:
    (folder / "model.json").unlink()
    with pytest.raises(UsageError, match=r"has no model\.json"):
        load_model(folder)
    save_model(folder, "toy", {}, {})
    assert load_model(folder)[0] == "toy"


def test_a_reader_meets_the_new_model_if_it_is_saved_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = model_folder._read_tensors

    def later(place: Path, sha256: str) -> Any:
        monkeypatch.setattr(model_folder, "_read_tensors", read)
        save_model(folder, "new", {}, {"a": np.ones(2)})
        return read(place, sha256)

    monkeypatch.setattr(model_folder, "_read_tensors", later)
    kind, _, tensors = load_model(folder)
    assert kind == "new"
    np.testing.assert_array_equal(tensors["a"], np.ones(2))


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
    with pytest.raises(UsageError, match="it does not exist"):
        load_model(tmp_path / "absent")
    with pytest.raises(UsageError, match="does not allow new folders"):
        check_writable(tmp_path / "m" / "deep")


def test_another_kind(folder: Path) -> None:
    with pytest.raises(UsageError, match="holds a toy, not a bag-classifier"):
        load_model(folder, "bag-classifier")


def test_other_versions(folder: Path) -> None:
    rewrite(folder, lambda description: description.update(version=1))
    with pytest.raises(UsageError, match="before the first release; fit the model again"):
        load_model(folder)
    rewrite(folder, lambda description: description.update(version=4))
    with pytest.raises(UsageError, match=r"newer version \(format 4, this program knows 3\); upgrade whichtoken"):
        load_model(folder)
    for version in (0, -1, -(10**30)):
        rewrite(folder, lambda description, version=version: description.update(version=version))
        with pytest.raises(UsageError, match=rf"format {version} does not exist; model.json was changed or damaged"):
            load_model(folder)
    for version in (True, 1.0, 2.0, "2", None, [2]):
        rewrite(folder, lambda description, version=version: description.update(version=version))
        with pytest.raises(UsageError, match=r"model folder|before the first release|'version' is"):
            load_model(folder)
    save_model(folder, "toy", {}, {})  # any of them may be replaced
    assert load_model(folder)[0] == "toy"


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    for file in folder.iterdir():
        whole = file.read_bytes()
        for place in np.random.default_rng(0).choice(8 * len(whole), 150, replace=False).tolist():
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            file.write_bytes(bytes(flipped))
            try:
                kind, parameters, tensors = load_model(folder)
            except UsageError as error:
                assert "\n" not in str(error)
                continue
            # a line break that has become another kind of space
            assert (kind, parameters) == ("toy", {"name": "ä", "size": 3, "rate": 0.1})
            np.testing.assert_array_equal(tensors["a"], TENSORS["a"])
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "whichtoken-model"}', "[" * 100_000, '{"a": 1, "a": 2}']
)
def test_a_damaged_description(folder: Path, content: str) -> None:
    (folder / "model.json").write_text(content)
    with pytest.raises(UsageError, match=r"model\.json"):
        load_model(folder)


def test_missing_tensors(folder: Path) -> None:
    tensors_of(folder).unlink()
    with pytest.raises(UsageError, match=r"safetensors does not exist"):
        load_model(folder)


@pytest.mark.parametrize("file", ["model.json", "tensors"])
@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder", "loop"])
def test_only_regular_files_of_the_folder_are_opened(folder: Path, file: str, kind: str) -> None:
    place = folder / "model.json" if file == "model.json" else tensors_of(folder)
    (folder.parent / "outside").write_bytes(place.read_bytes())
    place.unlink()
    match kind:
        case "link":
            place.symlink_to(folder.parent / "outside")
        case "device":
            place.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case "loop":
            place.symlink_to(place)
    with pytest.raises(UsageError, match=place.name):
        load_model(folder)


def test_numbers_of_an_unknown_type(folder: Path) -> None:
    import hashlib

    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    tensors_of(folder).unlink()
    sha = hashlib.sha256(content).hexdigest()
    (folder / tensors_name(sha)).write_bytes(content)
    rewrite(folder, lambda description: description.update(tensors_sha256=sha))
    with pytest.raises(UsageError, match=r"cannot be read as safetensors: numbers of the type .*bf16|BF16"):
        load_model(folder)


# What a hand may do to a model, with a checksum that fits again: every edit is refused in a sentence.


def text_model() -> tuple[Any, list[str]]:
    texts = ["good film", "fine good plot", "bad film", "bad dull plot"] * 4
    return TextClassifier(C=1.0, max_epochs=2, random_state=0).fit(texts, [1, 1, 0, 0] * 4), texts


def bag_model() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((24, 3, 2)), np.arange(24) % 2
    X[y == 1, 0] += 3
    return BagClassifier(C=1.0, inverse_temperature=1.0, refine_steps=2, cv=2).fit(X, y), X


def group_model() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 4))
    groups = {"a": [0, 1], "b": [2, 3]}
    return GroupClassifier(groups, n_groups=1, C=0.5, cv=2, random_state=0).fit(X, (X[:, 0] > 0).astype(int)), X


MAKERS = {"text": text_model, "bags": bag_model, "groups": group_model}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Any, Any]]:
    return {kind: make() for kind, make in MAKERS.items()}


STRANGE = (None, -1, 0, 2.5, "x", [], {}, True, [["x", 1]], 1 << 60, "../../etc/passwd")


# another temperature, null token or way to count, other words: not damage, but another model, as good as any
FREE = {"temperature", "log_null", "sublinear_tf", "tokens", "stop_words"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values of nested JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, part in inner for leaf in leaves(part, (*path, key)))]


def put(description: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        description = description[key]
    description[path[-1]] = value


@pytest.mark.parametrize("kind", MAKERS)
def test_any_edited_value_is_refused_or_harmless(models: Any, kind: str, tmp_path: Path) -> None:
    model, X = models[kind]
    place = tmp_path / "model"
    model.save(place)
    original = (place / "model.json").read_text("utf-8")
    expected = model.predict_proba(X)
    for path in leaves(json.loads(original)["parameters"], ("parameters",)):
        for value in STRANGE:
            (place / "model.json").write_text(original, "utf-8")
            rewrite(place, lambda description: put(description, path, value))  # noqa: B023
            try:
                found = type(model).load(place)
            except UsageError as error:
                assert "\n" not in str(error)
                continue
            if path[-1] == "tokenizer":  # without one it is a model of counts, which takes no texts
                with pytest.raises(ValueError, match="fitted on a count matrix"):
                    found.predict_proba(X)
                continue
            probabilities = found.predict_proba(X)
            np.testing.assert_allclose(probabilities.sum(axis=1), 1, err_msg=f"{path} = {value!r}")
            if not FREE & set(path):
                np.testing.assert_array_equal(probabilities, expected, err_msg=f"{path} = {value!r}")


def test_a_text_model_of_version_0_2_is_loaded(models: Any, tmp_path: Path) -> None:
    model, texts = models["text"]
    model.save(tmp_path / "model")
    old = {"ngram_range": "ngrams", "min_df": "least_count", "sublinear_tf": "sublinear", "use_idf": "idf"}

    def rename(description: dict[str, Any]) -> None:
        settings = description["parameters"]["settings"]
        description["version"] = 2
        description["parameters"]["settings"] = {old.get(name, name): value for name, value in settings.items()} | {
            "ngrams": 1
        }

    rewrite(tmp_path / "model", rename)
    found = TextClassifier.load(tmp_path / "model")
    assert [getattr(found, name) for name in old] == [(1, 1), 2, True, True]
    np.testing.assert_array_equal(found.predict_proba(texts), model.predict_proba(texts))


def swap_classes(parameters: dict[str, Any]) -> None:
    where = parameters if "classes" in parameters else parameters["fitted"]
    where["classes"]["values"].reverse()


def double_class(parameters: dict[str, Any]) -> None:
    where = parameters if "classes" in parameters else parameters["fitted"]
    where["classes"]["values"] = [1, 1]


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        *((kind, swap_classes, "'classes' are not in ascending order") for kind in MAKERS),
        *((kind, double_class, "'classes' are not in ascending order") for kind in MAKERS),
        ("text", lambda p: p["tokens"].reverse(), "'tokens' are not in their order"),
        ("text", lambda p: p["tokens"].pop(), "not float64 of shape"),
        ("text", lambda p: p["tokens"].__setitem__(1, p["tokens"][0]), "'tokens' names the same thing twice"),
        ("text", lambda p: p["choice"].update(temperature=-1), "'temperature' is -1, not a finite number above 0"),
        ("text", lambda p: p["settings"].update(sublinear_tf="no"), "'sublinear_tf' is neither true nor false"),
        ("text", lambda p: p["settings"].update(word_pieces="/etc/passwd"), "unknown field 'word_pieces'"),
        ("text", lambda p: p["tokenizer"].update(word_pieces="/etc/passwd"), "'word_pieces' is not a list of texts"),
        ("text", lambda p: p["tokenizer"].update(kind="file", json="{}"), "unknown field"),
        ("bags", lambda p: p["settings"].update(n_queries=0), "n_queries=0"),
        # folders that were written before the map of the instances was chosen
        (
            "bags",
            lambda p: [p["fitted"].pop(name) for name in ("log_losses", "gains", "constant_losses")],
            "'fitted' has no 'constant_losses'",
        ),
        ("bags", lambda p: p["fitted"]["choices"][0].update(C=-1), "'C' is -1"),
        ("bags", lambda p: p["fitted"]["choices"][0].update(temperature=0), "the mean pools"),
        ("bags", lambda p: p["fitted"].update(n_features_in=3), "not float64 of shape"),
        ("groups", lambda p: p["fitted"]["group_names"].reverse(), "'group_names' are not those of 'groups'"),
        ("groups", lambda p: p["fitted"].update(selected_groups=["b"]), "not 0 outside the selected groups"),
    ],
)
def test_an_edited_model_is_refused(models: Any, kind: str, change: Any, sentence: str, tmp_path: Path) -> None:
    model, _ = models[kind]
    model.save(tmp_path / "model")
    rewrite(tmp_path / "model", lambda description: change(description["parameters"]))
    with pytest.raises(UsageError, match=r"is damaged or of an older version: .*fit the model again") as error:
        type(model).load(tmp_path / "model")
    assert sentence in str(error.value)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("change", ["nan", "float32", "longer", "missing", "more"])
def test_strange_arrays_are_refused(models: Any, kind: str, change: str, tmp_path: Path) -> None:
    model, _ = models[kind]
    model.save(tmp_path / "model")
    name, parameters, tensors = load_model(tmp_path / "model")
    # folders of version 0.2 do not know in how many documents a token stands
    for which in [which for which in tensors if (change, which) != ("missing", "documents")]:
        altered = dict(tensors)
        match change:
            case "nan":
                altered[which] = np.full_like(tensors[which], np.nan)
            case "float32":
                altered[which] = tensors[which].astype(np.float32)
            case "longer":
                altered[which] = np.concatenate([tensors[which]] * 2)
            case "missing":
                del altered[which]
            case "more":
                altered["other"] = np.zeros(1)
        save_model(tmp_path / "model", name, parameters, altered)
        with pytest.raises(UsageError, match=r"is damaged or of an older version: (array|'queries' is missing)"):
            type(model).load(tmp_path / "model")
