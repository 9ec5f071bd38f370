"""A run of one claim as a job: the same ledger and engine as `whichtoken reproduce`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from whichtoken.workbench.job_files import JobEnd, JobFolder


def reproduce_claim(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Run the claim, and say what each of its verdicts came to and what is on record."""
    from whichtoken.lab.progress import Tick
    from whichtoken.lab.reproduce import reproduce
    from whichtoken.report.terminal import print_results

    @contextmanager
    def progress(total: int) -> Iterator[Tick]:
        done, failed, began = 0, 0, time.monotonic()
        job.say({"done": 0, "total": total, "failed": 0})

        def tick(_: str, row_failed: bool) -> None:
            nonlocal done, failed
            done, failed = done + 1, failed + row_failed
            seconds = time.monotonic() - began
            job.say({"done": done, "total": total, "failed": failed, "left": seconds / done * (total - done)})

        yield tick

    [result] = reproduce(
        [arguments["id"]], arguments["preset"], set=arguments["set"], seeds=arguments["seeds"],
        out=Path(arguments["out"]), progress=progress,
    )  # fmt: skip
    print_results([result])
    verdicts = [asdict(verdict) for verdict in result.verdicts]
    changed = f"; {len(result.changed)} changed against the record" if result.changed else ""
    message = result.fault or f"{len(result.all_rows)} rows, {result.failed} failed{changed}"
    return JobEnd("failed" if result.fault else "finished", message, {"verdicts": verdicts})
