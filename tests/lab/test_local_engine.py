"""The processes of this machine: deaths at awkward moments, time limits, orphans and what they leave."""

import errno
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from concurrent.futures import Future
from pathlib import Path

import pytest
from loky.process_executor import BrokenProcessPool
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from whichtoken.errors import UsageError
from whichtoken.lab import reproduce
from whichtoken.lab.engines import TimeLimit, parse_engine, time_limit
from whichtoken.lab.engines.common import STARTS
from whichtoken.lab.engines.local import LocalEngine, Processes, clear_semaphores
from whichtoken.lab.plan import RunTask
from whichtoken.lab.worker import Outcome

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def tasks(number):
    return [
        RunTask("toy/mean", '{"draws":10,"factor":1.0,"method":"mean","shift":1.0}', seed) for seed in range(number)
    ]


def workers_of(driver):
    """The worker processes that this process started."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (folder / "cmdline").read_bytes()
            if parent == driver and (b"popen_loky" in command or b"spawn_main" in command):
                found.append(int(folder.name))
        except (OSError, IndexError, ValueError):
            continue
    return found


@pytest.mark.process
@linux
def test_worker_that_dies_while_a_row_is_stored_takes_no_task_along():
    wanted, finished = tasks(12), []
    for task, outcome in parse_engine("local", 2).map(wanted):
        finished.append((task, outcome.status))
        if len(finished) in (1, 4, 7):
            for worker in workers_of(os.getpid()):
                os.kill(worker, signal.SIGKILL)
            time.sleep(0.3)  # until it has been noticed
    assert Counter(finished) == Counter((task, "ok") for task in wanted)


@pytest.mark.process
def test_run_that_lost_a_task_does_not_look_complete(tmp_path, monkeypatch):
    def forgetful(self, tasks):
        yield from list(LocalEngine.__dict__["original"](self, tasks))[:-1]

    monkeypatch.setattr(LocalEngine, "original", LocalEngine.map, raising=False)
    monkeypatch.setattr(LocalEngine, "map", forgetful)
    with pytest.raises(UsageError, match="1 of 12 points came back without a result; finished rows are saved"):
        reproduce(["toy/mean"], workers=1, out=tmp_path)
    monkeypatch.undo()


@pytest.mark.parametrize("seconds", [0, -1, math.nan, "soon", "", True, [], "0", "-inf", 1j])
def test_bad_time_limit_is_one_sentence(seconds):
    with pytest.raises(UsageError, match=r"must be a positive number of seconds, such as 600; inf means no limit$"):
        time_limit(seconds, "quick")


def test_time_limit_grows_with_the_preset_unless_one_is_given():
    limits = [time_limit(None, preset) for preset in ("quick", "full", "paper")]
    assert [limit.seconds for limit in limits] == [3600, 6 * 3600, 48 * 3600]
    assert not any(limit.asked for limit in limits)
    assert (time_limit("1.5", "quick").seconds, time_limit(1.5, "quick").asked) == (1.5, True)
    assert time_limit("inf", "quick").seconds == math.inf


def test_bad_time_limit_on_the_command_line(whichtoken):
    done = whichtoken("reproduce", "toy/mean", "--timeout", "soon")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("whichtoken: --timeout 'soon' must be a positive number")


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, 10**9])
def test_bad_number_of_workers_is_one_sentence(workers):
    with pytest.raises(UsageError, match="must be a whole number from 1 to 1000"):
        parse_engine("local", workers)


@linux
def test_semaphores_of_the_dead_are_cleared_and_those_of_the_living_stay(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = [f"sem.loky-{owner}-abc" for owner in (gone.pid, os.getpid(), "x", 10**30)]
    for name in [*names, f"other-{gone.pid}-abc"]:
        (tmp_path / name).touch()
    clear_semaphores(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], f"other-{gone.pid}-abc"])


@pytest.mark.process
@linux
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_stopped_workers_leave_with_their_driver_even_when_nobody_waits_for_it(engine, tmp_path, toys):
    command = [sys.executable, "-m", "whichtoken", "reproduce", "toy/poison", "--set", "kind=stopped"]
    command += ["--engine", engine, "--workers", "1", "--out", str(tmp_path)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not toys.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [worker] = workers_of(driver.pid)
    driver.send_signal(signal.SIGKILL)  # and no wait(): it stays as a zombie
    try:
        while alive(worker):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert Path(f"/proc/{driver.pid}").exists()
    finally:
        driver.wait()


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class FakeProcesses(Processes):
    """Healthy workers finish every job at once; something kills the others whenever they start."""

    def __init__(self, number, healthy):
        super().__init__(number, TimeLimit())
        self.healthy = healthy

    def submit(self, worker, function, argument):
        future = Future()
        if worker in self.healthy:
            future.set_result(Outcome("ok", "", {}, 0.0))
        else:
            future.set_exception(BrokenProcessPool())
        return future


def test_starts_that_fail_while_rows_are_finished_do_not_end_the_run():
    """A worker that something kills whenever it starts must not stop the one beside it."""
    wanted = tasks(3 * STARTS)
    finished = [task for task, _ in FakeProcesses(2, healthy={0}).run(wanted)]
    assert Counter(finished) == Counter(wanted)


def test_starts_that_all_fail_are_one_sentence():
    with pytest.raises(UsageError, match=r"cannot be started: 5 in a row ended or hung .*; finished rows are saved"):
        list(FakeProcesses(2, healthy=set()).run(tasks(1)))


def test_a_pool_that_is_closed_while_it_starts_can_fail_its_own_futures(monkeypatch):
    """loky prints a traceback where it cannot, because somebody has cancelled them."""

    class Pool:
        def __init__(self, *_, **__):
            self.future = Future()

        def submit(self, function, argument):
            return self.future

        def shutdown(self, kill_workers):
            self.future.set_exception(BrokenProcessPool())

    monkeypatch.setattr("loky.ProcessPoolExecutor", Pool)
    processes = Processes(1, TimeLimit())
    processes.fill(deque(tasks(1)), alone=False)
    [job] = processes.jobs
    processes.close()
    assert isinstance(job.future.exception(), BrokenProcessPool)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_few_file_handles_are_raised_or_named(monkeypatch):
    import resource

    from whichtoken.lab.engines.common import FILES_PER_WORKER, OPEN_FILES, ensure_open_files

    raised = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (32, 4096))
    ensure_open_files(3)
    assert raised == [(OPEN_FILES + 3 * FILES_PER_WORKER, 4096)]
    with pytest.raises(UsageError, match=r"1000 worker processes need about 16064 open files, .* allows 4096; .*fewer"):
        ensure_open_files(1000)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_system_that_lets_no_worker_start_is_named(monkeypatch, tmp_path, code):
    def refuse(*_, **__):
        try:
            raise OSError(code, os.strerror(code))  # such as a semaphore in /dev/shm
        finally:
            None.close()  # a library that stumbles over its own cleaning up

    monkeypatch.setattr("loky.ProcessPoolExecutor", refuse)
    with pytest.raises(
        UsageError, match=f"cannot be started: {os.strerror(code).lower()}; .*; finished rows are saved"
    ):
        reproduce(["toy/mean"], workers=1, out=tmp_path)


@pytest.mark.process
def test_a_worker_computes_with_the_same_instructions_on_every_machine(monkeypatch):
    """Flows carry the last bit on, so that a row would depend on the processor that computed it."""
    for name in ("NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import json, os; from whichtoken.lab.worker import worker_environment; os.environ.update(worker_environment())\n"
        "import subprocess, sys; subprocess.run([sys.executable, '-W', 'error', '-c', sys.argv[1]], check=True)"
    )
    shown = (
        "import numpy, threadpoolctl; from numpy._core._multiarray_umath import __cpu_features__, __cpu_dispatch__\n"
        "print([name for name in __cpu_dispatch__ if __cpu_features__[name] and name != 'X86_V3'])\n"
        "print({found['architecture'] for found in threadpoolctl.threadpool_info()})"
    )
    done = subprocess.run([sys.executable, "-c", code, shown], capture_output=True, text=True, check=True)
    if "X86_V3" in __cpu_dispatch__ and __cpu_features__["X86_V3"]:
        assert done.stdout.split("\n")[:2] == ["[]", "{'Haswell'}"]
