"""The frame around every page of the report, and the engine that fills templates. The workbench serves the same pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from whichtoken import __version__
from whichtoken.display.html import asset, page
from whichtoken.display.text import visible
from whichtoken.report.sentences import in_words, number

MOST_LINES = 60  # of a table: longer ones belong into a file of rows
MOST_CHARACTERS = 300  # of a text from data
LARGEST_PAGE = 380_000  # bytes, so that it opens at once anywhere

Links = tuple[tuple[str, str], ...]  # address, text
LINKS: Links = (
    ("index.html", "Overview"),
    ("disagreements.html", "Disagreements"),
    ("reading.html", "How to read verdicts"),
)


def framed(title: str, body: str, *, current: str = "", links: Links = LINKS, scripts: Iterable[str] = ()) -> str:
    """A whole page.

    Parameters
    ----------
    title : text of the browser's tab.
    body : HTML of the main part.
    current : address of the link that leads here.
    links : what the header leads to; the first is home.
    scripts : names of files in `display/assets` that the page runs.
    """
    inside = render("frame.html", body=Markup(body), current=current, links=links)
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
    """Norms and names in code as they are printed: l_1.1 with a script l and its index below, `Name` in type."""
    safe = re.sub(r"\bl_(\d+(?:\.\d+)?|\w)", r"ℓ<sub>\1</sub>", str(escape(visible(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", safe))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whichtoken.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(maths=maths, cut=cut)
    environment.globals.update(number=number, in_words=in_words, version=__version__, most=MOST_LINES)
    return environment
