"""HTML pages that load nothing from elsewhere: the skeleton, the security policy, and safe text."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files

from whichtoken.display.text import visible


def text(value: object) -> str:
    """A value from data as HTML: tags in it have no effect and control characters are visible."""
    return html.escape(visible(str(value)))


def policy(script: str = "", style: str = "") -> str:
    """The content security policy of a page: nothing is loaded, and only this script runs, identified by its hash.

    Inline styles are allowed, because figures and marks have them, unless the page says which style it has.
    """
    styled = _digest(style) if style else "'unsafe-inline'"
    allowed = f"; script-src {_digest(script)}" if script else ""
    return f"default-src 'none'; style-src {styled}; img-src data:; base-uri 'none'; form-action 'none'{allowed}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(title: str, body: str, style: str, script: str = "") -> str:
    """A complete page from its body (HTML), which must be readable without the script."""
    from whichtoken.display.templates import template_engine

    template = template_engine("whichtoken.display", "assets").get_template("page.html")
    return template.render(title=title, body=body, style=style, script=script, policy=policy(script)) + "\n"


@cache
def asset(name: str) -> str:
    """A style sheet or script of the folder `assets`, to be put into a page."""
    return (files("whichtoken.display") / "assets" / name).read_text(encoding="utf-8")
