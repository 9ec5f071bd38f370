"""The process of one job: `python -m whichtoken.workbench.job_process FOLDER`.

A job that fails, runs out of memory or is killed takes nothing with it but itself.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from whichtoken.errors import in_one_line
from whichtoken.workbench.job_files import JobEnd, JobFolder

Work = Callable[[JobFolder, dict[str, Any]], JobEnd]
KINDS = {  # which function does which kind of job
    "claim": "whichtoken.workbench.claim_job:reproduce_claim",
    "pilot": "whichtoken.workbench.pilot_job:plan_pilot",
    "fit": "whichtoken.workbench.fit_job:fit_model",
    "inspect": "whichtoken.workbench.inspect_job:inspect_folder",
}


def work_on(folder: Path) -> None:
    """Do what the job asks, and write down how it ended."""
    job = JobFolder(folder)
    with job.alive():
        try:
            end = _function(job.request.kind)(job, job.request.arguments)
        except KeyboardInterrupt:
            end = JobEnd("cancelled", "stopped; what was finished is kept")
        except Exception as error:
            end = JobEnd("failed", _said(error, job.request.arguments.get("path")))
        job.finish(end)


def _said(error: Exception, path: str | None) -> str:
    """What went wrong; a file that was handed over has a name here that says nothing to the user."""
    sentence = in_one_line(error)
    return sentence.replace(path, "the file") if path else sentence


def _function(kind: str) -> Work:
    module, _, name = KINDS[kind].partition(":")
    found: Work = getattr(importlib.import_module(module), name)
    return found


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # so that the engine closes its workers, as after Ctrl-C
    work_on(Path(sys.argv[1]))
