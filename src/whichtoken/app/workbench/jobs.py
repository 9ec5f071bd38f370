"""Jobs: their files on disk, the queue that starts, watches, cancels and resumes them, and the process of each.

The files are all that the server and a job's process share, so either may stop and start again. A job holds a lock as
long as its process lives, so even a server that did not start it knows whether it runs.

The process of a job is `python -m whichtoken.app.workbench.jobs FOLDER`. Each kind of job is a function, which imports
what it needs when it runs. A job that fails, runs out of memory or is killed stops nothing but itself.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from filelock import FileLock, Timeout

from whichtoken.app.workbench.settings import MOST_WAITING
from whichtoken.display.text import pluralize
from whichtoken.errors import UsageError, in_one_line
from whichtoken.files import cannot_write, write_text, writing
from whichtoken.processes import python_command, python_environment
from whichtoken.reading import check_regular, read_text, readable, shown_as

JobState = Literal["waiting", "running", "finished", "failed", "cancelled", "interrupted"]
NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
OWN_PAGE = re.compile(r"(/[\w.-]+)+", re.ASCII)  # of this server, never another site or a script
INSPECTION_NUMBERS, INSPECTION_PAGE = "inspection.json", "inspection.html"  # in the folder of an inspect job
MOST_LOG = 100_000  # characters of a log that are shown, the last ones
MOST_LINES = 10_000  # lines of progress that are read at a time
COMMAND = tuple(python_command("whichtoken.app.workbench.jobs"))
STOP_SECONDS = 8.0  # that a job has to stop by itself


@dataclass(frozen=True)
class JobRequest:
    """What a job is asked to do."""

    kind: str  # which function runs it, see `KINDS`
    title: str
    arguments: dict[str, Any]
    created: str = ""
    page: str = ""  # where its result is shown


@dataclass(frozen=True)
class JobEnd:
    """How it ended."""

    state: JobState
    message: str = ""
    result: dict[str, Any] | None = None
    page: str = ""  # where the result is shown, if that was not known before


Record = TypeVar("Record", JobRequest, JobEnd)


class JobFolder:
    """The files of one job."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name

    @classmethod
    def new(cls, home: Path, request: JobRequest) -> JobFolder:
        """Write the request into a new folder."""
        now = datetime.now(UTC)
        path = home / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        with writing(path):
            path.mkdir(parents=True)
        job = cls(path)
        stamped = asdict(request) | {"created": now.isoformat(timespec="seconds")}
        write_text(path / "request.json", json.dumps(stamped, indent=1))
        return job

    @property
    def request(self) -> JobRequest:
        return _read(self.path / "request.json", JobRequest)

    @property
    def end(self) -> JobEnd | None:
        """How it ended; None if it has not ended, or its end could not be written."""
        try:
            return _read(self.path / "end.json", JobEnd)
        except UsageError:
            return None

    def finish(self, end: JobEnd) -> None:
        write_text(self.path / "end.json", json.dumps(asdict(end), indent=1, allow_nan=False))

    def reopen(self) -> None:
        """Forget how it ended, because it is resumed."""
        (self.path / "end.json").unlink(missing_ok=True)

    def report(self, progress: dict[str, Any]) -> None:
        """Add a line of progress."""
        with (self.path / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(progress, allow_nan=False) + "\n")

    def progress(self, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Lines of progress from an offset in the file, each with the offset after it."""
        try:
            check_regular(self.path / "progress.jsonl")
            with (self.path / "progress.jsonl").open("rb") as file:
                file.seek(offset)
                for line in islice(file, MOST_LINES):
                    # the last line may still be written
                    if not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    with suppress(ValueError, RecursionError):
                        value = json.loads(line)
                        # only what can be sent
                        json.dumps(value, allow_nan=False)
                        if isinstance(value, dict):
                            yield offset, value
        except (OSError, UsageError):
            return

    @property
    def log(self) -> str:
        """What its process printed, at most the end of it."""
        try:
            check_regular(self.path / "log.txt")
            with (self.path / "log.txt").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MOST_LOG))
                return file.read(MOST_LOG).decode(errors="replace")
        except (OSError, UsageError):
            return ""

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Hold the lock that shows that this process works on the job."""
        with FileLock(self.path / "alive.lock", timeout=10):
            (self.path / "pid").write_text(str(os.getpid()))
            yield

    @property
    def is_alive(self) -> bool:
        lock = self.path / "alive.lock"
        if not lock.exists():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True
        except OSError:
            # no process works in a folder that cannot be written
            return False

    @property
    def pid(self) -> int | None:
        """The process that works on it; None if there is none."""
        try:
            number = int(read_text(self.path / "pid")) if self.is_alive else 0
        except ValueError:
            return None
        # smaller numbers stand for groups of processes
        return number if number > 1 else None


def known_jobs(home: Path) -> dict[str, JobFolder]:
    """All jobs in a folder, the latest first."""
    try:
        names = sorted((entry.name for entry in home.iterdir() if NAME.fullmatch(entry.name)), reverse=True)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{home} cannot be read: {(error.strerror or '').lower()}") from error
    return {name: JobFolder(home / name) for name in names if os.path.isfile(home / name / "request.json")}


def _read(path: Path, kind: type[Record]) -> Record:
    """A record as it was written; anything else in the file is a `UsageError`."""
    with readable(path, "JSON"):
        value = json.loads(read_text(path))
        # no page can show what this refuses
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        record: Record = _schemas()[kind].validate_python(value)
        return replace(record, page=record.page if OWN_PAGE.fullmatch(record.page) else "")


@cache
def _schemas() -> dict[type, Any]:
    from pydantic import TypeAdapter

    return {kind: TypeAdapter(kind) for kind in (JobRequest, JobEnd)}


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
    """The queue of jobs. One runs at a time: the ledger takes one writer, and the machine is the user's own.

    `command` is the program that works on a job; it gets the job's folder as its last argument.
    """

    def __init__(self, home: Path, command: Sequence[str] = COMMAND) -> None:
        self.home, self.command = home, command
        self._lock = threading.RLock()
        self._waiting: deque[JobFolder] = deque()
        self._running: tuple[JobFolder, subprocess.Popen[bytes]] | None = None
        self._cancelled: set[str] = set()
        self._closed = False

    def start(self, request: JobRequest) -> str:
        """Add a job, and start it as soon as the one before it has ended."""
        with self._lock:
            self._check_queue()
            job = JobFolder.new(self.home, request)
            self._waiting.append(job)
            self._start_next()
        return job.id

    def resume(self, id: str) -> None:
        """Resume a job that was interrupted, cancelled or failed; what is stored is not computed again."""
        with self._lock:
            job = self.find(id)
            if self.state(job) in ("waiting", "running"):
                return
            if job.request.kind != "claim":
                raise UsageError("this job cannot be resumed, because its files were not kept; start a new one")
            self._check_queue()
            job.reopen()
            self._cancelled.discard(id)
            self._waiting.append(job)
            self._start_next()

    def cancel(self, id: str) -> None:
        """Stop a job; its workers have some time to end, then they are killed."""
        with self._lock:
            job = self.find(id)
            if job in self._waiting:
                self._waiting.remove(job)
                # its folder may have been deleted
                with suppress(UsageError):
                    job.finish(JobEnd("cancelled", "cancelled before it began"))
                return
            self._cancelled.add(id)
            pid = self._running[1].pid if self._running and self._running[0] is job else job.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            timer = threading.Timer(STOP_SECONDS, _kill_group, [pid, job])
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Stop the running job when the server ends; it can be resumed later."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            running = self._running
        if running is not None:
            with suppress(ProcessLookupError):
                running[1].terminate()
            try:
                running[1].wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                _kill_group(running[1].pid, running[0])
            with suppress(UsageError):
                running[0].finish(JobEnd("interrupted", "the server was stopped; what was finished is kept"))

    def find(self, id: str) -> JobFolder:
        """A job by its id; KeyError if there is none."""
        for job in (*self._waiting, *([self._running[0]] if self._running else [])):
            if job.id == id:
                return job
        path = self.home / id
        if not NAME.fullmatch(id) or not (path / "request.json").is_file():
            raise KeyError(id)
        return JobFolder(path)

    def state(self, job: JobFolder) -> JobState:
        """The present state of a job."""
        # under the lock: between the queue and its process, a job would seem to be interrupted
        with self._lock:
            if any(job.id == other.id for other in self._waiting):
                return "waiting"
            running, end = self._running, job.end
            if running is not None and running[0].id == job.id and (running[1].poll() is None or end is None):
                # also when its process has ended, but its end is not yet written
                return "running"
        if end is not None:
            return end.state
        return "running" if job.is_alive else "interrupted"

    def view(self, id: str) -> JobView:
        """A job as pages show it."""
        job = self.find(id)
        state, end = self.state(job), job.end
        if end is None or state in ("waiting", "running"):
            lost = "the server or the job was stopped; what was finished is kept"
            return JobView(id, job.request, state, lost if state == "interrupted" else "", job.request.page)
        return JobView(id, job.request, state, end.message, end.page or job.request.page)

    def views(self, most: int = 50) -> list[JobView]:
        """The latest jobs, without those whose files are damaged."""
        found = []
        for id in list(known_jobs(self.home))[:most]:
            with suppress(OSError, ValueError, TypeError, KeyError):
                found.append(self.view(id))
        return found

    def _check_queue(self) -> None:
        if self._closed:
            raise UsageError("the server is stopping; start it again first")
        if len(self._waiting) >= MOST_WAITING:
            raise UsageError(f"{MOST_WAITING} jobs are waiting already; wait for one to end, or cancel one")

    def _start_next(self) -> None:
        """Start the first waiting job that can be started."""
        with self._lock:
            while self._running is None and self._waiting and not self._closed:
                job = self._waiting.popleft()
                try:
                    process = self._start_process(job)
                except OSError as error:
                    with suppress(UsageError):
                        job.finish(JobEnd("failed", str(cannot_write(job.path, error))))
                else:
                    self._running = (job, process)
                    threading.Thread(target=self._watch, args=(job, process), daemon=True).start()

    def _watch(self, job: JobFolder, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        # its workers may still run
        _kill_group(process.pid)
        with self._lock:
            if job.end is None and not self._closed:
                with suppress(UsageError, OSError):
                    if job.id in self._cancelled:
                        job.finish(JobEnd("cancelled", "stopped; what was finished is kept"))
                    else:
                        job.finish(JobEnd("failed", _cause_of_death(status, job)))
            self._running = None
            self._start_next()

    def _start_process(self, job: JobFolder) -> subprocess.Popen[bytes]:
        with (job.path / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [*self.command, str(job.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=python_environment(COLUMNS="120", NO_COLOR="1"),
            )  # fmt: skip


def _kill_group(pid: int, job: JobFolder | None = None) -> None:
    """Kill a job and its workers; with `job`, only if it is alive, since another process may have its number by then."""
    if job is None or job.is_alive:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _cause_of_death(status: int, job: JobFolder) -> str:
    if status >= 0:
        last = (job.log.strip().splitlines() or ["it printed nothing"])[-1][:300]
        return f"the job ended with status {status}: {last}; what was finished is kept"
    # real-time signals have no name
    names = {item.value: item.name for item in signal.Signals}
    name = names.get(-status, f"signal {-status}")
    return f"the job was killed ({name}), perhaps because the memory ran out; what was finished is kept"


def work_on(folder: Path) -> None:
    """Do what the job asks, and write down how it ended."""
    job = JobFolder(folder)
    with job.alive():
        arguments = job.request.arguments
        try:
            # the user does not know the name that an uploaded file has here
            with shown_as(arguments.get("path", ""), "the file"):
                end = KINDS[job.request.kind](job, arguments)
        except KeyboardInterrupt:
            end = JobEnd("cancelled", "stopped; what was finished is kept")
        except Exception as error:
            end = JobEnd("failed", in_one_line(error))
        job.finish(end)


def reproduce_claim(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Run a claim with the same ledger and engine as `whichtoken reproduce`."""
    from whichtoken.app.pages.terminal import print_results
    from whichtoken.lab.reproduce import Tick, reproduce

    @contextmanager
    def progress(total: int) -> Iterator[Tick]:
        done, failed, began = 0, 0, time.monotonic()
        job.report({"done": 0, "total": total, "failed": 0})

        def tick(_: str, row_failed: bool) -> None:
            nonlocal done, failed
            done, failed = done + 1, failed + row_failed
            seconds = time.monotonic() - began
            job.report({"done": done, "total": total, "failed": failed, "left": seconds / done * (total - done)})

        yield tick

    [result] = reproduce(
        [arguments["id"]], arguments["preset"], overrides=arguments["set"], seeds=arguments["seeds"],
        out=Path(arguments["out"]), progress=progress,
    )  # fmt: skip
    print_results([result])
    verdicts = [asdict(verdict) for verdict in result.verdicts]
    changed = f"; {len(result.changed)} differ from the record" if result.changed else ""
    message = result.fault or f"{pluralize(len(result.all_rows), 'row')}, {result.failed} failed{changed}"
    if result.failed and not result.rows:
        message += f"; the first reason: {result.rows.failed[0].message}"
    failed = result.fault or (result.failed and not result.rows)
    return JobEnd("failed" if failed else "finished", message, {"verdicts": verdicts})


def fit_model(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Train as `whichtoken fit` does, evaluate on held-out rows beside the baseline, and store the model."""
    from whichtoken.app.evaluation import Scheme
    from whichtoken.app.fitting import GroupRoles, TextRoles, UntestedFit, fit_bags, fit_groups, fit_text
    from whichtoken.app.pages.evaluation import print_evaluation
    from whichtoken.app.readers import BagRoles
    from whichtoken.app.workbench.model_store import ModelCard, ModelStore

    store = ModelStore(Path(arguments["home"]))
    id, kind, column, label = (arguments[name] for name in ("id", "kind", "column", "label"))
    folder = store.new_folder(id)
    source = Path(arguments["path"])
    data = folder / f"data{source.suffix}"
    if source != data:
        shutil.copyfile(source, data)
    said = "training our model and the baseline, and evaluating them on held-out rows"
    job.report({"done": 1, "total": 3, "said": said})
    with shown_as(data, "the file"):
        if kind == "text":
            options = {"ngram_range": (1, arguments["ngrams"])}
            roles = TextRoles(column, label)
            report = fit_text(data, folder / "model", roles, Scheme(), options=options, untested=True)
        elif kind == "bags":
            report = fit_bags(data, folder / "model", BagRoles(column, label), Scheme())
        else:
            report = fit_groups(data, folder / "model", GroupRoles(arguments["prefix"], label), Scheme())
    tested = not isinstance(report, UntestedFit)
    if tested:
        print_evaluation(report)
    else:
        print(*report.notes, sep="\n")
    job.report({"done": 2, "total": 3, "said": "predicting the documents"})
    # plain numbers, and None for NaN, which JSON does not have
    text = json.dumps(asdict(report), default=lambda value: value.item() if hasattr(value, "item") else str(value))
    scores = json.loads(text, parse_constant=lambda _: None)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.put(ModelCard(id, arguments["title"], kind, label, column, data.name, created, scores))
    # computed now and stored, so that the page of the model opens at once
    for what in ("documents", "importance"):
        store.ask(id, what)
    if not tested:
        return JobEnd("finished", f"trained on {pluralize(report.training, 'document')}; too few to test it")
    low, high = report.ours.intervals["accuracy"]
    message = f"accuracy {report.ours.accuracy:.3f} ({low:.3f} to {high:.3f}) on {report.test} held-out rows"
    return JobEnd("finished", message)


def inspect_folder(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Inspect a transformer as `whichtoken inspect` does, and keep every number and the page."""
    from whichtoken.datasets.review_files import read_texts
    from whichtoken.files import write_text
    from whichtoken.inspection.loading import check_folder, load_tokenizer, load_transformer, quiet

    folder = Path(arguments["folder"])
    check_folder(folder)
    label = arguments["label"] or None
    texts, labels = read_texts(Path(arguments["path"]), arguments["column"], label, arguments["most"])
    job.report({"done": 1, "total": 4, "said": "loading the model"})
    with quiet():
        tokenizer, model = load_tokenizer(folder, texts), load_transformer(folder)
    from whichtoken.inspection import inspect

    job.report({"done": 2, "total": 4, "said": f"reading {pluralize(len(texts), 'text')}"})
    inspection = inspect(model, texts, tokenizer, labels=labels)
    job.report({"done": 3, "total": 4, "said": "looking closely at the first texts"})
    inspection.to_html(job.path / INSPECTION_PAGE)
    write_text(job.path / INSPECTION_NUMBERS, json.dumps(inspection.as_json(), ensure_ascii=False, allow_nan=False))
    lines = inspection.summary()
    return JobEnd("finished", lines[0] if lines else "", {"lines": lines}, page=f"/inspect/{job.id}")


def plan_pilot(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """What the pilot shows, and what more bags would bring, as `whichtoken plan --pilot` says it."""
    from whichtoken.app.pages.planning import study_lines
    from whichtoken.app.readers import read_bags
    from whichtoken.estimators import plan_study

    job.report({"said": "reading the pilot"})
    path = Path(arguments["path"])
    table = read_bags(path) if path.suffix == ".npz" else read_bags(path, arguments["bag"], arguments["label"])
    job.report({"said": f"cross-validating {len(table.bags)} bags"})
    assert table.labels is not None
    study = plan_study(
        pilot=(table.bags, table.labels), features=table.features, target_error=arguments["target_error"]
    )  # fmt: skip
    points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
    curve = {name: [getattr(point, name) for point in points] for name in ("samples", "error", "low", "high")}
    notes = [*table.notes, *study.notes]
    return JobEnd("finished", study.recommendation, {"lines": study_lines(study), "notes": notes, "curve": curve})


KINDS = {"claim": reproduce_claim, "fit": fit_model, "inspect": inspect_folder, "pilot": plan_pilot}


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # so that the engine closes its workers, as after Ctrl-C
    signal.signal(signal.SIGTERM, _stop)
    work_on(Path(sys.argv[1]))
