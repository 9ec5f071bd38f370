"""Your data: documents, bags or a table in; a model, its held-out score and the reason for each decision out."""

from __future__ import annotations

import csv
import io
import re
import secrets
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.errors import UsageError
from whichtoken.workbench.gate import DRAWN, LINKED
from whichtoken.workbench.job_files import JobRequest
from whichtoken.workbench.job_pages import jobs_of
from whichtoken.workbench.jobs import JobView
from whichtoken.workbench.model_shelf import DEMO, KINDS, ModelCard, ModelShelf
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.planner import uploads_of
from whichtoken.workbench.workers import slow_worker_of, worker_of

HERE, SHELF = "whichtoken.workbench.data_room", "whichtoken.workbench.model_shelf"  # what workers do
PREVIEW = 5  # rows
MOST_COLUMNS = 2000  # that a page lets choose from
LISTED = 100  # documents to choose from
LEAST_DOCUMENTS = 8
PAGE_DOCUMENTS = 50  # of the page to download


def shelf_of(request: Request) -> ModelShelf:
    """The models of this workbench."""
    found: ModelShelf = request.app.state.shelf
    return found


def _card(request: Request, name: str = "") -> ModelCard:
    try:
        return shelf_of(request).card(name or request.path_params["id"])
    except KeyError:
        raise HTTPException(404) from None


def _page(request: Request) -> Response:
    return room_page(
        request, "data.html", cards=shelf_of(request).cards(), jobs=_fits(request), ready=(DEMO,)
    )  # fmt: skip


def _fits(request: Request) -> list[JobView]:
    """Trainings that are under way, and the last one if it failed."""
    fits = [view for view in jobs_of(request).views() if view.request.kind == "fit"]
    return [view for place, view in enumerate(fits) if view.is_open or (place == 0 and view.state != "finished")]


async def _hand_over(request: Request) -> Response:
    """A file or pasted documents; then the columns are chosen."""
    async with uploads_of(request).form(request) as form:
        pasted = str(form.get("pasted") or "")
        if pasted.strip():
            path = await run_in_threadpool(lambda: uploads_of(request).keep(_as_table(pasted), ".csv"))
        else:
            path = await uploads_of(request).take(form.get("file"))
    return RedirectResponse(f"/data/new?file={path.name}", 303)


def _as_table(pasted: str) -> bytes:
    """Lines of label and text, separated by a tab or the first comma, semicolon or colon, as a table."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["label", "text"])
    lines = [line for line in pasted.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        parts = line.split("\t", 1) if "\t" in line else re.split(r"[,;:]", line, maxsplit=1)
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise UsageError(f"line {number} has no label before its text; write it as: praise, a wonderful film")
        writer.writerow([part.strip() for part in parts])
    if len(lines) < LEAST_DOCUMENTS:
        raise UsageError(f"{len(lines)} documents are too few to learn from; paste at least {LEAST_DOCUMENTS}")
    return table.getvalue().encode()


async def _choose(request: Request) -> Response:
    """Which column plays which part."""
    path = uploads_of(request).find(request.query_params.get("file", ""))
    columns, rows = await worker_of(request).answer(request, f"{HERE}:first_rows", path)
    guesses = {part: _guess(columns, rows, part) for part in ("text", "label", "bag")}
    shown = {"file": path.name, "columns": columns, "rows": rows, "guesses": guesses, "kinds": KINDS}
    return await run_in_threadpool(room_page, request, "columns.html", **shown)


def first_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The columns of a table and the first of its rows; a worker reads it, whatever a file may hold."""
    from whichtoken.data.table_files import column_names, read_table

    try:
        columns = column_names(path)
        if len(columns) > MOST_COLUMNS:
            raise UsageError(
                f"{path} has {len(columns)} columns, more than the {MOST_COLUMNS} that can be chosen from here"
            )
        return columns, read_table(path, None, rows=PREVIEW).astype(object).fillna("").astype(str).values.tolist()
    except UsageError as error:
        raise UsageError(str(error).replace(str(path), "the file")) from error  # its name here says nothing to the user


def _guess(columns: list[str], rows: list[list[str]], part: str) -> str:
    """The column of that name, else one that looks like it."""
    names = {"text": ("text", "review", "document", "content", "body"), "bag": ("bag", "id", "group"),
             "label": ("label", "class", "target", "sentiment", "y")}[part]  # fmt: skip
    found = [column for name in names for column in columns if column.lower() == name]
    if found:
        return found[0]
    lengths = [max((len(row[k]) for row in rows), default=0) for k in range(len(columns))]
    return columns[lengths.index(max(lengths))] if part == "text" else columns[-1 if part == "label" else 0]


