"""The engine that fills HTML templates, the same for every package that has some."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from whichtoken.display.text import visible


def _is_markup(name: str | None) -> bool:
    return name is None or not name.endswith(".txt")


@cache
def template_engine(package: str, folder: str = "templates") -> Environment:
    """The templates of a package. Every text put into them is escaped, but for plain ones, with hidden characters written out."""
    return Environment(
        loader=PackageLoader(package, folder), autoescape=_is_markup, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
        # markup of our own stays as it is
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
