"""Would a verdict have noticed a wrong theory? Its prediction is changed, the rows stay, and the claim is judged again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from whichtoken.lab.experiment import Row, Rows
from whichtoken.lab.plan import RunPlan, RunTask
from whichtoken.lab.verdicts import Claim, shared_level

CHANGES = (0.05, 0.1)  # shares of a prediction


@dataclass(frozen=True)
class Power:
    """What one claim that agrees would have noticed.

    Attributes
    ----------
    code : str
        Name of the claim.
    kind : str
        Equal, at least or at most.
    notices : tuple of bool
        For each of `CHANGES`: whether a theory wrong by that share, either way, is no longer said to agree. A bound is changed in
        the direction that makes it harder to keep.
    """

    code: str
    kind: str
    notices: tuple[bool, ...]


def power(plan: RunPlan, stored: Mapping[RunTask, Row[Any]]) -> list[Power]:
    """What the claims of a plan that agree on these rows would have noticed."""
    claims = list(plan.experiment.judge(Rows.sorted(stored.values())))
    level = shared_level(claims, plan.looks)
    agreeing = [claim for claim in claims if claim.theory is not None and claim.settle(level).state == "agrees"]
    return [
        Power(claim.code, claim.kind, tuple(notices(claim, level, change) for change in CHANGES)) for claim in agreeing
    ]


def notices(claim: Claim, level: float, change: float) -> bool:
    """Whether the claim would not be said to agree if its theory were off by this share of it, either way.

    Of a theory that says 0, off by the claim's material amount, whatever the share; a claim that names none notices nothing.
    """
    assert claim.theory is not None
    amount = abs(claim.theory) * change if claim.theory else claim.material
    if amount is None:
        return False
    signs = {"equal": (-1, 1), "at least": (1,), "at most": (-1,)}[claim.kind]
    return all(replace(claim, theory=claim.theory + sign * amount).settle(level).state != "agrees" for sign in signs)
