"""Reasons of a row's label: what each selected group adds, beside the average row, and the fewest that would change it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.decision import Change, Decision, Piece, Reason
from whichtoken.display.shown import Shown
from whichtoken.estimators._explanation import Explanation, named_probabilities, outcome_json, ranked
from whichtoken.estimators.common import plain_label, predicted

if TYPE_CHECKING:
    from whichtoken.estimators.groups.classifier import GroupClassifier

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnReason(Shown):
    """What one column does in one row."""

    column: str
    value: float
    contribution: float
    average: float  # of the training rows


@dataclass(frozen=True)
class GroupReason(Shown):
    """What one group does in one row."""

    group: Any
    attention: float | None  # covariates have none
    contribution: float  # to the decision, the sum over the columns
    columns: list[ColumnReason]


@dataclass(frozen=True)
class RowExplanation(Explanation):
    """Why a row gets its label: `decision` is `bias` plus the sum of the contributions.

    Contributions are those of the differences to the average training row, whose decision is the bias. They are positive where
    they speak for `label`, whatever the number of classes.
    """

    row: int  # from 1
    label: Any
    probability: float
    probabilities: dict[Any, float]  # of every label, the most probable first
    decision: float  # the score for the label
    bias: float  # that of the average row
    reasons: list[GroupReason]  # the largest contribution first
    # fewest groups to set to their averages until the label changes; None: no set does
    counterfactual: list[Any] | None
    flips_to: Any = None  # the label that this leads to

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        return asdict(self) | outcome_json(self) | {"flips_to": plain_label(self.flips_to)}

    def view(self, number: int = 1) -> Decision:
        """The values, the groups and the fewest of them that would change the label, as people read them."""
        struck = set(self.counterfactual or ())
        if struck:
            change = Change(
                tuple(map(str, self.counterfactual or ())), str(self.flips_to), "setting", " to the average"
            )
        else:
            change = Change((), none="setting groups to their averages does not change the label")
        return Decision(
            kind="row",
            name=str(self.row),
            probabilities=named_probabilities(self),
            score=self.decision,
            start=self.bias,
            start_name="average row",
            change=change,
            pieces=tuple(
                Piece(
                    f"{column.column} {column.value:.4g}",
                    column.contribution,
                    f"{column.column}: {column.value:.4g}, on average {column.average:.4g}; adds {column.contribution:+.3f}",
                    reason.group in struck,
                    f"{column.average:.4g}",
                )
                for reason in self.reasons
                for column in reason.columns
            ),
            headings=("group", "attention", f"adds to {self.label}"),
            reasons=tuple(
                Reason(
                    (
                        str(reason.group),
                        "" if reason.attention is None else f"{reason.attention:.3f}",
                        f"{reason.contribution:+.3f}",
                    ),
                    reason.contribution,
                    reason.group in struck,
                )
                for reason in self.reasons
            ),
            separator="  ",
        )


def explain_rows(model: GroupClassifier, X: Any) -> list[RowExplanation]:
    """One explanation per row of X (n, features)."""
    table = model._rows(X)
    decisions = model.decision_function(X)
    scores = decisions.reshape(len(table), -1)  # (n, scores)
    chosen = np.searchsorted(model.classes_, predicted(decisions, model.classes_))
    probabilities = model.predict_proba(X)
    means, (*groups, covariates) = model.column_means_, model._parts()
    attention = dict(zip(model.group_names_, model.attention_.tolist(), strict=True))
    # name, attention and columns of what adds to a decision
    parts: list[tuple[Any, float | None, NDArray[np.intp]]] = [
        (name, attention[name], columns) for name, columns in zip(model.selected_groups_, groups, strict=True)
    ]
    if len(covariates):
        parts.append(("covariates", None, covariates))
    [biases] = model._scores(means[None])
    every = model._terms(table)
    terms = [every[:, :, columns] for _, _, columns in parts]  # (n, scores, columns) each
    added = np.stack([np.zeros(every.shape[:2]), *(part.sum(axis=2) for part in terms)], axis=2)[:, :, 1:]
    names = getattr(model, "feature_names_in_", np.arange(table.shape[1])).astype(str)

    def reason(row: int, score: int, side: int, place: int) -> GroupReason:
        name, attention, columns = parts[place]
        numbers = zip(names[columns], table[row, columns], side * terms[place][row, score], means[columns], strict=True)
        each = [ColumnReason(str(column), *map(float, values)) for column, *values in numbers]
        return GroupReason(name, attention, side * float(added[row, score, place]), each)

    found = []
    for row, code in enumerate(chosen):
        # the one score of two classes speaks for the second
        score, side = (code, 1) if scores.shape[1] > 1 else (0, 1 if code else -1)
        order = np.argsort(-np.abs(added[row, score]), kind="stable")
        flips = fewest_changes(*_duels(added[row], scores[row], code))
        other = None
        if flips is not None:  # a third class may win where a rival was to
            rest = scores[row] - added[row][:, flips].sum(axis=1)
            [other] = predicted(rest if len(rest) == 1 else rest[None], model.classes_)
        found.append(
            RowExplanation(
                row=row + 1,
                label=model.classes_[code],
                probability=float(probabilities[row, code]),
                probabilities=ranked(model.classes_, probabilities[row]),
                decision=side * float(scores[row, score]),
                bias=side * float(biases[score]),
                reasons=[reason(row, score, side, place) for place in order],
                counterfactual=None if flips is None else [parts[place][0] for place in flips],
                flips_to=other,
            )
        )
    return found


def fewest_changes(gains: Array, leads: Array) -> NDArray[np.intp] | None:
    """The smallest set of parts without which a lead turns: gains (duels, parts) are their shares in leads (duels,).

    Exact: in a sum, the fewest terms that outweigh a lead are the largest ones.
    """
    sets = []
    for gain, lead in zip(gains, leads, strict=True):
        order = np.argsort(-gain, kind="stable")
        turned = np.flatnonzero(np.cumsum(gain[order]) > lead)
        if turned.size:
            sets.append(order[: turned[0] + 1])
    return min(sets, key=len, default=None)


def _duels(added: Array, scores: Array, code: int) -> tuple[Array, Array]:
    """Gains and leads of the label over each rival; added (scores, parts), scores (scores,)."""
    if len(scores) == 1:
        side = 1 if code else -1
        return side * added, side * scores
    rivals = np.delete(np.arange(len(scores)), code)
    return added[code] - added[rivals], scores[code] - scores[rivals]
