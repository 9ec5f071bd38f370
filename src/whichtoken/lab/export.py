"""Export stored rows as one table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from whichtoken.errors import unknown
from whichtoken.files import LEDGER_NAME, check_place
from whichtoken.lab.experiment import Row
from whichtoken.lab.ledger import Ledger
from whichtoken.tables import check_table_suffix, write_table

OWN = ("seed", "status", "message", "seconds", "package_version")  # columns that every row has


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
        known = {run.id for run in ledger.runs()}
        for experiment_id in wanted:
            if experiment_id not in known:
                raise unknown("claim", experiment_id, known, str(ledger.path), listed_by="whichtoken list")
        frame = pd.DataFrame([_flat(record) for record in ledger.records(wanted or sorted(known))])
    write_table(frame, to, spreadsheet_safe=spreadsheet_safe)
    return len(frame)


def rows_as_csv(rows: Sequence[Row[Any]]) -> str:
    """Rows of one run as CSV, with the columns of `export_rows` except experiment and version."""
    measured = list(dict.fromkeys(name for row in rows for name in row.measured))
    predicted = list(dict.fromkeys(name for row in rows for name in row.predicted))
    fields = list(vars(rows[0].point)) if rows else []
    # rows of a point share it and its prediction, so each is formatted once
    points = {id(row.point): [_scalar(vars(row.point)[name]) for name in fields] for row in rows}
    theory = {id(row.predicted): list(_predicted_cells(row, predicted)) for row in rows}
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    errors = (f"{kind}.{name}" for name in predicted for kind in ("predicted", "predicted_error"))
    writer.writerow([*OWN, *(f"point.{name}" for name in fields), *(f"measured.{name}" for name in measured), *errors])
    for row in rows:
        own = (row.seed, row.status, row.message, row.seconds, row.package_version)
        found = (_scalar(row.measured.get(name, "")) for name in measured)
        writer.writerow([*own, *points[id(row.point)], *found, *theory[id(row.predicted)]])
    return target.getvalue()


def _predicted_cells(row: Row[Any], names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        item = row.predicted.get(name)
        yield from ("", "") if item is None else (_scalar(item.value), item.error)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in record.items() if name not in ("point", "measured", "predicted")}
    for group in ("point", "measured"):
        flat |= {f"{group}.{name}": _scalar(value) for name, value in record[group].items()}
    for name, item in record["predicted"].items():
        flat |= {f"predicted.{name}": _scalar(item["value"]), f"predicted_error.{name}": item["error"]}
    return flat


def _scalar(value: Any) -> Any:
    """Nested values as JSON text."""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, (list, tuple, dict)) else value
