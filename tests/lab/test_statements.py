"""One answer per statement: what may speak against a paper, and what may not."""

import pytest

from whichtoken.lab import Exact, at_least
from whichtoken.lab.discovery import experiments
from whichtoken.lab.record import recorded_runs
from whichtoken.lab.statements import Found, Statement, judge_papers, judge_statement, sources


def found(code, state, kind="paper-statement", regime="as-stated"):
    measured = {"agrees": Exact(2.0), "disagrees": Exact(0.0)}.get(state)
    check = at_least(code, "", bound=1.0, measured=measured or Exact(1.0), kind=kind, regime=regime)
    verdict = check.settle(0.95)
    if measured is None:
        object.__setattr__(verdict, "state", state)
    return Found("mine/claim", "full", verdict)


def answer(*verdicts, evidence=("*",), **options):
    groups = tuple(
        (f"mine/claim: {each}",) if isinstance(each, str) else tuple(f"mine/claim: {e}" for e in each)
        for each in evidence
    )
    return judge_statement(Statement("it", "Theorem 1", "", groups, **options), verdicts).answer


@pytest.mark.parametrize(
    ("state", "kind", "regime", "expected"),
    [
        ("agrees", "paper-statement", "as-stated", "supported"),
        ("disagrees", "paper-statement", "as-stated", "contradicted"),
        ("disagrees", "paper-figure", "as-stated", "contradicted"),
        ("undecided", "paper-statement", "as-stated", "undecided"),
        ("disagrees", "our-law", "as-stated", "undecided"),
        ("disagrees", "our-threshold", "as-stated", "undecided"),
        ("disagrees", "paper-statement", "unknown", "undecided"),
        ("agrees", "paper-statement", "unknown", "supported"),
        ("disagrees", "paper-statement", "smaller-than-stated", "undecided"),
        ("disagrees", "paper-statement", "beyond-hypotheses", "beyond its hypotheses"),
        ("agrees", "paper-statement", "beyond-hypotheses", "beyond its hypotheses"),
        ("not-run", "paper-statement", "as-stated", "not checked"),
    ],
)
def test_answer_to_a_statement_with_one_verdict(state, kind, regime, expected):
    assert answer(found("a", state, kind, regime)) == expected


def test_what_happens_beyond_the_hypotheses_does_not_change_the_answer_where_they_hold():
    beyond = found("b", "disagrees", regime="beyond-hypotheses")
    assert answer(found("a", "agrees"), beyond) == "supported"
    assert answer(found("a", "agrees", regime="unknown"), beyond) == "supported"


def test_thresholds_of_ours_do_not_outvote_the_paper():
    assert answer(found("a", "agrees"), found("b", "disagrees", "our-threshold")) == "supported"


def test_one_reading_that_holds_supports_a_statement_whose_hypothesis_was_not_read():
    readings = (found("lr1", "disagrees", regime="unknown"), found("lr4", "agrees", regime="unknown"))
    assert answer(*readings, evidence=(("lr1", "lr4"),)) == "supported"
    assert answer(*readings, evidence=("lr1", "lr4")) == "undecided"  # both are needed
    assert answer(*readings, evidence=(("lr1", "lr4"),), undetermined="the rate") == "undetermined by the text"


def test_the_long_runs_speak_before_quick_ones():
    from whichtoken.lab.record import RunSummary
    from whichtoken.lab.statements import most_telling_verdicts

    runs = [
        RunSummary("mine/claim", preset, verdicts=(found("a", state).verdict,))
        for preset, state in (("quick", "disagrees"), ("full", "agrees"), ("paper", "undecided"))
    ]
    statement = Statement("it", "Theorem 1", "", (("mine/claim: a",),))
    judged = judge_statement(statement, most_telling_verdicts(runs))
    assert (judged.answer, judged.headline.preset) == ("supported", "full")


def every_statement():
    return [(source, each) for source in sources() for each in (*source.statements, *source.ours)]


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.id)
def test_statements_of_a_source_have_ids_of_their_own(source):
    ids = [each.id for each in (*source.statements, *source.ours)]
    assert len(ids) == len(set(ids))
    assert all(each.place for each in source.statements)
    assert source.read


def test_every_statement_has_evidence_on_record_or_says_why_it_is_not_checked():
    codes = {(run.id, verdict.code) for run in recorded_runs().values() for verdict in run.verdicts}
    for source, each in every_statement():
        assert bool(each.evidence) != bool(each.unchecked), (source.id, each.id)
        for pattern in (pattern for readings in each.evidence for pattern in readings):
            single = Statement("it", "", "", ((pattern,),))
            assert any(single.names(*code) for code in codes), (
                f"{source.id}, {each.id}: no verdict on record fits {pattern}"
            )


def test_every_recorded_verdict_is_evidence_of_something():
    listed = [each for _, each in every_statement()]
    for run in recorded_runs().values():
        if run.id in experiments():
            for verdict in (each for each in run.verdicts if each.state != "not-run"):
                assert any(each.names(run.id, verdict.code) for each in listed), (run.id, verdict.code)


def test_whatever_is_undecided_says_what_it_would_cost():
    for paper in judge_papers(recorded_runs().values()):
        for each in (*paper.statements, *paper.ours):
            assert each.answer != "undecided" or each.statement.cost, (paper.source.id, each.statement.id)


def test_functions_that_compute_a_statement_exist():
    from importlib import import_module

    for name in sorted({name for _, each in every_statement() for name in each.functions}):
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(f"whichtoken.{module}"), attribute), name
