"""What every explanation of a decision offers, whatever it explains: a document, a bag or a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Explanation(Protocol):
    """Why one sample gets its label: `decision` is `bias` plus the sum of the contributions of its reasons.

    For two classes contributions are positive where they speak for the second class; for more, where they speak for `label`.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> texts = ["a good film", "a bad film"] * 10
    >>> [why] = TextClassifier(random_state=0).fit(texts, [1, 0] * 10).explain(["a good film"])
    >>> abs(why.bias + sum(reason.contribution for reason in why.reasons) - why.decision) < 1e-9
    True
    """

    @property
    def label(self) -> Any:
        """The label that is predicted."""
        ...

    @property
    def probability(self) -> float:
        """Of that label."""
        ...

    @property
    def decision(self) -> float:
        """The score that decides."""
        ...

    @property
    def bias(self) -> float:
        """What the score is without any reason."""
        ...

    @property
    def reasons(self) -> Sequence[Any]:
        """Tokens, instances or groups with what they add, the largest contribution first."""
        ...

    @property
    def counterfactual(self) -> Sequence[Any] | None:
        """The fewest reasons to take away until the label changes; None where no such set is known."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        ...
