"""What each theory asks and finds, in plain words: the texts of the overview, read from `theories.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Finding:
    """A sentence and the verdicts that support it: those of `experiment` whose code matches `pattern`."""

    sentence: str
    experiment: str
    pattern: str


@dataclass(frozen=True)
class Theory:
    """One card of the overview."""

    id: str  # the part of a claim's id before the slash
    name: str
    question: str
    about: str  # the same within a sentence
    paper: str
    figure: tuple[str, int]  # a claim, and which panel of its figure
    caption: str
    headlines: tuple[Finding, ...]
    fails: Finding


THEORIES = tuple(
    Theory(
        **{
            **entry,
            "figure": tuple(entry["figure"]),
            "headlines": tuple(Finding(*finding) for finding in entry["headlines"]),
            "fails": Finding(*entry["fails"]),
        }
    )
    for entry in tomllib.loads((files("whichtoken.app.pages") / "theories.toml").read_text("utf-8"))["theory"]
)
