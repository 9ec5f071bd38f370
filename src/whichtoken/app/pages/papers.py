"""What became of the papers' statements: the page of one paper, the overview of all, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from whichtoken.app.pages.frame import LARGEST_PAGE, LINKS, MOST_LINES, frame_page, render
from whichtoken.app.pages.sentences import ANSWER_CLASS, KIND_WORDS, REGIME_WORDS, Checked, anchor, page_name, sentence
from whichtoken.lab.discovery import Fault
from whichtoken.lab.record import RunSummary
from whichtoken.lab.statements import ANSWERS, Answer, Found, Judged, Paper, count_answers, judge_papers

# verdicts of each run of a user's claims: the first for which the page is small enough
MOST_ROWS = (MOST_LINES, 40, 20, 5, 1)
Link = Callable[[Found], str]


def paper_file(paper: Paper) -> str:
    """File of a paper's page in the report."""
    return f"paper-{paper.source.id}.html"


def link_in_report(found: Found) -> str:
    """Where the report shows a verdict."""
    return f"{page_name(found.claim)}#{anchor(found.preset, found.verdict.code)}"


def paper_body(paper: Paper, link: Link) -> str:
    """The page of one paper without its frame, the same in the report and in the workbench.

    Parameters
    ----------
    link : address of a verdict.
    """
    return render("paper.html", paper=paper, **_words(link))


def paper_page(paper: Paper) -> str:
    """The page of one paper: each of its statements with its answer, then our laws about the same theory."""
    body = paper_body(paper, link_in_report)
    return frame_page(paper.source.title, body, scripts=["table.js", "details.js"])


def overview_page(
    studies: Sequence[RunSummary],
    figures: Mapping[tuple[str, int], str] | None = None,
    faults: Sequence[Fault] = (),
    source: str = "",
    checked: Mapping[str, Checked] | None = None,
) -> str:
    """The first page: how many statements have which answer, a card for each paper, and every statement in a table.

    Parameters
    ----------
    studies : the runs.
    figures : panels (SVG) by claim and number; a card without one has none.
    faults : claims that could not be loaded or shown.
    source : where the results come from, in words.
    checked : verdicts of runs on this machine, by claim, if `studies` are of another machine.
    """
    papers, here = judge_papers(studies), {study.id: study for study in studies}
    values: dict[str, Any] = {
        "papers": papers,
        "counts": count_answers(each for paper in papers for each in paper.statements),
        "figures": {paper.source.id: Markup((figures or {}).get(paper.source.figure, "")) for paper in papers},
        "here": here,
        "checked": [(here[id], found) for id, found in (checked or {}).items() if id in here],
        "faults": faults,
        "source": source,
        "page_name": page_name,
        "paper_file": paper_file,
        "anchor": anchor,
        **_words(link_in_report),
    }
    for most in MOST_ROWS:
        body = render(
            "overview.html", own=[(study, study.verdicts[:most]) for study in _own(studies, papers)], **values
        )
        if len(body.encode()) < LARGEST_PAGE:
            break
    return frame_page("What holds, and how confidently", body, current=LINKS[0][0], scripts=["table.js"])


def failures_page(studies: Sequence[RunSummary]) -> str:
    """What failed, by weight: statements that were contradicted or stay open, then laws and thresholds of ours."""
    papers = judge_papers(studies)
    statements = [(paper, each) for paper in papers for each in paper.statements]
    order: tuple[Answer, ...] = ("contradicted", "undetermined by the text", "undecided")
    by_answer = {answer: [pair for pair in statements if pair[1].answer == answer] for answer in order}
    ours = [(paper, each) for paper in papers for each in paper.ours if each.answer == "contradicted"]
    beyond = [
        (paper, item)
        for paper in papers
        for item in _distinct(item for each in paper.statements for item in each.evidence)
        if item.verdict.state == "disagrees" and item.verdict.regime == "beyond-hypotheses"
    ]
    own = [
        (study, verdict)
        for study in _own(studies, papers)
        for verdict in study.verdicts
        if verdict.state == "disagrees"
    ]
    body = render(
        "failures.html", by_answer=by_answer, ours=ours, beyond=beyond, own=own, page_name=page_name, anchor=anchor,
        paper_file=paper_file, **_words(link_in_report),
    )  # fmt: skip
    return frame_page("What failed", body, current="failures.html")


def _own(studies: Iterable[RunSummary], papers: Iterable[Paper]) -> list[RunSummary]:
    """Runs of the user's own theories."""
    known = {paper.source.id for paper in papers}
    return [study for study in studies if study.experiment.theory not in known]


def reading_page() -> str:
    """How to read answers and verdicts."""
    return frame_page("How to read the answers", render("reading.html"), current="reading.html")


def answer_sentence(judged: Judged) -> str:
    """What was measured and the one number that matters; empty where nothing was measured."""
    if not judged.headline:
        return ""
    about, said = judged.headline.verdict.claim, sentence(judged.headline.verdict)
    return f"{about}: {said[:1].lower()}{said[1:]}" if about else said


def _words(link: Link) -> dict[str, Any]:
    return {
        "link": link, "sentence": sentence, "answer_sentence": answer_sentence, "answer_class": ANSWER_CLASS,
        "regime_words": REGIME_WORDS, "kind_words": KIND_WORDS, "answers": ANSWERS, "distinct": _distinct,
    }  # fmt: skip


def _distinct(items: Iterable[Found]) -> list[Found]:
    """The verdicts, each once."""
    found: dict[tuple[str, str, str], Found] = {}
    for item in items:
        found.setdefault((item.claim, item.preset, item.verdict.code), item)
    return list(found.values())
