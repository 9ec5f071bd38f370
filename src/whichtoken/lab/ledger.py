"""The results store: one SQLite file, one transaction per finished row, written by one driver at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whichtoken import __version__
from whichtoken.lab.canonical import canonical_json
from whichtoken.lab.experiment import Predicted, Row
from whichtoken.lab.ledger_file import (
    TABLES,
    FilePlace,
    check_schema,
    checksum,
    decoded,
    gone,
    one_sentence,
    opened_to_read,
    opened_to_write,
    tables_of,
    verify,
    wrong_value,
)
from whichtoken.lab.plan import RunPlan, RunTask

FAILED_PREDICTION = "prediction: "  # begins the message of a row that stands for a prediction
RunKey = tuple[str, str, str, int]


@dataclass(frozen=True)
class Run:
    """A run as it was asked for; which of its rows are there is read from the rows."""

    experiment: str
    preset: str
    overrides: Mapping[str, list[Any]]
    seeds: int | None
    started: str  # UTC, ISO format

    @property
    def key(self) -> RunKey:
        return self.experiment, self.preset, canonical_json(self.overrides), self.seeds or 0


@dataclass(frozen=True)
class Judged:
    """What a run came to, as it was stored with it."""

    started: str  # of the run that was judged; another one has begun since if it differs from the run's
    version: int  # of the claim
    verdicts: Sequence[Mapping[str, Any]]  # fields of `Verdict`
    fault: str
    package_version: str = __version__


class Ledger:
    """Rows, predictions, runs and their verdicts in one file.

    Use `Ledger.writing(path)` or `Ledger.reading(path)`. A driver checks the whole file before it writes; a reader
    checks the tables that it reads, each once.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, schema: int, verified: Iterable[str] = ()) -> None:
        self.path = path
        self._connection = connection
        self._tables = set(tables_of(schema))  # a table that came with a later schema is empty
        self._verified = set(verified)
        self._place = FilePlace(path)
        self._written: dict[str, dict[tuple[Any, ...], int]] = {"rows": {}, "predictions": {}}  # checksums by key

    @classmethod
    @contextmanager
    def writing(cls, path: Path) -> Iterator[Ledger]:
        """Open for the one driver that writes, making the file or bringing it up to date if need be."""
        with opened_to_write(path) as connection:
            with one_sentence(path):
                schema = check_schema(path, connection)
            ledger = cls(path, connection, schema, TABLES)
            yield ledger
            ledger._check_stored()

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[Ledger]:
        """Open an existing ledger to look at."""
        with opened_to_read(path) as connection:
            with one_sentence(path):
                schema = check_schema(path, connection)
            yield cls(path, connection, schema)

    def put(self, version: int, task: RunTask, row: Row[Any]) -> None:
        """Store one finished row in its own transaction."""
        values = (row.status, row.message, canonical_json(row.measured), float(row.seconds), row.package_version)
        self._insert("rows", (task.experiment, version, task.point, task.seed, *values))

    def put_prediction(
        self, version: int, task: RunTask, predicted: Mapping[str, Predicted], message: str = ""
    ) -> None:
        """Store what theory says of one point, or the message why it says nothing."""
        text = canonical_json({name: asdict(item) for name, item in predicted.items()})
        self._insert("predictions", (task.experiment, version, task.point, text, message))

    def put_run(self, run: Run) -> None:
        """Remember that this run was asked for; the latest of its kind stays."""
        self._insert("runs", (*run.key, run.started))

    def put_verdicts(self, run: Run, judged: Judged) -> None:
        """Store what a run came to, so that listing it judges nothing."""
        text = canonical_json(list(judged.verdicts))
        self._insert("verdicts", (*run.key, judged.started, judged.version, text, judged.fault, judged.package_version))

    def forget_verdicts(self, experiment: str) -> None:
        """Drop what the runs of an experiment came to: their rows are about to be replaced."""
        with one_sentence(self.path), self._connection:
            self._connection.execute("DELETE FROM verdicts WHERE experiment=?", (experiment,))

    def rows(self, plan: RunPlan) -> dict[RunTask, Row[Any]]:
        """The stored rows of a plan, with their predictions, in the order of the plan.

        A prediction that failed stands behind them as a failed row of its own, with a task that has no seed.
        """
        key = {"experiment": plan.experiment.id, "version": plan.experiment.version}
        predicted: dict[str, dict[str, Predicted]] = {}
        faults: dict[RunTask, Row[Any]] = {}
        for _, _, point, items, message in self._select("predictions", key):
            predicted[point] = self._predictions(items)
            if message and point in plan.points:
                task = RunTask(plan.experiment.id, point, None)
                faults[task] = Row(plan.points[point], 0, "failed", FAILED_PREDICTION + message, {}, 0.0, __version__)
        stored: dict[RunTask, Row[Any]] = {}
        for _, _, point, seed, status, message, measured, seconds, package in self._select("rows", key):
            if status not in ("ok", "failed"):
                raise wrong_value(self.path, "rows", "status")
            if point in plan.points:
                stored[RunTask(plan.experiment.id, point, seed)] = Row(
                    plan.points[point], seed, status, message, measured, seconds, package, predicted.get(point, {})
                )
        return {**{task: stored[task] for task in plan.tasks if task in stored}, **faults}

    def predicted_points(self, experiment: str, version: int) -> set[str]:
        """Points whose prediction is stored."""
        return {row[2] for row in self._select("predictions", {"experiment": experiment, "version": version})}

    def runs(self) -> list[Run]:
        """All runs, the latest first."""
        found = []
        for experiment, preset, overrides, seeds, started in self._select("runs"):
            if not all(isinstance(values, list) for values in overrides.values()):
                raise wrong_value(self.path, "runs", "overrides")
            found.append(Run(experiment, preset, overrides, seeds or None, started))
        return sorted(found, key=lambda run: run.started, reverse=True)

    def judged(self) -> dict[RunKey, Judged]:
        """What every run came to that was judged to its end."""
        found = {}
        for *run, started, version, verdicts, fault, package in self._select("verdicts"):
            if not all(isinstance(item, dict) and {"code", "state"} <= item.keys() for item in verdicts):
                raise wrong_value(self.path, "verdicts", "verdicts")
            experiment, preset, overrides, seeds = run
            key = (experiment, preset, canonical_json(overrides), seeds)
            found[key] = Judged(started, version, verdicts, fault, package)
        return found

    def records(self, experiments: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Every stored row of the experiments as flat data, for export."""
        names = list(TABLES["rows"].columns)
        for experiment in experiments:
            predictions = {}
            for _, version, point, items, _ in self._select("predictions", {"experiment": experiment}):
                self._predictions(items)
                predictions[version, point] = items
            for values in self._select("rows", {"experiment": experiment}):
                record = dict(zip(names, values, strict=True))
                point = record["point"]
                yield {**record, "point": self._point(point), "predicted": predictions.get((values[1], point), {})}

    def _predictions(self, items: Mapping[str, Any]) -> dict[str, Predicted]:
        for item in items.values():
            if not isinstance(item, dict) or item.keys() != {"value", "error"} or type(item["error"]) is not float:
                raise wrong_value(self.path, "predictions", "predicted")
        return {name: Predicted(**item) for name, item in items.items()}

    def _point(self, text: str) -> dict[str, Any]:
        try:
            point = json.loads(text)
        except ValueError:
            point = None
        if not isinstance(point, dict):
            raise wrong_value(self.path, "rows", "point")
        return point

    def _insert(self, table: str, values: tuple[Any, ...]) -> None:
        # a lone surrogate, as in a message about a file name, has no place in UTF-8
        values = tuple(v.encode(errors="backslashreplace").decode() if isinstance(v, str) else v for v in values)
        marks = ",".join("?" * (len(values) + 1))
        with one_sentence(self.path), self._connection:
            self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, checksum(values)))
        self._place.check()
        if table in self._written:
            self._written[table][values[: TABLES[table].key]] = checksum(values)

    def _check_stored(self) -> None:
        """See that whoever opens the file now finds every row that was written."""
        self._place.check()
        with opened_to_read(self.path) as connection, one_sentence(self.path):
            for table, written in self._written.items():
                columns = [*list(TABLES[table].columns)[: TABLES[table].key], "checksum"]
                found = {
                    tuple(key): sum_ for *key, sum_ in connection.execute(f"SELECT {', '.join(columns)} FROM {table}")
                }
                if not written.items() <= found.items():
                    raise gone(self.path)

    def _select(self, table: str, where: Mapping[str, Any] | None = None) -> Iterator[list[Any]]:
        """Rows of a table, decoded; the first call checks that the table is as it was written."""
        if table not in self._tables:
            return
        condition = " AND ".join(f"{column}=?" for column in where or {}) or "1"
        with one_sentence(self.path):
            if table not in self._verified:
                verify(self.path, self._connection, table)
                self._verified.add(table)
            columns = ", ".join(TABLES[table].columns)
            found = self._connection.execute(
                f"SELECT {columns} FROM {table} WHERE {condition}", tuple((where or {}).values())
            )
            for values in found:
                yield decoded(self.path, table, values)
