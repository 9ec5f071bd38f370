"""The results file: what it keeps, and every way in which it can be unusable."""

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from whichtoken.errors import UsageError
from whichtoken.files import LEDGER_NAME
from whichtoken.lab import reproduce
from whichtoken.lab.ledger import SCHEMA, TABLES, Ledger, checksum, explain_errors
from whichtoken.lab.record import RunSummary
from whichtoken.lab.results import stored_results

HERE = Path(__file__).parent
TOYS = HERE.parent / "toys"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A ledger with the rows of one run, computed once."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(TOYS))
        reproduce(["toy/mean"], workers=1, out=folder)
    return folder / LEDGER_NAME


@pytest.fixture
def filled(template, tmp_path):
    """A copy of it to spoil."""
    return Path(shutil.copy(template, tmp_path / LEDGER_NAME))


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


@pytest.mark.parametrize("schema", [0, -1, -(2**31), SCHEMA - 1])
def test_older_schema(filled, schema):
    with sqlite3.connect(filled) as connection:
        connection.execute(f"PRAGMA user_version={schema}")
    connection.close()
    for reading in (True, False):
        assert f"has schema {schema}, and this program reads schema {SCHEMA}" in refused(filled, reading=reading)


def test_foreign_database(tmp_path):
    path = tmp_path / LEDGER_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    assert "not a whichtoken results file" in refused(path)


def test_foreign_database_without_tables(tmp_path):
    path = tmp_path / LEDGER_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id=7")
    connection.close()
    assert "not a whichtoken results file" in refused(path)


def make_loop(path):
    path.symlink_to(path.with_suffix(".other"))
    path.with_suffix(".other").symlink_to(path)


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Path.mkdir, "is a folder, where a whichtoken results file should be"),
        (os.mkfifo, "is not a regular file, where a whichtoken results file should be"),
        (make_loop, "cannot be opened (Too many levels of symbolic links)"),
    ],
)
def test_what_is_no_file(tmp_path, make, sentence, reading):
    make(tmp_path / LEDGER_NAME)
    assert sentence in refused(tmp_path / LEDGER_NAME, reading=reading)


def plant(path, table, column, value):
    """Put a value into one row of a table, with the checksum that belongs to it."""
    columns = list(TABLES[table].columns)
    with sqlite3.connect(path) as connection:
        row = list(connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchone())
        connection.execute(f"DELETE FROM {table} WHERE checksum=?", (checksum(tuple(row)),))
        row[columns.index(column)] = value
        marks = ",".join("?" * (len(row) + 1))
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, checksum(tuple(row))))
    connection.close()


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rows", "measured", "[1, 2]"),
        ("rows", "measured", '{"mean": NaN}'),
        ("rows", "measured", "{"),
        ("rows", "measured", "[" * 100_000),
        ("rows", "measured", None),
        ("rows", "seconds", "soon"),
        ("rows", "status", "perhaps"),
        ("rows", "seed", "first"),
        ("rows", "message", b"bytes"),
        ("predictions", "predicted", '{"mean": 1.0}'),
        ("predictions", "predicted", '{"mean": {"value": 1.0, "error": "small"}}'),
        ("runs", "overrides", '{"draws": 3}'),
        ("runs", "overrides", "[]"),
        ("runs", "started", b"today"),
        ("verdicts", "verdicts", "[1]"),
        ("verdicts", "verdicts", "{}"),
        ("verdicts", "version", "one"),
    ],
)
def test_value_of_a_wrong_kind_with_a_right_checksum(filled, table, column, value):
    plant(filled, table, column, value)
    sentence = rf"^[^\n]* has a value of the wrong kind in {table}.{column}, [^\n]*$"
    with Ledger.reading(filled) as ledger, pytest.raises(UsageError, match=sentence):
        stored_results(ledger)


def test_verdicts_are_stored_with_their_run(filled):
    with Ledger.reading(filled) as ledger:
        [run] = ledger.runs()
        [result] = stored_results(ledger)
    assert (run.judged, run.version, run.fault) == (run.started, 1, "")
    assert list(run.verdicts) == result.verdicts


def test_verdicts_do_not_outlive_a_run_that_was_begun_again(filled):
    with Ledger.writing(filled) as ledger:
        [run] = ledger.runs()
        ledger.put_run(replace(run, started="2999-01-01T00:00:00"))
        assert "not finished" in ledger.runs()[0].stale
        ledger.forget_verdicts("toy/mean")
        assert ledger.runs()[0].verdicts == ()


def test_listing_reads_no_row(filled):
    """A reader checks what it reads: rows that are damaged do not concern the list of verdicts."""
    with sqlite3.connect(filled) as connection:
        connection.execute("UPDATE rows SET checksum=0")
    connection.close()
    with Ledger.reading(filled) as ledger:
        assert [len(run.verdicts) for run in ledger.runs()] == [1]
    assert "damaged" in refused(filled, reading=True)


def test_message_that_is_no_unicode_is_stored(filled):
    with Ledger.writing(filled) as ledger:
        [result] = stored_results(ledger)
        task = result.plan.tasks[0]
        ledger.put(1, task, replace(result.rows[0], status="failed", message="no file \udc80"))
        assert ledger.rows(result.plan)[task].message == "no file \\udc80"


