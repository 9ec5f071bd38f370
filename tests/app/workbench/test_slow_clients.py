"""Clients that send or read slowly, or not at all, on real connections: each is let go, and nobody else notices."""

import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from whichtoken.app.workbench.serving import LEAST_BYTES, TimedProtocol

LOOK, MOST = 0.2, 20
HEAD = b"Host: 127.0.0.1\r\nContent-Type: text/plain\r\n"


class ImpatientProtocol(TimedProtocol):
    check_seconds = LOOK


async def length(request: Request):
    return PlainTextResponse(str(len(await request.body())))


def large(request: Request):
    return StreamingResponse(b"x" * 50_000 for _ in range(400))


@pytest.fixture(scope="module")
def address():
    """A server that takes few connections and looks at them often."""
    app = Starlette(routes=[Route("/", length, methods=["GET", "POST"]), Route("/large", large)])
    config = uvicorn.Config(
        app, http=ImpatientProtocol, log_level="error", limit_concurrency=MOST, timeout_keep_alive=60, ws="none"
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()
        server.should_exit = True
        thread.join(10)


def ended(connection, seconds=10 * LOOK):
    """Whether the server ends the connection in time; what it says before that is read."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def cut(connection, piece):
    """Whether the server ends the connection while pieces are sent."""
    try:
        for _ in range(200):
            time.sleep(LOOK / 4)
            connection.sendall(piece)
    except ConnectionError:
        return True
    return False


def answered(address):
    with closing(socket.create_connection(address, timeout=5)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n")
        return b" 200 " in connection.recv(1 << 16)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
     b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n" + HEAD + b"\r\nhalf",
     b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HEAD + b"\r\n5\r\nhe"],
    ids=["nothing", "half a line", "half a head", "half a body", "half a chunk"],
)  # fmt: skip
def test_half_a_request_is_let_go(address, sent):
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(sent)
        assert ended(connection)
    assert answered(address)


@pytest.mark.parametrize(
    ("head", "drop"),
    [(b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n" + HEAD + b"\r\n", b"x")],
    ids=["head", "body"],
)
def test_a_trickle_is_no_progress(address, head, drop):
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(head)
        assert cut(connection, drop)


def test_the_rest_of_a_body_that_is_answered_already_is_not_waited_for(address):
    """A refused upload must not hold its place for as long as its client likes to send."""
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nContent-Length: 100000000\r\n" + HEAD + b"\r\n")
        assert b" 404 " in connection.recv(1 << 16)
        assert cut(connection, b"x" * LEAST_BYTES)


def test_an_answer_that_nobody_reads_is_let_go(address):
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(b"GET /large HTTP/1.1\r\n" + HEAD + b"\r\n")
        time.sleep(10 * LOOK)
        assert ended(connection)


def test_slow_but_steady_clients_are_served(address):
    """Both ways: a body in pieces, and an answer that is read in pieces."""
    with closing(socket.create_connection(address, timeout=5)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 400000\r\nConnection: close\r\n" + HEAD + b"\r\n")
        for _ in range(10):
            connection.sendall(b"x" * 40_000)
            time.sleep(LOOK / 2)
        assert b"400000" in connection.recv(1 << 16) + connection.recv(1 << 16)
    with closing(socket.create_connection(address, timeout=5)) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n")
        received = 0
        for number in range(10_000):
            piece = connection.recv(1 << 16)
            received += len(piece)
            if not piece:
                break
            time.sleep(LOOK / 20 if number % 10 == 0 else 0)
        assert received > 20_000_000


def test_half_sent_requests_lock_nobody_out(address):
    with ExitStack() as stack:
        for _ in range(3 * MOST):
            connection = stack.enter_context(closing(socket.create_connection(address)))
            connection.sendall(b"GET / HTTP/1.1\r\n")
            assert answered(address)
