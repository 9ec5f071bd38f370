"""The form of a claim, made from its Point: names, types, defaults, choices, and what the comments say of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin

from whichtoken.errors import UsageError
from whichtoken.lab.discovery import experiments
from whichtoken.lab.experiment import Experiment
from whichtoken.lab.plan import RunPlan, field_types, make_plan, type_name

LONGEST_TITLE = 200  # characters of what a run changes, in the title of its job
MOST_DIGITS = 20  # read of a whole number: one that long is too large anyway, and Python reads no more than 4300


@dataclass(frozen=True)
class Field:
    """One field of a Point as the form shows it."""

    name: str
    kind: str
    default: str
    choices: tuple[str, ...]
    preset_values: Mapping[str, str]  # of each preset, if it sets the field
    doc: str
    is_method: bool

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


@cache
def form_fields(experiment: Experiment[Any]) -> list[Field]:
    """The fields of the experiment's form."""
    types, docs = field_types(experiment), _comments(experiment.point_type)
    return [
        Field(
            field.name, type_name(types[field.name]), "" if field.default is MISSING else _shown(field.default),
            _choices(types[field.name]), _preset_values(experiment, field.name), docs.get(field.name, ""),
            field.name in experiment.method_fields,
        )
        for field in fields(experiment.point_type)
    ]  # fmt: skip


def planned(experiment: Experiment[Any], form: Mapping[str, str]) -> RunPlan:
    """The run that a filled-in form asks for; fields left empty keep what the preset says."""
    preset, seeds = form.get("preset", "quick"), form.get("seeds", "").strip()
    if seeds and not seeds.isdecimal():
        raise UsageError(
            f"seeds='{seeds[:40]}' is not a whole number of at least 1; leave it empty for the preset's own"
        )
    known = {field.name for field in form_fields(experiment)}
    values = {name: value.strip() for name in known if (value := form.get(f"set.{name}", "")).strip()}
    return make_plan(experiment, preset, values, int(seeds[:MOST_DIGITS]) if seeds else None)


def claim_arguments(id: str, form: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """What the job of a filled-in form is asked, and its title; a grid may have a million points, so a worker does it."""
    plan = planned(experiments()[id], form)
    changes = "".join(f", {name}={','.join(map(str, values))}" for name, values in plan.overrides.items())
    changes = changes if len(changes) <= LONGEST_TITLE else changes[:LONGEST_TITLE] + " …"
    seeds = f", {plan.seeds} seeds" if plan.seeds else ""
    arguments = {"id": id, "preset": plan.preset, "set": dict(plan.overrides), "seeds": plan.seeds}
    return arguments, f"{id}: {plan.preset}{changes}{seeds}"


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return tuple(str(choice) for choice in get_args(kind))
    return ("true", "false") if kind is bool else ()


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _preset_values(experiment: Experiment[Any], name: str) -> dict[str, str]:
    found = {}
    for preset, grids in experiment.presets.items():
        values = dict.fromkeys(_shown(value) for grid in grids for value in grid.axes.get(name, []))
        if values:
            found[preset] = ", ".join(values)
    return found


def _comments(point: type) -> dict[str, str]:
    """What stands behind `#` on the line of a field, or on the lines before it."""
    try:
        lines = inspect.getsource(point).splitlines()
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        code, _, comment = line.partition("#")
        name = re.match(r"\s+(\w+)\s*:", code)
        if name:
            found[name[1]] = " ".join([*above, comment.strip()]).strip()
        above = [*above, comment.strip()] if not code.strip() and comment else []
    return {name: text for name, text in found.items() if text}
