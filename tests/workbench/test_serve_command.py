"""The command that starts the workbench."""

import socket
import subprocess
import sys
from contextlib import closing

import pytest


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


def test_without_its_packages_it_says_how_to_get_them():
    code = "import sys; sys.modules['starlette'] = None; sys.argv = ['whichtoken', 'serve']; import whichtoken.cli as c; c.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'whichtoken[web]'" in done.stderr
