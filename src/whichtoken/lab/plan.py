"""From a preset, overrides and a number of seeds to the tasks of one run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError, in_one_line, unknown
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.experiment import Experiment

MAP_PRESET = "map"  # where the search for borders starts, outside of `full`
MOST_ROWS = 1_000_000  # more rows in one run would not fit into memory
Overrides = Mapping[str, list[Any]]


@dataclass(frozen=True)
class RunTask(Shown):
    """One repeat of one point, or (seed None) the prediction of the point; small, because it is sent to workers."""

    experiment: str
    point: str  # canonical JSON
    seed: int | None


@dataclass(frozen=True)
class RunPlan(Shown):
    """What one run of one experiment consists of."""

    experiment: Experiment[Any]
    preset: str
    overrides: Overrides
    seeds: int | None
    repeats: Mapping[str, int] | None = None  # of each point, if undecided claims have asked for more
    first: int = 0  # number of the first repeat

    @property
    def as_declared(self) -> bool:
        """Whether the recorded states apply: not under overrides or another number of seeds."""
        return not self.overrides and self.seeds is None

    @property
    def size(self) -> int:
        """The largest number of rows, computed without listing them."""
        return sum(
            (self.seeds or grid.most) * math.prod(map(len, {**grid.axes, **self.overrides}.values()))
            for grid in self.experiment.presets[self.preset]
        )

    @cached_property
    def points(self) -> dict[str, Any]:
        """Distinct points by their canonical JSON, in the order of the grid."""
        return {text: point for text, point, _, _ in self._repeats_or_fault[0]}

    @cached_property
    def tasks(self) -> list[RunTask]:
        """Every repeat of every point."""
        repeats = self.repeats or {text: least for text, (least, _) in self.bounds.items()}
        return [
            RunTask(self.experiment.id, text, self.first + seed)
            for text in self.points
            for seed in range(repeats[text])
        ]

    @cached_property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Fewest and most repeats of each point; the larger numbers if two grids share a point."""
        bounds: dict[str, tuple[int, int]] = {}
        for text, _, least, most in self._repeats_or_fault[0]:
            before = bounds.get(text, (0, 0))
            bounds[text] = max(least, before[0]), max(most, before[1])
        return bounds

    @property
    def looks(self) -> int:
        """How often the claims may be judged: repeats double between two looks."""
        return 1 + max((math.ceil(math.log2(most / least)) for least, most in self.bounds.values()), default=0)

    @property
    def look(self) -> int:
        """The number of the look that the repeats have reached."""
        repeats = self.repeats or {}
        ratios = (repeats[text] / least for text, (least, _) in self.bounds.items() if text in repeats)
        return 1 + max((math.ceil(math.log2(ratio)) for ratio in ratios), default=0)

    @property
    def largest(self) -> RunPlan:
        """The plan if every point needs the most repeats."""
        return replace(self, repeats={text: most for text, (_, most) in self.bounds.items()})

    @property
    def absent(self) -> dict[str, str]:
        """Points that cannot run here, each with the reason."""
        return self._absent[0]

    @property
    def fault(self) -> str:
        """What is wrong with the claim itself, as far as planning shows; empty if nothing is."""
        return self._repeats_or_fault[1] or self._absent[1]

    @cached_property
    def _repeats_or_fault(self) -> tuple[list[tuple[str, Any, int, int]], str]:
        repeats = []
        try:
            for grid in self.experiment.presets[self.preset]:
                for values in grid.points(self.overrides):
                    point = _point(self.experiment, values)
                    bounds = self.seeds or int(grid.least), self.seeds or int(grid.most)
                    repeats.append((canonical_json(vars(point)), point, *bounds))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return [], f"the points of {self.preset} cannot be created: {in_one_line(error)}"
        return repeats, ""

    @cached_property
    def _absent(self) -> tuple[dict[str, str], str]:
        try:
            missing = self.experiment.missing
            reasons = {text: missing or self.experiment.absent(point) for text, point in self.points.items()}
            return {text: str(reason) for text, reason in reasons.items() if reason}, ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it is unknown whether the data exist, so nothing of this claim runs
            fault = f"absent() failed: {in_one_line(error)}"
            return dict.fromkeys(self.points, fault), fault


