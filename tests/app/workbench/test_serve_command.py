"""The command that starts the workbench."""

import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from serving_process import Served
from starlette.testclient import TestClient
from test_jobs import until

from whichtoken.app.workbench.jobs import Jobs
from whichtoken.app.workbench.pages import NAVIGATION
from whichtoken.app.workbench.serving import run_server
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.errors import UsageError
from whichtoken.lab import reproduce


def test_help_teaches(whichtoken):
    said = whichtoken("serve", "--help").stdout
    for word in ("127.0.0.1", "--open", "token", "whichtoken serve"):
        assert word in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "70000"], "--port 70000 is out of range"),
        (["--host", "203.0.113.9"], "cannot listen on 203.0.113.9"),
    ],
)
def test_what_cannot_be_served_is_one_line(whichtoken, options, sentence):
    done = whichtoken("serve", *options, "--out", "out")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_line(whichtoken):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        done = whichtoken("serve", "--port", str(taken.getsockname()[1]))
    assert (done.returncode, "is in use; give another one with --port" in done.stderr) == (2, True)


def test_a_folder_that_cannot_be_written_is_shown_with_a_note(tmp_path, monkeypatch, capsys):
    """Such as a results folder on a disk of somebody else."""
    reproduce(["toy/mean"], out=tmp_path, workers=1)

    def read_only(path, *_, **__):
        raise OSError(30, "Read-only file system", str(path))

    asked = {}

    def look(self, sockets):
        with TestClient(self.config.app, "http://127.0.0.1", headers={"origin": "http://127.0.0.1"}) as client:
            asked["claim"] = client.get("/claims/toy/mean").text
            asked.update({path: client.get(path).status_code for path in NAVIGATION})
            asked["demo"] = client.post("/claims/toy/mean/run", data={"preset": "quick"})

    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the server sets it for its own process
    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr("uvicorn.Server.run", look)
    run_server(ServerSettings(tmp_path, port=0))
    said = capsys.readouterr().err
    assert f"note: {tmp_path} cannot be written; what is in it is shown" in said
    assert "the mean is the shift" in asked["claim"]
    assert {asked[path] for path in NAVIGATION} == {200}
    assert (asked["demo"].status_code, "read-only file system" in asked["demo"].text) == (400, True)
    with pytest.raises(UsageError, match="cannot be written"):
        run_server(ServerSettings(tmp_path / "none", port=0))


@pytest.mark.parametrize(
    "how",
    [signal.SIGTERM, *[pytest.param(how, marks=pytest.mark.process) for how in (signal.SIGHUP, signal.SIGINT)]],
    ids=lambda how: how.name,
)
def test_however_it_is_stopped_it_leaves_no_upload_and_no_job(out, tmp_path, monkeypatch, how):
    """SIGHUP is what a closed terminal sends."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    served = Served(out).start()
    jobs = Jobs(out / "workbench" / "jobs")
    slow = urlencode({"preset": "full", "set.pause": "5"}).encode()
    with urlopen(Request(f"{served.address}/claims/toy/faults/run", slow, {"origin": served.address})) as answer:
        id = answer.url.rpartition("/")[2]
    kept = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na,b\n1,2\n\r\n--x--\r\n'
    sent = {"origin": served.address, "content-type": "multipart/form-data; boundary=x"}
    urlopen(Request(f"{served.address}/data/upload", kept, sent)).close()
    uploads = next(tmp_path.glob("whichtoken-*"))
    assert len(list(uploads.iterdir())) == 1
    until(lambda: jobs.find(id).pid)
    served.stop(how)
    assert not uploads.exists()
    assert (jobs.find(id).is_alive, jobs.view(id).is_open) == (False, False)


def test_nohup_keeps_it(out):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        served = Served(out).start()
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert urlopen(f"{served.address}/jobs").status == 200
        served.stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_its_packages_it_says_how_to_get_them():
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['whichtoken', 'serve']\n"
        "from whichtoken.app.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install "whichtoken[web]"' in done.stderr
