"""What the JSON of a model folder holds, one schema for each estimator; loaded only with a model, as pydantic takes time.

The settings of an estimator are the arguments of its constructor, with their types: a new one needs no line here. What
several values say together, such as the shapes of arrays, is checked where a model is put together.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError, create_model

from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import classes_from_json
from whichtoken.reading import shown

Count = Annotated[int, Field(ge=1, lt=1 << 53)]
Whole = Annotated[int, Field(ge=0, lt=1 << 53)]
# written as a text, for JSON has no infinity
Written = Annotated[float, Field(strict=False, allow_inf_nan=True)]


class StoredPart(BaseModel):
    """An object with exactly these names and types."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def of(cls, stored: Any, name: str = "parameters") -> Self:
        """The object that was stored under a name; a `UsageError` says what is wrong with it."""
        try:
            return cls.model_validate_json(json.dumps(stored))
        except ValidationError as error:
            raise UsageError(_sentence(stored, name, error.errors(include_url=False)[0])) from error


def _sentence(stored: Any, name: str, fault: Any) -> str:
    """The first fault, where it lies: names of union members, which pydantic puts at the end of a place, are left out."""
    place, found = [name], stored
    for key in fault["loc"]:
        if isinstance(found, list) or (isinstance(found, dict) and key in found):
            found = found[key]
            place += [key] if isinstance(key, str) else []
    field, limits = f"'{shown(place[-1])}'", fault.get("ctx", {})
    match fault["type"]:
        case "missing":
            return f"{field} has no '{fault['loc'][-1]}'"
        case "extra_forbidden":
            return f"'{shown(place[-2])}' has an unknown field {field}"
        case "greater_than":
            wanted = f"not a finite number above {limits['gt']:g}"
        case "greater_than_equal":
            wanted = f"not a finite number of at least {limits['ge']:g}"
        case "bool_type":
            return f"{field} is neither true nor false"
        case "list_type" | "string_type" if place[-1] in TEXTS:
            return f"{field} is not a list of texts"
        case "literal_error":
            wanted = f"not one of {limits['expected']}"
        case _:
            wanted = f"which is not accepted: {fault['msg'][:1].lower()}{fault['msg'][1:]}"
    return f"{field} is {shown(repr(found)[:60])}, {wanted}"


TEXTS = {"tokens", "stop_words", "word_pieces", "feature_names_in"}


def stored_settings(estimator: Any, without: tuple[str, ...] = (), **other: Any) -> Any:
    """The schema of an estimator's settings: the arguments of its constructor but some, others of another type."""
    hints = get_type_hints(estimator.__init__, include_extras=True)
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in hints.items() if name not in ("return", *without)}
    if "random_state" in fields:
        fields["random_state"] = (Whole | None, ...)
    return create_model("settings", __base__=StoredPart, **{**fields, **other})


def model_of(estimator: type[Any], fitted: type[Fitted], stored: Any, **settings: Any) -> tuple[Any, Any]:
    """An estimator with its stored settings, columns and classes, and the rest of what was fitted; see `stored_settings`."""
    kinds: dict[str, Any] = {"settings": (stored_settings(estimator, **settings), ...), "fitted": (fitted, ...)}
    parts: Any = create_model("parameters", __base__=StoredPart, **kinds).of(stored)
    model, found = estimator(**dict(parts.settings)), parts.fitted
    model.n_features_in_ = found.n_features_in
    if found.feature_names_in:
        check_names("feature_names_in", found.feature_names_in, found.n_features_in)
        model.feature_names_in_ = np.array(found.feature_names_in, dtype=object)
    if hasattr(found, "classes"):
        model.classes_ = classes_from_json(dict(found.classes))
        if found.classes.several and not hasattr(estimator, "several_labels_"):
            raise UsageError("'classes' are several labels, and a model of this kind has one class for each row")
    return model, found


def check_names(where: str, names: list[str], count: int) -> None:
    """Refuse names that are not so many, or that name the same thing twice."""
    if len(names) != count:
        raise UsageError(f"'{where}' has {len(names)} entries instead of {count}")
    if len(set(names)) < len(names):
        raise UsageError(f"'{where}' names the same thing twice")


class Classes(StoredPart):
    """Class labels and their type."""

    dtype: str
    values: list[str | int | float | bool]
    several: bool = False


class Fitted(StoredPart):
    """What every model of columns has."""

    n_features_in: Count
    feature_names_in: list[str]


class TextChoice(StoredPart):
    """`Choice` of a text model."""

    C: Annotated[Written, Field(gt=0)]
    loss: Literal["logistic", "squared_hinge", "squared"]
    null: NonNegativeFloat
    attention_step: bool
    vectors: Annotated[float, Field(ge=0, lt=1)] = 0.0
    blend: Annotated[float, Field(gt=0, le=1)] = 1.0
    temperature: PositiveFloat
    losses: dict[str, NonNegativeFloat]
    threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    log_weights: tuple[float, ...] = ()


