"""How claims draw: the verbs of `display.figures`, and those that only claims share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whichtoken.display.figures import (
    band,
    format_norms,
    grouped_bars,
    legend,
    level_ticks,
    points_on_theory,
    points_with_errors,
    quantity_bars,
)  # fmt: skip
from whichtoken.lab import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # only annotations name them: matplotlib is not imported before something is drawn
    Axes = Figure = Any

__all__ = [
    "Axes", "Figure", "band", "draw_table", "format_norms", "grouped_bars", "label_axes", "legend", "level_ticks",
    "plot_means", "plot_medians", "points_on_theory", "points_with_errors", "quantity_bars",
]  # fmt: skip


def label_axes(
    axes: Axes, title: str, x: str = "", y: str = "", log: str = "", *, legend: bool = False, **settings: Any
) -> None:
    """Title, labels, logarithmic axes ("x", "y" or "xy") and other settings of `Axes.set`."""
    scales: dict[str, Any] = {f"{axis}scale": "log" for axis in log}
    axes.set(**scales, title=title, xlabel=x, ylabel=y, **settings)
    if legend:
        axes.legend()


def plot_means(axes: Axes, rows: Rows[Any], x: str, y: str, style: str, label: str) -> None:
    """Mean of a measured quantity against a field of the point; rows without the quantity are left out."""
    known = Rows(row for row in rows if y in row.measured)
    levels = sorted(known.levels(x))
    axes.plot(levels, [known.where(**{x: level}).values(y).mean() for level in levels], style, label=label)


def plot_medians(axes: Axes, x: ArrayLike, curves: Any, label: str | None, shade: bool = False, **style: Any) -> Any:
    """Median over runs of curves (runs, k) against x (k,), the middle half of the runs shaded on demand."""
    (line,) = axes.plot(x, np.median(curves, axis=0), label=label, **style)
    if shade:
        low, high = np.quantile(curves, [0.25, 0.75], axis=0)
        axes.fill_between(np.asarray(x), low, high, color=line.get_color(), alpha=0.15, lw=0)
    return line


def draw_table(
    axes: Axes,
    table: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    digits: int,
    *,
    white: NDArray[np.bool_],
    bold: Callable[[int, int], bool] = lambda row, column: False,
    colors: NDArray[np.float64] | None = None,
    slant: bool = False,
    **mesh: Any,
) -> None:
    """A table of numbers on colored cells; `mesh` goes to `Axes.pcolormesh`.

    Parameters
    ----------
    white : cells whose number is white, as their color is dark.
    bold : whether the number of a cell is bold.
    colors : values that choose the colors, where they are not the numbers.
    slant : small numbers and slanted names of columns, for many columns.
    """
    axes.pcolormesh(table if colors is None else colors, edgecolors="none", **mesh)
    for (i, j), value in np.ndenumerate(table):
        axes.text(
            j + 0.5, i + 0.5, f"{value:.{digits}f}", ha="center", va="center", color="white" if white[i, j] else "black",
            weight="bold" if bold(i, j) else "normal", fontsize="small" if slant else None,
        )  # fmt: skip
    turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if slant else {}
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, **turned)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.grid(False)
