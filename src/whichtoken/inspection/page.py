"""How an inspection is shown: a page with the colors and the style sheet of the explanations, and pictures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray

from whichtoken.display.html import asset, single_page, template_engine
from whichtoken.display.shown import Shown
from whichtoken.errors import UsageError
from whichtoken.files import write_text
from whichtoken.inspection.head_report import LEAST_TEXTS
from whichtoken.inspection.words import distinct_words, whole_words

if TYPE_CHECKING:
    from whichtoken.inspection.inspecting import Inspection, TextView

WIDTH, LINE, LETTER, SPACE = 900, 46, 8.6, 9.0  # of a picture, in pixels; letters of a fixed width
MOST_REASONS = 3  # that a word's note gives


def inspection_page(inspection: Inspection, shown: int) -> str:
    """The whole page."""
    title = f"Which token does each head pick? {inspection.model}"
    return single_page(title, inspection_body(inspection, shown), ("decision.css",))


def inspection_body(inspection: Inspection, shown: int) -> str:
    """The inspection as a part of a page or of a notebook."""
    return _environment().get_template("inspection.html").render(
        i=inspection, report=inspection.report(*inspection.focus), maps=_maps(inspection, shown), style=asset("decision.css"),
        texts=[_text(inspection, number) for number in range(min(shown, inspection.texts))],
        discoveries=[report for report in inspection.reports if report.label_q < 0.05],
        reliability=[*inspection.survival.reliability().itertuples()], most_reasons=MOST_REASONS, least_texts=LEAST_TEXTS,
    )  # fmt: skip


def _maps(inspection: Inspection, shown: int) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Of each map its kind, the numbers by layer and head, and how strongly each is colored."""
    views = (inspection.direct(number) for number in range(min(shown, inspection.texts)))
    direct = [view for view in views if view is not None]
    survival, sinks = inspection.grid("survival"), inspection.grid("sink_share")
    matters = np.mean(np.abs(direct), 0) if direct else inspection.grid("contribution")
    maps = [
        ("survival", 100 * survival, (survival - 0.5) / 0.5),
        ("sinks", sinks, sinks / (float(np.nanmax(sinks)) or 1.0)),
        ("direct" if direct else "added", matters, matters / (float(np.nanmax(matters)) or 1.0)),
    ]
    return [(kind, grid, np.clip(np.nan_to_num(strength), 0, 1)) for kind, grid, strength in maps]


def _text(inspection: Inspection, number: int) -> dict[str, Any]:
    view = inspection.view(number)
    layer, head = inspection.focus
    why = inspection.why(layer, head, number)
    _, numbers = whole_words(inspection._source.tokenizer, inspection.picks.ids[number].tolist())
    pick, special = int(view.picked[layer, head]), np.array(view.is_special)
    strength = np.zeros(len(special))
    if view.shares is not None:
        largest = max(1e-30, float(np.abs(view.shares[~special]).max(initial=0.0)))
        strength = np.where(special, 0.0, np.minimum(1.0, np.abs(view.shares) / largest))
    return {
        "why": why, "reason": why if why is not None and why.state == "readable" else inspection.reason(number),
        "view": view, "pick": pick, "rival": int(view.runner_up[layer, head]), "strength": strength,
        "pickers": [_pickers(inspection, view, k) for k in range(len(view.tokens))],
        "effects": inspection._effects(number) if pick >= 0 else None,
        "joined": [one == two for one, two in pairwise([*numbers, -1])],
    }  # fmt: skip


def _pickers(inspection: Inspection, view: TextView, k: int) -> list[tuple[int, int]]:
    """The heads that picked a token: the one in focus first, then by their gap."""
    places = [(int(one), int(two)) for one, two in np.argwhere(view.picked == k)]
    return sorted(places, key=lambda place: (place != inspection.focus, -view.gap[place]))


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
        template = _environment().get_template("head.svg")
        return template.render(figure=self, spots=spots, width=WIDTH + 16, height=y + 16)

    def save(self, path: str | Path) -> None:
        """Write the picture; an old file is replaced when the new one is complete."""
        if Path(path).suffix.lower() != ".svg":
            raise UsageError(f"a picture is written as vector graphics: {path} must end in .svg")
        write_text(path, self.svg().replace("currentColor", "#1c2027"))

    def _repr_html_(self) -> str:
        return self.svg()


@cache
def _environment() -> Environment:
    found = template_engine("whichtoken.inspection")
    found.globals["distinct_words"] = distinct_words
    found.filters["percent"] = lambda value: f"{100 * value:.0f} %" if np.isfinite(value) else "–"
    found.filters["short"] = lambda value: f"{value:.2g}" if np.isfinite(value) else "–"
    found.filters["number"] = lambda value, places=2: (
        f"{value + 0.0:.{places}f}".replace("-0.000", "0.000") if value is not None and np.isfinite(value) else "–"
    )
    return found
