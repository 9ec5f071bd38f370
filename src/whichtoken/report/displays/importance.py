"""What a fitted model goes by: its tokens, or its groups of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from whichtoken.display.figures import QUIET
from whichtoken.report.displays.base import AGAINST, FOR, Display, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ImportanceDisplay(Display):
    """The tokens or groups that count most, as bars.

    Parameters
    ----------
    names : sequence
        Of the tokens or groups, the most important first.
    strengths : array_like of shape (n,)
        Their bars; a negative one speaks against `label`.
    label : object, optional
        What positive bars speak for; None where strengths have no sign.
    what : str, default="importance"
        What is measured, for the axis.
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
    >>> from whichtoken.report import ImportanceDisplay
    >>> texts = ["a good film", "a bad film", "good fun", "bad acting"] * 5
    >>> model = TextClassifier(random_state=0).fit(texts, ["+", "-", "+", "-"] * 5)
    >>> shown = ImportanceDisplay.from_estimator(model, top=2)
    >>> sorted(shown.names), shown.ax_.get_ylabel()
    (['bad', 'good'], 'token')
    """

    def __init__(
        self, names: Any, strengths: ArrayLike, *, label: Any = None, what: str = "importance", noun: str = "token"
    ) -> None:
        self.names, self.strengths = list(names), np.asarray(strengths, dtype=np.float64)
        self.label, self.what, self.noun = label, what, noun
        self.size = (6.0, 1.4 + 0.27 * len(self.names))

    @classmethod
    def from_estimator(cls, model: Any, *, label: Any = None, top: int = 15, ax: Axes | None = None) -> Self:
        """Draw what a fitted `TextClassifier` or `GroupClassifier` goes by.

        Parameters
        ----------
        model : TextClassifier or GroupClassifier
            Fitted.
        label : object, optional
            The class that positive bars speak for; by default the last one. Groups have no sign, and take none.
        top : int, default=15
            How many.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if hasattr(model, "token_importance"):
            return cls._of_tokens(model, label, top).plot(ax)
        if not hasattr(model, "group_names_"):
            raise ValueError(
                f"{type(model).__name__} has no importance to show; give a TextClassifier or a GroupClassifier"
            )
        if label is not None:
            raise ValueError(f"label={label!r}: attention to groups is the same for all labels; leave label out")
        order = np.argsort(-model.attention_, kind="stable")[:top]
        names = [model.group_names_[place] for place in order]
        return cls(names, model.attention_[order], what="attention to the group", noun="group").plot(ax)

    @classmethod
    def _of_tokens(cls, model: Any, label: Any, top: int) -> Self:
        classes = model.classes_.tolist()
        label = classes[-1] if label is None else label
        if label not in classes:
            raise ValueError(f"label={label!r} is not one of the classes {', '.join(map(repr, classes))}")
        table = model.token_importance()
        side = -1 if len(classes) == 2 and label == classes[0] else 1  # of two classes the table has the second
        rows = table[table["class"] == (classes[-1] if len(classes) == 2 else label)].head(top)
        strengths = np.exp(rows["selection"] - table["selection"].max()) * rows["value"] * side
        return cls(rows["token"], strengths, label=label, what="value, weighted by attention")

    def _draw(self, ax: Axes) -> None:
        places = np.arange(len(self.names))
        colours = [FOR if strength >= 0 else AGAINST for strength in self.strengths]
        bars = ax.barh(places, self.strengths, color=colours, alpha=0.85)
        for bar, strength in zip(bars, self.strengths, strict=True):
            bar.set_hatch("" if strength >= 0 else "///")  # not by colour alone
        ax.axvline(0, color=QUIET, lw=1)
        ax.set_yticks(places, [named(name) for name in self.names])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        side = "" if self.label is None else f" (right: for {named(self.label)}, left: against)"
        ax.set(xlabel=f"{self.what}{side}", ylabel=self.noun)
