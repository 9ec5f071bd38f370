"""Displays as in scikit-learn: a display holds data, and `plot` draws a figure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from whichtoken.display.html import COLORS, QUIET
from whichtoken.display.text import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whichtoken.estimators.groups.selection import GroupPath


class Display(ABC):
    """The base of all displays: `plot` draws the data into given axes or a new figure, and keeps both.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the picture.
    figure_ : matplotlib Figure
        Around it.
    """

    ax_: Axes
    figure_: Figure

    size = (6.0, 4.0)  # of a new figure, in inches, so that its text is readable on a phone

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the figure.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=self.size, layout="constrained")
        ax.grid(visible=True, alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
        self._draw(ax)
        self.ax_, self.figure_ = ax, cast("Figure", ax.figure)
        return self

    @abstractmethod
    def frame(self) -> pd.DataFrame:
        """The data that `plot` draws, as a table."""

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Fill the axes."""


LONGEST_NAME = 28


def axis_label(name: object) -> str:
    """A name from data as a label: short, hidden characters visible, and no dollar sign that would start a formula."""
    words = visible(str(name), keep="")
    return (words if len(words) <= LONGEST_NAME else f"{words[: LONGEST_NAME - 1]}…").replace("$", r"\$")


class GroupPathDisplay(Display):
    """How well a `GroupClassifier` predicts with few and with many groups: the held-out log loss along its path.

    Reach for it to see how many groups are needed, and what fewer or more would cost.

    Parameters
    ----------
    path : GroupPath
        Numbers of groups with their losses.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the path, once `plot` was called.
    figure_ : matplotlib Figure
        Around it.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> from whichtoken.app import GroupPathDisplay
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> model = GroupClassifier([0, 0, 1, 1, 2, 2], group_map="linear", random_state=0).fit(X, X[:, 2] + X[:, 3] > 0)
    >>> shown = GroupPathDisplay.from_estimator(model)
    >>> shown.path.counts, shown.path.chosen
    ((0, 1, 2, 3), 1)
    """

    def __init__(self, path: GroupPath) -> None:
        self.path = path

    @classmethod
    def from_estimator(cls, model: Any, *, ax: Axes | None = None) -> Self:
        """Draw the path of a fitted `GroupClassifier`.

        Parameters
        ----------
        model : GroupClassifier
            Fitted, with a number of groups that was chosen by validation.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if getattr(model, "path_", None) is None:
            raise ValueError(
                "the model has no path: its number of groups was given, or there were too few rows to validate"
            )
        return cls(model.path_).plot(ax)

    def frame(self) -> pd.DataFrame:
        """The path, a line for each number of groups."""
        import pandas as pd

        path = self.path
        return pd.DataFrame({"groups": path.counts, "log_loss": path.losses, "standard_error": path.errors})

    def _draw(self, ax: Axes) -> None:
        path = self.path
        losses = dict(zip(path.counts, path.losses, strict=True))
        places = np.arange(len(losses))
        ax.errorbar(places, path.losses, path.errors, fmt="o-", capsize=4, color=COLORS[0], label="held-out log loss")
        least = min(losses.values())
        ax.axhline(least, ls=":", color=QUIET, label=f"least, {least:.4f}")
        place = path.counts.index(path.chosen)
        label = f"kept: fewest within one standard error, {path.chosen}"
        ax.plot(place, losses[path.chosen], "D", ms=10, mfc="none", mew=2, color=COLORS[1], label=label)
        ax.set_xticks(places, [str(count) for count in path.counts])
        ax.set(xlabel="number of groups (bars: standard error of the difference to the least)", ylabel="log loss")
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3, fontsize="small")


class GroupCurveDisplay(Display):
    """What the columns of a group add to the score of a `GroupClassifier`, each over its range, the others at their averages.

    Reach for it to see how a group acts: lines, or curves where `choice_.group_map` bends them.

    Parameters
    ----------
    curves : mapping of str to pair of arrays
        For each column its values, in units of its range, and what they add.
    group : object
        Name of the group.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the curves, once `plot` was called.
    figure_ : matplotlib Figure
        Around them.

    Examples
    --------
    >>> import numpy as np
    >>> from whichtoken import GroupClassifier
    >>> from whichtoken.app import GroupCurveDisplay
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> model = GroupClassifier(group_map="splines", n_groups=1, C=1.0, random_state=0).fit(X, X[:, 0] ** 2 > 1)
    >>> shown = GroupCurveDisplay.from_estimator(model, X, 0)
    >>> values, added = shown.curves["0"]
    >>> bool(added[0] > added[50] < added[-1])
    True
    """

    def __init__(self, curves: Mapping[str, tuple[Any, Any]], group: Any) -> None:
        self.curves, self.group = dict(curves), group

    @classmethod
    def from_estimator(cls, model: Any, X: Any, group: Any, *, ax: Axes | None = None) -> Self:
        """Draw one selected group of a fitted `GroupClassifier` of two classes.

        Parameters
        ----------
        model : GroupClassifier
            Fitted.
        X : (n, features)
            Rows whose values give the range of each column, from the 1st to the 99th percentile.
        group : object
            One of `selected_groups_`.
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        the display
        """
        check_is_fitted(model)
        if group not in model.selected_groups_:
            raise ValueError(
                f"group={group!r} is not selected; selected: {', '.join(map(str, model.selected_groups_))}"
            )
        if len(model.classes_) != 2:
            raise ValueError(f"curves are those of two classes; this model has {len(model.classes_)}")
        table, curves = model._rows(X), {}
        names = getattr(model, "feature_names_in_", np.arange(table.shape[1]))
        for column in model._parts()[model.selected_groups_.index(group)]:
            low, high = np.quantile(table[:, column], [0.01, 0.99]).tolist()
            values = np.linspace(low, high, 101)
            rows = np.tile(model.column_means_, (101, 1))
            rows[:, column] = values
            curves[str(names[column])] = (values, model._terms(rows)[:, 0, column])
        return cls(curves, group).plot(ax)

    def frame(self) -> pd.DataFrame:
        """The curves, a line for each value of each column."""
        import pandas as pd

        lines = [(name, *point) for name, pair in self.curves.items() for point in zip(*pair, strict=True)]
        return pd.DataFrame(lines, columns=["column", "value", "adds"])

    def _draw(self, ax: Axes) -> None:
        for place, (name, (values, added)) in enumerate(self.curves.items()):
            span = np.ptp(values) or 1.0
            label = f"{axis_label(name)}, {values[0]:.3g} to {values[-1]:.3g}"
            ax.plot((values - values[0]) / span, added, color=COLORS[place % len(COLORS)], label=label)
        ax.axhline(0, color=QUIET, lw=1)
        columns = f"columns of {axis_label(self.group)}, from their 1st to their 99th percentile"
        ax.set(xlabel=columns, ylabel="adds to the score")
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3, fontsize="small")
