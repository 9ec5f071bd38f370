"""A look into a transformer as a job: the same as `whichtoken inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whichtoken.workbench.job_files import JobEnd, JobFolder

NUMBERS, PAGE = "inspection.json", "inspection.html"


def inspect_folder(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Load the model, run it over the texts, and keep every number and the page."""
    from whichtoken.data.review_files import read_texts
    from whichtoken.files import write_text
    from whichtoken.inspection.loading import check_folder, load_tokenizer, load_transformer, quiet

    folder = Path(arguments["folder"])
    check_folder(folder)
    label = arguments["label"] or None
    texts, labels = read_texts(Path(arguments["path"]), arguments["column"], label, arguments["most"])
    job.say({"done": 1, "total": 3, "said": "loading the model"})
    with quiet():
        tokenizer, model = load_tokenizer(folder, texts), load_transformer(folder)
    from whichtoken.inspection import inspect

    job.say({"done": 2, "total": 3, "said": f"reading {len(texts)} texts"})
    found = inspect(model, texts, tokenizer, labels=labels)
    found.to_html(job.path / PAGE)
    write_text(job.path / NUMBERS, json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False))
    lines = found.summary()
    return JobEnd("finished", lines[0] if lines else "", {"lines": lines}, page=f"/inspect/{job.id}")
