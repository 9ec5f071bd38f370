"""A fitted estimator as a folder: `model.json`, and beside it the arrays in a file that is named by their checksum.

The JSON carries the format version, the checksum of the arrays and one of itself. Neither file can hold code, so loading
runs none, and no file is opened because the JSON names it. Saving again writes the new arrays beside the old ones; the
model changes at one moment, when `model.json` is replaced: an interruption leaves the old model or the new one.

The card says what the model is, what it was trained on, how good it is and what it is not for: `model-card.json` for programs,
`model-card.html` for people, and `README.md` with the front matter that model hubs read. None is read when the model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whichtoken import __version__
from whichtoken.errors import UsageError
from whichtoken.files import replacing, write_text, writing
from whichtoken.machine import part_versions
from whichtoken.reading import JSON_VALUE, check_fits, parse_json, read_json, readable, reason, shown
from whichtoken.tables import table_files

FORMAT = "whichtoken-model"
VERSION = 3  # raise it when an older program could not read what this one writes
DESCRIPTION = "model.json"
# also what an interrupted save leaves
OURS = re.compile(r"\.?model[-\w]*\.(json|html|safetensors)|README\.md|\.README-\w*\.md")
Tensors = dict[str, NDArray[Any]]


def save_model(
    folder: str | Path, kind: str, parameters: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write a model folder, whole or not at all, with a card that says what it holds.

    Parameters
    ----------
    folder : path
        A new or empty folder, or a model folder, which is replaced; anything else is refused.
    kind : str
        What the model is, such as "bag-classifier".
    parameters : mapping
        Whatever JSON can hold; numpy scalars become numbers.
    tensors : mapping of name to array
    """
    from safetensors.numpy import save

    target = Path(folder).absolute()
    check_writable(target)
    arrays = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    description = {
        "format": FORMAT,
        "version": VERSION,
        "package_version": __version__,
        "kind": kind,
        "tensors_sha256": hashlib.sha256(arrays).hexdigest(),
        "parameters": dict(parameters),
    }
    plain = json.loads(json.dumps(description, allow_nan=False, default=_plain))
    text = json.dumps({**plain, "sha256": description_checksum(plain)}, indent=1, ensure_ascii=False)
    with _locked(target):
        tensors_file = target / tensors_name(plain["tensors_sha256"])
        with replacing(tensors_file) as fresh:
            fresh.write_bytes(arrays)
        write_text(target / DESCRIPTION, text)
        for other in target.iterdir():
            if OURS.fullmatch(other.name) and other.name not in (DESCRIPTION, tensors_file.name):
                with suppress(OSError):  # a file too many does no harm
                    other.unlink()
        try:
            write_card(target, first_card(kind, plain["parameters"], plain["tensors_sha256"]))
        except UsageError as error:  # the model is whole without it
            warnings.warn(f"the model is saved, but not its card: {error}", stacklevel=2)


def describe_table(folder: str | Path, table: Mapping[str, Any]) -> None:
    """Add to a saved model how the columns of a table become its numbers, all at once."""
    place = Path(folder)
    description = {**_read_json(place), "table": dict(table)}
    text = json.dumps({**description, "sha256": description_checksum(description)}, indent=1, ensure_ascii=False)
    with _locked(place.absolute()):
        write_text(place / DESCRIPTION, text)


@dataclass(frozen=True, eq=False)
class OpenedFolder:
    """A model folder that was read, so that it need not be opened again once its kind is known."""

    folder: Path
    kind: str
    parameters: dict[str, Any]
    tensors: Tensors
    table: Any = None  # how the columns of a table become its numbers, where `describe_table` said so
    checksum: str = ""  # of parameters and arrays

    def __str__(self) -> str:
        return str(self.folder)


