"""Bags in files of their own: the model of a list of arrays, read some files at a time, and a sentence for each bad file."""

import json
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from whichtoken import BagClassifier
from whichtoken.attention import RaggedArray
from whichtoken.errors import UsageError
from whichtoken.estimators import BagFiles, plan_study
from whichtoken.estimators.bags import files as bag_files


def cohort(count=40, seed=0):
    """Bags of 5 to 9 instances; those of class 1 have one that stands out."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    bags = [rng.standard_normal((rng.integers(5, 10), 6)).astype(np.float32) for _ in labels]
    for bag, label in zip(bags, labels, strict=True):
        bag[0, 0] += 6 * label
    return bags, labels


def write(bag, path):
    match path.suffix:
        case ".npy":
            np.save(path, bag)
        case ".npz":
            np.savez(path, features=bag, coords=np.zeros((len(bag), 2)))
        case ".h5":
            with h5py.File(path, "w") as file:  # TRIDENT may write a leading 1
                file["features"], file["coords"] = (
                    bag[None] if path.stem.endswith("7") else bag,
                    np.zeros((len(bag), 2)),
                )
        case ".pt":
            torch.save(torch.from_numpy(bag), path)


@pytest.fixture
def slides(tmp_path):
    """A table with a file for each bag, of all kinds."""
    bags, labels = cohort()
    (tmp_path / "features").mkdir()
    names = [f"features/slide{i}{('.npy', '.npz', '.h5', '.pt')[i % 4]}" for i in range(len(bags))]
    for bag, name in zip(bags, names, strict=True):
        write(bag, tmp_path / name)
    ids = [f"slide{i}" for i in range(len(bags))]
    frame = pd.DataFrame({"slide": ids, "tumor": labels, "path": names, "site": np.arange(len(bags)) // 4})
    frame.to_csv(tmp_path / "slides.csv", index=False)
    return tmp_path, bags, labels, [tmp_path / name for name in names]


@pytest.mark.parametrize("memory", [1 << 33, 1 << 10])
def test_files_give_the_model_of_their_arrays(slides, memory, monkeypatch):
    """Also where the instances do not fit into memory, and where a part has one bag only."""
    _, bags, labels, paths = slides
    expected = BagClassifier(random_state=0, instance_map="linear").fit(bags, labels)
    monkeypatch.setattr(bag_files, "available_memory", lambda: memory)
    monkeypatch.setattr(bag_files, "TOGETHER", 200 if memory < 1 << 20 else 1 << 26)
    assert isinstance(BagFiles(paths).load().values, np.memmap) == (memory < 1 << 20)
    model = BagClassifier(random_state=0, instance_map="linear").fit(paths, labels)
    np.testing.assert_array_equal(model.queries_, expected.queries_)
    np.testing.assert_allclose(
        model.decision_function(BagFiles(paths)), expected.decision_function(bags), rtol=1e-5, atol=1e-6
    )
    assert model.counterfactuals(paths) == expected.counterfactuals(bags)
    for mine, theirs in zip(model.attention(paths), expected.attention(bags), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    why = model.explain(paths)
    assert [item.as_json()["bag"] for item in why][:2] == ["slide0", "slide1"]
    assert [item.label for item in why] == expected.predict(bags).tolist()


def test_some_rows_of_a_mapped_array_are_mapped_too(slides, monkeypatch):
    _, bags, _, paths = slides
    monkeypatch.setattr(bag_files, "available_memory", lambda: 0)
    rows = np.array([5, 2, 11])
    some = BagFiles(paths).load()[rows]
    assert isinstance(some.values, np.memmap)
    np.testing.assert_array_equal(some.values, RaggedArray.of([bags[i] for i in rows]).values)


@pytest.mark.slow
def test_a_pilot_may_lie_in_files(slides, whichtoken):
    _, bags, labels, paths = slides
    expected = plan_study(pilot=(bags, labels), samples=200)
    assert plan_study(pilot=(paths, labels), samples=200).recommendation == expected.recommendation
    done = whichtoken(
        "plan", "--pilot", "slides.csv", "--bag", "slide", "--label", "tumor", "--files", "path", "--samples", "200"
    )
    assert done.returncode == 0, done.stderr


def test_commands_on_files(slides, whichtoken):
    folder, _, labels, _ = slides
    asked = ("fit", "bags", "slides.csv", "--bag", "slide", "--label", "tumor", "--files", "path", "--model", "m")
    done = whichtoken(*asked, "--split-by", "site", "--queries", "1")
    assert done.returncode == 0, done.stderr
    assert "mean pooling + logistic regression" in done.stdout
    assert whichtoken("predict", "m", "slides.csv", "--to", "out.csv").returncode == 0
    found = pd.read_csv(folder / "out.csv")
    assert list(found.columns) == ["slide", "tumor", "path", "site", "predicted", "probability_0", "probability_1"]
    assert (found["predicted"] == labels).mean() > 0.9
    assert "accuracy" in whichtoken("evaluate", "m", "slides.csv").stdout
    assert whichtoken("explain", "m", "--file", "slides.csv", "--json", "why.json").returncode == 0
    assert json.loads((folder / "why.json").read_text())[3]["bag"] == "slide3"


@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    [
        ("slide4.npy", lambda path: path.unlink(), "slide4.npy does not exist"),
        ("slide4.npy", lambda path: path.write_bytes(b""), "slide4.npy is empty"),
        ("slide4.npy", lambda path: path.write_bytes(path.read_bytes()[:-9]), "slide4.npy cannot be read as npy"),
        ("slide4.npy", lambda path: np.save(path, np.array([{}])), "slide4.npy cannot be read as npy"),
        ("slide4.npy", lambda path: np.save(path, np.empty((0, 6))), "slide4.npy holds no instances"),
        (
            "slide4.npy",
            lambda path: np.save(path, np.full((3, 6), np.nan)),
            "slide4.npy holds numbers that are missing",
        ),
        ("slide4.npy", lambda path: np.save(path, np.ones((3, 5))), "slide4.npy has instances of width 5, those of"),
        ("slide4.npy", lambda path: np.save(path, np.ones(5)), "a bag is (instances, features)"),
        ("slide5.npz", lambda path: zipfile.ZipFile(path, "w").close(), "slide5.npz"),
        ("slide6.h5", lambda path: path.write_bytes(path.read_bytes()[:100]), "slide6.h5 cannot be read as h5"),
        ("slide7.pt", lambda path: torch.save({"a": 1, "b": 2}, path), "slide7.pt has the arrays a, b; none is named"),
        ("slide7.pt", lambda path: path.write_bytes(b"garbage"), "slide7.pt cannot be read as tensors"),
        ("slide7.pt", lambda path: torch.save(torch.ones(1).expand(10**6, 10**6), path), "one that was not expanded"),
        ("slide7.pt", lambda path: torch.save(torch.eye(4).to_sparse(), path), "save a dense one"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(slides, whichtoken, name, make, sentence):
    folder = slides[0]
    make(folder / "features" / name)
    done = whichtoken(
        "fit", "bags", "slides.csv", "--bag", "slide", "--label", "tumor", "--files", "path", "--model", "m"
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "m").exists()


def test_a_tensor_file_never_runs_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    torch.save(Trap(), tmp_path / "a.pt")
    with pytest.raises(UsageError, match=r"a\.pt cannot be read as tensors: .* never loaded") as caught:
        BagFiles([tmp_path / "a.pt"])[0]
    assert "weights_only" not in str(caught.value)  # no advice to load it unsafely
    assert not (tmp_path / "trapped").exists()


def test_tensors_of_a_training_are_read(tmp_path):
    torch.save(torch.nn.Parameter(torch.ones(4, 3)), tmp_path / "a.pt")
    torch.save({"features": torch.ones(4, 3).to(torch.float8_e4m3fn)}, tmp_path / "b.pt")
    assert [bag.tolist() for bag in BagFiles([tmp_path / "a.pt", tmp_path / "b.pt"])] == 2 * [4 * [3 * [1.0]]]