def test_limit_on_the_size_of_files_is_not_called_damage(tmp_path, toys):
    code = (
        "import sys, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from whichtoken.lab.ledger import Ledger; from whichtoken.lab.record import RunSummary; from pathlib import Path\n"
        "with Ledger.writing(Path('results.sqlite')) as ledger:\n"
        "    for number in range(1000):\n"
        "        ledger.put_run(RunSummary('toy/mean', 'quick', {'a': [number] * 50}, None, 'now'))\n"
        "        print('stored')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "could not read or write it" in last
    assert "the limit on the size of files" in last
    with Ledger.reading(tmp_path / "results.sqlite") as ledger:
        assert len(ledger.runs()) == done.stdout.count("stored") > 10, "what was stored before is kept"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (sqlite3.SQLITE_FULL, "no space left for"),
        (sqlite3.SQLITE_IOERR_WRITE, "could not read or write it"),
        (sqlite3.SQLITE_IOERR_FSYNC, "could not read or write it"),
        (sqlite3.SQLITE_BUSY, "is locked by another program"),
        (sqlite3.SQLITE_CANTOPEN, "cannot be opened for writing"),
        (sqlite3.SQLITE_CORRUPT, "is damaged"),
        (sqlite3.SQLITE_NOTADB, "is damaged"),
    ],
)
def test_each_error_of_the_system_has_its_sentence(tmp_path, code, sentence):
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode, error.sqlite_errorname = code, "NAME"
    with pytest.raises(UsageError, match=sentence), explain_errors(tmp_path / LEDGER_NAME):
        raise error


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


def test_locked_by_another_program(filled, monkeypatch, no_workers):
    monkeypatch.setattr("whichtoken.lab.ledger.BUSY_SECONDS", 0.05)
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
        ledger.put_run(RunSummary("toy/mean", "full", {}, 2, "2020-01-01"))
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
        ledger.put_run(RunSummary("toy/mean", "quick", {"gone": [1]}, 2, "2020-01-01"))
        assert [result.plan.overrides for result in stored_results(ledger)] == [{}]


def delete_file(path):
    path.unlink()


def delete_folder(path):
    shutil.rmtree(path.parent)


def delete_folder_and_make_it_again(path):
    shutil.rmtree(path.parent)
    path.parent.mkdir()


def delete_log(path):
    Path(f"{path}-wal").unlink()


def move_folder(path):
    path.parent.rename(path.parent.with_name("elsewhere"))


def replace_by_a_copy(path):
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def replace_by_a_link(path):
    shutil.copy(path, path.with_name("copy"))
    path.unlink()
    path.symlink_to("copy")


def empty_file(path):
    os.truncate(path, 0)


def overwrite_with_noise(path):
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size + 8192))


def overwrite_with_another(path):
    """As `cp backup results` does: the same file, with other content."""
    with Ledger.writing(path.with_name("other")):
        pass
    path.write_bytes(path.with_name("other").read_bytes())


CALAMITIES = (
    delete_file, delete_folder, delete_folder_and_make_it_again, delete_log, move_folder, replace_by_a_copy, replace_by_a_link,
    empty_file, overwrite_with_noise, overwrite_with_another,
)  # fmt: skip


OVERWRITTEN = (empty_file, overwrite_with_noise, overwrite_with_another)  # the log may restore all of it


@pytest.mark.parametrize("calamity", CALAMITIES, ids=lambda calamity: calamity.__name__)
@pytest.mark.parametrize("moment", ["in the middle", "after the last row"])
def test_run_whose_file_is_taken_away_does_not_end_well(tmp_path, monkeypatch, calamity, moment):
    """Or every row is there afterwards, under the name that was asked for."""
    from whichtoken.lab.worker import work

    path = tmp_path / "out" / LEDGER_NAME

    def engine(self, tasks):
        tasks = list(tasks)
        for number, task in enumerate(tasks):
            if moment == "in the middle" and number == len(tasks) // 2:
                calamity(path)
            yield task, work(task)
        if moment != "in the middle":
            calamity(path)

    monkeypatch.setattr("whichtoken.lab.engines.LocalEngine.map", engine)
    try:
        reproduce(["toy/mean"], workers=1, out=path.parent)
    except UsageError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
    else:
        assert calamity in OVERWRITTEN, "a file under this name that has never seen the rows"
        [result] = open_and_read(path)
        assert (result.missing, len(result.rows)) == (0, 10)


def test_drivers_that_come_by_links_share_one_lock(filled, tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / LEDGER_NAME
    link.symlink_to(filled)
    with Ledger.writing(link), pytest.raises(UsageError, match="in use by another run"), Ledger.writing(filled):
        pass
    with Ledger.writing(filled), pytest.raises(UsageError, match="in use by another run"), Ledger.writing(link):
        pass
    assert sorted(os.listdir(tmp_path / "folder")) == [LEDGER_NAME], "log and lock lie beside the file itself"


def test_file_with_a_second_name_is_not_written(filled, tmp_path):
    os.link(filled, tmp_path / "second")
    with pytest.raises(UsageError, match="hard link"), Ledger.writing(filled):
        pass
