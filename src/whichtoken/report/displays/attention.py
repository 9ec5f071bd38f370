"""Where one decision looked, and what it took from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.report.displays.base import AGAINST, FOR, Display, legend_above, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from whichtoken.estimators import Explanation


class AttentionDisplay(Display):
    """Attention to the tokens, instances or groups of one sample, in the colour of what they speak for.

    Parameters
    ----------
    names : sequence
        Of the tokens, instances or groups.
    attention : array_like of shape (n,)
        What each of them gets.
    supports : array_like of shape (n,)
        What each adds to `label`.
    label : object
        The predicted label.
    noun : str, default="token"
        What the names are.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the bars, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> from whichtoken import TextClassifier
    >>> from whichtoken.report import AttentionDisplay
    >>> texts = ["a good film", "a bad film", "good fun", "bad acting"] * 5
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-", "+", "-"] * 5)
    >>> shown = AttentionDisplay.from_estimator(model, ["a good film"])
    >>> shown.names[0], shown.label, bool(shown.supports[0] > 0)
    ('good', '+', True)
    """

    def __init__(
        self, names: Any, attention: ArrayLike, supports: ArrayLike, *, label: Any, noun: str = "token"
    ) -> None:
        self.names, self.label, self.noun = list(names), label, noun
        self.attention, self.supports = (np.asarray(part, dtype=np.float64) for part in (attention, supports))
        self.size = (6.0, 1.6 + 0.27 * len(self.names))

    @classmethod
    def from_estimator(cls, model: Any, X: Any, *, top: int = 12, ax: Axes | None = None) -> Self:
        """Draw where a fitted classifier looks in the first sample of X.

        Parameters
        ----------
        model : TextClassifier, BagClassifier or GroupClassifier
            Fitted.
        X : samples
            The first one is explained.
        top : int, default=12
            How many tokens, instances or groups.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        return cls.from_explanation(model.explain(X[:1])[0], top=top, ax=ax)

    @classmethod
    def from_explanation(cls, explanation: Explanation, *, top: int = 12, ax: Axes | None = None) -> Self:
        """Draw one of what `explain` returns.

        Parameters
        ----------
        explanation : Explanation
            Of a document, a bag or a row.
        top : int, default=12
            How many tokens, instances or groups: those that add most.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        view = explanation.view()
        reasons = [(r, v) for r, v in zip(explanation.reasons, view.reasons, strict=True) if r.attention is not None][
            :top
        ]
        return cls(
            [shown.cells[0] for _, shown in reasons],
            [reason.attention for reason, _ in reasons],
            [shown.support for _, shown in reasons],
            label=view.label,
            noun=view.headings[0],
        ).plot(ax)

    def _draw(self, ax: Axes) -> None:
        places = np.arange(len(self.names))
        for speaks, colour, hatch, label in (
            (self.supports >= 0, FOR, "", f"speaks for {named(self.label)}"),
            (self.supports < 0, AGAINST, "///", "speaks against it"),
        ):
            if speaks.any():
                ax.barh(places[speaks], self.attention[speaks], color=colour, alpha=0.85, hatch=hatch, label=label)
        for place, attention, support in zip(places, self.attention, self.supports, strict=True):
            ax.annotate(f" {support:+.2f}", (attention, place), va="center", fontsize="small")
        ax.set_yticks(places, [named(name) for name in self.names])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.margins(x=0.12)
        ax.set(xlabel="share of the attention (numbers: what it adds)", ylabel=self.noun, xlim=(0, None))
        legend_above(ax)
