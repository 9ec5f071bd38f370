"""A file is the old one or the new one, never half of one."""

import os

import pytest

from whichtoken.errors import UsageError
from whichtoken.files import check_place, replacing, write_text


def test_new_content_replaces_the_old_and_leaves_nothing_beside(tmp_path):
    target = tmp_path / "table.csv"
    write_text(target, "old")
    with replacing(target) as fresh:
        assert fresh.suffix == ".csv"
        fresh.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_fault_leaves_the_old_file_alone(tmp_path, fault):
    target = tmp_path / "table.csv"
    write_text(target, "old")
    expected = UsageError if isinstance(fault, OSError) else type(fault)

    def write_half() -> None:
        with replacing(target) as fresh:
            fresh.write_text("ne")
            raise fault

    with pytest.raises(expected):
        write_half()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_places_where_nothing_can_be_written_are_refused_beforehand(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place, reason in [
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x", "no folder"),
        (tmp_path / "pipe", "regular"),
    ]:
        with pytest.raises(UsageError, match=reason):
            check_place(place)
