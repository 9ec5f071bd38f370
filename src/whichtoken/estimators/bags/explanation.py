"""Reasons of a bag's label: attention and contribution of each instance, and the fewest whose deletion would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.display.shown import Shown
from whichtoken.estimators._explanation import Explanation, named_probabilities, outcome_json, ranked
from whichtoken.estimators.common import plain_label

if TYPE_CHECKING:
    from whichtoken.estimators.bags.classifier import BagClassifier

Array = NDArray[np.float64]


def smallest_deletion(scores: Array, values: Array) -> list[int]:
    """A provably smallest set of instances without which a bag gets another label; empty if there is none.

    At least one instance is left. Any smaller number of instances may be deleted, whichever, without a change.

    Parameters
    ----------
    scores : array (L,)
        x_l . q.
    values : array (L,)
        x_l . w + b.
    """
    terms = np.exp(scores - scores.max()) * values
    positive = bool(terms.sum() > 0)
    order = np.argsort(-terms if positive else terms, kind="stable")
    # what is left after k deletions, summed from the other end: differences of sums would be rounding once little is left
    left = np.cumsum(terms[order][::-1])[::-1]  # (L,): left[k] without the first k
    flipped = (left <= 0) if positive else (left > 0)
    flipped[0] = False  # nothing is deleted
    return order[: np.argmax(flipped)].tolist()  # type: ignore[no-any-return]


def confirmed_deletion(scores: Array, values: Array) -> list[int]:
    """Instances without which a bag gets another label, for several queries; empty if none were found.

    One after the other, the instance goes without which the score is worst for the label; then those that are not needed come
    back. Two at most are proven to be the fewest, as single ones were all tried. Otherwise fewer may be enough.

    Parameters
    ----------
    scores, values : array (L, h)
        As for `smallest_deletion`, of each query; the decision is the sum over them.
    """

    def parts(kept: list[int]) -> tuple[Array, Array]:
        weights = np.exp(scores[kept] - scores[kept].max(axis=0))
        return weights * values[kept], weights

    def decision(kept: list[int]) -> float:
        terms, weights = parts(kept)
        return float((terms.sum(axis=0) / weights.sum(axis=0)).sum())

    def without_each(kept: list[int]) -> Array:
        # sums from both ends: differences of sums would be rounding where one instance has nearly all of the weight
        terms, weights = (
            np.pad(part.cumsum(axis=0), ((1, 0), (0, 0)))[:-1]
            + np.pad(part[::-1].cumsum(axis=0)[::-1], ((0, 1), (0, 0)))[1:]
            for part in parts(kept)
        )
        return np.asarray((terms / np.maximum(weights, 1e-300)).sum(axis=1))

    kept, deleted = list(range(len(scores))), list[int]()
    positive = decision(kept) > 0
    while (decision(kept) > 0) == positive:
        if len(kept) == 1:
            return []
        left = without_each(kept)
        deleted.append(kept.pop(int(left.argmin() if positive else left.argmax())))
    for k in deleted[:-1]:
        if (decision([*kept, k]) > 0) != positive:
            kept.append(k)
    return [k for k in deleted if k not in kept]


@dataclass(frozen=True)
class InstanceReason(Shown):
    """What one instance does in one bag."""

    instance: int  # from 1, in the order of the bag
    attention: float  # the mean over queries
    over_uniform: float  # attention over 1/L: 1 is nothing special
    contribution: float  # to the decision, positive where it speaks for the label


@dataclass(frozen=True)
class BagExplanation(Explanation):
    """Why a bag gets its label: `decision` is the sum of the contributions.

    A contribution is positive where it speaks for `label`, whatever the number of classes. Attention sums to one, so the bias
    is part of what each instance contributes, and shifts or other units of the features change nothing.
    """

    bag: Any
    label: Any
    probability: float
    probabilities: dict[Any, float]  # of every label, the most probable first
    decision: float  # the score for the label
    reasons: list[InstanceReason]  # the largest contribution first
    certified: bool  # whether the deletion is proven to be the smallest: with one query and two classes
    counterfactual: list[int] | None  # fewest instances to delete until the label changes; None: no deletion does
    robust_to: int | None  # deleting this many instances, whichever, changes nothing
    flips_to: Any = None  # the label without the instances of the counterfactual

    @property
    def bias(self) -> float:
        """The score without any instance: 0, because the bias is shared out with the attention."""
        return 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        names = {"bag": plain_label(self.bag), "flips_to": plain_label(self.flips_to)}
        return asdict(self) | outcome_json(self) | names

    def view(self, number: int = 1) -> Decision:
        """The instances, the reasons and the smallest deletion, as people read them."""
        struck = set(self.counterfactual or ())
        return Decision(
            kind="bag",
            name=str(self.bag),
            probabilities=named_probabilities(self),
            score=self.decision,
            start=0.0,
            start_name="",
            change=self._change(),
            pieces=tuple(
                Piece(
                    str(reason.instance),
                    reason.contribution,
                    f"instance {reason.instance}: attention {reason.attention:.3f} ({reason.over_uniform:.2f} of uniform),"
                    f" adds {reason.contribution:+.3f}",
                    reason.instance in struck,
                )
                for reason in sorted(self.reasons, key=lambda reason: reason.instance)
            ),
            headings=("instance", "attention", "over uniform", f"adds to {self.label}"),
            reasons=tuple(
                Reason(
                    (str(r.instance), f"{r.attention:.3f}", f"{r.over_uniform:.2f}", f"{r.contribution:+.3f}"),
                    r.contribution,
                    r.instance in struck,
                )
                for r in self.reasons
            ),
            separator=" ",
        )

    def _change(self) -> Change:
        if self.counterfactual:
            verb = "deleting instance" + ("s" if len(self.counterfactual) > 1 else "")
            return Change(tuple(map(str, self.counterfactual)), str(self.flips_to), verb, proven=self.certified)
        none = "no deletion of instances changes the label"
        if len(self.probabilities) > 2:
            none = "deletions that change the label are searched for with two classes only"
        elif not self.certified:
            none = "no deletion that changes the label was found, which proves nothing with several queries"
        return Change((), none=none)


def bag_explanations(model: BagClassifier, X: Any, names: Sequence[Any] | None = None) -> list[BagExplanation]:
    """One explanation per bag; without names, bags are counted from 1."""
    decisions, probabilities = model.decision_function(X), model.predict_proba(X)
    scores = decisions.reshape(len(decisions), -1)
    if names is not None and len(names) != len(scores):
        raise ValueError(f"names has {len(names)} entries for {len(scores)} bags; there must be one for each")
    codes = (decisions > 0).astype(int) if decisions.ndim == 1 else decisions.argmax(axis=1)
    count, queries = model.queries_.shape[:2]
    certified = (count, queries) == (1, 1)
    deletions = model.counterfactuals(X) if count == 1 else [[]] * len(scores)
    found = []
    for i, parts in enumerate(zip(codes, model.attention(X), model.contributions(X), deletions, strict=True)):
        code, weights, added, deleted = parts
        # the one score of two classes speaks for the second
        score, side = (code, 1) if count > 1 else (0, 1 if code else -1)
        attention = weights.reshape(-1, count, queries)[:, score].mean(axis=1)
        contributions = side * added.reshape(-1, count)[:, score]
        found.append(
            BagExplanation(
                bag=i + 1 if names is None else names[i],
                label=model.classes_[code],
                probability=float(probabilities[i, code]),
                probabilities=ranked(model.classes_, probabilities[i]),
                decision=side * float(scores[i, score]),
                reasons=[
                    InstanceReason(
                        int(k) + 1, float(attention[k]), float(len(attention) * attention[k]), float(contributions[k])
                    )
                    for k in np.argsort(-np.abs(contributions), kind="stable")
                ],
                certified=certified,
                counterfactual=[k + 1 for k in deleted] or None,
                robust_to=(len(deleted) or len(attention)) - 1 if certified else None,
                flips_to=model.classes_[1 - code] if deleted else None,
            )
        )
    return found
