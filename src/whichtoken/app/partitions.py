"""Answers for a table in several files, file by file: here, or on the workers of a Dask scheduler; what is finished stays.

Workers read the files and write the answers themselves, so both must lie where every worker sees them under the same name. The
model travels to the workers. A worker that dies costs the time of its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from whichtoken import __version__
from whichtoken.app.applying import Applied, LabeledRows, apply_to_table, remembered_roles
from whichtoken.errors import UsageError
from whichtoken.estimators.model_folder import OpenedFolder, load_to_answer
from whichtoken.files import replacing, write_text, writing
from whichtoken.reading import read_json, reason, shown
from whichtoken.tables import TableForm, is_several, stream_table, table_files, table_kind, write_table

MANIFEST = "partitions.json"


@dataclass(frozen=True)
class Failure:
    """What a worker says of a file that it could not answer."""

    sentence: str


@dataclass(frozen=True, eq=False)
class Request:
    """A model, and how it is applied to each file."""

    opened: OpenedFolder
    column: str | None = None
    form: TableForm = field(default_factory=TableForm)
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def model(self) -> Any:
        """Built once in each process that answers."""
        return load_to_answer(self.opened)

    def apply(self, file: Path) -> Applied:
        """The model on one file."""
        return apply_to_table(self.opened, self.model, file, self.column, **self.form)


def predict_file(request: Request, file: Path, output: Path) -> int:
    """Write the predictions for one file; the number of its rows."""
    table = request.apply(file).predicted(request.options.get("abstain_below"))
    write_table(table, output, spreadsheet_safe=bool(request.options.get("spreadsheet_safe")))
    return len(table)


def explain_file(request: Request, file: Path, output: Path) -> int:
    """Write the explanations for one file as JSON lines; their number."""
    lines = [json.dumps(item and item.as_json(), ensure_ascii=False) for item in request.apply(file).explain()]
    with replacing(output) as fresh:
        fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def evaluate_file(request: Request, file: Path) -> LabeledRows:
    """The labeled rows of one file."""
    return request.apply(file).labeled(request.options.get("label"), bool(request.options.get("drop_missing")))


def write_partitions(
    answer: Callable[[Request, Path, Path], int],
    request: Request,
    data: Path,
    to: Path,
    engine: str | None,
    ending: str = "",
) -> tuple[int, int]:
    """Answer each file of a table into a folder; the number of files that were answered now, and of those that were before.

    The folder has a list of what is finished, by which the same command goes on where it stopped; another one is refused.
    """
    files = [file.resolve() for file in table_files(data)]
    base = data.resolve() if data.is_dir() else Path(os.path.commonpath([file.parent for file in files]))
    options = {**request.options, "column": request.column, **request.form}
    task = {"command": answer.__name__.removesuffix("_file"), "model": request.opened.checksum, "options": options}
    _refuse_parted_bags(request, files)
    done = _read_manifest(to, json.loads(json.dumps(task)))
    outputs = {file: to.resolve() / _output_name(file, base, ending) for file in files}
    stamps = {file: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    names = {file: os.path.relpath(file, base) for file in files}
    missing = [file for file in files if done.get(names[file]) != stamps[file] or not outputs[file].exists()]
    for file, _ in run_on(engine, partial(_answer_into, answer, request, outputs), missing):
        done[names[file]] = stamps[file]
        write_text(to / MANIFEST, json.dumps({**task, "finished": done}, indent=1))
    return len(missing), len(files) - len(missing)


def _refuse_parted_bags(request: Request, files: Sequence[Path]) -> None:
    """Refuse a bag with instances in several files: each is answered alone, and would take it for several bags."""
    roles, home = remembered_roles(request.opened), dict[str, Path]()
    if not request.opened.kind.startswith("bag-") or "files" in roles:
        return
    column = request.column or roles.get("bag", "bag")
    for file in files:
        for piece in stream_table(file, [column], **request.form):
            for bag in {str(name).strip() for name in piece[column]}:
                if (other := home.setdefault(bag, file)) != file:
                    said = f"bag '{shown(bag)}' is in {shown(other)} and in {shown(file)}"
                    raise UsageError(f"{said}; files are processed one by one, so keep each bag in one file")


def _answer_into(answer: Callable[..., int], request: Request, outputs: Mapping[Path, Path], file: Path) -> int:
    return answer(request, file, outputs[file])


def _read_manifest(to: Path, task: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run of the same task has finished; makes the folder."""
    if (to / MANIFEST).exists():
        known = read_json(to / MANIFEST)
        if not isinstance(known, dict) or {name: known.get(name) for name in task} != task:
            raise UsageError(f"{shown(to)} has answers of another model or of other options; choose another folder")
        return dict(known.get("finished", {}))
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)
        others = sorted(path.name for path in to.iterdir() if path.name[0] != ".")
    if others:
        raise UsageError(f"{shown(to)} holds '{shown(others[0])}'; choose a new or empty folder")
    return {}


