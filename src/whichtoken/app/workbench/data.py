"""Your data: upload documents, bags or a table; get a model, its score and the reasons for each decision."""

from __future__ import annotations

import csv
import io
import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from whichtoken.app.workbench.job_pages import jobs_of
from whichtoken.app.workbench.jobs import JobRequest
from whichtoken.app.workbench.middleware import DRAWN, LINKED
from whichtoken.app.workbench.model_store import DEMO, KINDS, ModelCard, ModelStore
from whichtoken.app.workbench.pages import framed_page
from whichtoken.app.workbench.settings import Parameter
from whichtoken.app.workbench.uploads import uploads_of
from whichtoken.app.workbench.workers import slow_worker_of, worker_of
from whichtoken.errors import UsageError

HERE, STORE = "whichtoken.app.workbench.data", "whichtoken.app.workbench.model_store"  # modules that workers call
PREVIEW = 5  # rows
MOST_COLUMNS = 2000  # that a page lets choose from
THRESHOLD = Parameter("threshold", 0.5, 0.001, 0.999)


def store_of(request: Request) -> ModelStore:
    """The models of this workbench."""
    found: ModelStore = request.app.state.models
    return found


def _card(request: Request, name: str = "") -> ModelCard:
    try:
        return store_of(request).card(name or request.path_params["id"])
    except KeyError:
        raise HTTPException(404) from None


def _page(request: Request) -> Response:
    fits = [view for view in jobs_of(request).views() if view.request.kind == "fit"]
    # those that run, and the last one if it failed
    jobs = [view for place, view in enumerate(fits) if view.is_open or (place == 0 and view.state != "finished")]
    return framed_page(request, "data.html", cards=store_of(request).cards(), jobs=jobs, ready=(DEMO,))


async def _upload(request: Request) -> Response:
    """Store a file or pasted documents; next the user chooses the columns."""
    async with uploads_of(request).form(request) as form:
        pasted = str(form.get("pasted") or "")
        if pasted.strip():
            path = await run_in_threadpool(lambda: uploads_of(request).keep(_labeled_lines(pasted), ".csv"))
        else:
            path = await uploads_of(request).take(form.get("file"))
    return RedirectResponse(f"/data/new?file={path.name}", 303)


