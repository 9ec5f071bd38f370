"""The pages about all claims as HTML: the overview, the disagreements, and how to read a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from whichtoken.app.pages.frame import LARGEST_PAGE, LINKS, MOST_LINES, framed, render
from whichtoken.app.pages.sentences import counted_states, counts, sentence
from whichtoken.app.pages.studies import Checked, anchor, found, leading, page_name
from whichtoken.app.pages.theories import THEORIES, Theory
from whichtoken.lab.discovery import Fault
from whichtoken.lab.record import RunSummary
from whichtoken.lab.verdicts import Verdict

# verdicts of each run in the table: the first number for which the page is small enough
MOST_ROWS = (MOST_LINES, 40, 20, 5, 1)


def overview_page(
    studies: Sequence[RunSummary],
    figures: Mapping[tuple[str, int], str] | None = None,
    faults: Sequence[Fault] = (),
    source: str = "",
    checked: Mapping[str, Checked] | None = None,
) -> str:
    """The first page: the summary, a card for each theory, and every claim in a table with a filter.

    Parameters
    ----------
    studies : the runs.
    figures : panels (SVG) by claim and number; a card without one has none.
    faults : claims that could not be loaded or shown.
    source : where the results come from, in words.
    checked : verdicts of runs on this machine, by claim, if `studies` are of another machine.
    """
    leaders, checked = leading(studies), checked or {}
    cards = [_card(theory, leaders, figures or {}, checked) for theory in THEORIES]
    values: dict[str, Any] = {
        "counts": counts(v for study in leaders.values() for v in study.verdicts),
        "cards": [card for card in cards if card],
        "faults": faults,
        "source": source,
        "checked": {id: here for id, here in checked.items() if id in leaders},
        "page_name": page_name,
    }
    for most in MOST_ROWS:
        body = render("overview.html", rows=list(_rows(studies, most)), anchor=anchor, leaders=leaders, **values)
        if len(body.encode()) < LARGEST_PAGE:
            break
    return framed("What holds, and how confidently", body, current=LINKS[0][0], scripts=["table.js"])


def disagreements_page(studies: Sequence[RunSummary]) -> str:
    """The verdicts that disagree, with their numbers."""
    theories = {theory.id: theory for theory in THEORIES}
    groups: dict[str, list[tuple[RunSummary, list[Verdict]]]] = {}
    for study in sorted(studies, key=lambda study: _place(study.experiment.theory)):
        against = [verdict for verdict in study.verdicts if verdict.state == "disagrees"]
        if against:
            groups.setdefault(study.experiment.theory, []).append((study, against))
    named = {theories[id].name if id in theories else id: group for id, group in groups.items()}
    body = render("disagreements.html", groups=named, sentence=sentence, anchor=anchor, page_name=page_name)
    return framed("Disagreements", body, current="disagreements.html")


def reading_page() -> str:
    """How to read a verdict, in two hundred words."""
    return framed("How to read verdicts", render("reading.html"), current="reading.html")


def _card(
    theory: Theory,
    leaders: dict[str, RunSummary],
    figures: Mapping[tuple[str, int], str],
    checked: Mapping[str, Checked],
) -> dict[str, Any] | None:
    own = [study for study in leaders.values() if study.experiment.theory == theory.id]
    if not own:
        return None
    verdicts = [verdict for study in own for verdict in study.verdicts]
    return {
        "theory": theory,
        "figure": Markup(figures.get(theory.figure, "")),
        "page": page_name(theory.figure[0]) if theory.figure[0] in leaders else "",
        "headlines": [found(headline, leaders) for headline in theory.headlines],
        "fails": found(theory.fails, leaders),
        "total": len(verdicts),
        "told": counted_states(counts(verdicts)),
        "checked": [(study, checked[study.id]) for study in own if study.id in checked],
    }


def _rows(studies: Iterable[RunSummary], most: int) -> Iterable[tuple[RunSummary, str, Sequence[Verdict], int]]:
    for study in sorted(studies, key=lambda study: (_place(study.experiment.theory), study.id)):
        shown = study.verdicts[:most]
        yield study, study.experiment.theory.replace("-", " "), shown, len(study.verdicts) - len(shown)


def _place(theory: str) -> int:
    """The place of a theory in the overview; those of users are last."""
    order = [known.id for known in THEORIES]
    return order.index(theory) if theory in order else len(order)
