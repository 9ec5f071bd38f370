"""Whether something fits is asked on every system, also on one that does not say."""

import os
import sys
from pathlib import Path

import pytest

from whichtoken import memory


def unreadable(path):
    raise FileNotFoundError(path)


def test_a_system_without_proc_gives_the_memory_it_has(monkeypatch):
    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert memory.available_memory() == 4_096_000


def test_a_system_that_does_not_say_refuses_nothing(monkeypatch):
    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.delattr(os, "sysconf")
    assert memory.available_memory() == sys.maxsize
    memory.require_memory(10**15, "a large model", "take a smaller one")


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 10**9)
    with pytest.raises(ValueError, match="a large model needs 5 GB, 2 GB are free; take a smaller one"):
        memory.require_memory(5 * 10**9, "a large model", "take a smaller one")
