"""Commands as a user runs them, without a process for each."""

import sys
from types import SimpleNamespace

import pytest

from whichtoken import cli


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """The command in this process, which is many times faster than a new one."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["whichtoken", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code or 0, stdout=printed.out, stderr=printed.err)

    return run
