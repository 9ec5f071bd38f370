"""A figure as panels: one SVG per axes, side by side on a wide page and one below another on a phone.

They have the page's font and text color, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whichtoken.display.figures import adapt_to_page, as_svg, finish, marks_as_picture, page_settings
from whichtoken.display.html import template_engine
from whichtoken.display.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CHARACTERS = 60_000  # of a panel as lines and texts; a larger one keeps its axes and has its marks as one picture
SIZES = {1: (5.8, 3.3), 2: (4.3, 3.2)}  # inches of the axes, by the number of columns
SMALLEST = (3.7, 2.9)
CELL = (9.0, 7.0)  # inches around each panel: space for labels and legends, cropped later
PADDING = 0.06
MOST_LETTERS = 28  # of the names in a legend of two columns
POINTS = 72  # per inch


@dataclass(frozen=True)
class Panels:
    """A drawn figure."""

    svgs: Sequence[str]  # for a page
    sizes: Sequence[tuple[float, float]]  # width and height of each, in points
    columns: int

    def standalone(self) -> str:
        """The figure as one SVG file, in rows of `columns`."""
        places, top, width = [], 0.0, 0.0
        for start in range(0, len(self.svgs), self.columns):
            left, row = 0.0, self.sizes[start : start + self.columns]
            for size in row:
                places.append((left, top, size))
                left += size[0] + 12
            top, width = top + max(height for _, height in row) + 12, max(width, left)
        template = template_engine("whichtoken.display", "assets").get_template("figure.svg")
        return template.render(width=width, height=top, placed=list(zip(self.svgs, places, strict=True))) + "\n"


def panels(draw: Callable[[Figure], None], name: str, label: str = "figure") -> Panels:
    """Draw a figure and cut it into panels.

    Parameters
    ----------
    draw : fills the figure.
    name : salts the ids inside, so that several figures can stand on one page.
    label : description for readers who cannot see it.
    """
    from matplotlib.figure import Figure

    with page_settings(name):
        figure = Figure(figsize=(9.0, 4.2))
        draw(figure)
        groups = _groups(figure)
        columns = _columns(groups)
        _spread(figure, groups, SIZES.get(columns, SMALLEST))
        finish(figure)
        made = [_panel(figure, group, label) for group in groups]
    return Panels([text for text, _ in made], [size for _, size in made], columns)


def _groups(figure: Figure) -> list[list[Axes]]:
    """Each axes with its color bars."""
    bars = {axes: bar for axes in figure.axes if (bar := getattr(axes, "_colorbar", None)) is not None}
    mains = [axes for axes in figure.axes if axes not in bars]
    return [[main, *(axes for axes, bar in bars.items() if bar.mappable.axes is main)] for main in mains]


def _columns(groups: Sequence[Sequence[Axes]]) -> int:
    """The largest number of axes that stand side by side."""
    rows: dict[float, int] = {}
    for main, *_ in groups:
        top = round(main.get_position().y1, 2)
        rows[top] = rows.get(top, 0) + 1
    return max(rows.values(), default=1)


def _spread(figure: Figure, groups: Sequence[Sequence[Axes]], size: tuple[float, float]) -> None:
    """Move the groups so far apart that no label touches a neighbor, each in the middle of its cell."""
    from matplotlib.transforms import Bbox

    figure.set_size_inches(CELL[0] * len(groups), CELL[1])
    for number, group in enumerate(groups):
        old = Bbox.union([axes.get_position(original=True) for axes in group])
        left, low = CELL[0] * number + (CELL[0] - size[0]) / 2, (CELL[1] - size[1]) / 2
        for axes in group:
            box = axes.get_position(original=True)
            x = left + size[0] * (box.x0 - old.x0) / old.width
            y = low + size[1] * (box.y0 - old.y0) / old.height
            width, height = size[0] * box.width / old.width, size[1] * box.height / old.height
            whole = (CELL[0] * len(groups), CELL[1])
            axes.set_position((x / whole[0], y / whole[1], width / whole[0], height / whole[1]))
        _complete(group[0])


def _complete(axes: Axes) -> None:
    """Give axes that share an axis with a neighbor their own labels, as they may stand alone."""
    for name, edge, shared in (("y", "left", axes.get_shared_y_axes()), ("x", "bottom", axes.get_shared_x_axes())):
        siblings = shared.get_siblings(axes)
        if len(siblings) > 1:
            axes.tick_params(axis=name, **{f"label{edge}": True})  # type: ignore[arg-type]
            labels = [getattr(one, f"get_{name}label")() for one in (axes, *siblings)]
            getattr(axes, f"set_{name}label")(next(filter(None, labels), ""))


def _legend_below(axes: Axes, renderer: Any) -> None:
    """Set the legend under the axes, where it hides nothing."""
    legend = axes.get_legend()
    if legend is None:
        return
    names = [text.get_text() for text in legend.get_texts()]
    columns = 2 if len(names) > 3 and max(map(len, names)) <= MOST_LETTERS else 1
    ticks = axes.xaxis.get_tightbbox(renderer)
    low = axes.transAxes.inverted().transform((0, ticks.y0))[1] if ticks is not None else 0.0
    handles = [handle for handle in legend.legend_handles if handle is not None]
    axes.legend(
        handles, names, title=legend.get_title().get_text() or None, loc="upper left",
        bbox_to_anchor=(-0.02, min(low, 0.0)), ncols=columns, fontsize=9, alignment="left", borderaxespad=0.3,
    )  # fmt: skip


def _panel(figure: Figure, group: Sequence[Axes], label: str) -> tuple[str, tuple[float, float]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    for axes in figure.axes:
        axes.set_visible(axes in group)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    _legend_below(group[0], renderer)
    tight = [box for axes in group if (box := axes.get_tightbbox(renderer)) is not None]
    box = Bbox.union(tight).transformed(figure.dpi_scale_trans.inverted()).padded(PADDING)
    heavy = sum(map(_weight, group)) > MOST_CHARACTERS
    text = "" if heavy else as_svg(figure, bbox_inches=box)
    if heavy or len(text) > MOST_CHARACTERS:
        marks_as_picture(group)
        text = as_svg(figure, bbox_inches=box)
    title = visible(" ".join(filter(None, (label, group[0].get_title(loc="left") or group[0].get_title()))))
    return _inline_svg(text, title), (box.width * POINTS, box.height * POINTS)


def _weight(axes: Axes) -> int:
    """About how many characters the marks of axes take, without drawing them: ninety each."""
    marked = (line for line in axes.lines if line.get_marker() not in ("None", "", " ", None))
    dots = sum(np.size(line.get_xdata()) for line in marked)
    return 90 * (dots + sum(np.size(found.get_offsets()) // 2 for found in axes.collections))


def _inline_svg(text: str, title: str) -> str:
    """The SVG without what only a file of its own needs, in the page's ink and font."""
    from html import escape

    text = re.sub(r"<metadata>.*?</metadata>", "", adapt_to_page(text), count=1, flags=re.DOTALL)
    text = re.sub(r'<g id="\w+_\d+">', "<g>", text)  # ids of parts: nothing refers to them, and they repeat
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text)
    opening = re.search(r'viewBox="[^"]*"', text)
    head = f'<svg {opening.group(0) if opening else ""} fill="currentColor" role="img" aria-label="{escape(title)}">'
    return visible(head + text[text.index(">") + 1 :].strip())
