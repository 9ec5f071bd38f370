"""The page of comparisons says what was measured, losses first, and why."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "comparison.md"
maker = runpy.run_path(str(PAGE.with_name("make_comparison.py")))


def table(ours, theirs, why=None, name="toy"):
    """A benchmark with one comparison of times."""
    beside = {"peer": "peer", "ours": ours, "theirs": theirs, "unit": "s of CPU time", "more_is_better": False}
    measure = {"case": "n=1", "what": "times", "value": 1.0, "target": 0.5, "at_least": True, "detail": "", "met": True}
    measured = {"name": name, "finished": True, "seconds": 3.0, "not_run": ""}
    measured["measures"] = [{**measure, "beside": {**beside, "interval": None, "result": "?"}}]
    record = {"date": "2030-01-01", "machine": "m", "load": 1.0, "versions": {"numpy": "3"}, "benchmarks": [measured]}
    return maker["Table"](name, "Texts", "Which is faster?", why or {}, record, measured)


def test_every_result_has_its_sentence():
    assert maker["problems"](maker["read_tables"]()) == []


def test_the_page_is_what_the_generator_gives():
    assert PAGE.read_text(encoding="utf-8") == maker["render"](maker["read_tables"]()), (
        "run python docs/make_comparison.py"
    )


def test_every_benchmark_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in maker["benchmark_files"]() if f"`whichtoken bench {name}`" not in text] == []


def test_a_loss_without_a_sentence_is_named():
    explained = table(2.0, 1.0, {"peer": {"loss": "It does more."}})
    assert maker["problems"]([explained]) == []
    (sentence,) = maker["problems"]([replace(explained, why={"peer": {"win": "It does less."}})])
    assert sentence == "toy: WHY has no sentence for the loss beside peer (n=1)"


def test_losses_stand_above_wins_with_their_reason():
    why = {"peer": {"loss": "It does more.", "win": "It does less."}}
    text = maker["render"]([table(1.0, 8.0, why, "winner"), table(3.0, 1.0, why, "loser")])
    summary = text[text.index("## When to take") : text.index("## Texts")]
    assert summary.index("**peer** ([loser]") < summary.index("## All results in short")
    assert summary.rindex("#bench-loser") < summary.index("#bench-winner")
    assert "| lost 1 | 3 times slower |" in summary
    assert "| won 1 | 8 times faster |" in summary
    assert "1 of 1 rows lost; whichtoken: 3 times slower). It does more." in summary
    assert "It does less." not in summary


def test_two_zeros_are_even():
    """Errors of calibration may both be 0, of which there is no ratio."""
    toy = table(0.0, 0.0, {"peer": {"even": "Neither errs."}})
    toy.measured["measures"][0]["beside"] |= {"unit": "calibration error", "interval": [-0.1, 0.1]}
    assert "| even 1 | even in calibration error |" in maker["render"]([toy])


def test_what_was_not_run_is_named_with_its_command(tmp_path):
    text = maker["render"]([table(1.0, 8.0), *maker["read_tables"](tmp_path)])
    assert "`whichtoken bench prompt-svm`" in text[text.index("## Not run") :]
    assert f"whichtoken lost none of the 1 of {1 + len(maker['benchmark_files']())} benchmarks that were run." in text


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_was_stopped_says_so(finished):
    toy = table(1.0, 8.0)
    text = maker["render"]([replace(toy, measured={**toy.measured, "finished": finished})])
    assert ("not all of its cases were run" in text) is not finished


def test_records_hold_one_table_of_their_own_name():
    folder = maker["record_folder"]() / "benchmarks"
    for file in folder.glob("*.json"):
        assert [each["name"] for each in json.loads(file.read_text())["benchmarks"]] == [file.stem]
