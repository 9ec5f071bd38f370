"""Numbers in README and pages are those on record."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("numbers_of_the_pages", ROOT / "docs" / "make_numbers.py")
numbers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numbers)


@pytest.mark.parametrize("page", numbers.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_numbers_are_those_on_record(page):
    text = page.read_text(encoding="utf-8")
    assert numbers.renewed(text) == text, "run `python docs/make_numbers.py`"


def test_a_stale_number_is_renewed_and_the_rest_stays():
    run = next(
        run for run in numbers.recorded_runs().values() if run.preset == "quick" and run.verdicts[0].state == "agrees"
    )
    mark = f"<!--= {run.experiment} quick {run.verdicts[0].code} state -->"
    assert (
        numbers.renewed(f"a {mark}wrong<!--/--> b {mark}<!--/-->.") == f"a {mark}agrees<!--/--> b {mark}agrees<!--/-->."
    )


@pytest.mark.parametrize("what", ["no/claim full code measured", "bench nothing case what .2f"])
def test_what_is_not_on_record_is_named(what):
    with pytest.raises(LookupError, match="not on record"):
        numbers.number(what)
