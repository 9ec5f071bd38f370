"""The workbench under load: pages and forecasts of the planner at a steady rate, each request due at its own time.

A request that waits for those before it is counted from when it was due, so a server that falls behind shows it. The
forecasts were made once before, as those of a slider that goes to and fro; a new one takes about 0.06 s of a core.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from whichtoken.lab.benchmark import Measure

PART = "The program itself"
QUESTION = "Does the workbench respond in time under load?"

RATE, SECONDS, CLIENTS = 200, 60, 24
PAGES = (
    "/",
    "/claims/mirror-descent/direction",
    "/planner",
    "/data",
    "/dynamics",
    "/inspect",
    "/jobs",
    "/static/style.css",
)
FORECASTS = [f"/planner/quick?strength={2 + k / 20:g}&samples={1000 + 50 * k}" for k in range(40)]


def measure() -> Iterator[Measure]:
    """The 95th percentile of the answers' times, and how many failed."""
    seconds = int(os.environ.get("WHICHTOKEN_LOAD_SECONDS", SECONDS))
    with tempfile.TemporaryDirectory() as folder:
        _without_training(Path(folder))
        with _server(folder) as address:
            for path in (*PAGES, *FORECASTS):  # as after the first minute of use
                _ask(http.client.HTTPConnection(address), path)
            times, errors = _load(address, seconds)
    case = f"{RATE} requests/s of pages and of {len(FORECASTS)} forecasts made before, for {seconds} s"
    detail = f"median {np.median(times):.0f} ms, longest {max(times):.0f} ms, {len(times)} answers"
    yield Measure(case, "ms, 95th percentile", float(np.percentile(times, 95)), 200.0, at_least=False, detail=detail)
    yield Measure(case, "failed requests", float(errors), 0.0, at_least=False)


def _load(address: str, seconds: int) -> tuple[list[float], int]:
    """Milliseconds of every answer from when it was due, and the number of failures."""
    paths = [(PAGES, FORECASTS)[k % 2][k // 2 % len((PAGES, FORECASTS)[k % 2])] for k in range(RATE * seconds)]
    times: list[float] = []
    failed: list[str] = []
    began = time.perf_counter() + 0.5

    def client(first: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=30)
        for number in range(first, len(paths), CLIENTS):
            due = began + number / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                good = _ask(connection, paths[number])
            except (OSError, http.client.HTTPException):
                good, connection = False, http.client.HTTPConnection(address, timeout=30)
            times.append(1000 * (time.perf_counter() - due))
            if not good:
                failed.append(paths[number])

    threads = [threading.Thread(target=client, args=(first,)) for first in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, len(failed)


def _ask(connection: http.client.HTTPConnection, path: str) -> bool:
    connection.request("GET", path, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    answer.read()
    return answer.status == 200


class _server:  # noqa: N801 (reads as a verb in `with`)
    """`whichtoken serve` on a free port."""

    def __init__(self, out: str) -> None:
        command = [sys.executable, "-P", "-m", "whichtoken", "serve", "--out", out, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        assert self.process.stdout is not None
        found = re.search(r"http://([\w.:]+)/", self.process.stdout.readline())
        assert found is not None
        return found[1]

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


def _without_training(out: Path) -> None:
    """A model in the store, so that the server does not begin by training one."""
    folder = out / "workbench" / "models" / "demo"
    folder.mkdir(parents=True)
    scores = {"name": "attention", "accuracy": 0.9, "log_loss": 0.3, "auc": 0.9, "seconds": 1.0, "intervals": {}}
    report = {"training": 1, "test": 1, "ours": scores, "majority": scores, "baseline": None, "notes": []}
    card = {
        "id": "demo",
        "title": "stands here",
        "kind": "text",
        "label": "label",
        "column": "text",
        "data": "data.csv",
    }
    (folder / "card.json").write_text(json.dumps({**card, "created": "", "report": report}))
