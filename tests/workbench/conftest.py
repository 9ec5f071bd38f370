"""A workbench in a folder of its own: in this process for its answers, on a port for the browser."""

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from whichtoken.workbench.app import create_app
from whichtoken.workbench.fit_job import demo_arguments, fit_model
from whichtoken.workbench.job_files import JobFolder, JobRequest
from whichtoken.workbench.settings import ServerSettings

sys.path.insert(0, str(Path(__file__).parent))
from serving_process import Served

HOME = "http://127.0.0.1:8765"


@pytest.fixture
def settings(tmp_path):
    return ServerSettings(tmp_path / "out")


@pytest.fixture
def client(settings):
    """Asks as a page of the workbench does; `client.app` is the application."""
    with TestClient(create_app(settings), HOME, raise_server_exceptions=False, headers={"origin": HOME}) as made:
        yield made


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory):
    """The shelf with the model that a workbench has at the start, trained once."""
    folder = tmp_path_factory.mktemp("demo")
    job = JobFolder.new(folder / "jobs", JobRequest("fit", "demo", demo_arguments(folder / "models")))
    with contextlib.redirect_stdout(io.StringIO()):
        assert fit_model(job, job.request.arguments).state == "finished"
    return folder / "models"


@pytest.fixture
def out(tmp_path, demo_model):
    """A folder for results, in which the model of the start is there already."""
    shutil.copytree(demo_model, tmp_path / "out" / "workbench" / "models")
    return tmp_path / "out"


@pytest.fixture
def served(out):
    made = Served(out).start()
    yield made
    with contextlib.suppress(ProcessLookupError):
        if made.process.poll() is None:
            made.stop()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