def make_plan(
    experiment: Experiment[Any],
    preset: str = "quick",
    overrides: Mapping[str, Any] | None = None,
    seeds: int | None = None,
) -> RunPlan:
    """Check the request and plan it.

    Parameters
    ----------
    overrides : fields of the point to override; a list makes a grid, and a text is split at commas.
    seeds : number of repeats of each point instead of the preset's.
    """
    if preset not in experiment.presets:
        raise unknown("preset", preset, experiment.presets, experiment.id)
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, (int, np.integer)) or seeds < 1):
        raise UsageError("{seeds} must be a whole number of at least 1", seeds=seeds)
    plan = RunPlan(
        experiment, preset, _check_overrides(experiment, overrides or {}), None if seeds is None else int(seeds)
    )
    check_size([plan])
    # values that the point refuses are a mistake of the caller, not a fault of the claim
    if plan.overrides and not plan.points:
        raise UsageError(plan.fault)
    return plan


def check_size(plans: Iterable[RunPlan]) -> None:
    """Refuse a run that is too large, before its points are listed."""
    plans = list(plans)
    rows = sum(plan.size for plan in plans)
    if rows > MOST_ROWS:
        what = plans[0].experiment.id if len(plans) == 1 else f"{len(plans)} experiments"
        raise UsageError(
            f"{what}: {rows:,} rows are more than the {MOST_ROWS:,} of one run; choose fewer seeds or fewer values"
        )


def read_point(experiment: Experiment[Any], text: str) -> Any:
    """The point of this canonical JSON, with lists as tuples."""
    values = json.loads(text)
    return experiment.point_type(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


@cache
def field_types(experiment: Experiment[Any]) -> dict[str, Any]:
    """Type of each field of the experiment's point."""
    hints = get_type_hints(experiment.point_type)
    return {field.name: hints[field.name] for field in fields(experiment.point_type)}


def type_name(kind: Any) -> str:
    """A field's type in words: its choices if it has any."""
    return " | ".join(get_args(kind)) if get_origin(kind) is Literal else getattr(kind, "__name__", str(kind))


def _check_overrides(experiment: Experiment[Any], overrides: Mapping[str, Any]) -> dict[str, list[Any]]:
    known = field_types(experiment)
    for name in overrides:
        if name not in known:
            raise unknown("field", name, known, experiment.id)
    return {
        name: [_value(experiment, name, known[name], item) for item in _items(values)]
        for name, values in overrides.items()
    }


def _items(values: Any) -> list[Any]:
    """The values of one override: a list as given, a text split at commas unless it is one JSON list."""
    if isinstance(values, str) and not values.lstrip().startswith("["):
        return values.split(",")
    return values if isinstance(values, list) else [values]


def _point(experiment: Experiment[Any], values: Mapping[str, Any]) -> Any:
    known = field_types(experiment)
    typed = {name: _value(experiment, name, known[name], value) for name, value in values.items()}
    try:
        return experiment.point_type(**typed)
    except ValueError as error:  # a point that checks its own values
        raise UsageError(f"{experiment.id}: {error}") from error


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))  # JSON has neither


def _value(experiment: Experiment[Any], name: str, kind: Any, value: Any) -> Any:
    """The value in the field's type, so that 2 and 2.0 are one point."""
    if type(value) is kind and (kind is not float or math.isfinite(value)):
        return value
    from pydantic import ValidationError

    adapter = _adapter(kind)
    try:
        if isinstance(value, str) and value.lstrip().startswith("["):
            return adapter.validate_json(value)
        return adapter.validate_python(value.strip() if isinstance(value, str) else value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"{experiment.id}: {name}={value!r} is not accepted ({type_name(kind)}): {reason}") from None
