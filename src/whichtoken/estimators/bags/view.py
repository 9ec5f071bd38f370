"""The explanation of a bag as people read it: its instances in their order, in the colour of what they speak for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.estimators._explanation import named_probabilities

if TYPE_CHECKING:
    from whichtoken.estimators.bags.explanation import BagExplanation, InstanceReason


def view_of(explanation: BagExplanation) -> Decision:
    """The instances, the reasons and the smallest deletion, turned to the predicted label."""
    side, struck = explanation.side, set(explanation.counterfactual or ())
    return Decision(
        kind="bag",
        name=str(explanation.bag),
        probabilities=named_probabilities(explanation),
        score=side * explanation.decision,
        start=0.0,
        start_name="",
        change=_change(explanation),
        pieces=tuple(
            Piece(str(reason.instance), side * reason.contribution, _note(reason, side), reason.instance in struck)
            for reason in sorted(explanation.reasons, key=lambda reason: reason.instance)
        ),
        headings=("instance", "attention", "over uniform", f"adds to {explanation.label}"),
        reasons=tuple(
            Reason(
                (
                    str(reason.instance),
                    f"{reason.attention:.3f}",
                    f"{reason.over_uniform:.2f}",
                    f"{side * reason.contribution:+.3f}",
                ),
                side * reason.contribution,
                reason.instance in struck,
            )
            for reason in explanation.reasons
        ),
        separator=" ",
    )


def _change(explanation: BagExplanation) -> Change:
    if explanation.counterfactual:
        verb = "deleting instance" + ("s" if len(explanation.counterfactual) > 1 else "")
        return Change(tuple(map(str, explanation.counterfactual)), str(explanation.flips_to), verb)
    if not explanation.certified:
        return Change((), none="what would change the label is known exactly for one query and two classes only")
    return Change((), none="no deletion of instances changes the label")


def _note(reason: InstanceReason, side: int) -> str:
    return (
        f"instance {reason.instance}: attention {reason.attention:.3f} ({reason.over_uniform:.2f} of uniform),"
        f" adds {side * reason.contribution:+.3f}"
    )
