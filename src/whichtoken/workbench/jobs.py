"""The jobs of one workbench: started in turn, watched, cancelled, taken up again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whichtoken.errors import UsageError
from whichtoken.files import cannot_write
from whichtoken.processes import python_command, python_environment
from whichtoken.workbench.job_files import NAME, JobEnd, JobFolder, JobRequest, JobState, known_jobs
from whichtoken.workbench.settings import MOST_WAITING

COMMAND = tuple(python_command("whichtoken.workbench.job_process"))
GRACE = 8.0  # seconds a job has to stop by itself


@dataclass(frozen=True)
class JobView:
    """One job as a page shows it."""

    id: str
    request: JobRequest
    state: JobState
    message: str
    page: str

    @property
    def is_open(self) -> bool:
        return self.state in ("waiting", "running")


class Jobs:
    """Runs one job at a time: the ledger takes one writer, and the machine is the user's own.

    `command` is the program that works on a job, whose folder it gets as its last argument.
    """

    def __init__(self, home: Path, command: Sequence[str] = COMMAND) -> None:
        self.home, self.command = home, command
        self._lock = threading.RLock()
        self._waiting: deque[JobFolder] = deque()
        self._running: tuple[JobFolder, subprocess.Popen[bytes]] | None = None
        self._cancelled: set[str] = set()
        self._closed = False

    def start(self, request: JobRequest) -> str:
        """Take a job in, and start it as soon as the one before it has ended."""
        with self._lock:
            self._check_room()
            job = JobFolder.new(self.home, request)
            self._enqueue(job)
        return job.id

    def go_on(self, id: str) -> None:
        """Start a job again that was interrupted, cancelled or failed; what is stored is not computed again."""
        with self._lock:
            job = self.find(id)
            if self.state(job) in ("waiting", "running"):
                return
            if job.request.kind != "claim":
                raise UsageError("this job cannot go on, because its files were not kept; start it again in its room")
            self._check_room()
            job.reopen()
            self._cancelled.discard(id)
            self._enqueue(job)

    def cancel(self, id: str) -> None:
        """Stop a job; its workers are given time to end, then killed."""
        with self._lock:
            job = self.find(id)
            if job in self._waiting:
                self._waiting.remove(job)
                with suppress(UsageError):  # its folder may be gone; then there is nothing left of it
                    job.finish(JobEnd("cancelled", "cancelled before it began"))
                return
            self._cancelled.add(id)
            pid = self._running[1].pid if self._running and self._running[0] is job else job.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            timer = threading.Timer(GRACE, _kill_group, [pid, job])
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Stop what runs, when the server ends; it can go on later."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            running = self._running
        if running is not None:
            with suppress(ProcessLookupError):
                running[1].terminate()
            try:
                running[1].wait(GRACE)
            except subprocess.TimeoutExpired:
                _kill_group(running[1].pid, running[0])
            with suppress(UsageError):
                running[0].finish(JobEnd("interrupted", "the server was stopped; what was finished is kept"))

    def find(self, id: str) -> JobFolder:
        """A job by its name; KeyError where there is none."""
        for job in (*self._waiting, *([self._running[0]] if self._running else [])):
            if job.id == id:
                return job
        path = self.home / id
        if not NAME.fullmatch(id) or not (path / "request.json").is_file():
            raise KeyError(id)
        return JobFolder(path)

    def state(self, job: JobFolder) -> JobState:
        """What became of it so far."""
        if any(job.id == other.id for other in self._waiting):
            return "waiting"
        running, end = self._running, job.end
        if running is not None and running[0].id == job.id and (running[1].poll() is None or end is None):
            return "running"  # also between its last breath and the words on how it ended
        if end is not None:
            return end.state
        return "running" if job.is_alive else "interrupted"

    def view(self, id: str) -> JobView:
        """A job for a page."""
        job = self.find(id)
        state, end = self.state(job), job.end
        if end is None or state in ("waiting", "running"):
            lost = "the server or the job was stopped; what was finished is kept"
            return JobView(id, job.request, state, lost if state == "interrupted" else "", job.request.page)
        return JobView(id, job.request, state, end.message, end.page or job.request.page)

    def views(self, most: int = 50) -> list[JobView]:
        """The latest jobs; one whose files are damaged is passed over."""
        found = []
        for id in list(known_jobs(self.home))[:most]:
            with suppress(OSError, ValueError, TypeError, KeyError):
                found.append(self.view(id))
        return found

    def _check_room(self) -> None:
        if self._closed:
            raise UsageError("the server is stopping; start it again first")
        if len(self._waiting) >= MOST_WAITING:
            raise UsageError(f"{MOST_WAITING} jobs are waiting already; wait for one to end, or cancel one")

    def _enqueue(self, job: JobFolder) -> None:
        self._waiting.append(job)
        self._start_next()

    def _start_next(self) -> None:
        """Start the first of those that wait and can be started; one whose folder is gone holds up nobody."""
        with self._lock:
            while self._running is None and self._waiting and not self._closed:
                job = self._waiting.popleft()
                try:
                    process = _process(self.command, job)
                except OSError as error:
                    with suppress(UsageError):
                        job.finish(JobEnd("failed", str(cannot_write(job.path, error))))
                else:
                    self._running = (job, process)
                    threading.Thread(target=self._watch, args=(job, process), daemon=True).start()

    def _watch(self, job: JobFolder, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        _kill_group(process.pid)  # workers that outlived their driver
        with self._lock:
            if job.end is None and not self._closed:
                with suppress(UsageError, OSError):
                    if job.id in self._cancelled:  # before it could hear of it
                        job.finish(JobEnd("cancelled", "stopped; what was finished is kept"))
                    else:
                        job.finish(JobEnd("failed", _died(status, job)))
            self._running = None
            self._start_next()


def _process(command: Sequence[str], job: JobFolder) -> subprocess.Popen[bytes]:
    with (job.path / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [*command, str(job.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=python_environment(COLUMNS="120", NO_COLOR="1"),
        )  # fmt: skip


def _kill_group(pid: int, job: JobFolder | None = None) -> None:
    """Kill a job and its workers; with `job`, only if it still lives, since the number may be another's by then."""
    if job is None or job.is_alive:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _died(status: int, job: JobFolder) -> str:
    if status < 0:
        how = f"the job was killed ({_signal_name(-status)}), perhaps because the memory ran out"
    else:
        how = f"the job ended with status {status}: {(job.log.strip().splitlines() or ['it said nothing'])[-1][:300]}"
    return f"{how}; what was finished is kept"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of those for real time, which have no name
        return f"signal {number}"
