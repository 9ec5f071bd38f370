"""The frame around every page of the report, and its templates. The workbench shows the same pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from whichtoken import __version__
from whichtoken.app.pages.sentences import number
from whichtoken.display.html import asset, page, template_engine
from whichtoken.display.text import pluralize, visible
from whichtoken.lab.verdicts import in_words

MOST_LINES = 60  # of a table; a file of rows has them all
MOST_CHARACTERS = 300  # of a text from data
LARGEST_PAGE = 380_000  # bytes, so that it opens at once on any device

LINKS = (  # of the header, the first is home: address, text
    ("index.html", "Overview"),
    ("failures.html", "What failed"),
    ("reading.html", "How to read the answers"),
)


def frame_page(
    title: str, body: str, *, current: str = "", scripts: Iterable[str] = (), links: Sequence[tuple[str, str]] = LINKS
) -> str:
    """A whole page.

    Parameters
    ----------
    title : text of the browser's tab.
    body : HTML of the main part.
    current : address of the link that leads here.
    scripts : names of files in `display/assets` that the page runs.
    links : address and text of the links of the header, the first is home.
    """
    inside = render("frame.html", body=Markup(body), current=current, links=links)
    return page(f"{title} · whichtoken", inside, asset("style.css"), "\n".join(map(asset, scripts)))


def render(template: str, **values: Any) -> str:
    """A template of the report as text; values are escaped, and hidden characters are made visible."""
    return _environment().get_template(template).render(**values)


def cut(value: object, most: int = MOST_CHARACTERS) -> str:
    """A text from data, shortened if it is long."""
    text = str(value)
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most]} … ({rest} more characters)"


def maths(text: str) -> Markup:
    """Formulas and code as HTML: l_1.1 and |W|_p with subscripts, R^-2 with a superscript, `Name` as code."""
    # every second part is code
    parts = re.split(r"`([^`]+)`", str(escape(visible(text))))
    return Markup("".join(f"<code>{part}</code>" if place % 2 else _typeset(part) for place, part in enumerate(parts)))


def claim_text(text: str, most: int = MOST_CHARACTERS) -> Markup:
    """A claim as a sentence: with a capital letter, unless it begins with a symbol, which a capital would change."""
    word = re.match(r"[a-z]{2,}(?![\w.*^|])(?!\s*=)|a(?= )", text)
    return maths(cut(text[:1].upper() + text[1:] if word else text, most))


def end_sentence(text: Markup) -> Markup:
    """A text with a period at its end."""
    return text if text.endswith(("?", "!", ".")) else text + "."


def _typeset(text: str) -> str:
    """Subscripts and superscripts of single letters, norms and numbers; longer names stay as they are."""
    low = re.sub(r"(?<!\w)([A-Za-z]|\|\w\|)_(inf\b|\d+(?:\.\d+)?|[A-Za-z](?!\w))", r"\1<sub>\2</sub>", text)
    both = re.sub(
        r"(?<=[\w)|>])(?:\^|\*\*)(-?\d+(?:[./]\d+)?|\((?:[^()]|\([^()]*\))*\)|[A-Za-z](?!\w))", r"<sup>\1</sup>", low
    )
    return re.sub(r"\bl<sub>", "ℓ<sub>", both).replace("<sub>inf<", "<sub>∞<")


@cache
def _environment() -> Environment:
    environment = template_engine("whichtoken.app.pages")
    environment.filters.update(maths=maths, cut=cut, claim=claim_text, end_sentence=end_sentence)
    environment.globals.update(
        number=number, in_words=in_words, pluralize=pluralize, version=__version__, most=MOST_LINES
    )
    return environment
