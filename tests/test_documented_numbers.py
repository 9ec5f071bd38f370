"""Numbers in README and pages are those on record."""

import importlib.util
import json
from pathlib import Path

import pytest

from whichtoken.lab.discovery import experiments

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("numbers_of_the_pages", ROOT / "docs" / "make_numbers.py")
numbers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numbers)


@pytest.mark.parametrize("page", numbers.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_are_those_on_record(page):
    text = page.read_text(encoding="utf-8")
    renewed, problems = numbers.renew(text, numbers.sources(page))
    assert problems == []
    assert renewed == text, "run `python docs/make_numbers.py`"


def test_every_file_of_sources_has_its_page():
    files = {file.stem for file in (ROOT / "docs" / "numbers").iterdir()}
    assert files <= {page.stem for page in numbers.pages()}


def test_pages_are_readable_as_they_are():
    """Comments are for generated tables only."""
    texts = {page: page.read_text(encoding="utf-8") for page in numbers.pages()}
    assert texts[ROOT / "README.md"].count("<!--") == 0
    assert sum(text.count("<!--") for text in texts.values()) <= 40
    assert max(map(len, texts[ROOT / "README.md"].splitlines())) <= 400


def test_readme_counts_the_claims():
    claims = [claim for claim in experiments().values() if type(claim).__module__.startswith("whichtoken.")]
    without_torch = sum(claim.needs != "torch" for claim in claims)
    assert f"{without_torch} of the {len(claims)} claims" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_benchmark_has_its_peers_number_too(tmp_path, monkeypatch):
    measure = {
        "case": "c",
        "what": "w",
        "value": 2.0,
        "beside": {"ours": 0.5, "theirs": 1.0, "interval": [-0.7, -0.3], "result": "loss"},
    }
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "b.json").write_text(
        json.dumps({"benchmarks": [{"name": "b", "measures": [measure]}]}), encoding="utf-8"
    )
    monkeypatch.setattr(numbers, "record_folder", lambda: tmp_path)
    assert [
        numbers.number(f"bench b c w {wanted}") for wanted in (".1f", "theirs .1f", "interval .1f", "result s")
    ] == [
        "2.0",
        "1.0",
        "-0.7 to -0.3",
        "lost",
    ]
    with pytest.raises(LookupError, match="not on record"):
        numbers.number("bench b c w absent .1f")


def test_a_stale_number_is_renewed_and_the_rest_stays():
    run = next(
        run for run in numbers.recorded_runs().values() if run.preset == "quick" and run.verdicts[0].state == "agrees"
    )
    state = f"{run.id} quick {run.verdicts[0].code} state"
    page = "a row | wrong | and\nwrong, too."
    assert numbers.renew(page, {"row | {} | and {}, too": [state, state]}) == ("a row | agrees | and\nagrees, too.", [])


@pytest.mark.parametrize(("page", "times"), [("nothing", 0), ("x 1 y, x 2 y", 2)])
def test_a_text_that_does_not_occur_once_is_named(page, times):
    renewed, [problem] = numbers.renew(page, {"x {} y": ["no/claim full code measured"]})
    assert renewed == page
    assert f"'x {{}} y' occurs {times} times" in problem


def recorded(relation):
    """A run and one of its verdicts that was measured."""
    return next(
        (run, verdict)
        for run in numbers.recorded_runs().values()
        for verdict in run.verdicts
        if verdict.relation == relation and verdict.theory and verdict.measured is not None
    )


def test_fields_that_are_made_of_others():
    run, verdict = recorded("=")
    asked = f"{run.id} {run.preset} {verdict.code}"
    assert numbers.number(f"{asked} interval .3f") == f"{verdict.low:.3f} to {verdict.high:.3f}"
    off = (verdict.measured - verdict.theory) / abs(verdict.theory)
    assert numbers.number(f"{asked} off +.1%") == f"{100 * off:+.1f} %"


def test_all_that_is_missing_is_listed_and_left_as_it_is():
    run, verdict = recorded("=")
    misspelt = f"{run.id} {run.preset} {verdict.code}x measured .2f"
    page = "first 0.12, second 3."
    text, (first, second) = numbers.renew(page, {"first {}, second {}.": [misspelt, "no/claim full code measured"]})[:2]
    assert verdict.code in second.split("near it: ")[1].rstrip(")").split(", ")
    assert first.endswith("(no run of no/claim at full)")
    assert text == page


@pytest.mark.parametrize("what", ["no/claim full code measured", "bench nothing case what .2f"])
def test_what_is_not_on_record_is_named(what):
    with pytest.raises(LookupError, match="not on record"):
        numbers.number(what)
