"""A run from end to end: failed points, planted errors, interruption."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter

import pytest

from whichtoken.files import LEDGER_NAME
from whichtoken.lab import reproduce


def test_failed_points_are_recorded_and_the_others_go_on(tmp_path, no_workers):
    [result] = reproduce(["toy/faults"], workers=2, out=tmp_path)
    messages = Counter((row.point.fault, row.message.split(" (")[0]) for row in result.rows.failed)
    assert messages == {
        ("raise", "RuntimeError: a planted fault in [/bold]"): 3,
        ("nan", "ValueError: 'value' is nan"): 3,
        ("object", "TypeError: Object of type object is not JSON serializable"): 3,
        ("exit", "SystemExit: gone"): 3,
    }
    assert len(result.rows) == 3
    assert result.verdicts[0].note.endswith("12 of 15 rows failed")


def test_claim_on_record_does_not_vanish_when_its_rows_fail(tmp_path, monkeypatch, no_workers):
    from whichtoken.lab.discovery import find

    monkeypatch.setattr(type(find("toy/faults")), "expected", {"quick": {"faults.lost": "agrees"}})
    [result] = reproduce(["toy/faults"], workers=1, out=tmp_path)
    assert [verdict.code for verdict in result.verdicts] == ["faults.zero", "faults.lost"]
    assert "no finished rows to judge" in result.verdicts[1].note
    assert [item.verdict for item in result.differences if item.kind == "weaker"] == [result.verdicts[1]]


def test_prediction_that_fails_is_shown(tmp_path, no_workers):
    [result] = reproduce(["toy/faults"], overrides={"fault": "bad theory"}, seeds=1, workers=1, out=tmp_path)
    assert len(result.rows) == 1
    assert result.rows.failed[0].message.startswith("prediction: ZeroDivisionError")


def test_planted_wrong_theory_is_found(tmp_path, no_workers):
    right, wrong = (
        reproduce(["toy/mean"], overrides={"factor": factor}, seeds=10, workers=1, out=tmp_path)[0].verdicts[0]
        for factor in (1.0, 1.2)
    )
    assert (right.state, wrong.state) == ("agrees", "disagrees")
    assert right.measured == wrong.measured, "the factor is a method field: the data must be the same"


def test_second_run_computes_nothing_and_fresh_computes_all(tmp_path, toys, no_workers):
    for fresh, executions in ((False, 1), (False, 1), (True, 2)):
        reproduce(["toy/faults"], overrides={"fault": "none"}, seeds=1, workers=1, out=tmp_path, fresh=fresh)
        assert len(toys.read_text().splitlines()) == executions


def test_absent_data_is_not_run_with_its_reason(tmp_path, monkeypatch, no_workers):
    from whichtoken.lab.discovery import find

    monkeypatch.setattr(type(find("toy/mean")), "absent", lambda self, point: "needs reviews.csv; get it from a friend")
    [result] = reproduce(["toy/mean"], out=tmp_path)
    assert [verdict.state for verdict in result.verdicts] == ["not-run"]
    assert "get it from a friend" in result.verdicts[0].note
    assert [item for item in result.differences if item.kind in ("changed", "weaker")] == []


def test_absent_data_is_mentioned_where_it_matters(tmp_path, monkeypatch, no_workers):
    from whichtoken.lab.discovery import find

    experiment = type(find("toy/mean"))
    monkeypatch.setattr(experiment, "expected", {"quick": {"mean.shift": "agrees", "mean.far": "agrees"}})
    monkeypatch.setattr(experiment, "absent", lambda self, point: "get it" if point.draws == 400 else "")
    [result] = reproduce(["toy/mean"], workers=1, out=tmp_path)
    assert [(v.code, v.note) for v in result.verdicts] == [("mean.shift", ""), ("mean.far", "get it")]


def finished_rows(out):
    try:
        connection = sqlite3.connect(f"file:{out / LEDGER_NAME}?mode=ro", uri=True)
        return connection.execute("SELECT count(*) FROM rows").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.process
def test_kill_9_of_the_driver_loses_only_rows_in_flight(tmp_path, toys):
    command = [
        sys.executable,
        "-m",
        "whichtoken",
        "reproduce",
        "toy/faults",
        "--preset",
        "full",
        "--workers",
        "2",
        "--out",
    ]
    driver = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while finished_rows(tmp_path) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    stored = finished_rows(tmp_path)
    assert 4 <= stored < 12

    [resumed] = reproduce(["toy/faults"], "full", workers=2, out=tmp_path)
    [uninterrupted] = reproduce(["toy/faults"], "full", workers=1, out=tmp_path / "other")
    assert [row.measured for row in resumed.rows] == [row.measured for row in uninterrupted.rows]
    executions = Counter(toys.read_text().splitlines())
    assert len(executions) == 12
    # two runs of each point, plus those that were in flight in the killed run
    assert 24 <= executions.total() <= 24 + 2 * 2
