"""Available memory is that of the machine or of the container, whichever is less."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from whichtoken import machine as memory


def unreadable(path):
    raise FileNotFoundError(path)


def test_a_system_without_control_groups_gives_what_the_machine_has(monkeypatch):
    monkeypatch.setattr(Path, "read_text", unreadable)
    assert 0 < memory.available_memory() < psutil.virtual_memory().total


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
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: membership if str(path) == "/proc/self/cgroup" else read(path))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=9_999_999))
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    assert memory.available_memory() == 650_000
    (group / names[0]).write_text("max")
    assert memory.available_memory() == 9_999_999


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 10**9)
    with pytest.raises(ValueError, match="a large model needs 5 GB, 2 GB are free; take a smaller one"):
        memory.require_memory(5 * 10**9, "a large model", "take a smaller one")
