"""Stored rows as one table, for whatever people analyse tables with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whichtoken.data.table_output import check_table_suffix, write_table
from whichtoken.errors import unknown
from whichtoken.files import check_place
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.experiment import Row
from whichtoken.lab.ledger import Ledger
from whichtoken.places import LEDGER_NAME


def export_rows(out: Path, ids: Iterable[str], to: Path, *, spreadsheet_safe: bool = False) -> int:
    """Write the ledger's rows to a table and return how many there are.

    Columns: experiment, version, seed, status, message, seconds, package_version, then point.*, measured.*, predicted.*
    and predicted_error.*; nested values as JSON text.
    """
    import pandas as pd

    check_table_suffix(to)
    check_place(to)
    wanted = list(dict.fromkeys(ids))
    with Ledger.reading(out / LEDGER_NAME) as ledger:
        known = {run.experiment for run in ledger.runs()}
        for experiment_id in wanted:
            if experiment_id not in known:
                raise unknown("experiment", experiment_id, known, str(ledger.path))
        frame = pd.DataFrame([_flat(record) for record in ledger.records(wanted or sorted(known))])
    write_table(frame, to, spreadsheet_safe=spreadsheet_safe)
    return len(frame)


def rows_as_csv(rows: Iterable[Row[Any]]) -> str:
    """Rows of one run as CSV, with the columns of `export_rows` but for experiment and version."""
    flat = [_flat(_record(row)) for row in rows]
    target = io.StringIO()
    writer = csv.DictWriter(target, dict.fromkeys(name for line in flat for name in line), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return target.getvalue()


def _record(row: Row[Any]) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in ("seed", "status", "message", "seconds", "package_version")}
    predicted = {name: {"value": item.value, "error": item.error} for name, item in row.predicted.items()}
    return {**fields, "point": vars(row.point), "measured": row.measured, "predicted": predicted}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in record.items() if name not in ("point", "measured", "predicted")}
    for group in ("point", "measured"):
        flat |= {f"{group}.{name}": _scalar(value) for name, value in record[group].items()}
    for name, item in record["predicted"].items():
        flat |= {f"predicted.{name}": _scalar(item["value"]), f"predicted_error.{name}": item["error"]}
    return flat


def _scalar(value: Any) -> Any:
    return canonical_json(value) if isinstance(value, (list, dict)) else value
