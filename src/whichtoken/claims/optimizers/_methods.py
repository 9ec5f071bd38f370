"""The optimizers that claims compare: how each is run, and the norm whose margin it should maximize."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from whichtoken.claims._problems import Vector

if TYPE_CHECKING:
    from whichtoken.flows.descent import DescentResult
    from whichtoken.flows.margin_norms import MarginScale
    from whichtoken.flows.mirror_steps import DescentState

START = 1e-3  # standard deviation of the entries of the initial matrix: small, so that the optimizer chooses the tokens


@dataclass(frozen=True)
class Method:
    """An optimizer with its settings, and the norm (of `NORMS`) in which theory expects the largest margin; "" for none."""

    label: str
    optimizer: str
    options: dict[str, Any] = field(default_factory=dict)
    norm: str = ""
    factors: int = 1
    rate: bool = True  # whether steps of W have constant size, so that the share should approach its limit as 1 / steps


_TABLE = tomllib.loads(files(__package__).joinpath("_methods.toml").read_text(encoding="utf-8"))
METHODS = {name: Method(**entry) for name, entry in _TABLE.items()}
PRINTED = {"l1": "l_1", "l2": "l_2", "linf": "l_inf"}
OWN_NORMS = {"schatten-1.5": ("schatten", 1.5)}  # beside those of the map


def norm_name(name: str) -> str:
    """A norm as pages print it: linf is l_inf, with its index below."""
    return PRINTED.get(name, name)


def train_with(
    method: Method, problem: Any, start: Vector, steps: int, record: Iterable[int] = ()
) -> DescentResult[DescentState]:
    """Follow a method from a start."""
    from whichtoken.flows.descent import attention_descent, balanced_chain

    begin = balanced_chain(start, method.factors) if method.factors > 1 else start
    return attention_descent(problem, begin, method.optimizer, steps=steps, record=record, **method.options)


def margin_shares(
    problem: Any, run: DescentResult[DescentState], names: Iterable[str]
) -> tuple[MarginScale, list[dict[str, float]]]:
    """The largest margins in these norms for the selected tokens, and which share of them each record and the end have."""
    from whichtoken.flows.margin_norms import NORMS, margin_scale

    known = NORMS | OWN_NORMS
    scale = margin_scale(problem.tokens, problem.queries, run.selected, {name: known[name] for name in names})
    return scale, [scale.shares(state.direction) for state in (*run.snapshots, run.final)]