def _labeled_lines(pasted: str) -> bytes:
    """Lines of a label and a text, separated by a tab or the first comma, semicolon or colon, as a CSV file."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["label", "text"])
    lines, labels = [line for line in pasted.splitlines() if line.strip()], set()
    for number, line in enumerate(lines, 1):
        parts = line.split("\t", 1) if "\t" in line else re.split(r"[,;:]", line, maxsplit=1)
        if len(parts) != 2 or not all(part.strip() for part in parts):
            said = f"line {number} has no label before its text; write it as: praise, a wonderful film"
            raise UsageError(said, pasted="")
        writer.writerow([part.strip() for part in parts])
        labels.add(parts[0].strip())
    if len(labels) < 2:
        raise UsageError("paste documents with at least two different labels, one per line", pasted="")
    return table.getvalue().encode()


async def _choose(request: Request) -> Response:
    """The page on which the user says what each column is."""
    path = uploads_of(request).find(request.query_params.get("file", ""))
    columns, rows = await worker_of(request).answer(request, f"{HERE}:first_rows", path)
    guesses = {part: _guess(columns, rows, part) for part in ("text", "label", "bag")}
    shown = {"file": path.name, "columns": columns, "rows": rows, "guesses": guesses, "kinds": KINDS}
    return await run_in_threadpool(framed_page, request, "columns.html", **shown)


def first_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """The columns of a table and its first rows; called in a worker, since the file may hold anything."""
    from whichtoken.reading import shown_as
    from whichtoken.tables import column_names, read_table

    # the user does not know the name that the file has here
    with shown_as(path, "the file"):
        columns = column_names(path)
        if len(columns) > MOST_COLUMNS:
            raise UsageError(
                f"the file has {len(columns)} columns, more than the {MOST_COLUMNS} that the workbench accepts"
            )
        return columns, read_table(path, None, rows=PREVIEW).astype(object).fillna("").astype(str).values.tolist()


def _guess(columns: list[str], rows: list[list[str]], part: str) -> str:
    """The column with a usual name, otherwise the longest texts, the last or the first column."""
    names = {
        "text": ("text", "review", "document", "content", "body"), "bag": ("bag", "id", "group"),
        "label": ("label", "class", "target", "sentiment", "y"),
    }[part]  # fmt: skip
    for column in (column for name in names for column in columns if column.lower() == name):
        return column
    lengths = [max((len(row[k]) for row in rows), default=0) for k in range(len(columns))]
    return columns[lengths.index(max(lengths))] if part == "text" else columns[-1 if part == "label" else 0]


async def _fit(request: Request) -> Response:
    async with request.form(max_files=0, max_fields=20) as form:
        pass
    path = uploads_of(request).find(str(form.get("file") or ""))
    kind = str(form.get("kind") or "text")
    if kind not in KINDS:
        raise UsageError(f"unknown kind '{kind[:40]}'; choose one of {', '.join(KINDS)}", kind=kind[:40])
    label, column = str(form.get("label") or "label"), str(form.get("column") or "") or None
    if kind != "groups" and label == column:
        raise UsageError(
            f"column '{label[:60]}' cannot be both the data and the label; choose another column for the label",
            label=label[:60],
        )
    title = str(form.get("title") or "").strip()[:60] or KINDS[kind]
    id = f"m-{secrets.token_hex(4)}"
    ngrams = str(form.get("ngrams") or "1")
    arguments = {
        "home": str(store_of(request).home.absolute()), "id": id, "path": str(path), "title": title, "kind": kind,
        "label": label, "ngrams": int(ngrams) if ngrams in ("1", "2", "3") else 1,
        "column": column if kind != "groups" else None,
        "prefix": str(form.get("prefix") or "_")[:1],
    }  # fmt: skip
    asked = JobRequest("fit", f"train on {title}", arguments, page=f"/data/models/{id}")
    job = await run_in_threadpool(jobs_of(request).start, asked)
    return RedirectResponse(f"/jobs/{job}", 303)


async def _model(request: Request) -> Response:
    card = await run_in_threadpool(_card, request)
    documents = await _ask(request, card.id, "documents")
    importance = await _ask(request, card.id, "importance")

    def page() -> Response:
        others = [other for other in store_of(request).cards() if other.id != card.id and other.kind == "text"]
        return framed_page(
            request, "model.html", drawn=card.kind != "text", card=card, documents=documents, others=others,
            importance=importance,
        )  # fmt: skip

    return await run_in_threadpool(page)


async def _ask(request: Request, id: str, what: str, *arguments: Any, slow: bool = False) -> Any:
    """What a worker says about a model: it may have to load it and run it."""
    worker = slow_worker_of(request) if slow else worker_of(request)
    return await worker.answer(request, f"{STORE}:ModelStore.ask", store_of(request), id, what, *arguments)


async def _explain(request: Request) -> Response:
    """The explanation of a row of the data."""
    card = _card(request)
    try:
        asked: Any = await request.json()
        row = asked.get("row")
    except (ValueError, AttributeError, RecursionError):
        raise UsageError('send JSON with a row, such as {"row": 0}') from None
    documents = await _ask(request, card.id, "documents")
    if not isinstance(row, int) or not 0 <= row < len(documents):
        raise UsageError(f"row {str(row)[:20]} does not exist; the model has {len(documents)} rows to show")
    return JSONResponse(await _ask(request, card.id, "explanation", row))


async def _threshold(request: Request) -> Response:
    """Write another threshold of the second label into a model of texts."""
    card = _card(request)
    async with request.form(max_files=0, max_fields=5) as form:
        value = THRESHOLD.read(str(form.get("threshold") or ""))
    await _ask(request, card.id, "set_threshold", value, slow=True)
    return RedirectResponse(f"/data/models/{card.id}", 303)


def _download(what: str, media_type: str, ending: str) -> Callable[[Request], Awaitable[Response]]:
    """A route to what a model gives as a file."""

    async def send(request: Request) -> Response:
        card = await run_in_threadpool(_card, request)
        content = await _ask(request, card.id, what, slow=True)
        headers = {"content-disposition": f'attachment; filename="{card.id}{ending}"'}
        return Response(content, media_type=media_type, headers=headers | DRAWN)

    return send


def _home(request: Request) -> Response:
    """The first page: the explainer of the bundled model."""
    return framed_page(request, "home.html", model=DEMO)


async def _explainer_model(request: Request) -> Response:
    """A text model as its page computes with it."""
    card = await run_in_threadpool(_card, request)
    if (stored := await run_in_threadpool(store_of(request).stored_explainer, card)) is None:
        stored = await _ask(request, card.id, "explainer")
    return Response(stored, media_type="application/json")


async def _compare(request: Request) -> Response:
    cards = [_card(request, request.query_params.get(name, "")) for name in ("a", "b")]
    documents = await _ask(request, cards[0].id, "documents")
    row = Parameter("row", 0, 0, max(0, len(documents) - 1)).read(request.query_params.get("row"))
    text = documents[row]["text"] if documents else ""
    return framed_page(request, "compare.html", cards=cards, text=text, row=row, documents=documents)


routes = [
    Route("/", _home, name=LINKED),
    Route("/data", _page, name=LINKED),
    Route("/data/upload", _upload, methods=["POST"]),
    Route("/data/new", _choose, name=LINKED),
    Route("/data/fit", _fit, methods=["POST"]),
    Route("/data/compare", _compare, name=LINKED),
    Route("/data/models/{id}", _model, name=LINKED),
    Route("/data/models/{id}/explain", _explain, methods=["POST"]),
    Route("/data/models/{id}/threshold", _threshold, methods=["POST"]),
    Route("/data/models/{id}/model.zip", _download("archive", "application/zip", ".zip")),
    Route("/data/models/{id}/predictions.csv", _download("predictions", "text/csv", "-predictions.csv")),
    Route("/data/models/{id}/page.html", _download("explanation_page", "text/html", ".html")),
    Route("/data/models/{id}/explainer.json", _explainer_model),
    Route("/data/models/{id}/explainer.html", _download("explainer_page", "text/html", "-explainer.html")),
]
