"""The search for where a claim stops holding."""

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from whichtoken.errors import UsageError
from whichtoken.lab import Exact, Experiment, Grid, Mean, Share, agreement, at_least, at_most, stress
from whichtoken.lab.borders import FRESH, Border, Budget
from whichtoken.lab.discovery import experiments
from whichtoken.lab.instances import Lemma, search_instances
from whichtoken.lab.worker import Outcome

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parent.parent / "toys"))


def test_finds_the_borders_of_single_fields_without_being_told(tmp_path):
    found = stress("toy/border", "1500rows", fields=["tilt", "rate", "noise"], out=tmp_path)
    known = {"tilt": 0.8, "rate": 20.0}
    assert {border.field: border.fails for border in found.borders} == dict.fromkeys(known, "above")
    for border in found.borders:
        assert border.low <= border.value <= border.high
        assert border.value == pytest.approx(known[border.field], rel=0.05)
    assert any("noise=1.0 must be at most 0.9" in note for note in found.notes)


def test_shrinks_a_counterexample_to_the_fields_that_matter(tmp_path):
    found = stress("toy/border", "3000rows", out=tmp_path)
    (example,) = found.counterexamples
    assert example.changes.keys() == {"rate", "size"}
    product = example.changes["rate"] * example.changes["size"]
    assert 190 < product < 240, f"{example.changes}: {product} is not the smallest change"


def test_continues_from_stored_rows_and_finds_the_same(tmp_path, monkeypatch):
    first = stress("toy/border", "600rows", fields=["tilt"], out=tmp_path)
    monkeypatch.setattr(
        "whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: pytest.fail("a row is computed again")
    )
    again = stress("toy/border", "600rows", fields=["tilt"], out=tmp_path)
    assert first.borders
    assert json.dumps(first.as_json()["borders"]) == json.dumps(again.as_json()["borders"])


def test_a_check_that_fails_at_the_default_is_a_counterexample_without_changes(tmp_path):
    found = stress("toy/border", "300rows", overrides={"tilt": 2.0}, fields=["noise"], out=tmp_path)
    (example,) = found.counterexamples
    assert (example.code, example.changes, found.held) == ("border.one", {}, [])
    assert str(example) == "fails at the default"


@dataclass(frozen=True)
class Point:
    number: int = 0
    size: float = 1.0
    tilt: float = 0.0


class AtTheEdge(Experiment[Point]):
    """True wherever it is tried, and away from the default by no margin at all: whatever fails there fails by chance."""

    id = "toy/edge"
    ranges = {"size": (1.0, 50.0), "tilt": (-1.0, 1.0)}

    def run(self, point, rng):
        away = point.size > 1 or point.tilt != 0
        value = rng.standard_normal() * 0.3 + (0.0 if away else 1.0)
        return {"value": value, "hit": bool(rng.random() < (0.5 if away else 0.95))}

    def judge(self, rows):
        values = Mean(rows.values("value"))
        match rows[0].point.number % 3:
            case 0:
                yield at_least("edge", "the mean is at least 0", bound=0.0, measured=values)
            case 1:
                yield agreement("edge", "the mean is 0 or 2", theory=1.0, measured=values, tolerance=1.0)
            case 2:
                yield at_least("edge", "half of the runs", bound=0.5, measured=Share(rows.values("hit")))

    def draw(self, rows, figure):
        figure.subplots().plot(rows.values("value"))


@pytest.fixture
def search_at_the_edge(tmp_path, monkeypatch):
    """A search on one of many such claims, by number; each has its own random numbers."""
    claim = AtTheEdge()
    monkeypatch.setattr("whichtoken.lab.borders.find", lambda _: claim)
    monkeypatch.setattr("whichtoken.lab.worker.find", lambda _: claim)

    def search(number):
        monkeypatch.setattr(AtTheEdge, "presets", {"map": (Grid(number=number, seeds=8),)}, raising=False)
        return stress("toy/edge", "2000rows", out=tmp_path / str(number))

    return search


