"""What a run says on the terminal: a line for each claim, and then only what is not as recorded."""

from dataclasses import replace
from pathlib import Path

import pytest

from whichtoken.app.pages.papers import answer_sentence
from whichtoken.app.pages.sentences import describe_states, highlights, number, sentence
from whichtoken.app.pages.terminal import print_results, print_summary
from whichtoken.lab import reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.record import RunSummary, recorded_runs
from whichtoken.lab.results import overlap
from whichtoken.lab.statements import judge_papers, sources
from whichtoken.lab.verdicts import Verdict, in_words
from whichtoken.lab.worker import work

INTERVAL = "Measured 0.0426 (0.0393 to 0.0458)"
EQUAL = Verdict("a.b", "it is so", 0.042, 0.0, 0.0426, 0.0393, 0.0458, "=", "rule", "agrees", resolution=0.00168)


@pytest.fixture
def result(tmp_path, monkeypatch):
    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parents[2] / "toys"))
    [made] = reproduce(["toy/mean"], out=tmp_path)
    return made


@pytest.fixture
def on_record(result, monkeypatch):
    """Put verdicts of the toy on record."""

    def put(*verdicts):
        run = RunSummary("toy/mean", "quick", version=1, verdicts=tuple(verdicts))
        for module in ("lab.results", "app.pages.terminal"):
            monkeypatch.setattr(f"whichtoken.{module}.recorded_runs", lambda: {("toy/mean", "quick"): run})
        monkeypatch.setattr(type(find("toy/mean")), "expected", {"quick": run.states})

    return put


def test_run_as_recorded_is_one_line_and_a_sentence(result, on_record, capsys):
    on_record(*result.verdicts)
    print_results([result])
    shown = capsys.readouterr().out
    assert "The mean of shifted normals is the shift  toy/mean (quick)" in shown
    assert "1 agrees" in shown
    assert shown.strip().splitlines()[-1].strip() == "The verdict is as on record."
    assert "mean.shift" not in shown
    print_results([result], verbose=True)
    assert "the mean is the shift" in capsys.readouterr().out


def test_claim_outside_the_package_is_compared_with_its_own_file(result, monkeypatch, capsys):
    monkeypatch.setattr(type(find("toy/mean")), "expected", {"quick": {"mean.shift": "agrees"}})
    print_results([result])
    assert "The verdict is as the claim's own file expects." in capsys.readouterr().out


@pytest.mark.parametrize(("state", "kind"), [("disagrees", "changed"), ("undecided", "other state"), ("not-run", None)])
def test_other_states_are_told(result, on_record, capsys, state, kind):
    on_record(replace(result.verdicts[0], state=state))
    assert [item.kind for item in result.differences] == ([kind] if kind else [])
    print_results([result])
    shown = capsys.readouterr().out
    assert (f"mean.shift was {in_words(state, 1)} (" in shown) == bool(kind)
    assert ("decided now: mean.shift was undecided (" in shown) == (state == "undecided")
    assert ("The verdict is not as on record." in shown) == bool(kind)


def test_same_state_with_intervals_apart_is_told(result, on_record, capsys):
    [verdict] = result.verdicts
    on_record(replace(verdict, low=verdict.high + 0.01, high=verdict.high + 0.02))
    assert [item.kind for item in result.differences] == ["apart"]
    print_results([result])
    assert "moved: mean.shift was agrees (" in capsys.readouterr().out


def test_claim_that_is_undecided_now_and_one_that_is_gone_are_told(result, on_record):
    [verdict] = result.verdicts
    undecided = replace(result, verdicts=[replace(verdict, state="undecided")])
    on_record(verdict, replace(verdict, code="mean.gone"))
    assert [(item.kind, item.code) for item in undecided.differences] == [
        ("weaker", "mean.shift"),
        ("vanished", "mean.gone"),
    ]


def test_claim_that_the_record_does_not_know_is_told(result, on_record, capsys):
    [verdict] = result.verdicts
    on_record(verdict)
    new = replace(result, verdicts=[verdict, replace(verdict, code="mean.new")])
    assert [(item.kind, item.code) for item in new.differences] == [("new", "mean.new")]
    print_results([new])
    assert "new: mean.new agrees (" in capsys.readouterr().out


