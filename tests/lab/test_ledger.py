"""The results file: what it keeps, and every way in which it can be unusable."""

import os
import random
import shutil
import sqlite3
import stat

import pytest

from whichtoken.errors import UsageError
from whichtoken.lab import reproduce
from whichtoken.lab.ledger import Ledger, Run
from whichtoken.lab.ledger_file import SCHEMA
from whichtoken.lab.results import stored_results
from whichtoken.places import LEDGER_NAME


@pytest.fixture
def filled(tmp_path):
    """A ledger with the rows of one run."""
    reproduce(["toy/mean"], workers=1, out=tmp_path)
    return tmp_path / LEDGER_NAME


def open_and_read(path):
    with Ledger.writing(path) as ledger:
        return stored_results(ledger)


def test_rows_and_predictions_come_back_as_they_were(filled):
    [result] = open_and_read(filled)
    assert [row.point.draws for row in result.rows] == [100] * 5 + [400] * 5
    assert result.rows[0].predicted["mean"].value == 1.0
    assert result.rows[0].predicted["mean"].error == 1e-12
    assert result.verdicts[0].state == "agrees"


def test_older_version_of_an_experiment_is_not_reused(filled, monkeypatch):
    from whichtoken.lab.discovery import find

    monkeypatch.setattr(type(find("toy/mean")), "version", 2)
    [result] = open_and_read(filled)
    assert (len(result.rows), result.missing) == (0, 10)


def refused(path, *, reading=False):
    before = path.read_bytes() if path.is_file() else None
    opener = Ledger.reading if reading else Ledger.writing
    with pytest.raises(UsageError) as error, opener(path) as ledger:
        stored_results(ledger)
    assert "\n" not in str(error.value)
    assert str(path.parent) in str(error.value)
    assert before is None or path.read_bytes() == before, "a refused file must stay as it was"
    return str(error.value)


def test_newer_schema(filled):
    with sqlite3.connect(filled) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA + 3}")
    connection.close()
    assert f"newer version (schema {SCHEMA + 3}, this program knows {SCHEMA})" in refused(filled)


def test_foreign_database(tmp_path):
    path = tmp_path / LEDGER_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    assert "not a whichtoken results file" in refused(path)


def test_not_a_database(tmp_path):
    path = tmp_path / LEDGER_NAME
    path.write_text("shopping list\n" * 100)
    assert "damaged" in refused(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated(filled, share):
    data = filled.read_bytes()
    filled.write_bytes(data[: int(len(data) * share)])
    assert "damaged" in refused(filled)


def test_flipped_bytes_are_noticed_or_harmless(filled):
    """Flip one byte at many places: either the file is refused, or every number is what it was."""
    truth = [row.measured for row in open_and_read(filled)[0].rows]
    data = filled.read_bytes()
    noticed = 0
    for position in random.Random(0).sample(range(100, len(data)), 150):
        filled.write_bytes(data[:position] + bytes([data[position] ^ 0x15]) + data[position + 1 :])
        try:
            with Ledger.reading(filled) as ledger:
                results = stored_results(ledger)
        except UsageError as error:
            assert "damaged" in str(error) or "not a whichtoken" in str(error)
            noticed += 1
        else:
            assert [row.measured for row in results[0].rows] == truth
    assert noticed > 5


def test_read_only_file(filled):
    filled.chmod(stat.S_IRUSR)
    assert "is read-only" in refused(filled)


def test_read_only_folder(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UsageError, match="is read-only"), Ledger.writing(folder / LEDGER_NAME):
        pass
    assert list(folder.iterdir()) == []


def test_read_only_results_can_still_be_read(filled):
    filled.chmod(stat.S_IRUSR)
    with Ledger.reading(filled) as ledger:
        assert len(stored_results(ledger)) == 1


def test_out_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="cannot be written"), Ledger.writing(tmp_path / "out" / LEDGER_NAME):
        pass


def test_second_driver_is_refused_and_readers_are_not(filled):
    with Ledger.writing(filled):
        assert "in use by another run" in refused(filled)
        with Ledger.reading(filled) as reader:
            assert len(stored_results(reader)) == 1


def test_locked_by_another_program(filled, monkeypatch):
    monkeypatch.setattr("whichtoken.lab.ledger_file.BUSY_SECONDS", 0.05)
    other = sqlite3.connect(filled)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(UsageError, match="is locked by another program"):
            reproduce(["toy/mean"], seeds=1, workers=1, out=filled.parent)
    finally:
        other.close()


def test_reading_nothing_says_what_to_do(tmp_path):
    assert "run 'whichtoken reproduce' first" in refused(tmp_path / LEDGER_NAME, reading=True)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def killed(filled, tmp_path):
    """The files as a driver leaves them that is killed before SQLite has moved the log into the database."""
    folder = tmp_path / "killed"
    folder.mkdir()
    with Ledger.writing(filled) as ledger:
        ledger.put_run(Run("toy/mean", "full", {}, 2, "2020-01-01"))
        for file in filled.parent.glob(f"{LEDGER_NAME}*"):
            shutil.copy(file, folder)
    assert (folder / f"{LEDGER_NAME}-wal").stat().st_size
    return folder / LEDGER_NAME


def test_rows_of_a_killed_driver_are_read_where_nothing_may_be_written(killed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with Ledger.reading(killed) as ledger:
        assert {result.preset for result in stored_results(ledger)} == {"quick", "full"}


@pytest.mark.parametrize("reading", [True, False])
def test_emptied_file_does_not_cost_the_log(killed, reading):
    log = killed.with_name(f"{LEDGER_NAME}-wal")
    before = log.read_bytes()
    killed.write_bytes(b"")
    assert "is damaged" in refused(killed, reading=reading)
    assert log.read_bytes() == before


def test_run_with_a_field_that_is_gone_does_not_block_the_others(filled):
    with Ledger.writing(filled) as ledger:
        ledger.put_run(Run("toy/mean", "quick", {"gone": [1]}, 2, "2020-01-01"))
        assert [result.plan.overrides for result in stored_results(ledger)] == [{}]
