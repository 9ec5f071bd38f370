"""Figures as inline SVG in the font and the text color of the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from whichtoken.display.html import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 110  # of marks that are a picture
ALMOST_BLACK = "#000001"
INK = "#010203"  # stands for the page's text color while matplotlib draws
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def page_settings(name: str) -> AbstractContextManager[None]:
    """The settings under which figures for pages are drawn; `name` salts the ids inside."""
    import matplotlib
    from cycler import cycler

    file = files("whichtoken.display") / "assets" / "figures.mplstyle"
    style = matplotlib.rc_params_from_file(str(file), use_default_template=False)
    return matplotlib.rc_context({**style, "svg.hashsalt": name, "axes.prop_cycle": cycler(color=COLORS)})


def as_svg(figure: Figure, **options: Any) -> str:
    """A drawn figure as a file of its own; `options` are those of `savefig`."""
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None}, dpi=DOTS_PER_INCH, **options)
    return target.getvalue()


def adapt_to_page(text: str) -> str:
    """The SVG element of a file, in the ink and the font of the page around it."""
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    return re.sub(r"font:\s*([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", text)


def marks_as_picture(group: Iterable[Axes]) -> None:
    """Turn thousands of marks into one picture; the axes stay lines and searchable text."""
    for axes in group:
        for artist in (*axes.lines, *axes.collections, *axes.patches):
            artist.set_rasterized(True)


def finish(figure: Figure) -> None:
    """The last touches to a drawn figure: plain ticks, printed norms, black text."""
    _plain_powers(figure)
    _format_norm_labels(figure)
    _keep_black(figure)


def _keep_black(figure: Figure) -> None:
    """Keep black text black on a dark page: pure black is left out of an SVG, and would take the page's text color."""
    for axes in figure.axes:
        for text in axes.texts:
            if text.get_color() in ("black", "k"):
                text.set_color(ALMOST_BLACK)


def _plain_powers(figure: Figure) -> None:
    """Few ticks on logarithmic axes, in plain text such as 10⁻³: ticks as formulas, ten a decade, take most of the time."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullLocator

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if type(axis.get_major_formatter()) is not LogFormatterSciNotation:
                continue
            low, high = sorted(axis.get_view_interval())
            decades = float(np.log10(high / low)) if low > 0 else 0.0
            axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
            if decades >= 1.5:
                axis.set_minor_locator(NullLocator())
            elif decades >= 0.4 and type(axis.get_major_locator()) is LogLocator:
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_minor_locator(NullLocator())
            else:
                axis.set_minor_formatter(FuncFormatter(lambda value, _: _power(value)))


def _format_norm_labels(figure: Figure) -> None:
    """Write norms in titles, labels and legends as they are printed; tick labels call `format_norms` themselves."""
    for axes in figure.axes:
        legend = axes.get_legend()
        # not by findobj, which makes all ticks, and takes longer than the drawing
        labels = (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ()))
        for text in labels:
            text.set_text(format_norms(text.get_text()))
        axes.set_title(format_norms(axes.get_title(loc="left")), loc="left")


def format_norms(text: str) -> str:
    """Norms in a text as they are printed: l_1.1 and l_inf with a script l and the index below."""
    if "$" in text:  # a formula already, or what a user wrote
        return text
    norms = re.compile(r"\bl_(inf\b|\d+(?:\.\d+)?|[a-z]\b)")
    return norms.sub(r"$\\ell_{\1}$", text).replace("_{inf}", r"_{\infty}")


def _power(value: float) -> str:
    """Plain from 0.01 to 5000, otherwise 10⁻³ or 2·10⁵; empty for zero and negative numbers."""
    if value <= 0:
        return ""
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = value / 10.0**exponent
    if -2 <= exponent <= 3:
        return f"{value:.3g}" if exponent < 3 else f"{value:.0f}"
    power = "10" + str(exponent).translate(SUPERSCRIPTS)
    return power if abs(factor - 1) < 1e-6 else f"{factor:.3g}·{power}"


def band(axes: Axes, x: ArrayLike, values: ArrayLike, label: str, **line: Any) -> None:
    """Mean over repeats as a line, with one standard error each side as a band.

    Parameters
    ----------
    x : (k,)
    values : (repeats, k)
    """
    table = np.asarray(values, dtype=np.float64)
    mean = table.mean(axis=0)
    (drawn,) = axes.plot(x, mean, label=label, **line)
    if len(table) > 1:
        error = table.std(axis=0, ddof=1) / np.sqrt(len(table))
        axes.fill_between(np.asarray(x), mean - error, mean + error, color=drawn.get_color(), alpha=0.2, linewidth=0)


def points_with_errors(axes: Axes, rows: Any, x: str, y: str, label: str, **style: Any) -> None:
    """Mean of a measured quantity over seeds against a field of the point, with standard errors; `rows` as in a claim."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(getattr(row.point, x), []).append(row.measured[y])
    levels = list(groups)
    samples = [np.array(values, dtype=np.float64) for values in groups.values()]
    means = [float(sample.mean()) for sample in samples]
    errors = [float(sample.std(ddof=1) / np.sqrt(len(sample))) if len(sample) > 1 else 0.0 for sample in samples]
    axes.errorbar(levels, means, errors, fmt="o", capsize=3, label=label, **style)


def grouped_bars(axes: Axes, names: Sequence[str], samples: Mapping[str, Sequence[ArrayLike]]) -> None:
    """Means as bars side by side, every single value as a dot on its bar, the legend above.

    Parameters
    ----------
    names : labels of the groups of bars.
    samples : for each kind of bar the values of every group.
    """
    width = 0.8 / len(samples)
    for kind, (label, groups) in enumerate(samples.items()):
        places = np.arange(len(names)) + width * (kind - (len(samples) - 1) / 2)
        values = [np.asarray(group, dtype=np.float64) for group in groups]
        means = [float(group.mean()) if len(group) else 0.0 for group in values]
        axes.bar(places, means, 0.92 * width, alpha=0.75, label=label)
        axes.plot(np.repeat(places, [len(group) for group in values]), np.concatenate(values), ".", color=INK, ms=3)
    axes.set_xticks(range(len(names)), list(map(format_norms, names)))
    axes.grid(False, axis="x")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(samples), fontsize=9)


def legend(axes: Axes, **style: Any) -> None:
    """A legend, unless nothing with a label was drawn."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**style)


def level_ticks(axes: Axes, levels: Iterable[float]) -> None:
    """Ticks of the x axis at these values and nowhere else."""
    places = list(levels)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)


def points_on_theory(axes: Axes, rows: Any, x: str, y: str, label: str, color: str, theory: str | None = None) -> None:
    """Means with standard errors as points, and predictions of the same quantity as a line with the label `theory`."""
    points_with_errors(axes, rows, x, y, label, color=color, ms=4)
    known = {getattr(row.point, x): row.predicted[y].value for row in rows if y in row.predicted}
    if known:
        axes.plot(*zip(*sorted(known.items()), strict=True), color=color, lw=1.5, label=theory)


def quantity_bars(axes: Axes, cases: Mapping[str, Any], quantities: Mapping[str, str]) -> None:
    """Measured quantities as bars side by side, by case; `cases` are rows as in a claim, `quantities` names by label."""
    samples = {label: [rows.values(name) for rows in cases.values()] for label, name in quantities.items()}
    grouped_bars(axes, list(cases), samples)
