"""What all displays share, in the manner of scikit-learn's: data first, a picture when `plot` is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self, cast

from whichtoken.display.figures import COLOURS
from whichtoken.display.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOR, AGAINST = COLOURS[:2]  # blue and orange, as in the pages: told apart by everybody, on white and on black
LONGEST_NAME = 28


class Display(ABC):
    """Data of a picture. `plot` draws it into the axes that are given, or into a new figure, and keeps both.

    Attributes
    ----------
    ax_ : matplotlib Axes
        With the picture.
    figure_ : matplotlib Figure
        Around it.
    """

    ax_: Axes
    figure_: Figure

    size = (6.0, 4.0)  # of a new figure, in inches: its texts are readable on a phone

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the picture.

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
    def _draw(self, ax: Axes) -> None:
        """Fill the axes."""


def legend_above(ax: Axes) -> None:
    """A legend that never lies on the data."""
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3, fontsize="small")


def named(name: object) -> str:
    """A name from data as a label: short, with hidden signs seen, and no dollar that would start a formula."""
    words = visible(str(name), keep="")
    return (words if len(words) <= LONGEST_NAME else f"{words[: LONGEST_NAME - 1]}…").replace("$", r"\$")
