"""The optimizers that claims compare: how each is run, and the norm whose margin it should maximize."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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


METHODS = {
    # for p = 2 the flow takes the path of normalized steps; what differs is the clock, and in time nothing falls as a power
    "gd": Method("GD, as a flow", "mirror", {"rule": "flow", "lr": 0.1}, "l2", 1, False),
    "normalized-gd": Method("normalized GD", "normalized-gd", {"lr": 0.1}, "l2"),
    "sign": Method("sign", "sign", {"lr": 0.02}, "linf"),
    "coordinate": Method("greedy coordinate", "coordinate", {"lr": 1.0}, "l1", 1, False),  # slower than 1 / steps
    "adam": Method("Adam (.9, .9), eps 0", "adam", {"lr": 0.02, "betas": (0.9, 0.9), "eps": 0.0}, "linf"),
    "adam-default": Method("Adam (.9, .999), eps 1e-8", "adam", {"lr": 0.02}),
    "lion": Method("Lion (.9, .99)", "lion", {"lr": 0.004}, "linf"),
    "muon": Method("Muon, exact, no momentum", "muon", {"lr": 0.1, "momentum": 0.0}, "spectral"),
    "muon-momentum": Method("Muon, exact, momentum .95", "muon", {"lr": 0.02}, "spectral"),
    "muon-torch": Method("Muon as in torch", "muon", {"lr": 0.02, "method": "newton-schulz"}),
    "shampoo": Method("Shampoo (.9)", "shampoo", {"lr": 0.1}, "spectral"),
    "soap": Method("SOAP-like (.95, .95), eps 0", "soap", {"lr": 0.02, "eps": 0.0}),
    "schatten": Method(
        "Schatten-1.5 mirror", "mirror", {"lr": 0.1, "p": 1.5, "norm": "schatten"}, "schatten-1.5", 1, False
    ),
    "keys-queries": Method(
        "normalized GD on K and Q", "normalized-gd", {"lr": 0.2, "lr_power": 0.5}, "nuclear", 2, False
    ),
    "keys-queries-muon": Method(
        "Muon on K and Q", "muon", {"lr": 0.2, "lr_power": 0.5, "momentum": 0.0}, "spectral", 2, False
    ),
}
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
