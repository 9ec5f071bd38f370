"""What the papers say, and what became of it: one answer per statement.

A paper's statements stand in `claims/<theory>/statements.toml`: where each one stands, what it says in our words, what it asks
for, and which verdicts are its evidence. The answer follows from the verdicts, their kinds and their regimes. Only a sentence
or a figure of the paper, checked where the paper states it, can contradict the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from whichtoken.display.shown import Shown
from whichtoken.lab.record import RunSummary
from whichtoken.lab.verdicts import Regime, Verdict

Answer = Literal[
    "supported", "contradicted", "beyond its hypotheses", "undetermined by the text", "undecided", "not checked"
]
ANSWERS: tuple[Answer, ...] = (
    "contradicted", "undetermined by the text", "undecided", "beyond its hypotheses", "supported", "not checked",
)  # fmt: skip
# a paper's own sizes speak first; `quick` speaks only where nothing else was run
PRESETS = ("paper", "full", "quick")
# in which a newcomer understands them: attention finds something, then where training ends, last how fast it can be
FOLDERS = (
    "sparse_tokens", "trained_embeddings", "group_sparse", "mirror_descent", "optimizers", "attention_regression",
)  # fmt: skip


@dataclass(frozen=True)
class Hypothesis(Shown):
    """One thing that a statement asks for.

    Attributes
    ----------
    asks : str
        What the paper asks for.
    tried : str
        What was tried here.
    status : str
        `met`, `not met`, `smaller` or `not read`.
    """

    asks: str
    tried: str
    status: Literal["met", "not met", "smaller", "not read"]


@dataclass(frozen=True)
class Statement(Shown):
    """One statement of a paper, or one law of ours.

    Attributes
    ----------
    id : str
        Short name, unique in its source.
    place : str
        Where it stands: "Theorem 5", "Figure 2", "abstract, 4"; empty for a law of ours.
    says : str
        What it says, in our words.
    evidence : tuple of tuples of str
        Verdicts that all have to hold, "claim id: code" each; `*` stands for anything. Several in one entry are readings of a
        hypothesis that was not read: one that holds is enough.
    hypotheses : tuple of Hypothesis
        What the paper asks for.
    functions : tuple of str
        What computes it, below `whichtoken.`.
    undetermined : str
        What the text, although read, leaves open and the outcome depends on.
    unchecked : str
        Why nothing judges it.
    note, cost : str
        What a reader of the answer should know, and what it would cost to decide it.
    headline : str
        The verdict with the one number that matters; the first of the evidence if empty.
    """

    id: str
    place: str
    says: str
    evidence: tuple[tuple[str, ...], ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    functions: tuple[str, ...] = ()
    undetermined: str = ""
    unchecked: str = ""
    note: str = ""
    cost: str = ""
    headline: str = ""

    def names(self, claim: str, code: str) -> bool:
        """Whether this verdict is part of its evidence."""
        return any(_fits(pattern, claim, code) for readings in self.evidence for pattern in readings)


@dataclass(frozen=True)
class Source(Shown):
    """One paper with its statements.

    Attributes
    ----------
    id : str
        Name of its theory, as in the ids of claims.
    title, authors, paper, arxiv : str
        Name of the theory, and the paper.
    read : str
        What was read of it, and what was derived here.
    question, about : str
        What it asks, as a sentence and within one.
    figure : (str, int)
        A claim and a panel of its figure, with its `caption`.
    headlines : tuple of (str, str)
        What was found in a sentence, with the id of the statement that it is about.
    stops : (str, str) or ()
        The same, about where it stops holding.
    statements : tuple of Statement
        What it says.
    ours : tuple of Statement
        Laws of ours about the same theory.
    """

    id: str
    title: str
    authors: str
    paper: str
    arxiv: str
    read: str
    question: str
    about: str
    figure: tuple[str, int]
    caption: str
    statements: tuple[Statement, ...]
    ours: tuple[Statement, ...] = ()
    headlines: tuple[tuple[str, str], ...] = ()
    stops: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        return ", ".join(filter(None, [self.authors, self.paper])) + (f" (arXiv {self.arxiv})" if self.arxiv else "")


@dataclass(frozen=True)
class Found(Shown):
    """One verdict of the evidence, with the run it comes from."""

    claim: str
    preset: str
    verdict: Verdict


@dataclass(frozen=True)
class Judged(Shown):
    """A statement with its answer.

    Attributes
    ----------
    statement : Statement
        What is stated.
    answer : str
        What became of it.
    regime : str
        Where the answer was found; empty if nothing was measured.
    evidence : tuple of Found
        The verdicts that it follows from.
    headline : Found or None
        The one whose number matters most.
    """

    statement: Statement
    answer: Answer
    regime: Regime | Literal[""] = ""
    evidence: tuple[Found, ...] = ()
    headline: Found | None = field(default=None)


@cache
def sources() -> tuple[Source, ...]:
    """Every paper with its statements, in the order of the theories."""
    return tuple(_read_source(folder) for folder in FOLDERS)


def _read_source(folder: str) -> Source:
    text = files("whichtoken.claims").joinpath(folder, "statements.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    statements, ours = (tuple(map(_read_statement, table.pop(name, ()))) for name in ("statements", "ours"))
    for name in ("figure", "headlines", "stops"):
        table[name] = tuple(tuple(item) if isinstance(item, list) else item for item in table.get(name, ()))
    return Source(folder.replace("_", "-"), **table, statements=statements, ours=ours)


def _read_statement(entry: Mapping[str, Any]) -> Statement:
    evidence = tuple((item,) if isinstance(item, str) else tuple(item) for item in entry.get("evidence", ()))
    return Statement(
        **{
            "place": "",
            **entry,
            "evidence": evidence,
            "hypotheses": tuple(Hypothesis(**item) for item in entry.get("hypotheses", ())),
            "functions": tuple(entry.get("functions", ())),
        }
    )


@dataclass(frozen=True)
class Paper(Shown):
    """A source with the answers to its statements, and what became of our laws about the same theory.

    Attributes
    ----------
    source : Source
        The paper.
    statements, ours : tuple of Judged
        The answer to each of its statements, and to each law of ours.
    """

    source: Source
    statements: tuple[Judged, ...]
    ours: tuple[Judged, ...]

    @property
    def counts(self) -> dict[Answer, int]:
        """How many statements have each answer."""
        return count_answers(self.statements)

    def find(self, id: str) -> Judged | None:
        """The statement or law of this id."""
        return next((each for each in (*self.statements, *self.ours) if each.statement.id == id), None)


def judge_papers(runs: Iterable[RunSummary]) -> list[Paper]:
    """Every paper with its answers from runs as declared, such as those of the record."""
    found = most_telling_verdicts(runs)
    return [
        Paper(
            source,
            tuple(judge_statement(each, found) for each in source.statements),
            tuple(judge_law(each, found) for each in source.ours),
        )
        for source in sources()
    ]


def count_answers(judged: Iterable[Judged]) -> dict[Answer, int]:
    """How many have each answer, those that speak against a paper first."""
    answers = [each.answer for each in judged]
    return {answer: answers.count(answer) for answer in ANSWERS if answer in answers}


def judge_law(law: Statement, found: Iterable[Found]) -> Judged:
    """What became of a law of ours: measurements may contradict it anywhere."""
    items = tuple(
        item for item in found if law.names(item.claim, item.verdict.code) and item.verdict.state != "not-run"
    )
    states = {item.verdict.state for item in items}
    if not items:
        return Judged(law, "not checked")
    answer: Answer = "contradicted" if "disagrees" in states else "supported" if states == {"agrees"} else "undecided"
    headline = _headline(law, list(items))
    return Judged(law, answer, headline.verdict.regime, items, headline)


def judge_statement(statement: Statement, found: Iterable[Found]) -> Judged:
    """The answer to one statement.

    What was checked as stated decides. Where a hypothesis was not read, a statement that holds in some regime that the text
    allows is supported, and one that fails everywhere tried is undecided. What was only tried beyond the hypotheses says nothing
    about the statement.
    """
    found = list(found)
    entries = [_evidence_of(readings, found) for readings in statement.evidence]
    told = [item for entry in entries for item in entry if item.verdict.state != "not-run"]
    if not told:
        return Judged(statement, "not checked")
    paper = [item for item in told if item.verdict.speaks_for_paper] or told
    for regime in ("as-stated", "unknown", "smaller-than-stated", "beyond-hypotheses"):
        decisive = [item for item in paper if item.verdict.regime == regime]
        if decisive:
            answer = _answer(statement, regime, [[item for item in entry if item in decisive] for entry in entries])
            return Judged(statement, answer, regime, tuple(told), _headline(statement, decisive))
    raise AssertionError("a verdict has one of the four regimes")


def _answer(statement: Statement, regime: Regime, entries: list[list[Found]]) -> Answer:
    states = [{item.verdict.state for item in entry} for entry in entries if entry]
    if regime == "beyond-hypotheses":
        return "beyond its hypotheses"
    if regime == "as-stated":
        together = set().union(*states)
        speaks = any(
            item.verdict.state == "disagrees" and item.verdict.speaks_for_paper for entry in entries for item in entry
        )
        return "contradicted" if speaks else "supported" if together == {"agrees"} else "undecided"
    if statement.undetermined and any({"agrees", "disagrees"} <= each for each in states):
        return "undetermined by the text"
    readings = [len(group) > 1 for group, entry in zip(statement.evidence, entries, strict=True) if entry]
    holds = [
        "agrees" in each if several else each == {"agrees"} for each, several in zip(states, readings, strict=True)
    ]
    return "supported" if all(holds) else "undecided"


def _headline(statement: Statement, decisive: list[Found]) -> Found:
    named = [
        item for item in decisive if statement.headline and _fits(statement.headline, item.claim, item.verdict.code)
    ]
    order = ("disagrees", "undecided", "agrees", "not-run")
    return (named or sorted(decisive, key=lambda item: order.index(item.verdict.state)))[0]


def _evidence_of(readings: Iterable[str], found: Iterable[Found]) -> list[Found]:
    return [item for item in found if any(_fits(pattern, item.claim, item.verdict.code) for pattern in readings)]


def _fits(pattern: str, claim: str, code: str) -> bool:
    id, _, codes = pattern.partition(": ")
    return id == claim and fnmatchcase(code, codes)


def most_telling_verdicts(runs: Iterable[RunSummary]) -> list[Found]:
    """Of each code the verdict of the preset that says most: a decided one of the long runs before an undecided one."""
    by_code: dict[tuple[str, str], list[Found]] = {}
    known = [run for run in runs if run.as_declared and run.preset in PRESETS]
    for run in sorted(known, key=lambda run: PRESETS.index(run.preset)):
        for verdict in run.verdicts:
            by_code.setdefault((run.id, verdict.code), []).append(Found(run.id, run.preset, verdict))
    telling = []
    for choices in by_code.values():
        long = [item for item in choices if item.preset != "quick" and item.verdict.state != "not-run"] or choices
        decided = [item for item in long if item.verdict.state in ("agrees", "disagrees")]
        telling.append((decided or long)[0])
    return telling
