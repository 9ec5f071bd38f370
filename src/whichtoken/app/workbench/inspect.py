"""The inspect pages: which token each head of a transformer picks, how confidently, and whether it matters."""

from __future__ import annotations

import csv
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.app.cli.inspect import ENCODER, SENTENCES
from whichtoken.app.workbench.job_pages import job_of, jobs_of
from whichtoken.app.workbench.jobs import INSPECTION_NUMBERS, INSPECTION_PAGE, JobRequest
from whichtoken.app.workbench.middleware import DRAWN, LINKED
from whichtoken.app.workbench.pages import framed_page
from whichtoken.app.workbench.uploads import uploads_of
from whichtoken.datasets.corpora import packaged_file
from whichtoken.errors import UsageError
from whichtoken.extras import is_installed, lacks

MOST_TEXTS = 500


def _page(request: Request) -> Response:
    jobs = [view for view in jobs_of(request).views() if view.request.kind == "inspect"]
    complete = all(map(is_installed, ("torch", "transformers")))
    missing = "" if complete else f"a model of Hugging Face {lacks('transformers')}"
    shown: dict[str, Any] = {"missing": missing, "jobs": jobs[:5], "folder": request.query_params.get("folder", "")}
    with suppress(UsageError):  # an installed encoder, if there is one
        shown["folder"] = shown["folder"] or str(packaged_file(ENCODER, "config.json").parent)
    return framed_page(request, "inspect.html", texts="\n".join(SENTENCES), **shown)


async def _start(request: Request) -> Response:
    async with uploads_of(request).form(request) as form:
        typed = str(form.get("folder") or "").strip()
        if not typed:
            raise UsageError(
                "name the folder of a model first; it holds config.json, the weights and the tokenizer", folder=""
            )
        # unlike Path.expanduser, this leaves ~name as it is if there is no such user
        folder = Path(os.path.expanduser(typed))
        column, label = str(form.get("column") or "text"), str(form.get("label") or "")
        pasted, file = str(form.get("pasted") or ""), form.get("file")
        if pasted.strip() and not getattr(file, "filename", ""):
            table = io.StringIO()
            lines = [line.strip() for line in pasted.splitlines() if line.strip()]
            csv.writer(table).writerows([["text"], *([line] for line in lines)])
            path = await run_in_threadpool(uploads_of(request).keep, table.getvalue().encode(), ".csv")
            column, label = "text", ""
        else:
            path = await uploads_of(request).take(file)
    from whichtoken.inspection.loading import check_folder

    try:
        await run_in_threadpool(check_folder, folder)
    except UsageError as error:
        raise UsageError(str(error), folder=typed) from error
    arguments = {
        "folder": str(folder.absolute()), "path": str(path), "column": column, "label": label, "most": MOST_TEXTS
    }  # fmt: skip
    asked = JobRequest("inspect", f"inspect {folder.name[:60]}", arguments)
    return RedirectResponse(f"/jobs/{await run_in_threadpool(jobs_of(request).start, asked)}", 303)


def _file(request: Request, name: str) -> Path:
    path = job_of(request)[0].path / name
    if not path.is_file():
        raise HTTPException(404)
    return path


def _result(request: Request) -> Response:
    _file(request, INSPECTION_NUMBERS)
    return framed_page(request, "inspection.html", job=job_of(request)[1])


def _numbers(request: Request) -> Response:
    return FileResponse(_file(request, INSPECTION_NUMBERS), media_type="application/json")


def _whole_page(request: Request) -> Response:
    page = _file(request, INSPECTION_PAGE)
    return FileResponse(page, media_type="text/html", headers=DRAWN, filename="inspection.html")


routes = [
    Route("/inspect", _page, name=LINKED),
    Route("/inspect/start", _start, methods=["POST"]),
    Route("/inspect/{id}", _result, name=LINKED),
    Route("/inspect/{id}/numbers.json", _numbers),
    Route("/inspect/{id}/page.html", _whole_page),
]
