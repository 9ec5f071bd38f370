"""Runs go on record and come back as they were."""

import json

import pytest
from tools.recording import finish_recording, start_recording

from whichtoken.errors import UsageError
from whichtoken.lab import Grid, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.record import recorded_ledger, recorded_runs, recorded_states
from whichtoken.lab.results import stored_results

CLAIM = "attention-regression/limit"


@pytest.fixture
def empty_record(tmp_path, monkeypatch):
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / "verdicts.json").write_text("[]")
    for module in ("whichtoken.lab.record", "tools.recording"):
        monkeypatch.setattr(f"{module}.record_folder", lambda: folder)
    recorded_runs.cache_clear()
    yield folder
    recorded_runs.cache_clear()


@pytest.fixture
def small(monkeypatch):
    """A claim whose three presets are one small point each, with different repeats."""
    grids = find(CLAIM).presets["quick"]
    axes = {name: values[0] for name, values in grids[0].axes.items()}
    presets = {name: (Grid(seeds=n, **axes),) for name, n in [("quick", 3), ("full", 4), ("paper", 5)]}
    monkeypatch.setattr(type(find(CLAIM)), "presets", presets)


def results_on_record():
    with recorded_ledger(CLAIM) as ledger:
        return stored_results(ledger)


def test_complete_runs_go_on_record_and_come_back(empty_record, small, tmp_path, capsys, no_workers):
    out = tmp_path / "out"
    computed = {preset: reproduce([CLAIM], preset, out=out, workers=1)[0] for preset in ("quick", "full", "paper")}
    finish_recording(out)
    assert "3 runs on record" in capsys.readouterr().out
    for preset, result in computed.items():
        run = recorded_runs()[CLAIM, preset]
        assert list(run.verdicts) == result.verdicts
        assert (run.points, run.rows, run.failed, run.version) == (
            1,
            result.plan.seeds or len(result.rows),
            0,
            find(CLAIM).version,
        )
        assert run.versions["whichtoken"]
        assert "cores" in run.machine
    assert recorded_states(CLAIM)["full"] == {v.code: v.state for v in computed["full"].verdicts}

    again = {result.preset: result for result in results_on_record()}
    assert set(again) == {"full", "paper"}  # the rows of quick are not kept
    for preset, result in again.items():
        assert [row.as_json() for row in result.rows] == [row.as_json() for row in computed[preset].rows]
        assert result.verdicts == computed[preset].verdicts


def test_recording_one_preset_leaves_the_others(empty_record, small, tmp_path, no_workers):
    reproduce([CLAIM], "full", out=tmp_path / "a", workers=1)
    reproduce([CLAIM], "paper", out=tmp_path / "b", workers=1)
    finish_recording(tmp_path / "a")
    finish_recording(tmp_path / "b")
    assert {preset for _, preset in recorded_runs()} == {"full", "paper"}
    with recorded_ledger(CLAIM) as ledger:
        assert {run.preset for run in ledger.runs()} == {"full", "paper"}


def test_rows_of_paper_alone_come_back(empty_record, small, tmp_path, no_workers):
    reproduce([CLAIM], "paper", out=tmp_path / "out", workers=1)
    finish_recording(tmp_path / "out")
    assert [result.preset for result in results_on_record()] == ["paper"]


def test_unfinished_runs_are_named_and_left(empty_record, small, tmp_path, capsys, monkeypatch, no_workers):
    reproduce([CLAIM], "full", out=tmp_path / "out", workers=1)
    monkeypatch.setattr(
        type(find(CLAIM)),
        "presets",
        {"full": tuple(Grid(seeds=9, **grid.axes) for grid in find(CLAIM).presets["full"])},
    )
    finish_recording(tmp_path / "out")
    assert f"not recorded, {CLAIM} full: 5 rows missing" in capsys.readouterr().out
    assert not recorded_runs()
    assert not results_on_record()
    start_recording(tmp_path / "elsewhere")
    assert "4 rows taken from the record" in capsys.readouterr().out  # the run goes on with what was finished


def test_a_run_goes_on_from_the_record(empty_record, small, tmp_path, capsys, monkeypatch, no_workers):
    [first] = reproduce([CLAIM], "full", out=tmp_path / "a", workers=1)
    finish_recording(tmp_path / "a")
    start_recording(tmp_path / "b")
    assert "4 rows taken from the record" in capsys.readouterr().out
    monkeypatch.setattr(type(find(CLAIM)), "run", None)  # nothing is computed again
    [again] = reproduce([CLAIM], "full", out=tmp_path / "b", workers=1)
    assert [row.as_json() for row in again.rows] == [row.as_json() for row in first.rows]
    start_recording(tmp_path / "b")
    assert "0 rows taken from the record" in capsys.readouterr().out


def test_a_small_point_is_recorded_where_a_claim_names_one(empty_record, small, tmp_path, monkeypatch, no_workers):
    claim = find(CLAIM)
    monkeypatch.setattr(type(claim), "spot", claim.point_type(context=100, tokens=200))
    reproduce([CLAIM], "full", out=tmp_path / "out", workers=1)
    finish_recording(tmp_path / "out")
    with recorded_ledger(CLAIM) as ledger:
        points = [row["point"] for row in ledger.records([CLAIM])]
    assert sum(point["tokens"] == 200 for point in points) == 1
    assert len(points) == 5


def test_runs_with_other_settings_stay_off_the_record(empty_record, small, tmp_path, no_workers):
    reproduce([CLAIM], "full", seeds=3, out=tmp_path / "out", workers=1)
    finish_recording(tmp_path / "out")
    assert not recorded_runs()


def test_a_wheel_says_where_the_rows_are(empty_record):
    with pytest.raises(UsageError, match="kept in the repository"), recorded_ledger(CLAIM):
        pass


def test_the_file_has_one_verdict_a_line(empty_record, small, tmp_path, no_workers):
    [result] = reproduce([CLAIM], "full", out=tmp_path / "out", workers=1)
    finish_recording(tmp_path / "out")
    lines = (empty_record / "verdicts.json").read_text().splitlines()
    assert sum(line.startswith('  {"claim"') for line in lines) == len(result.verdicts)
    assert json.loads("\n".join(lines))
