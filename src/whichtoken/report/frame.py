"""The frame around every page of the report, and how its templates are filled. The workbench serves the same pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from whichtoken import __version__
from whichtoken.display.html import asset, page
from whichtoken.display.templates import template_engine
from whichtoken.display.text import counted, visible
from whichtoken.lab.verdicts import in_words
from whichtoken.report.sentences import number

MOST_LINES = 60  # of a table: longer ones belong in a file of rows
MOST_CHARACTERS = 300  # of a text from data
LARGEST_PAGE = 380_000  # bytes, so that it opens at once anywhere

LINKS = (  # of the header, the first is home: address, text
    ("index.html", "Overview"),
    ("disagreements.html", "Disagreements"),
    ("reading.html", "How to read verdicts"),
)


def framed(title: str, body: str, *, current: str = "", scripts: Iterable[str] = ()) -> str:
    """A whole page.

    Parameters
    ----------
    title : text of the browser's tab.
    body : HTML of the main part.
    current : address of the link that leads here.
    scripts : names of files in `display/assets` that the page runs.
    """
    inside = render("frame.html", body=Markup(body), current=current, links=LINKS)
    return page(f"{title} · whichtoken", inside, asset("style.css"), "\n".join(map(asset, scripts)))


def render(template: str, **values: Any) -> str:
    """A template of the report as text; every text that is put into it is escaped, and hidden signs are seen."""
    return _environment().get_template(template).render(**values)


def cut(value: object, most: int = MOST_CHARACTERS) -> str:
    """A text from data, shortened where it would fill the page."""
    text = str(value)
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} … ({rest} more characters)"


def maths(text: str) -> Markup:
    """Formulas and names in code as they are printed: l_1.1 and |W|_p with the index below, R^-2 raised, `Name` in type."""
    parts = re.split(r"`([^`]+)`", str(escape(visible(text))))  # every second one is code
    return Markup("".join(f"<code>{part}</code>" if place % 2 else _printed(part) for place, part in enumerate(parts)))


def claim_text(text: str) -> Markup:
    """A claim as the sentence that it begins: with a capital, unless a symbol comes first, which would be another one."""
    word = re.match(r"[a-z]{2,}(?![\w.*^|])(?!\s*=)|a(?= )", text)
    return maths(cut(text[:1].upper() + text[1:] if word else text))


def ended(text: Markup) -> Markup:
    """A text with the full stop that it lacks."""
    return text if text.endswith(("?", "!", ".")) else text + "."


def _printed(text: str) -> str:
    """Indices and powers of single letters, norms and numbers; names of several letters stay as they are."""
    low = re.sub(r"(?<!\w)([A-Za-z]|\|\w\|)_(inf\b|\d+(?:\.\d+)?|[A-Za-z](?!\w))", r"\1<sub>\2</sub>", text)
    both = re.sub(
        r"(?<=[\w)|>])(?:\^|\*\*)(-?\d+(?:[./]\d+)?|\((?:[^()]|\([^()]*\))*\)|[A-Za-z](?!\w))", r"<sup>\1</sup>", low
    )
    return re.sub(r"\bl<sub>", "ℓ<sub>", both).replace("<sub>inf<", "<sub>∞<")


@cache
def _environment() -> Environment:
    environment = template_engine("whichtoken.report")
    environment.filters.update(maths=maths, cut=cut, claim=claim_text, ended=ended)
    environment.globals.update(number=number, in_words=in_words, counted=counted, version=__version__, most=MOST_LINES)
    return environment
