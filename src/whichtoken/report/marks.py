"""Colours of contributions, on the terminal and in a page: green speaks for the decision, red against it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from whichtoken.display.text import visible

FOR, AGAINST = (0, 130, 60), (190, 30, 45)
FAINT, STRONG = 0.05, 0.3  # shares of the strongest contribution
DARKEST = 0.6  # opacity of the strongest mark in a page: its text stays readable
STYLE = (
    "body{font:16px/1.6 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}"
    "mark{border-radius:3px;color:inherit;padding:0 .1em}th,td{text-align:left;padding:0 1em 0 0;vertical-align:top}"
)


def shown(text: str) -> str:
    """Text of a user's file as HTML: tags are text, and control and bidi characters can be seen."""
    return escape(visible(text))


def strongest(contributions: Iterable[float]) -> float:
    """The largest of their sizes, by which shares are measured."""
    return max(map(abs, contributions), default=1.0) or 1.0


def terminal_style(contribution: float, strongest: float) -> str:
    """The stronger the brighter; no colour for what hardly counts."""
    share = abs(contribution) / strongest
    if share < FAINT:
        return ""
    red, green, blue = (int(share * part) for part in _colour(contribution))
    return f"{'bold white ' if share > STRONG else ''}on rgb({red},{green},{blue})"


def mark(text: str, contribution: float, strongest: float, note: str) -> str:
    """A piece of HTML with its colour, and a note on hovering."""
    colour, alpha = ",".join(map(str, _colour(contribution))), DARKEST * abs(contribution) / strongest
    return f'<mark style="background:rgba({colour},{alpha:.2f})" title="{shown(note)}">{shown(text)}</mark>'


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """An HTML page that needs nothing else, from pairs of a summary (text) and what stands below it (HTML)."""
    body = "\n".join(f"<section><p><b>{shown(summary)}</b></p>{content}</section>" for summary, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _colour(contribution: float) -> tuple[int, int, int]:
    return FOR if contribution > 0 else AGAINST