class WordTokenizer(StoredPart):
    """The built-in words; lists, never names of files: nothing outside the folder is opened."""

    kind: Literal["words"]
    version: Literal[1, 2] = 1  # of the rule of words; folders of before have the first
    stop_words: list[str]
    stemmer: str | None
    word_pieces: list[str]


class JsonTokenizer(StoredPart):
    """A tokenizers file."""

    kind: Literal["file"]
    json_: str = Field(alias="json")


class FunctionTokenizer(StoredPart):
    """A function, which is not saved."""

    kind: Literal["callable"]


class TextVectors(StoredPart):
    """The vectors of words that a text model was fitted with."""

    name: str
    sha256: str


class TextEncoder(StoredPart):
    """The encoder that a text model was fitted with; without a name for a function."""

    name: str
    sha256: str
    share: PositiveFloat
    dim: Count


class TextParameters(StoredPart):
    """`TextClassifier`."""

    settings: Any
    classes: Classes
    choice: TextChoice
    log_null: Written
    tokens: list[str]
    vectors: TextVectors | None = None
    encoder: TextEncoder | None = None
    scaling: tuple[float, PositiveFloat] | None = None  # of a regressor
    text_column: str | None = None  # name of the column of texts that a table of one column had
    columns: dict[str, Any] | None = None  # as `ColumnEncoding` reads it, with the name of the column of texts
    tokenizer: Annotated[WordTokenizer | JsonTokenizer | FunctionTokenizer, Field(discriminator="kind")] | None


class BagScore(StoredPart):
    """`ScoreChoice`; a loss that was not validated is null, as JSON has no nan."""

    instance_map: Literal["linear", "fourier", "network"]
    C: PositiveFloat
    temperature: NonNegativeFloat | None
    anchor: NonNegativeFloat | None
    bandwidth: PositiveFloat | None
    scaling: Literal["feature", "shared"] | None
    queries: Count
    factor: PositiveFloat
    mean_loss: NonNegativeFloat | None
    attention_loss: NonNegativeFloat | None


class BagFitted(Fitted):
    """`BagClassifier`."""

    classes: Classes
    choices: list[BagScore]
    constant_losses: tuple[NonNegativeFloat, ...]
    scaling: tuple[float, PositiveFloat] | None = None  # of a regressor
    log_losses: dict[str, NonNegativeFloat]
    gains: dict[str, tuple[float, NonNegativeFloat]]


class KeptGroups(StoredPart):
    """`GroupChoice`."""

    attention: Literal["kept", "tested", "separate", "full"]
    group_map: Literal["linear", "splines", "fourier"]
    count: Whole
    C: PositiveFloat


class CountPath(StoredPart):
    """`GroupPath`."""

    counts: tuple[Whole, ...]
    losses: tuple[NonNegativeFloat, ...]
    errors: tuple[NonNegativeFloat, ...]
    chosen: Whole
    maps: dict[str, NonNegativeFloat]


class TestedUnion(StoredPart):
    """`UnionTest`."""

    groups: list[str | int | float | bool]
    p_value: NonNegativeFloat
    adjusted: NonNegativeFloat


class TestedGroups(StoredPart):
    """`GroupTests`."""

    p_values: list[NonNegativeFloat]
    adjusted: list[NonNegativeFloat]
    shares: list[NonNegativeFloat] | None
    alpha: PositiveFloat
    control: Literal["fwer", "fdr"]
    unions: list[TestedUnion]


class GroupFitted(Fitted):
    """`GroupClassifier`."""

    classes: Classes
    group_names: list[str | int | float | bool]
    selected_groups: list[str | int | float | bool]
    choice: KeptGroups
    path: CountPath | None
    tests: TestedGroups | None


class LogitChoice(StoredPart):
    """`RegressionChoice`."""

    alpha: NonNegativeFloat
    logit_norm: PositiveFloat
    losses: list[tuple[PositiveFloat, NonNegativeFloat]]


class RegressorFitted(Fitted):
    """`AttentionRegressor`."""

    outputs: Literal[1, 2]
    choice: LogitChoice
    status: Literal["converged", "iterations", "diverged"]
    message: str
    n_iter: Whole


class Description(StoredPart):
    """`model.json` itself."""

    model_config = ConfigDict(extra="allow")

    version: int
    kind: str
    tensors_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parameters: dict[str, Any]


class Card(StoredPart):
    """What programs read of `model-card.json`."""

    model_config = ConfigDict(extra="allow")

    kind: str
    data: dict[str, Any] | None
    evaluation: dict[str, Any] | None
