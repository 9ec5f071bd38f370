"""The pages about all claims: the overview, the disagreements, and how to read a verdict. Functions from runs to HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from whichtoken.lab.discovery import Fault
from whichtoken.lab.verdicts import Verdict
from whichtoken.report.frame import LARGEST_PAGE, LINKS, MOST_LINES, framed, render
from whichtoken.report.sentences import counted_states, counts, sentence
from whichtoken.report.studies import Checked, Found, Study, anchor, found, leading
from whichtoken.report.theories import THEORIES, Theory

# verdicts of each run in the table: the first number for which the page is light
MOST_ROWS = (MOST_LINES, 40, 20, 5, 1)


def overview_page(
    studies: Sequence[Study],
    figures: Mapping[tuple[str, int], str] | None = None,
    faults: Sequence[Fault] = (),
    source: str = "",
    checked: Mapping[str, Checked] | None = None,
) -> str:
    """The first page: what all this says, a card for each theory, and every claim in a table that filters.

    Parameters
    ----------
    studies : runs to speak of.
    figures : panels (SVG) by claim and number; a card without one has none.
    faults : claims that could not be loaded or shown.
    source : where the results come from, in words.
    checked : what runs on this machine came to, by claim, if `studies` are of another.
    """
    leaders, checked = leading(studies), checked or {}
    cards = [_card(theory, leaders, figures or {}, checked) for theory in THEORIES]
    values: dict[str, Any] = {
        "counts": counts(v for study in leaders.values() for v in study.verdicts),
        "cards": [card for card in cards if card],
        "faults": faults,
        "source": source,
        "checked": {id: here for id, here in checked.items() if id in leaders},
    }
    for most in MOST_ROWS:
        body = render("overview.html", rows=list(_rows(studies, most)), anchor=anchor, leaders=leaders, **values)
        if len(body.encode()) < LARGEST_PAGE:
            break
    return framed("What holds, and how surely", body, current=LINKS[0][0], scripts=["table.js"])


def disagreements_page(studies: Sequence[Study]) -> str:
    """Where the papers, or we, are wrong at these sizes, with the numbers."""
    theories = {theory.id: theory for theory in THEORIES}
    groups: dict[str, list[tuple[Study, list[Verdict]]]] = {}
    for study in sorted(studies, key=lambda study: _place(study.experiment.theory)):
        against = [verdict for verdict in study.verdicts if verdict.state == "disagrees"]
        if against:
            groups.setdefault(study.experiment.theory, []).append((study, against))
    named = {theories[id].name if id in theories else id: group for id, group in groups.items()}
    body = render("disagreements.html", groups=named, sentence=sentence, anchor=anchor)
    return framed("Disagreements", body, current="disagreements.html")


def reading_page() -> str:
    """How to read a verdict, in two hundred words."""
    return framed("How to read verdicts", render("reading.html"), current="reading.html")


def _card(
    theory: Theory, leaders: dict[str, Study], figures: Mapping[tuple[str, int], str], checked: Mapping[str, Checked]
) -> dict[str, Any] | None:
    own = [study for study in leaders.values() if study.experiment.theory == theory.id]
    if not own:
        return None
    fails: Found = found(theory.fails, leaders)
    verdicts = [verdict for study in own for verdict in study.verdicts]
    return {
        "theory": theory,
        "figure": Markup(figures.get(theory.figure, "")),
        "page": leaders[theory.figure[0]].page if theory.figure[0] in leaders else "",
        "headlines": [found(headline, leaders) for headline in theory.headlines],
        "fails": fails,
        "total": len(verdicts),
        "told": counted_states(counts(verdicts)),
        "checked": [(study, checked[study.id]) for study in own if study.id in checked],
    }


def _rows(studies: Iterable[Study], most: int) -> Iterable[tuple[Study, str, Sequence[Verdict], int]]:
    for study in sorted(studies, key=lambda study: (_place(study.experiment.theory), study.id)):
        shown = study.verdicts[:most]
        yield study, study.experiment.theory.replace("-", " "), shown, len(study.verdicts) - len(shown)


def _place(theory: str) -> int:
    """Theories in the order of the overview; those of users behind them."""
    order = [known.id for known in THEORIES]
    return order.index(theory) if theory in order else len(order)