def test_single_numbers_are_compared_by_state_alone():
    exact = replace(EQUAL, low=0.1, high=0.1)
    assert overlap(EQUAL, exact)
    assert overlap(EQUAL, replace(EQUAL, low=None, high=None))
    assert overlap(EQUAL, replace(EQUAL, low=0.0458, high=1.0))
    assert not overlap(EQUAL, replace(EQUAL, low=0.0459, high=1.0))


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (EQUAL, f"{INTERVAL}; theory says 0.042; an error of 4 % would have been noticed."),
        (replace(EQUAL, theory=0.0), f"{INTERVAL}; theory says 0; an error of 0.00168 would have been noticed."),
        (replace(EQUAL, state="undecided"), f"{INTERVAL}; theory says 0.042."),
        (replace(EQUAL, tolerance=0.01),
         f"{INTERVAL}; theory says 0.042, with a tolerance of 0.01; an error of 4 % would have been noticed."),
        (replace(EQUAL, relation="≤", resolution=0.0),
         f"{INTERVAL}; the check requires at most 0.042; any violation would have been noticed."),
        (replace(EQUAL, relation="≥", low=0.0426, high=0.0426, resolution=None),
         "Measured 0.0426 (exactly); the check requires at least 0.042; any violation in these runs would have been noticed."),
        (replace(EQUAL, low=0.0426, high=0.0426, resolution=None), "Measured 0.0426 (exactly); theory says 0.042."),
        (replace(EQUAL, low=None, high=None, resolution=None),
         "Measured 0.0426 (too few repeats for an interval); theory says 0.042."),
        (replace(EQUAL, state="not-run", measured=None, note="needs the reviews"), "Needs the reviews."),
    ],
)  # fmt: skip
def test_verdict_is_a_sentence(verdict, said):
    assert sentence(verdict) == said


def test_counts_and_numbers_are_words():
    assert describe_states({"agrees": 1, "disagrees": 2, "undecided": 1}) == "1 agrees, 2 disagree, 1 undecided"
    assert (number(-0.0), number(None), number(1234567.0)) == ("0", "", "1.235e+06")


def test_family_is_represented_by_what_speaks_most_against_it():
    verdicts = [
        replace(EQUAL, code=code, state=state)
        for code, state in [("a.one.x", "agrees"), ("a.one.y", "undecided"), ("a.two", "disagrees")]
    ]
    shown = highlights(verdicts, most=5)
    assert [item.verdict.code for item in shown] == ["a.two", "a.one.y"]
    assert shown[1].others == "1 more alike: 1 agrees"


def test_a_pooled_verdict_says_at_which_point_it_is_tightest():
    parts = tuple(replace(EQUAL, code=f"a.{k}", resolution=0.00168 * k) for k in (1, 2))
    said = sentence(replace(EQUAL, evidence=parts))
    least = "at the tightest of 2 points"
    assert said == f"{INTERVAL} {least}; theory says 0.042; an error of 8 % would have been noticed at each point."


def test_every_answer_says_what_was_measured_and_every_support_what_it_would_have_noticed():
    judged = [each for paper in judge_papers(recorded_runs().values()) for each in (*paper.statements, *paper.ours)]
    for each in (each for each in judged if each.headline):
        said = answer_sentence(each)
        assert said.startswith(f"{each.headline.verdict.claim}: measured "), each.statement.id
        assert each.answer != "supported" or "would have been noticed" in said, each.statement.id


def test_every_headline_of_the_overview_is_a_statement_with_an_answer():
    """A claim that changes its codes must not leave the overview silently."""
    for paper in judge_papers(recorded_runs().values()):
        source = paper.source
        assert any(source.figure[0] == id for id, _ in recorded_runs())
        assert 2 <= len(source.headlines) <= 5
        for _, id in (*source.headlines, source.stops):
            assert paper.find(id) is not None, id
            assert paper.find(id).answer != "not checked", id


def test_demonstration_ends_with_families_counts_report_and_what_to_try(capsys):
    studies = list(recorded_runs().values())
    print_summary(studies, "out/report/index.html")
    shown = capsys.readouterr().out
    assert all(f"{source.title}: of " in shown for source in sources())
    assert f"All {sum(len(source.statements) for source in sources())} statements: " in shown
    assert "report: out/report/index.html" in shown
    assert "whichtoken report --record" in shown


def test_result_in_a_notebook_says_what_was_claimed_and_found(result):
    disagreeing = replace(EQUAL, code="mean.other", claim="another claim", state="disagrees")
    shown = replace(result, verdicts=[*result.verdicts, disagreeing])
    page = shown._repr_html_()
    places = [
        page.index(words)
        for words in ("Averaging draws", "another claim", "disagrees; measured", "the mean is the shift")
    ]
    assert places == sorted(places), "the claim first, then what speaks against it"
    assert repr(shown).startswith("<Result: toy/mean (quick): 1 agrees, 1 disagrees; 10 rows in ")