async def _fit(request: Request) -> Response:
    async with request.form(max_files=0, max_fields=20) as form:
        pass
    path = uploads_of(request).find(str(form.get("file") or ""))
    kind = str(form.get("kind") or "text")
    if kind not in KINDS:
        raise UsageError(f"kind '{kind[:40]}' is not known; choose one of {', '.join(KINDS)}")
    title = str(form.get("title") or "").strip()[:60] or KINDS[kind]
    id = f"m-{secrets.token_hex(4)}"
    ngrams = str(form.get("ngrams") or "1")
    arguments = {
        "home": str(shelf_of(request).home.absolute()), "id": id, "path": str(path), "title": title, "kind": kind,
        "label": str(form.get("label") or "label"), "ngrams": int(ngrams) if ngrams in ("1", "2", "3") else 1,
        "column": str(form.get("column") or "") or None if kind != "groups" else None,
        "prefix": str(form.get("prefix") or "_")[:1],
    }  # fmt: skip
    asked = JobRequest("fit", f"train on {title}", arguments, page=f"/data/models/{id}")
    job = await run_in_threadpool(jobs_of(request).start, asked)
    return RedirectResponse(f"/jobs/{job}", 303)


async def _model(request: Request) -> Response:
    card = await run_in_threadpool(_card, request)
    documents = await _asked(request, "documents", card.id)
    importance = await _asked(request, "importance", card.id)

    def page() -> Response:
        others = [other for other in shelf_of(request).cards() if other.id != card.id and other.kind == "text"]
        return room_page(
            request, "model.html", card=card, documents=documents[:LISTED], others=others, importance=importance
        )  # fmt: skip

    return await run_in_threadpool(page)


async def _asked(request: Request, method: str, *arguments: Any) -> Any:
    """What the shelf says, in a worker: it may have to load a model and run it."""
    return await worker_of(request).answer(request, f"{SHELF}:ModelShelf.{method}", shelf_of(request), *arguments)


async def _explain(request: Request) -> Response:
    """Why: of a text that is sent, or of a row of the data."""
    card = _card(request)
    try:
        asked: Any = await request.json()
        text, row = asked.get("text"), asked.get("row")
        str(text).encode()  # half of a character outside the first plane is no text
    except (ValueError, AttributeError, RecursionError):
        raise UsageError('send JSON with a text or a row, such as {"text": "a wonderful film"}') from None
    if isinstance(text, str):
        return JSONResponse(await _asked(request, "explained_text", card.id, text))
    documents = await _asked(request, "documents", card.id)
    if not isinstance(row, int) or not 0 <= row < len(documents):
        raise UsageError(f"row {str(row)[:20]} does not exist; the model has {len(documents)} rows to show")
    return JSONResponse(await _asked(request, "explanation", card.id, row))


async def _archive(request: Request) -> Response:
    card = _card(request)
    content = await slow_worker_of(request).answer(request, f"{SHELF}:ModelShelf.archive", shelf_of(request), card.id)
    return Response(content, media_type="application/zip", headers=_named(f"{card.id}.zip"))


async def _predictions(request: Request) -> Response:
    card, folder = _card(request), await run_in_threadpool(uploads_of(request).folder)
    asked = (shelf_of(request), card.id, folder / f"{secrets.token_hex(8)}.csv")
    content = await slow_worker_of(request).answer(request, f"{HERE}:predicted_table", *asked)
    return Response(content, media_type="text/csv", headers=_named(f"{card.id}-predictions.csv"))


def predicted_table(shelf: ModelShelf, id: str, path: Path) -> bytes:
    """The data of a model with its predictions, as CSV; it goes through a file at `path`."""
    from whichtoken.data.table_output import write_table
    from whichtoken.estimators.evaluation import with_predictions

    found = shelf.applied(id)
    try:
        write_table(
            with_predictions(found.table, found.classes, found.probabilities()), path, spreadsheet_safe=True
        )  # fmt: skip
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


async def _explained_page(request: Request) -> Response:
    """The explanations of the first documents as one page that needs nothing else."""
    card = _card(request)
    text = await slow_worker_of(request).answer(request, f"{HERE}:explained_page", shelf_of(request), card.id)
    return HTMLResponse(text, headers=_named(f"{card.id}.html") | DRAWN)


def explained_page(shelf: ModelShelf, id: str) -> str:
    """The explanations of the first documents, HTML."""
    from whichtoken.report.explanations import as_html

    if shelf.card(id).kind == "text":
        texts = [document["text"] for document in shelf.documents(id)[:PAGE_DOCUMENTS]]
        return as_html(shelf.estimator(id).explain(texts))
    return as_html(list(shelf.applied(id).explain())[:PAGE_DOCUMENTS])


async def _compare(request: Request) -> Response:
    cards = [_card(request, request.query_params.get(name, "")) for name in ("a", "b")]
    documents = await _asked(request, "documents", cards[0].id)
    return room_page(request, "compare.html", cards=cards, text=documents[0]["text"] if documents else "")


def _named(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{Path(name).name}"'}


routes = [
    Route("/data", _page, name=LINKED),
    Route("/data/hand-over", _hand_over, methods=["POST"]),
    Route("/data/new", _choose, name=LINKED),
    Route("/data/fit", _fit, methods=["POST"]),
    Route("/data/compare", _compare, name=LINKED),
    Route("/data/models/{id}", _model, name=LINKED),
    Route("/data/models/{id}/explain", _explain, methods=["POST"]),
    Route("/data/models/{id}/model.zip", _archive),
    Route("/data/models/{id}/predictions.csv", _predictions),
    Route("/data/models/{id}/page.html", _explained_page),
]