def test_what_does_not_fail_again_on_fresh_repeats_is_not_reported(search_at_the_edge, monkeypatch):
    def outcome(task):
        failing = task.seed < FRESH and '"size":1.0' not in task.point
        return Outcome("ok", "", {"value": -1.0 if failing else 1.0, "hit": True}, 0.0)

    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, outcome(t)) for t in tasks))
    found = search_at_the_edge(0)
    assert any(trial.state("edge") == "fails" for trial in found.trials)
    assert (found.borders, found.counterexamples) == ([], [])
    assert any("but not again on fresh repeats; it is not reported" in note for note in found.notes)


@pytest.mark.slow
def test_reports_by_chance_are_no_more_frequent_than_the_level(search_at_the_edge):
    searches = 500
    reports = sum(bool(found.borders or found.counterexamples) for found in map(search_at_the_edge, range(searches)))
    print(f"{reports} of {searches} searches on true claims report something")
    assert binomtest(reports, searches, 0.05, alternative="greater").pvalue > 0.01, f"{reports} of {searches}"


def test_a_search_without_a_check_that_holds_says_that_nothing_was_searched(tmp_path, monkeypatch):
    from whichtoken.app.pages.borders import borders_as_lines

    def refuse(self, point, rng):
        raise ValueError("no such size")

    claim = AtTheEdge()
    for module in ("borders", "worker"):
        monkeypatch.setattr(f"whichtoken.lab.{module}.find", lambda _: claim)
    monkeypatch.setattr(AtTheEdge, "presets", {"map": (Grid(seeds=2),)}, raising=False)
    monkeypatch.setattr(AtTheEdge, "run", refuse)
    lines = borders_as_lines(stress("toy/edge", "50rows", out=tmp_path))
    assert "no check holds at the default, so nothing was searched" in lines
    assert sum("no such size" in line for line in lines) == 1


def test_a_measurement_that_is_not_finite_is_undecided_and_its_file_is_json(tmp_path, monkeypatch):
    claim = AtTheEdge()
    for module in ("borders", "worker"):
        monkeypatch.setattr(f"whichtoken.lab.{module}.find", lambda _: claim)
    monkeypatch.setattr(AtTheEdge, "presets", {"map": (Grid(seeds=4),)}, raising=False)
    level = lambda rows: 0.0 if rows[0].point.size < 5 else np.inf  # noqa: E731
    monkeypatch.setattr(
        AtTheEdge, "judge", lambda self, rows: iter([at_most("edge", "level", bound=1.0, measured=Exact(level(rows)))])
    )
    found = stress("toy/edge", "200rows", fields=["size"], out=tmp_path)
    json.dumps(found.as_json(), allow_nan=False)
    assert {trial.state("edge") for trial in found.trials} == {"holds", "undecided"}
    assert found.borders == []


class TwoChecks(AtTheEdge):
    """One check that stops holding at a size of 20, and one before it that nobody can decide away from the default."""

    ranges = {"size": (1.0, 50.0), "tilt": (0.0, 1.0)}
    presets = {"map": (Grid(size=2.0, tilt=0.3, seeds=8),)}

    def run(self, point, rng):
        noise = rng.standard_normal() * (point.size != 2 or point.tilt != 0.3)
        return {"size": point.size, "noise": noise}

    def judge(self, rows):
        yield at_most("noisy", "the noise is at most 0", bound=0.0, measured=Mean(rows.values("noise")))
        yield at_most("small", "the size is at most 20", bound=20.0, measured=Mean(rows.values("size")))


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """What a search of few rows finds for the claim with two checks, with a map of both fields."""
    claim = TwoChecks()
    for module in ("borders", "worker"):
        monkeypatch.setattr(f"whichtoken.lab.{module}.find", lambda _: claim)
    monkeypatch.setattr("whichtoken.app.pages.borders.find", lambda _: claim)
    return stress("toy/edge", "1000rows", map_fields=["size", "tilt"], out=tmp_path)


def test_checks_that_nobody_can_decide_leave_rows_to_confirm_what_fails(mapped):
    assert sum(trial.repeats for trial in mapped.trials) <= 750
    assert {border.code for border in mapped.borders} == {"small"}
    assert all(border.low <= 20 <= border.high for border in mapped.borders)


