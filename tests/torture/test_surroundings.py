"""Everything around a run goes wrong: its folder, its streams, its shared memory, its file handles, the files beside it.

A run ends well with every row in the file that was asked for, or says in one sentence what was taken from it.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tally import tally

from whichtoken.files import LEDGER_NAME

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts, /dev/full")
ENGINES = ["local", "dask"]
MINUTES = 1800  # for a run of seconds: only one that hangs needs so long, however busy the machine
COMMAND = [sys.executable, "-m", "whichtoken"]
OPTIONS = ["--preset", "full", "--seeds", "3", "--set", "pause=0.05", "--workers", "2"]  # 36 rows
ROWS = 36


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=MINUTES, **options
    )


def rows_in(out):
    """Rows that a stranger finds in the file; none if there is no such file."""
    path = Path(out) / LEDGER_NAME
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as connection:
            return connection.execute("SELECT count(*) FROM rows").fetchone()[0]
    except sqlite3.Error:
        return 0


def is_sentence(text):
    return text.startswith("whichtoken: ") and text.count("\n") == 1


def delete_folder(out):
    shutil.rmtree(out)


def delete_file(out):
    (out / LEDGER_NAME).unlink()


def delete_log(out):
    (out / f"{LEDGER_NAME}-wal").unlink()


def move_folder(out):
    out.rename(out.with_name("moved"))


def replace_file(out):
    shutil.copy(out / LEDGER_NAME, out / "copy")
    os.replace(out / "copy", out / LEDGER_NAME)


def replace_folder(out):
    out.rename(out.with_name("moved"))
    out.mkdir()


LOSSES = (delete_folder, delete_file, delete_log, move_folder, replace_file, replace_folder)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_whose_results_are_taken_away_says_so(engine, tmp_path):
    outcomes, silent = {}, 0
    for number, lose in enumerate(LOSSES):
        for after in (1, ROWS // 2):
            out, name = tmp_path / f"{number}-{after}" / "out", f"{lose.__name__} after {after} rows"
            out.parent.mkdir()
            arguments = ["reproduce", "toy/faults", "--quiet", *OPTIONS, "--engine", engine, "--out", str(out)]
            driver = subprocess.Popen(
                [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            while driver.poll() is None and rows_in(out) < after:
                time.sleep(0.02)
            lose(out)
            said = driver.communicate(timeout=MINUTES)[1]
            silent += driver.returncode == 0 and rows_in(out) < ROWS
            outcomes[name] = (driver.returncode, is_sentence(said) and str(out) in said)
    survived = sum(outcome == (2, True) for outcome in outcomes.values())
    tally(f"results deleted, moved or replaced in mid-run, {engine}", len(outcomes), survived, silent, silent)
    assert set(outcomes.values()) == {(2, True)}, outcomes


REDIRECTIONS = (
    ">&-",
    ">/dev/full",
    "2>&-",
    "2>/dev/full",
    "<&-",
    ">&- 2>&-",
    "<&- >&- 2>&-",
    ">/dev/full 2>/dev/full",
    "| true",
)
COMMANDS = (
    "--version",
    "--help",
    "list",
    "list nothing",
    "reproduce toy/mean --workers 1 --out out",
    "export --out out --to rows.csv",
)


def test_closed_full_and_broken_streams(tmp_path):
    """What goes to standard output is there, or its loss is an exit code; nothing ends in a traceback."""
    wanted = {}
    for command in COMMANDS:
        done = subprocess.run([*COMMAND, *command.split()], capture_output=True, text=True, check=False)
        wanted[command] = done.returncode, done.stdout
    wrong, silent = [], 0
    for command in COMMANDS:
        for where in REDIRECTIONS:
            line = f"{' '.join(COMMAND)} {command} {where}; exit ${{PIPESTATUS[0]}}"
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=MINUTES)
            status, output = wanted[command]
            lost = ">" in where.replace("2>", "") and output != ""
            if done.returncode != (2 if lost else status) or "Traceback" in done.stdout + done.stderr:
                wrong.append((command, where, done))
            silent += lost and done.returncode == 0
    injected = len(COMMANDS) * len(REDIRECTIONS)
    tally("standard streams closed, full or left", injected, injected - len(wrong), silent, silent)
    assert not wrong


@pytest.mark.parametrize("engine", ENGINES)
def test_few_file_handles(engine, tmp_path):
    limits, wrong, silent = (5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 95, 96, 128), [], 0
    for limit in limits:
        out = tmp_path / str(limit)
        options = ["reproduce", "toy/mean", "--quiet", "--workers", "2", "--engine", engine, "--out", out]
        done = run(*options, preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        silent += done.returncode == 0 and rows_in(out) < 10
        if not (done.returncode == 0 and done.stderr == "") and not (done.returncode == 2 and is_sentence(done.stderr)):
            wrong.append((limit, done))
    tally(f"few file handles, {engine}", len(limits), len(limits) - len(wrong), silent, silent)
    assert not wrong


SHARED_MEMORY = {
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "full": "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero >/dev/shm/ballast",
    "nearly full": "mount -t tmpfs -o size=16k tmpfs /dev/shm",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_shared_memory_that_is_full_or_read_only(engine, tmp_path):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount here")
    wrong, silent = [], 0
    for name, mount in SHARED_MEMORY.items():
        out = tmp_path / name.replace(" ", "-")
        line = (
            f"{mount} && exec {' '.join(COMMAND)} reproduce toy/mean --quiet --workers 2 --engine {engine} --out {out}"
        )
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", line], capture_output=True, text=True, check=False, timeout=MINUTES
        )
        silent += done.returncode == 0 and rows_in(out) < 10
        if not (done.returncode == 0 and done.stderr == "") and not (done.returncode == 2 and is_sentence(done.stderr)):
            wrong.append((name, done))
    tally(f"/dev/shm full or read-only, {engine}", len(SHARED_MEMORY), len(SHARED_MEMORY) - len(wrong), silent, silent)
    assert not wrong


SCRIPT = "import sys\nfrom whichtoken.__main__ import start\nif __name__ == '__main__':\n    sys.exit(start())\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_planted_in_the_working_folder_never_runs(engine, tmp_path, monkeypatch):
    """Each name alone: one that runs may hide the others."""
    trace, script = tmp_path / "trace", tmp_path / "whichtoken"
    script.write_text(SCRIPT)
    chosen = random.Random(4).sample(sorted(sys.stdlib_module_names), 8)
    names = ["secrets", "tempfile", "numpy", "pickle", "sitecustomize", "threading", "encodings", *chosen]
    wrong = []
    for name in names:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
        arguments = [
            str(script),
            "reproduce",
            "toy/mean",
            "--workers",
            "1",
            "--engine",
            engine,
            "--out",
            str(tmp_path / name),
        ]
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=MINUTES
        )
        if trace.exists() or done.returncode or rows_in(tmp_path / name) != 10:
            wrong.append((name, done))
        trace.unlink(missing_ok=True)
    tally(f"a module planted in the working folder, {engine}", len(names), len(names) - len(wrong), 0, len(wrong))
    assert not wrong


def test_interrupts_at_any_moment_of_the_start(tmp_path):
    """From the first tenth of a second, when Python itself has started, to the end."""
    script = tmp_path / "whichtoken"
    script.write_text(f"import pathlib\npathlib.Path('started').touch()\n{SCRIPT}")
    moments, wrong = [0.01 * step for step in range(1, 40)], []
    for moment in moments:
        process = subprocess.Popen(
            [sys.executable, str(script), "list"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        while not Path("started").exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(0.05 + moment)  # the package itself is being imported before
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=MINUTES)[1]
        Path("started").unlink()
        if process.returncode not in (0, 130, -signal.SIGINT) or said not in ("", "whichtoken: stopped\n"):
            wrong.append((moment, process.returncode, said))
    tally("Ctrl-C while the program starts", len(moments), len(moments) - len(wrong), 0)
    assert not wrong
