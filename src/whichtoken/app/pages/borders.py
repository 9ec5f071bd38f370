"""What a search for the borders of a claim found: a page with a picture, and the same in lines on the terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from whichtoken.app.pages.frame import frame_page, render
from whichtoken.app.pages.sentences import page_name, sentence
from whichtoken.display.html import COLORS, QUIET
from whichtoken.display.panels import panels
from whichtoken.display.text import pluralize
from whichtoken.files import write_text
from whichtoken.lab.borders import FAR_APART, Border, BorderTrial, StressResult
from whichtoken.lab.discovery import find

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIP = 1.5  # margins beyond it are drawn there
MARKS = {"holds": ("o", COLORS[0]), "fails": ("X", COLORS[4]), "undecided": ("D", QUIET)}
MARGIN = "margin (below 0: fails)"


def write_borders(result: StressResult, out: Path, command: Sequence[str]) -> Path:
    """Write the page of a search and its figure to the folder `stress` in `out`, and return the page.

    Parameters
    ----------
    result : StressResult
        What was found.
    out : Path
        Folder of the results.
    command : sequence of str
        The command that repeats the search.

    Returns
    -------
    Path
        The page.

    Examples
    --------
    >>> from whichtoken.app.pages.borders import write_borders
    >>> write_borders(found, Path("whichtoken-output"), ["whichtoken", "stress", found.claim])  # doctest: +SKIP
    """
    claim = find(result.claim)
    drawn = panels(lambda figure: draw_borders(result, figure), result.claim, f"Where {result.claim} stops holding")
    svgs = drawn.svgs if result.searched else ()
    body = render(
        "borders.html", claim=claim, result=result, figure=Markup("\n".join(svgs)), sentence=sentence,
        command=shlex.join(command), ranges=searched_ranges(result.searched, result.default),
        where=where_it_stops(result), holds=_where_it_holds(result),
    )  # fmt: skip
    (out / "stress").mkdir(exist_ok=True)
    page = out / "stress" / page_name(result.claim)
    if svgs:
        write_text(page.with_suffix(".svg"), drawn.standalone())
    write_text(page, frame_page(f"Where it stops: {claim.title}", body, links=[(page.name, "Where it stops")]))
    return page


def where_it_stops(result: StressResult) -> list[tuple[str, str, str]]:
    """Code, sentence and evidence of everything that was found."""
    found: Sequence[Any] = (*result.borders, *result.counterexamples)
    told = ("" if item.verdict is None else sentence(item.verdict) for item in found)
    return [(item.code, f"{item.claim}: {item}", said) for item, said in zip(found, told, strict=True)]


def where_it_holds(borders: Iterable[Any], default: Mapping[str, float], failing: int = 0) -> str:
    """Where no check fails that holds at the default, one field at a time, as a sentence; empty without borders.

    `failing` checks fail at the default itself.
    """
    first: list[str] = []
    last: list[str] = []
    apart: list[str] = []
    for name, start in default.items():
        parts = _parts_that_hold([border for border in borders if border.field == name], start)
        if len(parts) > 1:
            *most, end = (_in_words(*part) for part in parts)
            apart.append(f"for {name} {', '.join(most)} and {end}, but not between")
            continue
        low, high = parts[0]
        first += [f"{name} = {_number(low)}"] if low > -math.inf else []
        last += [f"{name} = {_number(high)}"] if high < math.inf else []
    around = [f"from {', '.join(first)} on"] * bool(first) + [f"up to {', '.join(last)}"] * bool(last)
    words = "; ".join([", and ".join(around)] * bool(around) + apart)
    if failing and words:
        return f"{'One check fails' if failing == 1 else f'{failing} checks fail'} at the default. The others hold {words}."
    return f"Holds {words}." if words else ""


def _where_it_holds(result: StressResult) -> str:
    failing = {item.code for item in result.counterexamples if item.certificate is None and not item.changes}
    return where_it_holds(result.borders, result.default, len(failing))


def _parts_that_hold(borders: Sequence[Any], start: float) -> list[tuple[float, float]]:
    """The part around the default and, if only one check has borders there, the parts beyond a gap."""
    below, above = (sorted(b.value for b in borders if b.fails == side) for side in ("below", "above"))
    low = max((value for value in below if value <= start), default=-math.inf)
    high = min((value for value in above if value >= start), default=math.inf)
    if len({border.code for border in borders}) > 1:
        return [(low, high)]
    lower = [(max((v for v in below if v < end), default=-math.inf), end) for end in above if end < low]
    upper = [(begin, min((v for v in above if v > begin), default=math.inf)) for begin in below if begin > high]
    return [*lower, (low, high), *upper]


def _in_words(low: float, high: float) -> str:
    upper = f"up to {_number(high)}" if high < math.inf else "on"
    return f"from {_number(low)} {upper}" if low > -math.inf else upper


def _number(value: float) -> str:
    return f"{float(f'{value:.3g}'):g}"


def searched_ranges(ranges: Mapping[str, Sequence[float]], default: Mapping[str, float]) -> str:
    """The part of each range that was tried, in words."""
    return ", ".join(
        f"{name} from {low:.4g} to {high:.4g} (default {default[name]:.4g})"
        if low < high
        else f"{name} only at its default of {default[name]:.4g}"
        for name, (low, high) in ranges.items()
    )


def borders_as_lines(result: StressResult) -> list[str]:
    """The result for a terminal."""
    hold = f"{pluralize(len(result.held), 'check')} hold{'s' if len(result.held) == 1 else ''}"
    holding = f": {hold} at the default ({', '.join(result.held)})" if result.held else ""
    lines = [f"{result.claim}{holding if result.searched else ''}"]
    lines += filter(None, [_where_it_holds(result)])
    for code, words, evidence in where_it_stops(result):
        lines += [f"{code}: {words}", *([f"    {evidence}"] if evidence else [])]
    if not result.borders and not result.counterexamples:
        lines.append(result.nothing)
    lines += [f"searched: {searched_ranges(result.searched, result.default)}"] if result.searched else []
    lines += [f"note: {note}" for note in result.notes]
    lines.append(f"{pluralize(len(result.trials), 'trial')}, {pluralize(result.rows, 'row')}, {result.seconds:.0f} s")
    return lines


def draw_borders(result: StressResult, figure: Figure) -> None:
    """A panel for each field: the margin of each check that it breaks, with the border; and the map of two fields."""
    two = len(result.map_fields) == 2 and bool(result.held)
    names = [name for name, (low, high) in result.searched.items() if low < high]
    columns = min(3, max(len(names) + two, 1))
    grid = figure.subplots(-(-(len(names) + two) // columns) or 1, columns, squeeze=False).ravel()
    for axes in grid[max(len(names) + two, 1) :]:
        axes.remove()
    if two:
        _draw_map(result, grid[0])
    for axes, name in zip(grid[int(two) :], names, strict=False):
        _draw_field(result, name, axes)


def _draw_field(result: StressResult, name: str, axes: Axes) -> None:
    borders = [border for border in result.borders if border.field == name]
    alone = sorted(
        ((dict(trial.changes).get(name, result.default[name]), trial) for trial in result.trials
         if trial.verdicts and {n for n, _ in trial.changes} <= {name}), key=lambda pair: pair[0],
    )  # fmt: skip
    codes = list(dict.fromkeys(border.code for border in borders)) or _tightest(result, [trial for _, trial in alone])
    for color, code in zip(COLORS, codes, strict=False):
        line = [
            (value, trial.state(code), margin) for value, trial in alone if (margin := trial.margin(code)) is not None
        ]
        axes.plot([v for v, _, _ in line], [_clip_margin(m) for _, _, m in line], color=color, lw=1, label=code)
        for state, (mark, ink) in MARKS.items():
            chosen = [(value, _clip_margin(margin)) for value, found, margin in line if found == state]
            axes.plot(*(zip(*chosen, strict=True) if chosen else ([], [])), mark, color=ink, ms=5)
    for border in borders:
        axes.axvspan(border.low, border.high, color=COLORS[1], alpha=0.3, lw=0)
        axes.axvline(border.value, color=COLORS[1], lw=1)
    axes.axhline(0, color=QUIET, lw=0.8)
    axes.axvline(result.default[name], color=QUIET, ls=":", lw=1)
    low, high = find(result.claim).ranges[name]
    axes.set(xlabel=name, ylabel=MARGIN, title=_title(name, borders), ylim=(-1.1 * CLIP, 1.1 * CLIP))
    if low > 0 and high / low >= FAR_APART:
        axes.set_xscale("log")
    axes.legend(fontsize="small")


def _draw_map(result: StressResult, axes: Axes) -> None:
    """The margin over two fields: circles where the check holds, crosses where it fails, and the line between them."""
    x, y = result.map_fields
    tried = [trial for trial in result.trials if {name for name, _ in trial.changes} <= {x, y}]
    code = max(result.held, key=lambda code: sum(trial.state(code) == "fails" for trial in tried))
    chosen = [
        (fields.get(x, result.default[x]), fields.get(y, result.default[y]), trial.state(code), _clip_margin(margin))
        for trial in tried
        for fields in (dict(trial.changes),)
        if (margin := trial.margin(code)) is not None
    ]
    for state, (mark, ink) in MARKS.items():
        part = [point for point in chosen if point[2] == state]
        if part:
            px, py, _, margins = zip(*part, strict=True)
            axes.scatter(
                px, py, c=margins, marker=mark, cmap="RdBu", vmin=-CLIP, vmax=CLIP, s=36, label=f"{code} {state}",
                edgecolors=ink, linewidths=0.6,
            )  # fmt: skip
    for name, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        low, high = find(result.claim).ranges[name]
        if low > 0 and high / low >= FAR_APART:
            scale("log")
    if len(chosen) > 3 and len({p[0] for p in chosen}) > 1 and len({p[1] for p in chosen}) > 1:
        logs = [np.log if axis == "log" else np.asarray for axis in (axes.get_xscale(), axes.get_yscale())]
        _draw_contour(axes, np.array([point[:2] for point in chosen], dtype=float), [p[3] for p in chosen], logs)
    axes.set(xlabel=x, ylabel=y, title=f"Map of {code}")
    axes.legend(fontsize="small", loc="upper left")


def _draw_contour(axes: Axes, places: Any, margins: Sequence[float], scales: Sequence[Any]) -> None:
    """The line on which the margin is 0, on triangles between the trials in the scales of the axes."""
    from matplotlib.tri import Triangulation

    flat = np.stack([scale(places[:, side]) for side, scale in enumerate(scales)], axis=1)
    triangles = Triangulation(*flat.T).triangles
    values = np.asarray(margins)
    if values.min() < 0 < values.max():
        drawn = Triangulation(places[:, 0], places[:, 1], triangles)
        axes.tricontour(drawn, values, levels=[0.0], colors="k", linewidths=1.2)


def _tightest(result: StressResult, trials: Sequence[BorderTrial]) -> list[str]:
    """The check that comes nearest to failing; none if none holds at the default."""

    def least(code: str) -> float:
        return min((margin for trial in trials if (margin := trial.margin(code)) is not None), default=math.inf)

    return [min(result.held, key=least)] if result.held else []


def _clip_margin(margin: float) -> float:
    return min(max(margin, -CLIP), CLIP)


def _title(name: str, borders: Sequence[Border]) -> str:
    if len(borders) != 1:
        return f"{name}: {f'{len(borders)} borders' if borders else 'no border found'}"
    return f"fails for {name} {'>' if borders[0].fails == 'above' else '<'} {borders[0].value:.3g}"
