"""Ledgers damaged in every way by the hundred: each is read with the right rows or refused in a sentence.

And disks that are full: what was there before stays, whatever was being written.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tally import tally

from whichtoken.app import write_report
from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME, write_text
from whichtoken.lab import Row, reproduce
from whichtoken.lab.discovery import find
from whichtoken.lab.export import export_rows
from whichtoken.lab.ledger import TABLES, Ledger, checksum
from whichtoken.lab.plan import make_plan
from whichtoken.lab.record import RunSummary
from whichtoken.lab.results import stored_results
from whichtoken.lab.worker import work

TOYS = Path(__file__).parents[1] / "toys"
EACH = 50  # of six kinds of damage
PAGE = 4096
JUNK = [None, 2**40, 1.5, "text", b"bytes"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with a ledger of two runs; the rows of a third wait in its log, as a killed driver leaves it."""
    folder = tmp_path_factory.mktemp("source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
        patch.setattr("whichtoken.lab.engines.LocalEngine.map", lambda self, tasks: ((t, work(t)) for t in tasks))
        reproduce(["toy/mean"], seeds=40, out=folder / "driver")
        reproduce(["toy/faults"], out=folder / "driver")
        path = folder / "driver" / LEDGER_NAME
        (folder / "whole").mkdir()
        shutil.copy(path, folder / "whole")
        plan = make_plan(find("toy/mean"), "quick", {"factor": [1.2]}, 20)
        with Ledger.writing(path) as ledger:
            ledger.put_run(RunSummary("toy/mean", "quick", plan.overrides, 20, "2020-01-01"))
            for task in plan.tasks:
                row = Row(None, task.seed, "ok", "", {"mean": task.seed / 7, "first": 0.0}, 0.1, "1")
                ledger.put(1, task, row)
            (folder / "killed").mkdir()
            for file in path.parent.glob(f"{LEDGER_NAME}*"):
                shutil.copy(file, folder / "killed")
    return folder


def seen(path):
    """Everything that a user can be told of the ledger."""
    with Ledger.reading(path) as ledger:
        rows = {
            (result.id, row.point, row.seed): (row.status, row.message, str(row.measured), str(row.predicted))
            for result in stored_results(ledger)
            for row in result.all_rows
        }
        verdicts = {run.key: str(run) for run in ledger.runs()}
    return {**rows, **verdicts}


def flip_bits(data, dice):
    for _ in range(dice.choice([1, 1, 1, 8])):
        place = dice.randrange(len(data))
        data[place] ^= 1 << dice.randrange(8)


def truncate(data, dice):
    del data[dice.randrange(len(data)) :]


def zero_pages(data, dice):
    for _ in range(dice.choice([1, 2])):
        start = PAGE * dice.randrange(len(data) // PAGE)
        data[start : start + PAGE] = bytes(PAGE)


def swap_pages(data, dice):
    first, second = (PAGE * place for place in dice.sample(range(1, len(data) // PAGE), 2))
    one, other = bytes(data[first : first + PAGE]), bytes(data[second : second + PAGE])
    data[first : first + PAGE], data[second : second + PAGE] = other, one


def damage_file(damage):
    def inflict(path, dice):
        data = bytearray(path.read_bytes())
        damage(data, dice)
        path.write_bytes(data)

    return inflict


def swap_fields(path, dice):
    """Exchange a value between two rows; the checksums stay with their rows."""
    with sqlite3.connect(path) as connection:
        table = dice.choice(["rows", "predictions"])
        column = dice.choice(
            [name for name in TABLES[table].columns if name not in ("experiment", "version", "point", "seed")]
        )
        found = connection.execute(f"SELECT {column}, checksum FROM {table}").fetchall()
        (one, first), (other, second) = dice.sample(found, 2)
        connection.execute(f"UPDATE {table} SET {column}=? WHERE checksum=?", (other, first))
        connection.execute(f"UPDATE {table} SET {column}=? WHERE checksum=?", (one, second))
    connection.close()


def plant_types(path, dice):
    """Put junk into one value, with the checksum that belongs to it: a liar, not an accident."""
    table = dice.choice(list(TABLES))
    columns = list(TABLES[table].columns)
    with sqlite3.connect(path) as connection:
        row = list(dice.choice(connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()))
        connection.execute(f"DELETE FROM {table} WHERE checksum=?", (checksum(tuple(row)),))
        place = dice.randrange(len(columns))
        # SQLite itself refuses a key without a value
        kind = type(row[place]) if place >= TABLES[table].key else (type(row[place]), type(None))
        row[place] = dice.choice([junk for junk in JUNK if not isinstance(junk, kind)])
        marks = ",".join("?" * (len(row) + 1))
        connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*row, checksum(tuple(row))))
    connection.close()


KINDS = {
    "bit flips": damage_file(flip_bits),
    "truncation": damage_file(truncate),
    "zeroed pages": damage_file(zero_pages),
    "swapped pages": damage_file(swap_pages),
    "swapped fields": swap_fields,
    "wrong types, right checksum": plant_types,
}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_ledger_is_read_right_or_refused(source, tmp_path, kind):
    truth, outcomes, wrong = seen(source / "whole" / LEDGER_NAME), Counter(), []
    for number in range(EACH):
        folder = tmp_path / str(number)
        shutil.copytree(source / "whole", folder)
        KINDS[kind](folder / LEDGER_NAME, random.Random(f"{kind} {number}"))
        outcome = judged_by(folder / LEDGER_NAME, truth, whole=True)
        outcomes[outcome] += 1
        wrong += [number] if outcome not in ("right", "refused") else []
    tally(f"ledger: {kind}", EACH, EACH - len(wrong), len(wrong))
    assert not wrong, outcomes


def test_damaged_log_costs_only_the_rows_behind_the_damage(source, tmp_path):
    truth, outcomes, wrong = seen(source / "killed" / LEDGER_NAME), Counter(), []
    assert len(truth) > len(seen(source / "whole" / LEDGER_NAME))
    for number in range(EACH):
        folder, dice = tmp_path / str(number), random.Random(number)
        shutil.copytree(source / "killed", folder)
        log = folder / f"{LEDGER_NAME}-wal"
        (folder / f"{LEDGER_NAME}-shm").unlink(missing_ok=True)  # the machine went down too
        data = bytearray(log.read_bytes())
        dice.choice([flip_bits, truncate, zero_pages])(data, dice)
        log.write_bytes(data)
        outcome = judged_by(folder / LEDGER_NAME, truth, whole=False)
        outcomes[outcome] += 1
        wrong += [number] if outcome not in ("right", "refused") else []
    tally("ledger: damaged log", EACH, EACH - len(wrong), len(wrong))
    assert not wrong, outcomes


def judged_by(path, truth, whole):
    """What came of reading a damaged ledger; of a damaged log, rows may be missing, but none may be wrong."""
    try:
        found = seen(path)
    except UsageError as error:
        return "refused" if "\n" not in str(error) and str(path.parent) in str(error) else "not a sentence"
    except Exception as error:
        return repr(error)
    if whole:
        return "right" if found == truth else "wrong rows"
    return "right" if found.items() <= truth.items() else "wrong rows"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"only root may mount a small disk here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder, leave=0):
    """Take all of the disk but this many bytes."""
    with open(folder / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    os.truncate(folder / "ballast", max(0, (folder / "ballast").stat().st_size - leave))


def refused_for_space(action):
    with pytest.raises(UsageError, match=r"no space left|could not read or write it") as error:
        action()
    assert "damaged" not in str(error.value)
    assert "\n" not in str(error.value)


def test_full_disk_costs_no_row_of_the_ledger(source, small_disk):
    path = Path(shutil.copy(source / "whole" / LEDGER_NAME, small_disk))
    truth = seen(path)
    fill(small_disk, leave=80_000)
    plan = make_plan(find("toy/mean"), "full", {"shift": [3.0]})
    stored = []

    def store():
        with Ledger.writing(path) as ledger:
            ledger.put_run(RunSummary("toy/mean", "full", plan.overrides, None, "2020-01-01"))
            for task in plan.tasks:
                ledger.put(1, task, Row(None, task.seed, "ok", "", {"mean": 1.0}, 0.1, "1"))
                stored.append(task)

    refused_for_space(store)
    (small_disk / "ballast").unlink()
    with Ledger.writing(path) as ledger:
        kept = ledger.rows(plan).keys()
    lost = len(set(stored) - kept) + len(truth.items() - seen(path).items())
    tally("full disk: ledger", 1, int(not lost), lost)
    assert stored
    assert not lost


@pytest.mark.parametrize("what", ["export", "report", "text", "model"])
def test_full_disk_leaves_the_old_file(source, small_disk, what):
    out = small_disk / "out"
    shutil.copytree(source / "whole", out)
    actions = {
        "export": lambda: export_rows(out, [], small_disk / "rows.csv"),
        "report": lambda: write_report(out),
        "text": lambda: write_text(small_disk / "file.json", "x" * 50_000),
        "model": lambda: save_model(small_disk / "model"),
    }
    actions[what]()
    kept = (LEDGER_NAME, f"{LEDGER_NAME}-shm", f"{LEDGER_NAME}-wal", f"{LEDGER_NAME}.lock")
    files = [path for path in small_disk.rglob("*") if path.is_file() and path.name not in kept]
    before = {path: path.read_bytes() for path in files}
    assert before
    fill(small_disk)
    with pytest.raises(UsageError, match="no space left"):
        actions[what]()
    (small_disk / "ballast").unlink()
    changed = [path for path, data in before.items() if not path.exists() or path.read_bytes() != data]
    left = {path for path in small_disk.rglob("*") if path.is_file() and path.name not in kept} - before.keys()
    tally(f"full disk: {what}", 1, int(not changed and not left), len(changed))
    assert not changed
    assert not left, "nothing half-written stays"


def save_model(folder):
    from whichtoken.estimators.model_folder import save_model

    save_model(folder, "torture", {"words": ["good", "bad"] * 1000}, {"weights": np.arange(4000.0)})