def test_the_values_of_a_map_count_as_searched(mapped):
    assert mapped.searched == {"size": (1.0, 50.0), "tilt": (0.0, 1.0)}
    assert {dict(trial.changes).get("tilt", 0.3) for trial in mapped.trials} > {0.0, 1.0}


def test_the_map_shows_the_check_that_fails_on_it_with_marks_that_can_be_seen(mapped):
    from matplotlib.figure import Figure

    from whichtoken.app.pages.borders import draw_borders

    axes = draw_borders(mapped, figure := Figure()) or figure.axes[0]
    assert mapped.held[0] == "noisy"
    assert axes.get_title() == "Map of small"
    assert all(marks.get_linewidths()[0] > 0 and marks.get_edgecolors()[0][3] == 1 for marks in axes.collections[:2])


def test_a_statement_about_every_instance_is_refuted_by_one_with_a_proof():
    square = Lemma(
        "square", "x^2 >= x", lambda rng: {"x": rng.normal(size=1)}, lambda at, _: at["x"][0] ** 2 - at["x"][0]
    )
    certificate, _ = search_instances(square)
    value = Fraction(certificate.instance["x"][0])
    assert 0 < value < 1
    assert Fraction(certificate.margin) == value**2 - value
    assert "rational arithmetic" in certificate.sentence


def test_a_false_constant_in_an_inequality_with_exponentials_is_found_with_50_digits():
    def convex(constant):
        def margin(at, numbers):
            x = at["x"][0]
            return numbers.exp(x) - numbers.number(constant) - x

        return Lemma("convex", "e^x >= c + x", lambda rng: {"x": rng.normal(size=1)}, margin, "decimal")

    assert search_instances(convex("1"), most=60)[0] is None
    certificate, _ = search_instances(convex("1.0001"))
    assert (certificate.instance, certificate.margin) == ({"x": ["0"]}, "-0.0001")
    assert certificate.sentence == "at x = (0) the margin is -0.0001 < 0, in 50-digit arithmetic"


