"""The process of one job: `python -m whichtoken.app.workbench.job_process FOLDER`.

Each kind of job is a function, which imports what it needs when it runs. A job that fails, runs out of memory or is
killed stops nothing but itself.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from whichtoken.app.workbench.jobs import INSPECTION_NUMBERS, INSPECTION_PAGE, JobEnd, JobFolder
from whichtoken.display.text import counted
from whichtoken.errors import in_one_line
from whichtoken.reading import shown_as


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
    changed = f"; {len(result.changed)} changed against the record" if result.changed else ""
    message = result.fault or f"{counted(len(result.all_rows), 'row')}, {result.failed} failed{changed}"
    if result.failed and not result.rows:
        message += f"; the first reason: {result.rows.failed[0].message}"
    failed = result.fault or (result.failed and not result.rows)
    return JobEnd("failed" if failed else "finished", message, {"verdicts": verdicts})


def fit_model(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Train as `whichtoken fit` does, evaluate on held-out rows beside the baseline, and store the model."""
    from whichtoken.app.evaluation import Scheme
    from whichtoken.app.fitting import GroupRoles, TextRoles, fit_bags, fit_groups, fit_text
    from whichtoken.app.pages.evaluation import print_evaluation
    from whichtoken.app.readers.bags import BagRoles
    from whichtoken.app.workbench.model_store import ModelCard, ModelStore

    store = ModelStore(Path(arguments["home"]))
    id, kind, column, label = (arguments[name] for name in ("id", "kind", "column", "label"))
    folder = store.new_folder(id)
    source = Path(arguments["path"])
    data = folder / f"data{source.suffix}"
    if source != data:
        shutil.copyfile(source, data)
    job.report(
        {"done": 1, "total": 3, "said": "training our model and the baseline, and evaluating them on held-out rows"}
    )
    with shown_as(data, "the file"):
        if kind == "text":
            options = {"ngram_range": (1, arguments["ngrams"])}
            report = fit_text(data, folder / "model", TextRoles(column, label), Scheme(), options=options)
        elif kind == "bags":
            report = fit_bags(data, folder / "model", BagRoles(column, label), Scheme())
        else:
            report = fit_groups(data, folder / "model", GroupRoles(arguments["prefix"], label), Scheme())
    print_evaluation(report)
    job.report({"done": 2, "total": 3, "said": "predicting the documents"})
    # plain numbers, and None for NaN, which JSON does not have
    text = json.dumps(asdict(report), default=lambda value: value.item() if hasattr(value, "item") else str(value))
    scores = json.loads(text, parse_constant=lambda _: None)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.put(ModelCard(id, arguments["title"], kind, label, column, data.name, created, scores))
    # computed now and stored, so that the page of the model opens at once
    store.documents(id)
    store.importance(id)
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
    job.report({"done": 1, "total": 3, "said": "loading the model"})
    with quiet():
        tokenizer, model = load_tokenizer(folder, texts), load_transformer(folder)
    from whichtoken.inspection import inspect

    job.report({"done": 2, "total": 3, "said": f"reading {len(texts)} texts"})
    inspection = inspect(model, texts, tokenizer, labels=labels)
    inspection.to_html(job.path / INSPECTION_PAGE)
    write_text(job.path / INSPECTION_NUMBERS, json.dumps(inspection.as_json(), ensure_ascii=False, allow_nan=False))
    lines = inspection.summary()
    return JobEnd("finished", lines[0] if lines else "", {"lines": lines}, page=f"/inspect/{job.id}")


def plan_pilot(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """What the pilot shows, and what more bags would bring, as `whichtoken plan --pilot` says it."""
    from whichtoken.app.pages.planning import study_lines, theory_lines
    from whichtoken.app.readers.bags import read_bags
    from whichtoken.estimators import plan_study

    job.report({"said": "reading the pilot"})
    path = Path(arguments["path"])
    table = read_bags(path) if path.suffix == ".npz" else read_bags(path, arguments["bag"], arguments["label"])
    job.report({"said": f"cross-validating {len(table.bags)} bags"})
    assert table.labels is not None
    study = plan_study(
        pilot=(table.bags, table.labels), features=table.features, target_error=arguments["target_error"]
    )  # fmt: skip
    lines = study_lines(study) + (theory_lines(study) if study.theory is not None else [])
    points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
    curve = {name: [getattr(point, name) for point in points] for name in ("samples", "error", "low", "high")}
    notes = [*table.notes, *study.notes]
    return JobEnd("finished", study.recommendation, {"lines": lines, "notes": notes, "curve": curve})


KINDS = {"claim": reproduce_claim, "fit": fit_model, "inspect": inspect_folder, "pilot": plan_pilot}


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # so that the engine closes its workers, as after Ctrl-C
    signal.signal(signal.SIGTERM, _stop)
    work_on(Path(sys.argv[1]))