def read_folder(folder: str | Path) -> OpenedFolder:
    """Kind, parameters and arrays of a model folder, checked against their checksums."""
    place = Path(folder)
    description = _read_description(place)
    try:
        tensors = _read_tensors(place, description["tensors_sha256"])
    except UsageError:
        again = _read_description(place)
        if again["tensors_sha256"] == description["tensors_sha256"]:
            raise
        description, tensors = again, _read_tensors(place, again["tensors_sha256"])  # it was saved anew meanwhile
    parameters = description["parameters"]
    told = json.dumps([parameters, description["tensors_sha256"]], sort_keys=True).encode()
    checksum = hashlib.sha256(told).hexdigest()
    return OpenedFolder(place, description["kind"], parameters, tensors, description.get("table"), checksum)


def load_model(folder: str | Path | OpenedFolder, kind: str | None = None) -> tuple[str, dict[str, Any], Tensors]:
    """Kind, parameters and arrays of a model folder; `kind`, where given, is the one that is accepted."""
    opened = folder if isinstance(folder, OpenedFolder) else read_folder(folder)
    if kind is not None and opened.kind != kind:
        raise UsageError(f"{shown(opened.folder)} holds a {shown(opened.kind)}, not a {kind}")
    return opened.kind, opened.parameters, dict(opened.tensors)  # who builds a model takes arrays out