def _output_name(file: Path, base: Path, ending: str) -> str:
    name = os.path.relpath(file, base).replace(os.sep, "__")
    kind = table_kind(file)
    return name[: name.lower().rfind(kind)] + (ending or {".json": ".jsonl"}.get(kind, kind))


def evaluate_partitions(request: Request, data: Path, engine: str | None) -> LabeledRows:
    """The labeled rows of all files."""
    files = [file.resolve() for file in table_files(data)]
    _refuse_parted_bags(request, files)
    found = dict(run_on(engine, partial(evaluate_file, request), files))
    parts: list[LabeledRows] = [found[file] for file in files]
    return replace(
        parts[0],
        probabilities=np.concatenate([part.probabilities for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        left=sum(part.left for part in parts),
        lacking=any(part.lacking for part in parts),
    )


def run_on(engine: str | None, function: Callable[[Path], Any], files: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Files and what the function says of them, as they are finished; on this process, or on a scheduler (dask://host:port)."""
    if engine is None or not files:
        yield from ((file, _raise_if_failed(_try(function, file))) for file in files)
        return
    from whichtoken.lab.engines.dask import Session, silent_logs

    if not engine.startswith("dask://"):
        raise UsageError(f"engine '{shown(engine)}' must be dask://host:port")
    with silent_logs():
        import distributed.comm.core

        from whichtoken.lab.engines.dask import scheduler_address

        address = scheduler_address(engine)
        with Session.client_of(address) as client:
            _check_workers(client, engine)
            lost = UsageError(
                f"the scheduler at {engine} is gone; finished files are kept; run the command again to continue"
            )
            # the result of a task, as that can be made again when the worker that has it dies
            shared = client.submit(_same, function, pure=False)
            pending = {client.submit(_try, shared, file, pure=False): file for file in files}
            try:
                for future in distributed.as_completed(list(pending), loop=client.loop):  # type: ignore[no-untyped-call]
                    if future.status in ("cancelled", "lost"):
                        raise lost
                    try:
                        answer = future.result()
                    except distributed.KilledWorker as error:
                        said = f"{shown(pending[future])}: each worker that read it died; does it fit into memory?"
                        raise UsageError(said) from error
                    yield pending[future], _raise_if_failed(answer)
            except (OSError, distributed.CancelledError, distributed.comm.core.CommClosedError) as error:
                raise lost from error


def _same(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return function


def _try(function: Callable[[Path], Any], file: Path) -> Any:
    """What a function says of a file, or the sentence of its error, which may not travel as it is."""
    try:
        return function(file)
    except UsageError as error:
        said = str(error)
        return Failure(said if file.name in said else f"{shown(file)}: {said}")
    except ValueError as error:
        return Failure(f"{shown(file)}: {reason(error)}")


def _raise_if_failed(answer: Any) -> Any:
    if isinstance(answer, Failure):
        raise UsageError(answer.sentence)
    return answer


def _check_workers(client: Any, engine: str) -> None:
    """Refuse a scheduler without workers, or with workers of another version."""
    versions = client.run(_version)
    if not versions:
        raise UsageError(f"the scheduler at {engine} has no workers; start some with 'dask worker'")
    others = {worker: found for worker, found in versions.items() if found != __version__}
    for worker, found in others.items():
        raise UsageError(
            f"worker {worker} has whichtoken {found}, this program is {__version__}; install the same on both"
        )


def _version() -> str:
    return __version__


def by_file(data: Path, to: Path | None) -> bool:
    """Whether answers go to a folder, a file for each of the table."""
    return to is not None and (to.is_dir() or (not to.suffix and (is_several(data) or not to.exists())))
