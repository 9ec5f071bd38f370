"""Standard streams may be closed, full or left: output that is lost is said, a note that is lost stops nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
COMMAND = f"{shlex.quote(sys.executable)} -m whichtoken"
LOST = "whichtoken: standard output cannot be written: {}; choose another place for it\n"


def shell(text):
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("where", "reason"), [(">&-", "it is closed"), (">/dev/full", "no space left on device")])
@pytest.mark.parametrize("arguments", ["--version", "--help", "list"])
def test_output_that_cannot_be_written_is_said_in_a_sentence(arguments, where, reason):
    done = shell(f"{COMMAND} {arguments} {where}")
    assert (done.returncode, done.stderr) == (2, LOST.format(reason))


@pytest.mark.process
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_notes_that_cannot_be_written_change_nothing(where, tmp_path):
    done = shell(f"{COMMAND} reproduce toy/mean --workers 1 --out out {where}")
    assert (done.returncode, "as the claim's own file expects" in done.stdout) == (0, True)
    wrong = shell(f"{COMMAND} list nothing {where}")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", "")


def test_what_a_command_writes_to_files_is_there_when_its_output_is_not(tmp_path):
    lost = shell(f"{COMMAND} reproduce toy/mean --workers 1 --out out --json closed.json <&- >&- 2>&-")
    left = shell(f"{COMMAND} reproduce toy/mean --workers 1 --out out --json left.json | true; exit ${{PIPESTATUS[0]}}")
    assert (lost.returncode, left.returncode, left.stderr) == (2, 0, "")
    for name in ("closed.json", "left.json"):
        assert json.loads((tmp_path / name).read_text())["experiments"]


def test_no_file_takes_the_place_of_a_closed_stream():
    program = "import os, sys\nfrom whichtoken.__main__ import prepare_streams\nprepare_streams()\n"
    program += "opened = os.open('file', os.O_CREAT | os.O_WRONLY)\nos.write(2, b'noise')\nsys.exit(opened)"
    done = shell(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-")
    assert done.returncode > 2
    assert os.path.getsize("file") == 0


def test_interrupt_while_modules_are_loaded_ends_in_a_sentence(tmp_path):
    """From the moment that the program itself runs; before that it is Python's own start."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text(
        "import pathlib, time\npathlib.Path('loading').touch()\ntime.sleep(60)\n"  # stands for a slow disk
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "slow"), *filter(None, sys.path)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "whichtoken", "list"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (tmp_path / "loading").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "whichtoken: stopped\n")
    assert process.returncode == 130
