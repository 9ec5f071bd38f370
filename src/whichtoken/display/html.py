"""HTML pages that load nothing from elsewhere: templates, the skeleton, the security policy, safe text and colors."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from whichtoken.display.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

# distinct with every kind of color vision, and on light and dark pages (tests/display/test_colors.py)
COLORS = ("#2f80ed", "#e06c00", "#00a37a", "#c05fa5", "#e50045", "#9326ff", "#117338")
QUIET = "#808894"  # reference lines, visible on white and on black


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
    template = template_engine("whichtoken.display", "assets").get_template("page.html")
    return template.render(title=title, body=body, style=style, script=script, policy=policy(script)) + "\n"


def single_page(title: str, body: str, styles: Sequence[str] = (), script: str = "") -> str:
    """A page that stands alone, in the style of all pages: the name of the program, then the body (HTML)."""
    header = (
        '<header class="top"><b class="brand">which<span>token</span></b>'
        '<span class="quiet">which token does attention pick, why, and how confidently</span></header>'
    )
    return page(title, f"{header}<main>{body}</main>", "\n".join(map(asset, ("style.css", *styles))), script)


@cache
def asset(name: str) -> str:
    """A style sheet or script of the folder `assets`, to be put into a page."""
    return (files("whichtoken.display") / "assets" / name).read_text(encoding="utf-8")


@cache
def template_engine(package: str, folder: str = "templates") -> Environment:
    """The templates of a package. Every text put into them is escaped, but for plain ones, with hidden characters written out."""
    # here, as a library that fills templates takes longer to load than a small fit
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package, folder), autoescape=lambda name: name is None or not name.endswith(".txt"),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        # markup of our own stays as it is
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