def test_the_neighborhood_of_a_random_instance_is_searched():
    """A violation in a ball of radius 0.1 around a point that no random draw comes near to."""
    far = np.array([3.0, -3.0, 3.0])
    lemma = Lemma(
        "ball", "outside of a ball", lambda rng: {"x": rng.normal(size=3)},
        lambda at, numbers: sum((a - numbers.number(b)) ** 2 for a, b in zip(at["x"], far.tolist(), strict=True))
        - numbers.number("0.01") if numbers.number is not float else float(((at["x"] - far) ** 2).sum() - 0.01),
    )  # fmt: skip
    assert search_instances(lemma)[0] is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": "soon"}, "budget='soon' is not a time or a number of rows; write 60s, 10m, 2h or 500rows"),
        ({"budget": "0s"}, "budget='0s' is not a time"),
        ({"fields": ["tilted"]}, "unknown range 'tilted' for toy/border; did you mean 'tilt'?"),
        (
            {"map_fields": ["tilt", "rate", "size"]},
            "map_fields='tilt,rate,size': a map has one or two different fields",
        ),
        ({"overrides": {"tilt": "steep"}}, "tilt='steep' is not accepted"),
        ({"claim": "toy/mean"}, "toy/mean declares no ranges to search"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(options, sentence, tmp_path):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        stress(**{"claim": "toy/border", "out": tmp_path / "results"} | options)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("ranges", [{"sized": (1, 2)}, {"size": (2, 1)}, {"size": 3}, [1]])
def test_ranges_that_cannot_be_searched_are_a_fault_of_the_claim(ranges, monkeypatch):
    from whichtoken.lab.discovery import _check

    monkeypatch.setattr(AtTheEdge, "ranges", ranges)
    monkeypatch.setattr(AtTheEdge, "presets", {"quick": (Grid(seeds=1),)}, raising=False)
    with pytest.raises(UsageError, match="ranges must be a dictionary"):
        _check(AtTheEdge, {})


def test_budget_is_a_time_or_a_number_of_rows():
    assert (Budget.parse("90s").seconds, Budget.parse("1.5m").seconds, Budget.parse("2h").seconds) == (90, 90, 7200)
    assert Budget.parse("500rows").rows == 500


def test_every_range_of_the_package_contains_the_default_of_its_claim():
    from whichtoken.lab.plan import make_plan

    searched = [claim for claim in experiments().values() if claim.ranges]
    for claim in searched:
        plan = make_plan(claim, "map" if "map" in claim.presets else "quick")
        point = next(iter(plan.points.values()))
        for name, (low, high) in claim.ranges.items():
            assert low <= getattr(point, name) <= high, f"{claim.id}: {name}"


def test_a_window_between_two_rings_is_found_with_both_its_ends(tmp_path):
    found = stress("toy/window", "600rows", out=tmp_path)
    ends = {border.fails: (border.low, border.high) for border in found.borders}
    assert ends.keys() == {"above", "below"}
    for side, known in (("above", 5.0), ("below", 8.0)):
        assert ends[side][0] <= known <= ends[side][1]


def test_a_new_claim_runs_as_it_stands_and_its_border_is_found(whichtoken, tmp_path, monkeypatch):
    """Called as something that its file imports, which the name of its class must not hide."""
    monkeypatch.chdir(tmp_path)
    assert whichtoken("new", "claim", "mine/mean").returncode == 0
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", "claims")
    done = whichtoken("reproduce", "mine/mean", "--quiet")
    assert done.returncode == 0, done.stderr
    found = stress("mine/mean", "2000rows", fields=["bias"])
    assert [border.value for border in found.borders] == [pytest.approx(0.05, abs=0.01)]


@pytest.mark.parametrize(
    ("borders", "sentence"),
    [
        ([], ""),
        ([("rate", "above", 5.0), ("rate", "above", 3.0), ("dim", "below", 6.5)], "Holds from dim = 6.5 on, and up to rate = 3."),
        ([("rate", "above", 0.2), ("rate", "below", 0.5)], "Holds for rate up to 0.2 and from 0.5 on, but not between."),
        (
            [("dim", "below", 2.0), ("dim", "above", 3.0), ("dim", "below", 1234.5)],
            "Holds for dim from 2 up to 3 and from 1230 on, but not between.",
        ),
    ],
)  # fmt: skip
def test_where_it_holds_is_one_sentence_that_names_gaps(borders, sentence):
    from whichtoken.app.pages.borders import where_it_holds

    default = {"rate": 1.0, "dim": 2000 if ("dim", "below", 1234.5) in borders else 8}
    found = [Border("code", "claim", name, value, value, value, side, None) for name, side, value in borders]
    assert where_it_holds(found, default) == sentence


def test_a_check_that_fails_at_the_default_is_named_before_where_the_others_hold():
    from whichtoken.app.pages.borders import where_it_holds

    values = [("above", 2.0), ("below", 3.0), ("above", 4.0)]  # a gap above the default, and an end
    found = [Border("code", "claim", "rate", value, value, value, side, None) for side, value in values]
    assert where_it_holds(found, {"rate": 1.0}, failing=1) == (
        "One check fails at the default. The others hold for rate up to 2 and from 3 up to 4, but not between."
    )


@pytest.mark.process
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_search_keeps_its_workers_and_finds_the_same_on_every_engine(engine, tmp_path, monkeypatch):
    here = stress("toy/border", "300rows", fields=["tilt"], out=tmp_path / "here")
    monkeypatch.undo()
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parent.parent / "toys"))
    found = stress("toy/border", "300rows", fields=["tilt"], engine=engine, workers=1, out=tmp_path / engine)
    assert here.borders
    assert json.dumps(found.as_json()["borders"]) == json.dumps(here.as_json()["borders"])


def test_the_page_of_a_claim_ends_with_where_it_stops():
    from whichtoken.app.pages.experiment_page import experiment_page
    from whichtoken.lab.discovery import find
    from whichtoken.lab.record import recorded_borders

    assert len({claim.partition("/")[0] for claim in recorded_borders()}) == 6
    for claim, searches in recorded_borders().items():
        page = experiment_page(find(claim), [])
        assert page.index("Where it stops") > page.index("<h2>Source</h2>")
        for found in searches:
            assert found["command"] in page
            assert not found["with"] or f"With {found['with']}" in page
