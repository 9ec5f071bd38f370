"""What every engine must satisfy: the same numbers from any number of workers, and no row lost with a worker."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest

from whichtoken.display.text import visible
from whichtoken.lab import reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.engines import parse_engine
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import work

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forgotten_sockets")]

smoke = pytest.mark.smoke
ENGINES = [("local", 1), pytest.param("local", 2, marks=smoke), pytest.param("dask", 1, marks=smoke), ("dask", 2)]
each_engine = pytest.mark.parametrize(("engine", "workers"), ENGINES, ids=lambda value: str(value))


def measured(result):
    return [(row.point, row.seed, row.measured) for row in result.rows]


@each_engine
def test_same_numbers_as_in_this_process(engine, workers, tmp_path):
    [result] = reproduce(["toy/mean"], engine=engine, workers=workers, out=tmp_path)
    here = [work(task).values for task in result.plan.tasks]
    assert [row.measured for row in result.rows] == here
    assert len(here) == 10


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_variables_of_the_workers_stay_with_the_workers(engine, tmp_path):
    """numba compiles nothing more in a process whose number of threads was changed after its first parallel loop."""
    before = dict(os.environ)
    reproduce(["toy/mean"], engine=engine, workers=1, out=tmp_path)
    assert dict(os.environ) == before


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_killed_worker_costs_no_row(engine, tmp_path, toys):
    overrides = {"fault": ["none", "die once"], "number": [1, 2, 3, 4]}
    [result] = reproduce(["toy/faults"], overrides=overrides, seeds=1, engine=engine, workers=2, out=tmp_path)
    assert (result.failed, result.missing) == (0, 0)
    assert len(result.rows) == 8
    assert toys.with_suffix(".log.died").exists()


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_point_that_always_kills_its_worker_fails_alone(engine, tmp_path):
    overrides = {"fault": ["none", "die"], "number": 1}
    [result] = reproduce(["toy/faults"], overrides=overrides, seeds=1, engine=engine, workers=2, out=tmp_path)
    assert Counter(row.point.fault for row in result.rows) == {"none": 1}
    assert Counter(row.point.fault for row in result.rows.failed) == {"die": 1}
    assert "the worker died" in result.rows.failed[0].message


def test_bad_points_are_failed_rows_with_a_message_in_one_safe_line(tmp_path, capfd):
    poison = sys.modules[type(find("toy/poison")).__module__]
    bad = [*poison.RAISED, *poison.RETURNED]
    kinds = [*bad, *poison.PREDICTED, *poison.QUIET, "good"]
    [result] = reproduce(["toy/poison"], overrides={"kind": kinds, "number": 0}, workers=1, out=tmp_path)
    failed = [row for row in result.rows.failed if not row.message.startswith("prediction: ")]
    theories = [row for row in result.rows.failed if row.message.startswith("prediction: ")]
    assert [row.point.kind for row in failed] == bad
    assert {row.point.kind for row in theories} == set(poison.PREDICTED)
    assert {row.point.kind for row in result.rows} == {*poison.PREDICTED, *poison.QUIET, "good"}
    for row in result.rows.failed:
        assert 0 < len(row.message) < 1000
        assert row.message == visible(row.message, keep="")
    assert capfd.readouterr() == ("", "")


def test_two_workers_work_at_the_same_time_to_the_end(tmp_path):
    overrides = {"kind": "meet", "number": list(range(6))}
    [result] = reproduce(["toy/poison"], overrides=overrides, workers=2, out=tmp_path)
    assert len(result.rows) == 6, [row.message for row in result.rows.failed]


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_endless_points_are_stopped_and_the_others_go_on(engine, tmp_path, capfd):
    overrides = {"kind": ["stopped", "looping", "good"], "number": 0}
    [result] = reproduce(["toy/poison"], overrides=overrides, engine=engine, workers=2, timeout=2, out=tmp_path)
    assert Counter(row.point.kind for row in result.rows) == {"good": 1}
    assert Counter((row.point.kind, row.message) for row in result.rows.failed) == {
        (kind, "stopped after 2 s, the time limit of a point (timeout)"): 1 for kind in ("stopped", "looping")
    }
    assert capfd.readouterr() == ("", "")


def test_local_engine_yields_each_task_once():
    tasks = [RunTask("toy/mean", '{"draws":10,"factor":1.0,"method":"mean","shift":1.0}', seed) for seed in range(40)]
    finished = [task for task, _ in parse_engine("local", 2).map(tasks)]
    assert Counter(finished) == Counter(tasks)


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_interrupt_from_the_terminal_is_one_line(engine, tmp_path, toys):
    command = [
        sys.executable,
        "-m",
        "whichtoken",
        "reproduce",
        "toy/faults",
        "--preset",
        "full",
        "--set",
        "pause=1",
        "--quiet",
    ]
    command += ["--engine", engine, "--workers", "2", "--out", str(tmp_path)]
    # a group of its own, so that the signal reaches the workers too, as Ctrl-C in a terminal does
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=listen, start_new_session=True
    ) as driver:
        try:
            deadline = time.monotonic() + 120
            while not toys.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(driver.pid, signal.SIGINT)
            _, message = driver.communicate(timeout=60)
        finally:
            driver.kill()  # does nothing once it has ended
    assert driver.returncode == 130
    assert message == "whichtoken: stopped; finished rows are saved, and the same command continues from there\n"
