"""Stored rows as one table, for whatever people analyse tables with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whichtoken.errors import UsageError, unknown
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.ledger import Ledger
from whichtoken.places import LEDGER_NAME


def export_rows(out: Path, ids: Iterable[str], to: Path) -> int:
    """Write the ledger's rows to a Parquet or CSV file and return how many there are.

    Columns: experiment, version, seed, status, message, seconds, package_version, then point.*, measured.*, predicted.*
    and predicted_error.*; nested values as JSON text.
    """
    import pandas as pd

    if to.suffix not in (".parquet", ".csv"):
        raise UsageError(f"--to {to}: the name must end in .parquet or .csv")
    wanted = list(dict.fromkeys(ids))
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        known = {run.experiment for run in ledger.runs()}
        for experiment_id in wanted:
            if experiment_id not in known:
                raise unknown("experiment", experiment_id, known, str(ledger.path))
        frame = pd.DataFrame([_flat(record) for record in ledger.records(wanted or sorted(known))])
    try:
        if to.suffix == ".parquet":
            frame.to_parquet(to, index=False)
        else:
            frame.to_csv(to, index=False)
    except OSError as error:
        raise UsageError(f"{to} cannot be written ({error.strerror or error})") from error
    return len(frame)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in record.items() if name not in ("point", "measured", "predicted")}
    for group in ("point", "measured"):
        flat |= {f"{group}.{name}": _scalar(value) for name, value in record[group].items()}
    for name, item in record["predicted"].items():
        flat |= {f"predicted.{name}": _scalar(item["value"]), f"predicted_error.{name}": item["error"]}
    return flat


def _scalar(value: Any) -> Any:
    return canonical_json(value) if isinstance(value, (list, dict)) else value
