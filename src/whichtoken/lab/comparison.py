"""A run beside the record: which of its verdicts are not as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whichtoken.lab.record import recorded_runs
from whichtoken.lab.results import Result
from whichtoken.lab.verdicts import Verdict


@dataclass(frozen=True)
class Difference:
    """One verdict that is not as recorded.

    Attributes
    ----------
    kind : str
        `changed` if it turned round (agrees against disagrees), `weaker` if it agreed and is undecided now, `other state`
        for the rest, `apart` if the states are alike and the intervals have no number in common, `vanished` if the run does
        not give it any more, `new` if the record does not know it.
    code : str
        Of the verdict.
    was : str
        State on record.
    verdict, recorded : Verdict or None
        As it is now, and as it was; None where the record has only the state.
    """

    kind: Literal["changed", "weaker", "other state", "apart", "vanished", "new"]
    code: str
    was: str
    verdict: Verdict | None
    recorded: Verdict | None


def differences(result: Result) -> list[Difference]:
    """What is not as recorded; nothing under other settings than the declared ones, to which the record does not apply."""
    before = _recorded(result)
    found = []
    for verdict in result.verdicts:
        was = result.expected(verdict)
        kind = _kind(verdict, was, before.get(verdict.code)) if was else None
        if kind is not None:
            found.append(Difference(kind, verdict.code, was, verdict, before.get(verdict.code)))
    states = result.experiment.expected.get(result.preset, {})
    gone = [Difference("vanished", code, states[code], None, before.get(code)) for code in result.vanished]
    new = [Difference("new", verdict.code, "", verdict, None) for verdict in result.appeared]
    return found + gone + new


def overlap(one: Verdict, other: Verdict) -> bool:
    """Whether two intervals have a number in common; where one is missing or a single number, its state says enough."""
    ends = (one.low, one.high, other.low, other.high)
    if any(end is None for end in ends) or one.low == one.high or other.low == other.high:
        return True
    low, high, low_before, high_before = (float(end) for end in ends if end is not None)
    return low <= high_before and low_before <= high


def _recorded(result: Result) -> dict[str, Verdict]:
    run = recorded_runs().get((result.id, result.preset))
    if run is None or run.version != result.experiment.version:
        return {}
    return {verdict.code: verdict for verdict in run.verdicts}


def _kind(
    verdict: Verdict, was: str, before: Verdict | None
) -> Literal["changed", "weaker", "other state", "apart"] | None:
    if "not-run" in (verdict.state, was):
        return None  # without its data there is nothing to compare
    if verdict.state == was:
        return "apart" if before is not None and not overlap(verdict, before) else None
    if {verdict.state, was} == {"agrees", "disagrees"}:
        return "changed"
    return "weaker" if was == "agrees" and verdict.state == "inconclusive" else "other state"
