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


@pytest.mark.parametrize(
    ("membership", "root", "names"),
    [
        ("0::/outer/inner", "", ("memory.max", "memory.current", "inactive_file")),
        (
            "7:cpu:/\n5:memory,hugetlb:/outer/inner",
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["version 2", "version 1"],
)
@pytest.mark.parametrize("place", ["outer/inner", "outer", ""], ids=["own", "parent", "only the root is seen"])
def test_the_limit_of_a_container_counts_like_that_of_the_machine(
    monkeypatch, tmp_path, membership, root, names, place
):
    group = tmp_path / root / place
    group.mkdir(parents=True, exist_ok=True)
    for name, text in zip(
        (*names[:2], "memory.stat"), ("1000000", "400000", f"anon 1\n{names[2]} 50000\n"), strict=True
    ):
        (group / name).write_text(text)
    there = {"/proc/self/cgroup": membership, "/proc/meminfo": "MemAvailable: 9999999 kB"}
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: there.get(str(path)) or read(path))
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    assert memory.available_memory() == 650_000
    (group / names[0]).write_text("max")
    assert memory.available_memory() == 9_999_999 * 1024


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 10**9)
    with pytest.raises(ValueError, match="a large model needs 5 GB, 2 GB are free; take a smaller one"):
        memory.require_memory(5 * 10**9, "a large model", "take a smaller one")
