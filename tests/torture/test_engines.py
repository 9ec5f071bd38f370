"""Kill drivers and workers at any moment, feed every bad point: the table at the end is that of a quiet run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tally import tally

from whichtoken.files import LEDGER_NAME
from whichtoken.lab import reproduce
from whichtoken.lab.discovery import find

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
DRIVER_KILLS, WORKER_KILLS, RACES = 30, 25, 30
ENGINES = ["local", "dask"]
MINUTES = 1800  # for a run of seconds: only one that hangs needs so long, however busy the machine


def table(out):
    """All rows of a ledger but for the time that they took."""
    with contextlib.closing(
        sqlite3.connect(f"file:{Path(out) / LEDGER_NAME}?mode=ro", uri=True, timeout=60)
    ) as connection:
        query = "SELECT experiment, version, point, seed, status, message, measured FROM rows ORDER BY 1, 2, 3, 4"
        return connection.execute(query).fetchall()


def rows_in(out):
    try:
        return len(table(out))
    except sqlite3.OperationalError:
        return 0


def children(process):
    """Every process below this one, with its command line."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found, frontier = {}, [process]
    while frontier:
        frontier = [child for child, parent in parents.items() if parent in frontier]
        for child in frontier:
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes()
    return found


def workers_of(process):
    """Processes that compute, not the trackers of resources."""
    return [
        child
        for child, line in children(process).items()
        if b"popen_loky" in line or (b"spawn_main" in line and b"resource_tracker" not in line)
    ]


def start(out, engine, log, *options):
    command = [sys.executable, "-m", "whichtoken", "reproduce", "toy/faults", "--preset", "full", "--quiet", *options]
    command += ["--engine", engine, "--workers", "2", "--out", str(out)]
    with log.open("ab") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def quiet_table(tmp_path, options):
    driver = start(tmp_path / "quiet", "local", tmp_path / "quiet.log", *options)
    assert driver.wait(timeout=MINUTES) == 0
    return table(tmp_path / "quiet")


def lost(found, wanted):
    return len(wanted) - len(set(found) & set(wanted))


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_drivers_lose_nothing_that_was_stored(engine, tmp_path):
    options = ["--seeds", "15", "--set", "pause=0.1"]  # 180 rows, 9 s of work for two workers
    wanted, luck, log = quiet_table(tmp_path, options), random.Random(1), tmp_path / "driver.log"
    out, survived, stored = tmp_path / engine, 0, 0
    for _ in range(DRIVER_KILLS):
        driver = start(out, engine, log, *options)
        target = stored + luck.choice([0, 0, 1, 2, 5])  # at the start, or after some rows
        deadline = time.monotonic() + luck.uniform(0.0, 2.0) + (60 if target > stored else 0)
        while time.monotonic() < deadline and driver.poll() is None and (target == stored or rows_in(out) < target):
            time.sleep(0.02)
        driver.kill()
        driver.wait()
        kept = rows_in(out)
        survived += kept >= stored
        stored = kept
    assert start(out, engine, log, *options).wait(timeout=MINUTES) == 0
    found = table(out)
    tally(f"kill -9 of the driver, {engine}", DRIVER_KILLS, survived, lost(found, wanted))
    assert found == wanted
    assert survived == DRIVER_KILLS
    assert log.read_text() == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_workers_cost_no_row(engine, tmp_path):
    options = ["--seeds", "50", "--set", "pause=0.05"]  # 600 rows, 15 s of work for two workers
    wanted, luck, log = quiet_table(tmp_path, options), random.Random(2), tmp_path / "driver.log"
    out = tmp_path / engine
    driver, kills = start(out, engine, log, *options), 0
    while driver.poll() is None and kills < WORKER_KILLS:
        before = rows_in(out)
        workers = workers_of(driver.pid)
        if not before or not workers:
            time.sleep(0.05)
            continue
        time.sleep(luck.uniform(0.0, 0.3))
        with contextlib.suppress(ProcessLookupError):
            os.kill(luck.choice(workers), signal.SIGKILL)
            kills += 1
        # let something finish before the next: a point whose worker dies three times is rightly a failed row
        deadline = time.monotonic() + 300
        while driver.poll() is None and rows_in(out) < before + 8 and time.monotonic() < deadline:
            time.sleep(0.02)
    status = driver.wait(timeout=MINUTES)
    found = table(out)
    tally(f"kill -9 of a worker, {engine}", kills, kills if status == 0 else 0, lost(found, wanted))
    assert (status, kills) == (0, WORKER_KILLS)
    assert found == wanted
    assert log.read_text() == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_that_die_while_a_row_is_stored_cost_no_row(engine, tmp_path, monkeypatch):
    from whichtoken.lab import reproduce as module  # the function; its module is behind it

    lab = sys.modules[module.__module__]
    store, kills, luck = lab._store, 0, random.Random(3)

    def slowly(*arguments):
        nonlocal kills
        store(*arguments)
        if kills < RACES and luck.random() < 0.5:
            for worker in workers_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    kills += 1
            time.sleep(luck.uniform(0.0, 0.3))

    monkeypatch.setattr(lab, "_store", slowly)
    [disturbed] = reproduce(["toy/mean"], seeds=200, engine=engine, workers=2, out=tmp_path / "disturbed")
    monkeypatch.undo()
    monkeypatch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parent.parent / "toys"))
    reproduce(["toy/mean"], seeds=200, workers=2, out=tmp_path / "quiet")
    found, wanted = table(tmp_path / "disturbed"), table(tmp_path / "quiet")
    tally(f"death of all workers while a row is stored, {engine}", kills, kills, lost(found, wanted))
    assert kills >= RACES
    assert found == wanted
    assert disturbed.missing == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_pauses_longer_than_the_time_limit_cost_no_row(engine, tmp_path):
    options = ["--seeds", "5", "--set", "pause=0.5"]  # 60 rows, 15 s of work for two workers
    wanted, log, out, pauses = quiet_table(tmp_path, options), tmp_path / "driver.log", tmp_path / engine, 0
    driver = start(out, engine, log, *options, "--timeout", "4")
    for rows in (1, 15, 30):
        while driver.poll() is None and rows_in(out) < rows:
            time.sleep(0.05)
        family = [driver.pid, *children(driver.pid)]  # as Ctrl-Z does
        for signal_number, pause in ((signal.SIGSTOP, 10), (signal.SIGCONT, 0)):
            for process in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal_number)
            time.sleep(pause)
        pauses += 1
    status = driver.wait(timeout=MINUTES)
    found = table(out)
    tally(f"pause of driver and workers, {engine}", pauses, pauses if status == 0 else 0, lost(found, wanted))
    assert (status, found) == (0, wanted)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_of_bad_point_is_a_failed_row(engine, tmp_path, capfd):
    poison = sys.modules[type(find("toy/poison")).__module__]
    bad = {*poison.RAISED, *poison.RETURNED, *poison.PREDICTED, *poison.DEADLY, *poison.ENDLESS}
    assert len(bad) >= 48
    overrides = {"kind": ["good", *sorted(bad)], "number": 0}
    [result] = reproduce(["toy/poison"], overrides=overrides, engine=engine, workers=2, timeout=5, out=tmp_path)
    failed = {row.point.kind for row in result.rows.failed}
    right = failed & bad
    tally(f"kinds of bad points, {engine}", len(bad), len(right), result.missing + len(bad - right))
    assert failed == bad
    assert result.missing == 0
    assert {row.point.kind for row in result.rows} == {"good", *poison.PREDICTED}
    assert all(len(row.message) < 1000 and "\n" not in row.message for row in result.rows.failed)
    assert capfd.readouterr() == ("", "")
