"""A plan from a pilot as a job: its cross-validation takes as long as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whichtoken.workbench.job_files import JobEnd, JobFolder


def plan_pilot(job: JobFolder, arguments: dict[str, Any]) -> JobEnd:
    """What the pilot shows, and what more bags would bring, as `whichtoken plan --pilot` says it."""
    from whichtoken.data.bag_files import read_bags
    from whichtoken.estimators import plan_study
    from whichtoken.report.planning import study_lines, theory_lines

    job.say({"said": "reading the pilot"})
    path = Path(arguments["path"])
    table = read_bags(path) if path.suffix == ".npz" else read_bags(path, arguments["bag"], arguments["label"])
    job.say({"said": f"cross-validating {len(table.bags)} bags"})
    assert table.labels is not None
    study = plan_study(
        pilot=(table.bags, table.labels), features=table.features, target_error=arguments["target_error"]
    )  # fmt: skip
    lines = study_lines(study) + (theory_lines(study) if study.theory is not None else [])
    notes = [*table.notes, *study.notes]
    points = sorted({study.forecast, *study.learning_curve}, key=lambda point: point.samples)
    curve = {
        "samples": [point.samples for point in points], "error": [point.error for point in points],
        "low": [point.low for point in points], "high": [point.high for point in points],
    }  # fmt: skip
    return JobEnd("finished", study.recommendation, {"lines": lines, "notes": notes, "curve": curve})
