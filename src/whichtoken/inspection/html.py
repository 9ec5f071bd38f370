"""The page of an inspection: static, nothing loaded from elsewhere, usable with the keyboard alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray

from whichtoken.display.templates import template_engine

if TYPE_CHECKING:
    from whichtoken.inspection.inspecting import Inspection, TextView

BLUE, ORANGE, GREEN, RED = (37, 99, 176), (196, 98, 16), (20, 130, 80), (190, 50, 50)


@dataclass(frozen=True)
class Cell:
    """One head in a map."""

    text: str
    style: str
    hint: str


@dataclass(frozen=True)
class Word:
    """One token of a shown text."""

    text: str
    special: bool
    style: str
    hint: str
    mark: str  # "pick", "runner-up" or nothing


def inspection_page(inspection: Inspection) -> str:
    """The whole page."""
    return _environment().get_template("page.html").render(body=fragment(inspection), model=inspection.model)


def fragment(inspection: Inspection) -> str:
    """The page without its frame, for a notebook."""
    report = inspection.report(inspection.layer, inspection.head)
    return _environment().get_template("inspection.html").render(
        i=inspection, report=report, maps=_maps(inspection), texts=[_text(inspection, view) for view in inspection.views],
        discoveries=[r for r in inspection.reports if r.label_q < 0.05],
    )  # fmt: skip


def _maps(inspection: Inspection) -> list[dict[str, Any]]:
    gap, sink, share = (inspection.grid(name) for name in ("gap", "sink_share", "contribution"))
    maps = [
        ("How surely", "Median gap between the scores of the pick and the runner-up.", np.minimum(gap, 99), BLUE, "{:.1f}"),
        ("Sinks", "Share of the query's attention that goes to attention sinks.", sink, ORANGE, "{:.2f}"),
    ]  # fmt: skip
    direct = [np.abs(view.direct.heads) for view in inspection.views if view.direct is not None]
    if direct:
        what = "Mean size of the head's direct contribution to the decision, over the shown texts."
        maps.append(("Does it matter", what, np.mean(direct, 0), GREEN, "{:.2f}"))
    else:
        what = "Share of the head in what its layer adds to the residual stream."
        maps.append(("Does it matter", what, share, GREEN, "{:.2f}"))
    return [
        {
            "title": title,
            "what": what,
            "rows": [_row(inspection, layer, grid, colour, form) for layer in range(len(grid))],
        }
        for title, what, grid, colour, form in maps
    ]


def _row(
    inspection: Inspection, layer: int, grid: NDArray[np.float64], colour: tuple[int, ...], form: str
) -> list[Cell]:
    top = float(np.nanmax(grid)) or 1.0
    cells = []
    for head, value in enumerate(grid[layer]):
        report = inspection.report(layer, head)
        names = ", ".join(f"{name} {100 * part:.0f} %" for name, part in report.top_picks[:3])
        chosen = (layer, head) == (inspection.layer, inspection.head)
        style = shade(colour, value / top) + (";outline:3px solid #111;outline-offset:-3px" if chosen else "")
        cells.append(
            Cell(
                form.format(value).replace("0.", ".", 1) if value < 1 else form.format(value),
                style,
                f"layer {layer}, head {head}: {report.kind}; picks {names}",
            )
        )
    return cells


def shade(colour: tuple[int, ...], strength: float) -> str:
    """A background between white and a colour, and a text colour that can be read on it."""
    strength = float(np.clip(np.nan_to_num(strength), 0, 1)) * 0.9
    mixed = [round(255 + (part - 255) * strength) for part in colour]
    light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] > 140
    return f"background:rgb({mixed[0]},{mixed[1]},{mixed[2]});color:{'#111' if light else '#fff'}"


def _text(inspection: Inspection, view: TextView) -> dict[str, Any]:
    counts = np.bincount(view.picked[view.picked >= 0].ravel(), minlength=len(view.tokens))
    layer, head = inspection.layer, inspection.head
    pick, rival = int(view.picked[layer, head]), int(view.runner_up[layer, head])
    words = [_word(view, k, counts, pick, rival) for k in range(len(view.tokens))]
    effect = view.effects
    line = None
    if effect is not None and pick >= 0:
        line = {
            "pick": view.tokens[pick], "rival": view.tokens[rival] if rival >= 0 else "none", "gap": view.gap[layer, head],
            "weight": view.weight[layer, head], "radius": float(effect.picks.radius[0, head, 0]),
            "whole_pick": view.tokens[int(effect.picks.token[0, head, 0])], "removed": effect.removed[head],
            "masked": effect.masked[head], "deleted": effect.deleted[head],
            "direct": None if view.direct is None else float(view.direct.heads[layer, head]),
        }  # fmt: skip
    return {
        "view": view,
        "words": words,
        "line": line,
        "unit": "cosine" if view.decision == "embedding" else "log odds",
    }


def _word(view: TextView, k: int, counts: NDArray[np.int64], pick: int, rival: int) -> Word:
    heads = int(counts[k])
    where = np.argwhere(view.picked == k)[:3]
    hints = [f"picked by {heads} of {view.picked.size} heads"]
    for layer, head in where:
        other = int(view.runner_up[layer, head])
        name = view.tokens[other] if other >= 0 else "nothing"
        hints.append(f"layer {layer} head {head}: ahead of {name} by {view.gap[layer, head]:.1f}")
    if view.shares is not None:
        hints.append(f"share in the decision {view.shares[k]:+.2f}")
    style = shade(BLUE, heads / max(1, counts.max()))
    if view.shares is not None and not view.special[k]:
        size = abs(view.shares[k]) / max(1e-12, float(np.abs(view.shares).max()))
        if size > 0.1:
            colour = GREEN if view.shares[k] > 0 else RED
            style += f";border-bottom:{1 + round(4 * size)}px solid rgb{colour}"
    mark = "pick" if k == pick else "runner-up" if k == rival else ""
    return Word(view.tokens[k], view.special[k], style, "; ".join(hints), mark)


@cache
def _environment() -> Environment:
    found = template_engine("whichtoken.inspection")
    found.filters["percent"] = lambda value: f"{100 * value:.0f} %" if np.isfinite(value) else "–"
    found.filters["number"] = lambda value, places=2: (
        f"{value:.{places}f}" if value is not None and np.isfinite(value) else "–"
    )
    return found
