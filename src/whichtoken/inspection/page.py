"""How an inspection is shown: a page with the colors and the style sheet of the explanations, and pictures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray

from whichtoken.display.html import asset, page, text
from whichtoken.display.shown import Shown
from whichtoken.display.templates import template_engine
from whichtoken.files import write_text

if TYPE_CHECKING:
    from whichtoken.inspection.inspecting import Inspection, TextView

WIDTH, LINE, LETTER, SPACE = 900, 46, 8.6, 9.0  # of a picture, in pixels; letters of a fixed width
MOST_REASONS = 3  # that a word's note gives


def inspection_page(inspection: Inspection, shown: int) -> str:
    """The whole page."""
    style = "\n".join(map(asset, ("style.css", "decision.css")))
    return page(
        f"Which token does each head pick? {inspection.model}",
        f"<main>{inspection_body(inspection, shown)}</main>",
        style,
    )


def inspection_body(inspection: Inspection, shown: int) -> str:
    """The inspection as a part of a page or of a notebook."""
    layer, head = inspection.focus
    return _environment().get_template("inspection.html").render(
        i=inspection, report=inspection.report(layer, head), maps=_maps(inspection, shown), style=asset("decision.css"),
        texts=[_text(inspection, number) for number in range(min(shown, inspection.texts))],
        heads=[(report, inspection.examples(report.layer, report.head)) for report in inspection.reports],
        discoveries=[report for report in inspection.reports if report.label_q < 0.05],
        reliability=inspection.survival.reliability().itertuples(),
    )  # fmt: skip


def _maps(inspection: Inspection, shown: int) -> list[dict[str, Any]]:
    direct = [
        view for number in range(min(shown, inspection.texts)) if (view := inspection.view(number).direct) is not None
    ]
    what, share = "Share of the head in what its layer adds to the residual stream.", inspection.grid("contribution")
    if direct:
        what, share = (
            "Mean size of the head's direct contribution to the decision, over the shown texts.",
            np.mean(np.abs(direct), 0),
        )
    survival = inspection.grid("survival")
    maps = [
        ("How confidently", "% of one-word changes that a typical pick survives; below 80 a tie, from 95 decided.",
         100 * survival, (survival - 0.5) / 0.5, "{:.0f}"),
        ("Sinks", "Share of the query's attention that goes to attention sinks.", inspection.grid("sink_share"), None, "{:.2f}"),
        ("Does it matter", what, share, None, "{:.2f}"),
    ]  # fmt: skip
    return [
        {
            "title": title,
            "what": what,
            "rows": _rows(inspection, grid, _unit(grid) if strength is None else strength, form),
        }
        for title, what, grid, strength, form in maps
    ]


def _unit(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    return grid / (float(np.nanmax(grid)) or 1.0)


def _rows(
    inspection: Inspection, grid: NDArray[np.float64], strength: NDArray[np.float64], form: str
) -> list[list[dict[str, Any]]]:
    rows = []
    for layer in range(len(grid)):
        cells = []
        for head, value in enumerate(grid[layer]):
            report = inspection.report(layer, head)
            names = ", ".join(f"{name} {100 * part:.0f} %" for name, part in report.top_picks[:3])
            shown = form.format(value)
            cells.append({
                "text": shown[1:] if shown.startswith("0.") else shown, "layer": layer, "head": head,
                "alpha": f"{0.85 * float(np.clip(np.nan_to_num(strength[layer, head]), 0, 1)):.2f}",
                "note": f"layer {layer}, head {head}: {report.kind}, {report.state}; picks {names}",
                "chosen": (layer, head) == inspection.focus,
            })  # fmt: skip
        rows.append(cells)
    return rows


def _text(inspection: Inspection, number: int) -> dict[str, Any]:
    view = inspection.view(number)
    layer, head = inspection.focus
    pick, rival = int(view.picked[layer, head]), int(view.runner_up[layer, head])
    counts = np.bincount(view.picked[view.picked >= 0].ravel(), minlength=len(view.tokens))
    found = {
        "view": view, "words": [_word(inspection, view, k, int(counts[k]), pick, rival) for k in range(len(view.tokens))],
        "pick": None, "figure": "", "why": None,
    }  # fmt: skip
    if pick >= 0:
        effects = inspection.effects(number)
        found |= {
            "pick": view.words[pick], "rival": view.words[rival] if rival >= 0 else "nothing", "gap": view.gap[layer, head],
            "survival": view.survival[layer, head], "weight": view.weight[layer, head],
            "why": inspection.why(layer, head, number), "figure": inspection.figure(layer, head, number).svg(),
            "whole_pick": view.words[int(effects.picks.token[0, head, 0])], "removed": effects.removed[head],
            "masked": effects.masked[head], "deleted": effects.deleted[head],
            "direct": None if view.direct is None else float(view.direct[layer, head]),
        }  # fmt: skip
    return found


def _word(inspection: Inspection, view: TextView, k: int, heads: int, pick: int, rival: int) -> dict[str, Any]:
    notes = [f"{view.words[k]}: picked by {heads} of {view.picked.size} heads"]
    places = [(int(one), int(two)) for one, two in np.argwhere(view.picked == k)]
    places.sort(key=lambda place: (place != inspection.focus, -view.gap[place]))
    for layer, head in places[:MOST_REASONS]:
        why = inspection.why(layer, head, view.number)
        other = int(view.runner_up[layer, head])
        said = f"ahead of {view.words[other]} by {view.gap[layer, head]:.1f}" if other >= 0 else "without a rival"
        if why is not None and why.state == "readable":
            said += f", mostly {why.main} ({why.parts[why.main]:+.1f})"
        elif why is not None:
            said += f", {why.state}"
        notes.append(f"layer {layer} head {head}: {said}")
    share, alpha = None, 0.0
    if view.shares is not None:
        share = float(view.shares[k])
        notes.append(f"share in the decision {share:+.2f}")
        words = np.abs(view.shares[~np.array(view.is_special)])
        alpha = 0.0 if view.is_special[k] else min(1.0, abs(share) / max(1e-30, float(words.max(initial=0.0))))
    return {
        "text": view.tokens[k], "special": view.is_special[k], "against": share is not None and share < 0,
        "alpha": f"{0.7 * alpha:.2f}",
        "note": "; ".join(notes), "mark": "pick" if k == pick else "runner-up" if k == rival else "",
    }  # fmt: skip


@dataclass(frozen=True)
class HeadFigure(Shown):
    """A text with a line from a query to the word that a head picked: `Inspection.figure`.

    Reach for it to put a pick into a paper: `save("head.svg")` writes it; it shows itself in a notebook.

    Attributes
    ----------
    words : tuple of str
        The words of the text.
    query, pick, runner_up : int
        Their places among the words; -1 where there is none.
    weight : float
        Attention on the pick.
    title : str
        What stands above.

    Examples
    --------
    >>> from whichtoken.inspection import inspect, load_tokenizer, load_transformer
    >>> texts = ["a very good film", "the bad plot", "a good plot", "the very bad film"]
    >>> found = inspect(load_transformer("my-model"), texts, load_tokenizer("my-model"))
    >>> found.figure(layer=1, head=2).svg().startswith("<svg")
    True
    """

    words: tuple[str, ...]
    query: int
    pick: int
    runner_up: int
    weight: float
    title: str

    @classmethod
    def of(
        cls, names: Sequence[str], numbers: Sequence[int], query: int, pick: int, rival: int, weight: float, title: str
    ) -> HeadFigure:
        """From the word of each token, with the tokens of one word joined; -1: no such token."""
        words = dict(zip(numbers, names, strict=True))
        asked, picked, second = (numbers[token] if token >= 0 else -1 for token in (query, pick, rival))
        return cls(tuple(words[number] for number in sorted(words)), asked, picked, second, weight, title)

    def svg(self) -> str:
        """The picture; colors are those of the page around it."""
        x, y = 8.0, 62.0
        spots: list[tuple[float, float, float]] = []
        for word in self.words:
            width = LETTER * len(word)
            if x + width > WIDTH and spots:
                x, y = 8.0, y + LINE
            spots.append((x, y, width))
            x += width + SPACE
        lines = [
            self._line(spots, self.pick, "", 1.5 + 3 * self.weight),
            self._line(spots, self.runner_up, ' stroke-dasharray="4 4"', 1.2),
        ]
        drawn = []
        for number, (left, base, width) in enumerate(spots):
            strong = ' font-weight="700"' if number in (self.query, self.pick) else ""
            fill = "#3b82f6" if number == self.pick else "currentColor"
            drawn.append(
                f'<text x="{left:.1f}" y="{base:.1f}" textLength="{width:.1f}" fill="{fill}"{strong}>'
                f"{text(self.words[number])}</text>"
            )
        height = y + 16
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 16} {height:.0f}" width="{WIDTH + 16}" role="img" '
            f'aria-label="{text(self.title)}" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" '
            f'style="max-width:100%;height:auto"><text x="8" y="16" fill="currentColor" font-size="13">{text(self.title)}</text>'
            f"{''.join(lines)}{''.join(drawn)}</svg>"
        )

    def _line(self, spots: Sequence[tuple[float, float, float]], word: int, dash: str, width: float) -> str:
        if word < 0 or word == self.query:
            return ""
        (x1, y1, w1), (x2, y2, w2) = spots[self.query], spots[word]
        start, end = x1 + w1 / 2, x2 + w2 / 2
        # the way goes above both words, the higher the farther they are
        top = min(y1, y2) - 14 - min(22.0, abs(end - start) / 12)
        way = f"M{start:.1f},{y1 - 12:.1f} C{start:.1f},{top:.1f} {end:.1f},{top:.1f} {end:.1f},{y2 - 12:.1f}"
        return f'<path d="{way}" fill="none" stroke="#3b82f6" stroke-width="{width:.1f}"{dash}/>'

    def save(self, path: str | Path) -> None:
        """Write the picture; an old file is replaced when the new one is complete."""
        write_text(path, self.svg().replace("currentColor", "#1c2027"))

    def _repr_html_(self) -> str:
        return self.svg()


@cache
def _environment() -> Environment:
    found = template_engine("whichtoken.inspection")
    found.filters["percent"] = lambda value: f"{100 * value:.0f} %" if np.isfinite(value) else "–"
    found.filters["number"] = lambda value, places=2: (
        f"{value + 0.0:.{places}f}".replace("-0.000", "0.000") if value is not None and np.isfinite(value) else "–"
    )
    return found