def check_writable(folder: str | Path) -> None:
    """Refuse a place where a model folder would overwrite something else; call it before a long fit."""
    target = Path(folder)
    if not target.exists():
        above = next(place for place in target.absolute().parents if place.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UsageError(
                f"model folder {shown(folder)} cannot be written: {shown(above)} does not allow new folders"
            )
        return
    if not target.is_dir():
        raise UsageError(f"{shown(folder)} is a file; a model needs a folder of its own")
    if not os.access(target, os.W_OK):
        raise UsageError(f"model folder {shown(folder)} cannot be written: permission denied")
    ours = (target / DESCRIPTION).exists() or (target / DESCRIPTION).is_symlink()
    files = sorted(target.iterdir())
    others = [
        file.name
        for file in files
        if not OURS.fullmatch(file.name) or (file.name == README and not (ours or _ours(file)))
    ]
    if others:
        raise UsageError(f"{shown(folder)} is not a model folder (it holds '{shown(others[0])}'); choose a new one")
    if ours:
        _read_json(target)  # raises unless it is ours, of whatever version


def _ours(readme: Path) -> bool:
    """Whether a README is the card of a model of ours."""
    with readme.open("rb") as file:
        return file.read(len(FRONT)) == FRONT.encode()


def description_checksum(description: Mapping[str, Any]) -> str:
    """Of everything in a description but its own checksum, however it is laid out."""
    content = {name: value for name, value in description.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tensors_name(tensors_sha256: str) -> str:
    """The file of the arrays with this checksum."""
    return f"model-{tensors_sha256[:16]}.safetensors"


def _read_json(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, if it is one of ours."""
    if not folder.is_dir():
        raise UsageError(
            f"{shown(folder)} is not a model folder: {'a file' if folder.exists() else 'it does not exist'}"
        )
    if not (folder / DESCRIPTION).exists() and not (folder / DESCRIPTION).is_symlink():
        raise UsageError(f"{shown(folder)} is not a model folder: it has no {DESCRIPTION}")
    with readable(folder / DESCRIPTION, "JSON"):
        description = parse_json(_read_regular(folder / DESCRIPTION, JSON_VALUE).decode())
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UsageError(f"{shown(folder)} is not a model folder: {DESCRIPTION} is not one of whichtoken's")
    return description


def _read_description(folder: Path) -> dict[str, Any]:
    """The JSON of a model folder, of this version and as it was written."""
    description = _read_json(folder)
    version = description.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UsageError(
            f"{shown(folder)} was written by a newer version (format {version}, this program knows {VERSION});"
            " upgrade whichtoken"
        )
    if type(version) is int and version < 1:
        raise UsageError(f"{shown(folder)}: format {version} does not exist; {DESCRIPTION} was changed or damaged")
    if version == 1:
        raise UsageError(f"{shown(folder)} has the format of a version before the first release; fit the model again")
    with readable(folder / DESCRIPTION, "a model"):
        intact = description.get("sha256") == description_checksum(description)
    if not intact:
        raise UsageError(
            f"{shown(folder)}: {DESCRIPTION} does not match its checksum; it was changed or damaged, fit the model again"
        )
    from whichtoken.estimators.schemas import Description

    with stored_fields(folder):
        Description.of(description, DESCRIPTION)
    return description


def _read_tensors(folder: Path, sha256: str) -> Tensors:
    from safetensors.numpy import load

    file = folder / tensors_name(sha256)
    with readable(file, "safetensors"):
        arrays = _read_regular(file)
        if hashlib.sha256(arrays).hexdigest() != sha256:
            raise UsageError(
                f"{shown(folder)}: {file.name} does not match the checksum in {DESCRIPTION}; it was changed or damaged,"
                " fit the model again"
            )
        try:
            return load(arrays)
        except KeyError as error:
            raise ValueError(f"numbers of the type {reason(error)} are not known") from error


def _read_regular(file: Path, expansion: int = 2) -> bytes:
    """The bytes of a regular file that lies in its folder itself: links may lead anywhere."""
    if file.is_symlink():
        raise UsageError(f"{shown(file)} is a link; a model folder holds its own files")
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as opened:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{shown(file)} is not a regular file")
        check_fits(file, expansion * found.st_size)
        return opened.read(found.st_size)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Make the folder and lock it against other savers; a new one is deleted if the block fails."""
    with writing(f"model folder {shown(target)}"):
        new = [place for place in (target, *target.parents) if not place.exists()]
        target.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # not every system and file system has locks
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    except BaseException:
        for place in new:
            with suppress(OSError):
                if place == target and not (target / DESCRIPTION).exists():
                    for part in target.iterdir():
                        part.unlink()
                place.rmdir()
        raise
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"parameters must be JSON; got {value!r} of type {type(value).__name__}")


CARD, CARD_PAGE, README = "model-card.json", "model-card.html", "README.md"
FRONT = '---\nlibrary_name: "whichtoken"\n'  # how the README starts
Array = NDArray[np.float64]
LARGEST_LABELS = 1 << 28  # bytes of all together: each takes as much as the longest


@contextmanager
def stored_fields(folder: object) -> Iterator[None]:
    """Turn whatever goes wrong while a model is built from a folder into one sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, UsageError) else reason(error)
        fault = f"{said} is missing" if isinstance(error, KeyError) else said
        name = shown(str(folder))
        raise UsageError(f"{name} is damaged or of an older version: {fault}; fit the model again") from error


def arrays(tensors: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Array]:
    """Exactly the named arrays, of these shapes, of finite numbers in double precision."""
    if set(tensors) != set(shapes):
        raise UsageError(f"arrays {', '.join(map(shown, sorted(tensors)))} are not {', '.join(sorted(shapes))}")
    for name, shape in shapes.items():
        array = tensors[name]
        if array.dtype != np.float64 or array.shape != shape:
            raise UsageError(f"array '{name}' is {array.dtype} of shape {array.shape}, not float64 of shape {shape}")
        if not np.isfinite(array).all():
            raise UsageError(f"array '{name}' holds numbers that are not finite")
        yield array


def storable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator without the state of a generator, which belongs to the fit and not to the model."""
    seed = settings.get("random_state")
    return {**settings, "random_state": seed if isinstance(seed, int | np.integer | None) else None}


def classes_as_json(classes: NDArray[Any], *, several: bool = False) -> dict[str, Any]:
    """Class labels with their dtype; `several` says that each is a label of its own, in the order of the user."""
    kind = classes.dtype.str if classes.dtype != object else "object"
    return {"dtype": kind, "values": classes.tolist(), **({"several": True} if several else {})}


def classes_from_json(stored: Mapping[str, Any]) -> NDArray[Any]:
    """The array that `classes_as_json` described: two or more labels of one type, each once, and classes ascending."""
    dtype, values = np.dtype(stored["dtype"]), stored["values"]
    if dtype.kind not in "biufUO" or not 2 <= len(values) <= LARGEST_LABELS // max(1, dtype.itemsize):
        raise UsageError("'classes' are not two or more texts or numbers")
    classes = np.array(values, dtype=dtype)
    same = list(map(repr, classes.tolist())) == list(map(repr, values))  # 1, 1.0 and True are not
    if not same or not all(a < b for a, b in pairwise(sorted(values) if stored.get("several") else values)):
        raise UsageError("'classes' are not in ascending order, each once, in their type")
    return classes


def scores(classes: NDArray[Any], several: bool = False) -> int:
    """Number of scores: one for two classes, otherwise one for each, as for several labels."""
    return 1 if len(classes) == 2 and not several else len(classes)


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """The kinds of model folders."""
    return tomllib.loads((files(__package__) / "kinds.toml").read_text(encoding="utf-8"))


def load_estimator(folder: str | Path | OpenedFolder) -> Any:
    """Load a saved estimator when you do not know, or do not care, of which kind it is; runs no code of the folder.

    Parameters
    ----------
    folder : str or Path
        What `save` of an estimator, or `whichtoken fit`, wrote.

    Returns
    -------
    TextClassifier, TextRegressor, BagClassifier, BagRegressor, GroupClassifier or AttentionRegressor
        Ready to predict and explain.

    Raises
    ------
    UsageError
        If the folder does not exist, is damaged, or is of a kind that this version does not know.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.estimators import load_estimator
    >>> model = TextClassifier(random_state=0).fit(["a good film", "a bad film"] * 10, [1, 0] * 10)
    >>> with TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     load_estimator(f"{folder}/model").predict(["good"]).tolist()
    [1]
    """
    return _load(folder)


def load_to_answer(folder: str | Path | OpenedFolder) -> Any:
    """As `load_estimator`, for predictions and reasons alone: a text model is then loaded without scikit-learn."""
    opened = folder if isinstance(folder, OpenedFolder) else read_folder(folder)
    classes = opened.parameters.get("classes")
    several = isinstance(classes, dict) and classes.get("several")  # reasons for one of them take the classifier
    return _load(opened, {} if several else {"text-classifier": "text.model:TextModel"})


def _load(folder: str | Path | OpenedFolder, instead: Mapping[str, str] = MappingProxyType({})) -> Any:
    opened = folder if isinstance(folder, OpenedFolder) else read_folder(folder)
    if opened.kind not in kinds():
        raise UsageError(
            f"{shown(opened.folder)} holds a model of kind '{shown(opened.kind)}', which this version cannot use"
        )
    place = instead.get(opened.kind, kinds()[opened.kind]["class"])
    return resolve_name(f"whichtoken.estimators.{place}").load(opened)


EVERY = "Scores hold for data like those it was tested on; test it again where it is used."


@dataclass(frozen=True)
class DataCard:
    """What a model was trained and tested on."""

    file: str
    sha256: str
    rows: int
    classes: dict[str, int]
    columns: list[str]

    @classmethod
    def of(cls, path: Path, labels: NDArray[Any], columns: list[str], several: Sequence[str] = ()) -> DataCard:
        """Of a table, its labels (or the numbers, or the marks of several labels) and the columns that were used."""
        if labels.ndim == 2:
            names, counts = np.array(several), labels.sum(axis=0)
        else:
            names, counts = np.unique(labels[: 0 if labels.dtype.kind == "f" else None], return_counts=True)
        classes = {str(name): int(count) for name, count in zip(names, counts, strict=True)}
        return cls(Path(shown(path)).name, _sha256(path), len(labels), classes, columns)


def _about(kind: str) -> dict[str, Any]:
    """What cards say of a kind; also of one that only a later version knows."""
    return kinds().get(kind, {"name": kind, "task": "tabular-classification", "limits": []})


def first_card(kind: str, parameters: Mapping[str, Any], tensors_sha256: str) -> dict[str, Any]:
    """What is known of every model: its kind, settings, versions and limits."""
    texts = "the training texts"
    known = f"neither {texts} nor the vectors contain" if parameters.get("vectors") else f"{texts} do not contain"
    by = " by all but the encoder" if parameters.get("encoder") else ""
    return {
        "format": "whichtoken-model-card",
        "kind": kind,
        "tensors_sha256": tensors_sha256,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name.lower(): number for name, number in part_versions().items()},
        "settings": parameters.get("settings", {}),
        "data": None,
        "evaluation": None,
        "limits": [*(limit.format(known=known, by=by) for limit in _about(kind)["limits"]), EVERY],
        "several_labels": bool(parameters.get("fitted", parameters).get("classes", {}).get("several")),
    }


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write its three files."""
    write_text(folder / CARD, json.dumps(card, indent=1, ensure_ascii=False))
    write_text(folder / CARD_PAGE, _card_page(card))
    write_text(folder / README, _card_readme(folder.name, card))


def add_to_card(folder: Path, data: DataCard, report: Mapping[str, Any] | None) -> None:
    """Say in the card of a saved model what it was trained on and how good it is."""
    write_card(folder, {**read_json(folder / CARD), "data": asdict(data), "evaluation": report})


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model folder, for programs."""
    from whichtoken.estimators.schemas import Card

    card = read_json(folder / CARD)
    with stored_fields(folder):
        Card.of(card, CARD)
    return dict(card)


def training_note(folder: Path, path: Path) -> list[str]:
    """A sentence if the card says that the model was trained on this very file."""
    if not (folder / CARD).is_file():
        return []
    data = read_card(folder)["data"] or {}
    if data.get("sha256") != _sha256(path):
        return []
    return ["the model was trained on rows of this very file, so these scores flatter it"]


def _sha256(path: Path) -> str:
    """Of a file; of several, that of theirs."""
    digests = []
    for part in table_files(path):
        with part.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _title(card: Mapping[str, Any]) -> str:
    return str(_about(card["kind"])["name"]) + (" with several labels" if card.get("several_labels") else "")


def _card_readme(name: str, card: Mapping[str, Any]) -> str:
    """The card as Markdown, with the front matter that model hubs read; JSON is YAML too."""
    from whichtoken.display.text import visible
    from whichtoken.estimators.metrics import scores_in, templates

    about, measured = _about(card["kind"]), card["evaluation"]
    front: dict[str, Any] = {"pipeline_tag": about["task"], "tags": ["whichtoken", "attention", "interpretability"]}
    said = {} if measured is None else {k: words for k, words in scores_in(measured["ours"]).items() if k != "auc"}
    if measured is not None and card["data"] is not None:
        data = visible(card["data"]["file"])
        scores = [
            {"type": kind, "value": measured["ours"][kind], "name": f"{words} ({visible(measured['judged_by'])})"}
            for kind, words in said.items()
        ]
        result = {"task": {"type": about["task"]}, "dataset": {"name": data, "type": data}, "metrics": scores}
        front |= {"metrics": list(said), "model-index": [{"name": visible(name), "results": [result]}]}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()]
    environment = templates().overlay(autoescape=False)
    environment.filters["code"] = lambda text: "`" + visible(str(text)).replace("`", "'").replace("|", "/") + "`"
    body = environment.get_template("model_card.md").render(title=_title(card), name=name, card=card, scores=said)
    return FRONT + "\n".join(lines) + "\n---\n\n" + body


def _card_page(card: Mapping[str, Any]) -> str:
    from whichtoken.display.html import single_page
    from whichtoken.estimators.metrics import evaluation_html, templates

    title = _title(card)
    evaluation = "" if card["evaluation"] is None else evaluation_html(card["evaluation"])
    body = templates().get_template("model_card.html").render(title=title, card=card, evaluation=evaluation)
    return single_page(title, body)
