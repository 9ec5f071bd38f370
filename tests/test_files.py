"""A file is the old one or the new one, never half of one."""

import os
import stat

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


def test_a_rewritten_file_keeps_its_mode(tmp_path):
    target = tmp_path / "private.json"
    write_text(target, "old")
    for mode in (0o600, 0o640, 0o666):
        target.chmod(mode)
        with replacing(target) as fresh:
            fresh.write_text("new")
            assert stat.S_IMODE(fresh.stat().st_mode) == 0o600, "nobody reads it meanwhile"
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link_whose_target_is_replaced(tmp_path, there):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "real.txt", tmp_path / "link.txt"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    (tmp_path / "second.txt").symlink_to(link)
    write_text(tmp_path / "second.txt", "new")
    assert (target.read_text(), link.is_symlink(), (tmp_path / "second.txt").is_symlink()) == ("new", True, True)
    assert os.listdir(tmp_path / "store") == ["real.txt"]


def test_links_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing" / "file")
    for name in ("circle", "lost"):
        with pytest.raises(UsageError, match=name):
            write_text(tmp_path / name, "text")
        assert (tmp_path / name).is_symlink()
