"""Dask clusters that are empty, dead, deaf or something else: a sentence in seconds, never a hang."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, closing
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

import pytest

from whichtoken.errors import UsageError
from whichtoken.lab import reproduce
from whichtoken.lab.engines import dask, parse_engine
from whichtoken.lab.engines import dask as dask_session
from whichtoken.lab.plan import RunTask

pytestmark = pytest.mark.usefixtures("forgotten_sockets")

distributed = pytest.importorskip("distributed")


@pytest.fixture
def silent_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.fixture
def web_port():
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def talking_port():
    """Something that greets everybody, as mail servers do, but is no scheduler."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def greet():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ready\r\n" * 400)

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture
def cluster():
    """A scheduler that anybody may use: `cluster(workers)` starts workers without a nanny, in this process."""
    with patch.dict(os.environ), ExitStack() as opened:  # a worker limits the threads of its own process

        def start(workers, port=0):
            return opened.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=False,
                    protocol="tcp://",
                    scheduler_port=port,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
            )

        yield start


def engine_of(cluster):
    return cluster.scheduler_address.replace("tcp://", "dask://")


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(dask_session, "PATIENCE", 3.0)
    for module in (dask, dask_session):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)


@pytest.mark.process
@pytest.mark.parametrize("port", ["silent_port", "web_port", "talking_port"])
def test_port_that_is_no_scheduler_is_one_sentence(port, request, tmp_path, short_patience):
    name = f"dask://127.0.0.1:{request.getfixturevalue(port)}"
    with pytest.raises(UsageError, match=f"no Dask scheduler answers at {name}; start one with 'dask scheduler'"):
        reproduce(["toy/mean"], engine=name, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["dask://", "dask://here", "dask://127.0.0.1:many", "dask://127.0.0.1:99999999"])
def test_address_that_is_none_is_one_sentence(name):
    with pytest.raises(UsageError, match=f"no Dask scheduler answers at {name}"):
        parse_engine(name)


@pytest.mark.process
def test_scheduler_without_workers_is_one_sentence(cluster, tmp_path, short_patience):
    with pytest.raises(UsageError, match="has no workers; start some with 'dask worker 127"):
        reproduce(["toy/mean"], engine=engine_of(cluster(0)), out=tmp_path)


@pytest.mark.process
def test_workers_without_a_nanny_work_but_not_with_a_time_limit(cluster, tmp_path):
    name = engine_of(cluster(1))
    [result] = reproduce(["toy/mean"], seeds=1, engine=name, out=tmp_path)
    assert len(result.rows) == 2
    with pytest.raises(UsageError, match="timeout needs workers with a nanny, which 1 of the 1 workers"):
        reproduce(["toy/mean"], seeds=1, engine=name, out=tmp_path, timeout=60, fresh=True)


@pytest.mark.process
def test_scheduler_that_dies_and_comes_back_costs_no_task(cluster):
    first = cluster(1)
    port = int(first.scheduler_address.rpartition(":")[2])
    finished = []
    for task, outcome in parse_engine(engine_of(first)).map(tasks(8)):
        finished.append((task, outcome.status))
        if len(finished) == 3:
            first.close()
            cluster(1, port)
    assert Counter(finished) == Counter((task, "ok") for task in tasks(8))


@pytest.mark.process
def test_scheduler_that_dies_for_good_is_one_sentence(cluster, short_patience):
    only = cluster(1)
    outcomes = parse_engine(engine_of(only)).map(tasks(8))
    next(outcomes)
    only.close()
    with pytest.raises(UsageError, match=r"scheduler at dask://127\S+ no longer answers; finished rows are saved"):
        list(outcomes)


@pytest.mark.process
def test_workers_that_all_leave_are_one_sentence(cluster, short_patience):
    only = cluster(1)
    outcomes = parse_engine(engine_of(only)).map(tasks(8))
    next(outcomes)
    only.scale(0)
    with pytest.raises(UsageError, match=r"scheduler at dask://127\S+ has had no workers for 3 s; start some with"):
        list(outcomes)


def tasks(number):
    return [
        RunTask("toy/mean", '{"draws":10,"factor":1.0,"method":"mean","shift":1.0}', seed) for seed in range(number)
    ]


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_own_cluster_listens_on_the_loopback_interface_alone_and_in_cipher(tmp_path):
    engine = parse_engine("dask", 1)
    before = listening()
    with closing(engine.map(tasks(2))) as outcomes:
        next(outcomes)
        opened = listening() - before
        assert opened
        assert {address for address, _ in opened} == {"0100007F"}  # 127.0.0.1 as Linux writes it
        for _, port in opened:
            assert not answers_in_clear(port), port


def listening():
    """Addresses and ports on which this process and its children listen."""
    family = {os.getpid(), *children(os.getpid())}
    sockets = set()
    for process in family:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in sockets:
                address, port = parts[1].split(":")
                found.add((address, int(port, 16)))
    return found


def children(process):
    output = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    direct = [int(child) for child in output.split() if Path(f"/proc/{child}/fd").is_dir()]
    return [*direct, *(grandchild for child in direct for grandchild in children(child))]


def answers_in_clear(port):
    """Whether a web request gets anything but silence, an alarm of TLS or "no such page"."""
    for page in ("/", "/status", "/health", "/metrics", "/info/main/workers.html", "/api/v1/retire_workers"):
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            try:
                connection.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
                answer = connection.recv(100)
            except OSError:
                continue
        if answer and answer[0] not in (0x15, 0x16) and b" 404 " not in answer:
            return True
    return False
