"""Training as a job: the same functions as `whichtoken fit`, with the model on the shelf at the end."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichtoken.errors import UsageError
from whichtoken.workbench.job_files import JobEnd, JobFolder
from whichtoken.workbench.model_shelf import ModelCard, ModelShelf

if TYPE_CHECKING:
    from whichtoken.estimators.evaluation import FitReport


def fit_model(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """Train, judge on held-out rows beside the baseline, and put the model on the shelf."""
    from whichtoken.report.evaluation import print_evaluation

    shelf = ModelShelf(Path(arguments["home"]))
    id = arguments["id"]
    folder = shelf.new_folder(id)
    source = Path(arguments["path"])
    data = folder / f"data{source.suffix}"
    if source != data:
        shutil.copyfile(source, data)
    job.say({"done": 1, "total": 3, "said": "training our model and the baseline, and judging them on held-out rows"})
    try:
        report = _fitted(data, folder / "model", arguments)
    except UsageError as error:
        raise UsageError(str(error).replace(str(data), "the file")) from error  # the user never named our copy
    print_evaluation(report)
    job.say({"done": 2, "total": 3, "said": "predicting the documents"})
    card = ModelCard(
        id, arguments["title"], arguments["kind"], arguments["label"], arguments["column"], data.name,
        datetime.now(UTC).isoformat(timespec="seconds"), _json(report),
    )  # fmt: skip
    shelf.put(card)
    shelf.documents(id)  # kept beside it, so that its page opens at once
    shelf.importance(id)
    ours = report.ours
    low, high = ours.intervals["accuracy"]
    return JobEnd("finished", f"accuracy {ours.accuracy:.3f} ({low:.3f} to {high:.3f}) on {report.test} held-out rows")


def _fitted(data: Path, folder: Path, arguments: dict[str, Any]) -> FitReport:
    from whichtoken.data.bag_tables import BagRoles
    from whichtoken.estimators.evaluation import Scheme
    from whichtoken.estimators.table_fits import GroupRoles, fit_bags, fit_groups
    from whichtoken.estimators.text.fitting import TextRoles, fit_text

    scheme, column, label = Scheme(), arguments["column"], arguments["label"]
    match arguments["kind"]:
        case "text":
            return fit_text(data, folder, TextRoles(column, label), scheme, options={"ngrams": arguments["ngrams"]})
        case "bags":
            return fit_bags(data, folder, BagRoles(column, label), scheme)
        case _:
            return fit_groups(data, folder, GroupRoles(arguments["prefix"], label), scheme)


def _json(report: FitReport) -> dict[str, Any]:
    """The report in plain numbers; JSON knows no NaN."""
    text = json.dumps(asdict(report), default=lambda value: value.item() if hasattr(value, "item") else str(value))
    found: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return found
