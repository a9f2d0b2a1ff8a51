"""Atomic change of a user's file, with a backup."""

import os
from pathlib import Path

import pytest

from trio_mcp.cli.file_edits import CannotChange, EditedFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text("old")
    return path


def test_each_config_file_edit_keeps_the_previous_version_as_a_separate_backup_file(path: Path):
    first = EditedFile.read(path).write("new")
    second = EditedFile.read(path).write("newer")
    assert (first, second) == (path.with_name("host.json.bak"), path.with_name("host.json.bak1"))
    assert [file.read_text() for file in (path, first, second)] == ["newer", "old", "new"]
    assert len(list(path.parent.iterdir())) == 3


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o440])
def test_config_file_edit_keeps_the_permissions_of_the_file_and_its_backup(path: Path, mode: int):
    path.chmod(mode)
    backup = EditedFile.read(path).write("new")
    assert backup is not None
    assert [file.stat().st_mode & 0o777 for file in (path, backup)] == [mode, mode]


def test_config_file_edit_creates_a_missing_file_that_only_the_user_can_read(tmp_path: Path):
    path = tmp_path / "a" / "b" / "host.json"
    assert EditedFile.read(path).write("new") is None
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_config_file_edit_through_a_symlink_keeps_the_symlink(path: Path):
    link = path.with_name("link.json")
    link.symlink_to(path)
    EditedFile.read(link).write("new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_config_file_edit_keeps_the_byte_order_mark(path: Path):
    path.write_bytes(b"\xef\xbb\xbfold")
    file = EditedFile.read(path)
    assert file.text == "old"
    file.write("new")
    assert path.read_bytes() == b"\xef\xbb\xbfnew"


def test_config_file_edit_does_not_overwrite_a_change_by_another_program(path: Path):
    file = EditedFile.read(path)
    path.write_text("theirs")
    with pytest.raises(CannotChange, match="changed by another program"):
        file.write("ours")
    assert path.read_text() == "theirs"
    assert list(path.parent.iterdir()) == [path]


def test_failed_config_file_edit_leaves_the_file_unchanged_and_no_temporary_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(CannotChange, match="No space left on device"):
        EditedFile.read(path).write("new")
    assert path.read_text() == "old"
    assert sorted(file.name for file in path.parent.iterdir()) == ["host.json", "host.json.bak"]


def test_config_file_edit_refuses_a_file_that_is_not_utf8_and_names_the_position(path: Path):
    path.write_bytes(b"ab\xff")
    with pytest.raises(CannotChange, match="not valid UTF-8 at byte 2"):
        _ = EditedFile.read(path).text


def test_config_file_edit_refuses_a_directory(tmp_path: Path):
    with pytest.raises(CannotChange, match="cannot be read: Is a directory"):
        EditedFile.read(tmp_path)


@pytest.mark.parametrize("writing", [False, True])
def test_config_file_edit_refuses_a_fifo_without_blocking(tmp_path: Path, writing: bool):
    os.mkfifo(tmp_path / "pipe")
    ends = [os.open(tmp_path / "pipe", os.O_RDWR)] if writing else []
    with pytest.raises(CannotChange, match="is not a regular file"):
        EditedFile.read(tmp_path / "pipe")
    for end in ends:
        os.close(end)


def test_config_file_edit_through_a_broken_directory_symlink_is_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    with pytest.raises(CannotChange, match=r"link is a link to .*away, which does not exist"):
        EditedFile.read(tmp_path / "link" / "more" / "host.json")
    assert os.listdir(tmp_path) == ["link"]


def test_config_file_edit_through_a_broken_symlink_creates_no_directory(tmp_path: Path):
    (tmp_path / "host.json").symlink_to(tmp_path / "gone" / "host.json")
    (tmp_path / "mcp.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(CannotChange, match=r"host.json is a link to .*, which does not exist"):
        EditedFile.read(tmp_path / "host.json")
    assert sorted(os.listdir(tmp_path)) == ["host.json", "mcp.json"]
    EditedFile.read(tmp_path / "mcp.json").write("new")
    assert (tmp_path / "real.json").read_text() == "new"
