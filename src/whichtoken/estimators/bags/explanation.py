"""Reasons of a bag's label: attention and contribution of each instance, and the fewest whose deletion would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.decision import Decision
from whichtoken.display.shown import Shown
from whichtoken.estimators._explanation import Explained, outcome_json, plain_label, ranked

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier


@dataclass(frozen=True)
class InstanceReason(Shown):
    """What one instance does in one bag."""

    instance: int  # from 1, in the order of the bag
    attention: float  # the mean over queries
    over_uniform: float  # attention over 1/L: 1 is nothing special
    contribution: float  # to the decision


@dataclass(frozen=True)
class BagExplanation(Explained):
    """Why a bag gets its label: `decision` is the sum of the contributions.

    For two classes contributions are positive where they speak for the second class; for more, where they speak for `label`.
    Attention sums to one, so the bias is part of what each instance contributes, and shifts or other units of the features
    change nothing.
    """

    bag: Any
    label: Any
    probability: float
    probabilities: dict[Any, float]  # of every label, the most probable first
    decision: float
    reasons: list[InstanceReason]  # the largest contribution first
    certified: bool  # with one query and two classes; otherwise nothing is said about deletions
    counterfactual: list[int] | None  # fewest instances to delete until the label changes; None: no deletion does
    robust_to: int | None  # deleting this many instances, whichever, changes nothing
    flips_to: Any = None  # the label without the instances of the counterfactual

    @property
    def bias(self) -> float:
        """What the score is without any instance: nothing, as the bias is shared out with the attention."""
        return 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return (
            asdict(self) | outcome_json(self) | {"bag": plain_label(self.bag), "flips_to": plain_label(self.flips_to)}
        )

    def view(self, number: int = 1) -> Decision:
        """As people read it."""
        from whichtoken.estimators.bags.view import view_of

        return view_of(self)


def bag_explanations(model: BagClassifier, X: Any, names: Sequence[Any] | None = None) -> list[BagExplanation]:
    """One explanation per bag; without names, bags are counted from 1."""
    decisions, probabilities = model.decision_function(X), model.predict_proba(X)
    scores = decisions.reshape(len(decisions), -1)
    if names is not None and len(names) != len(scores):
        raise ValueError(f"names has {len(names)} entries for {len(scores)} bags; there must be one for each")
    codes = np.searchsorted(model.classes_, model.predict(X))
    count, queries = model.queries_.shape[:2]
    certified = (count, queries) == (1, 1)
    deletions = model.counterfactuals(X) if certified else [None] * len(scores)
    parts = zip(codes, model.attention(X), model.contributions(X), deletions, strict=True)
    found = []
    for i, (code, weights, added, deletion) in enumerate(parts):
        score = code if count > 1 else 0
        attention = weights.reshape(-1, count, queries)[:, score].mean(axis=1)
        contributions = added.reshape(-1, count)[:, score]
        deleted = deletion.deleted if deletion else None
        found.append(
            BagExplanation(
                bag=i + 1 if names is None else names[i],
                label=model.classes_[code],
                probability=float(probabilities[i, code]),
                probabilities=ranked(model.classes_, probabilities[i]),
                decision=float(scores[i, score]),
                reasons=[
                    InstanceReason(
                        int(k) + 1, float(attention[k]), float(len(attention) * attention[k]), float(contributions[k])
                    )
                    for k in np.argsort(-np.abs(contributions), kind="stable")
                ],
                certified=certified,
                counterfactual=None if deleted is None else [k + 1 for k in deleted],
                robust_to=deletion.robust_to if deletion else None,
                flips_to=None if deleted is None else model.classes_[1 - code],  # certified for two classes only
            )
        )
    return found
