"""HTML pages that load nothing: one skeleton, one policy, and text from data that is safe in them."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files

from whichtoken.display.text import visible


def text(value: object) -> str:
    """A value from data as HTML: no tag in it is obeyed and every control character is seen."""
    return html.escape(visible(str(value)))


def policy(script: str = "") -> str:
    """The content security policy of a page: nothing is loaded, and no script runs but this one, known by its hash.

    Inline styles stay allowed, because figures and marks carry theirs.
    """
    allowed = f"; script-src 'sha256-{_digest(script)}'" if script else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'{allowed}"


def page(title: str, body: str, style: str, script: str = "") -> str:
    """A whole page from its body (HTML); it must be readable without the script."""
    code = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{text(title)}</title>\n<link rel="icon" href="data:,">\n<style>\n{style}\n</style>\n</head>\n'
        f"<body>\n{body}\n{code}</body>\n</html>\n"
    )


@cache
def asset(name: str) -> str:
    """A style sheet or script of the folder `assets`, which pages take in."""
    return (files("whichtoken.display") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
