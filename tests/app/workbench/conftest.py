"""A workbench in a folder of its own: in this process for its answers, on a port for the browser."""

import asyncio
import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from whichtoken.app.workbench.model_store import ModelStore
from whichtoken.app.workbench.serving import create_app
from whichtoken.app.workbench.settings import ServerSettings
from whichtoken.app.workbench.workers import Worker

sys.path.insert(0, str(Path(__file__).parent))
from serving_process import Served

HOME = "http://127.0.0.1:8765"


@pytest.fixture
def settings(tmp_path):
    return ServerSettings(tmp_path / "out")


class SharedWorker(Worker):
    """A worker whose process serves every test; only the end of the session closes it."""

    def __init__(self):
        super().__init__()
        self._submit("builtins:int", ()).result(60)  # a process ends with the thread that started it: this one stays

    def close(self):
        pass


@pytest.fixture(scope="session")
def shared_worker(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHICHTOKEN_EXPERIMENTS", str(Path(__file__).parents[2] / "toys"))
        patch.setenv("TOY_LOG", str(tmp_path_factory.mktemp("toys") / "toy.log"))
        made = SharedWorker()
    yield made
    Worker.close(made)


@pytest.fixture
def open_client(shared_worker):
    """Opens a workbench and asks as one of its pages does; `client.app` is the application."""
    with contextlib.ExitStack() as stack:

        def opened(settings):
            app = create_app(settings)
            app.state.worker = app.state.slow_worker = shared_worker
            shared_worker._turn = asyncio.Lock()  # of the loop of this client
            client = TestClient(app, HOME, raise_server_exceptions=False, headers={"origin": HOME})
            return stack.enter_context(client)

        yield opened


@pytest.fixture
def client(open_client, settings):
    return open_client(settings)


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory):
    """The store with the model that a workbench has at the start, and what its page shows."""
    store = ModelStore(tmp_path_factory.mktemp("demo") / "models")
    store.add_movie_model()
    store.ask("demo", "documents")
    store.ask("demo", "importance")
    return store.home


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
