"""How many modules of the package a command loads: its reader has to know no others."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SHOW = "print('loaded:', *sorted(name for name in sys.modules if name.partition('.')[0] == 'whichtoken'))"
COMMAND = """import sys; from whichtoken.__main__ import start
sys.argv = {arguments!r}
try: start()
except SystemExit as end: assert not end.code, end.code
"""
TRAINING = """import sys; from pathlib import Path; from whichtoken.app.workbench.jobs import JobFolder, JobRequest, work_on
columns = {"kind": "text", "column": "text", "label": "label", "ngrams": 1}
asked = {**columns, "home": "models", "id": "m", "title": "t", "path": "reviews.csv"}
job = JobFolder.new(Path("jobs"), JobRequest("fit", "t", asked))
work_on(job.path)
assert "finished" in (job.path / "end.json").read_text()
"""
CASES = {
    "reproduce": (
        COMMAND.format(arguments=["whichtoken", "reproduce", "mirror-descent/initialization", "--seeds", "1"]),
        50,
    ),
    "fit text": (COMMAND.format(arguments=["whichtoken", "fit", "text", "reviews.csv", "--model", "model"]), 50),
    "a training in the workbench": (TRAINING, 60),
}


@pytest.mark.parametrize("case", CASES)
def test_few_modules_of_the_package_are_loaded(case, tmp_path):
    rows = "".join(f"{'good' if k % 2 else 'bad'} film number {k % 7},{k % 2}\n" for k in range(80))
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    code, most = CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", code + SHOW], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded:", done.stderr or done.stdout[-500:]
    assert len(loaded) - 1 <= most, loaded
