"""What all explanations have in common, of a document, a bag or a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whichtoken.display.decision import Decision, notebook_html
from whichtoken.display.shown import Shown
from whichtoken.estimators.common import plain_label


class Explanation(Shown):
    """Why one sample, a document, a bag or a row, gets its label: what `explain` of every classifier gives.

    `decision` is `bias` plus the sum of the contributions of its reasons. Contributions are positive where they speak for
    `label`, whatever the number of classes.

    Attributes
    ----------
    label : object
        The label that is predicted.
    probability : float
        Of that label.
    probabilities : dict
        Of every label, the most probable first.
    decision : float
        The score that decides.
    bias : float
        What the score is without any reason.
    reasons : sequence
        Tokens, instances or groups with what they add, the largest contribution first.
    counterfactual : sequence or None
        The fewest reasons to take away until the label changes; None where no such set is known.
    flips_to : object
        The label that this leads to; None where there is no such set.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> texts = ["a good film", "a bad film"] * 10
    >>> [why] = TextClassifier(random_state=0).fit(texts, [1, 0] * 10).explain(["a good film"])
    >>> abs(why.bias + sum(reason.contribution for reason in why.reasons) - why.decision) < 1e-9
    True
    """

    label: Any
    probability: float
    decision: float
    flips_to: Any

    if TYPE_CHECKING:  # at run time, a dataclass would take a property for the default of its field

        @property
        def probabilities(self) -> dict[Any, float]: ...
        @property
        def bias(self) -> float: ...
        @property
        def reasons(self) -> Sequence[Any]: ...
        @property
        def counterfactual(self) -> Sequence[Any] | None: ...

    def view(self, number: int = 1) -> Decision:
        """As people read it; `number` is that of the sample where it has no name."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        raise NotImplementedError

    @property
    def runner_up(self) -> Any:
        """The second most probable label."""
        return next(label for label in self.probabilities if label != self.label)

    def _headline(self) -> str:
        return self.view().summary()

    def _repr_html_(self) -> str:
        return notebook_html(self.view())


def number_view(
    decision: Decision, number: float, start: tuple[str, float], change: float, certified: bool
) -> Decision:
    """How a decision between the sides of a number reads as that number; `start` is what it is without any reason."""
    does = f"{'lowers' if change < 0 else 'raises'} it by {abs(change):g} or more"
    none = f"no deletion of {decision.headings[0]}s {does}"
    named = replace(decision.change, none=none, proven=certified, does=does)
    name, value = start
    return replace(
        decision, probabilities=(), score=number, start=value, start_name=name, change=named,
        headings=(*decision.headings[:-1], "adds"),
    )  # fmt: skip


def named_probabilities(explanation: Explanation) -> tuple[tuple[str, float], ...]:
    """Labels as texts with their probabilities, the predicted one first even where another has the same."""
    pairs = sorted(explanation.probabilities.items(), key=lambda pair: pair[0] != explanation.label)
    return tuple((str(label), probability) for label, probability in pairs)


def ranked(labels: NDArray[Any], probabilities: NDArray[Any]) -> dict[Any, float]:
    """Probabilities by label, the largest first."""
    order = np.argsort(-probabilities, kind="stable").tolist()
    return {plain_label(labels[k]): float(probabilities[k]) for k in order}


def outcome_json(explanation: Explanation) -> dict[str, Any]:
    """Label, runner-up and probabilities, as every explanation has them in JSON."""
    listed = [{"label": label, "probability": share} for label, share in explanation.probabilities.items()]
    return {"label": plain_label(explanation.label), "runner_up": explanation.runner_up, "probabilities": listed}
