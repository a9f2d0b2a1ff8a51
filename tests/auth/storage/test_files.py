"""Records in files: nobody else reads them, and nothing but a whole one is ever seen."""

import errno
import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.auth.storage.places import URL, record

from trio_mcp.auth import FileTokenStorage, StoredAuthorization, TokenStorageFailed
from trio_mcp.auth.storage.records import UnreadableTokens, name_of_record

FILE = f"{name_of_record(URL)}.json"

DEEP = '{"issuers": {"a": {"proof_key": {"a": %s}}}}' % ("[" * 5000 + "]" * 5000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a" / "tokens"


@pytest.fixture
async def storage(folder: Path) -> FileTokenStorage:
    """A storage with a record."""
    storage = FileTokenStorage(folder)
    await storage.save(URL, record("old"))
    return storage


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_default_token_folder_depends_on_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert FileTokenStorage().folder == tmp_path / ".local/state/trio-mcp/tokens"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/paths/do/not/count")
    assert FileTokenStorage().folder == tmp_path / ".local/state/trio-mcp/tokens"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert FileTokenStorage().folder == tmp_path / "state/trio-mcp/tokens"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert FileTokenStorage().folder == tmp_path / "Library/Application Support/trio-mcp/tokens"


def test_missing_home_folder_raises_token_storage_failed(monkeypatch: pytest.MonkeyPatch):
    def home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(TokenStorageFailed, match="no home folder"):
        FileTokenStorage()


async def test_token_folder_is_not_created_before_the_first_save(folder: Path):
    storage = FileTokenStorage(folder)
    assert await storage.load(URL) is None
    assert await storage.server_urls() == []
    assert not await storage.remove(URL)
    assert not folder.parent.exists()


async def test_token_folder_and_files_are_private_whatever_the_umask_is(folder: Path):
    before = os.umask(0)
    try:
        storage = FileTokenStorage(folder)
        await storage.save(URL, record("x"))
        async with storage.lock(URL):
            pass
    finally:
        os.umask(before)
    assert [mode(folder.parent), mode(folder)] == [0o700, 0o700]
    assert sorted(os.listdir(folder)) == [FILE, FILE.replace(".json", ".lock")]
    assert {mode(folder / name) for name in os.listdir(folder)} == {0o600}


async def test_token_file_that_others_can_read_is_made_private_and_logged(
    storage: FileTokenStorage, caplog: pytest.LogCaptureFixture
):
    (storage.folder / FILE).chmod(0o644)
    assert await storage.load(URL) is not None
    assert mode(storage.folder / FILE) == 0o600
    assert "other users could read" in caplog.text
    assert "the secret" not in caplog.text


@pytest.mark.parametrize("rights", [0o770, 0o702])
async def test_token_folder_that_others_can_write_to_is_refused(storage: FileTokenStorage, rights: int):
    storage.folder.chmod(rights)
    with pytest.raises(TokenStorageFailed, match=r"other users may write to .*chmod 700"):
        await storage.load(URL)
    with pytest.raises(TokenStorageFailed, match="other users may write to"):
        await storage.save(URL, record("new"))
    with pytest.raises(TokenStorageFailed, match="other users may write to"):
        async with storage.lock(URL):
            pass


async def test_token_folder_of_another_user_is_refused(storage: FileTokenStorage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TokenStorageFailed, match="the folder belongs to another user"):
        await storage.load(URL)


async def test_symbolic_links_in_the_token_folder_are_not_followed(storage: FileTokenStorage, tmp_path: Path):
    file, elsewhere = storage.folder / FILE, tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    with pytest.raises(TokenStorageFailed, match="symbolic link"):
        await storage.load(URL)
    await storage.save(URL, record("new"))
    assert not file.is_symlink(), "it was replaced, not written through"
    assert "new" not in elsewhere.read_text()
    lock = storage.folder / f"{name_of_record(URL)}.lock"
    lock.symlink_to(tmp_path / "made by nobody")
    with pytest.raises(TokenStorageFailed, match="symbolic link"):
        async with storage.lock(URL):
            pass
    (tmp_path / "link").symlink_to(storage.folder)
    with pytest.raises(TokenStorageFailed, match="symbolic link"):
        await FileTokenStorage(tmp_path / "link").load(URL)


async def test_token_file_that_is_not_regular_is_refused_without_blocking(storage: FileTokenStorage):
    file = storage.folder / FILE
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(TokenStorageFailed, match="must be a regular file"):
        await storage.load(URL)
    file.unlink()
    file.mkdir()
    with pytest.raises(TokenStorageFailed, match=FILE):
        await storage.load(URL)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe the secret",
        b'{"server_url": "the secret',
        b"[1, 2]",
        json.dumps({"server_url": URL, "record": {"version": 2, "stored": {}}}).encode(),
        json.dumps({"server_url": URL, "record": {"version": 1, "stored": {"issuers": "the secret"}}}).encode(),
        json.dumps({"server_url": URL}).encode(),
        b"[" * 100_000,
        f'{{"server_url": "{URL}", "record": {"[" * 50_000}'.encode(),
        f'{{"server_url": "{URL}", "record": {{"version": 1, "stored": {DEEP}}}}}'.encode(),
    ],
)
async def test_unknown_file_in_the_token_folder_is_reported_and_kept(storage: FileTokenStorage, content: bytes):
    file = storage.folder / FILE
    file.write_bytes(content)
    with pytest.raises(TokenStorageFailed) as raised:
        await storage.load(URL)
    assert str(file) in raised.value.reason
    assert "the secret" not in raised.value.reason
    assert raised.value.__cause__ is None
    assert file.read_bytes() == content
    assert await storage.remove(URL), "the user may have it removed"


@given(st.binary(max_size=100), st.integers(0, 400), st.integers(0, 400))
def test_corrupt_token_file_always_raises_unreadable_record(noise: bytes, begin: int, end: int):
    whole = record("the token").to_json()
    told = ""
    try:
        StoredAuthorization.from_json(whole[:begin] + noise + whole[end:])
    except UnreadableTokens as error:
        told = str(error)
    assert "the token" not in told


async def test_token_file_for_another_server_url_raises_token_storage_failed(storage: FileTokenStorage):
    file = storage.folder / FILE
    file.write_text(file.read_text().replace(URL, "https://other.example.com"))
    with pytest.raises(TokenStorageFailed, match="the record of another server"):
        await storage.load(URL)


async def test_token_record_over_one_mebibyte_is_neither_saved_nor_loaded(storage: FileTokenStorage):
    with pytest.raises(TokenStorageFailed, match="at most 1048576 bytes"):
        await storage.save(URL, record("x" * (1 << 20)))
    assert await storage.load(URL) == record("old")
    with (storage.folder / FILE).open("ab") as file:
        file.write(b" " * (1 << 20))
    with pytest.raises(TokenStorageFailed, match="longer than 1048576 bytes"):
        await storage.load(URL)


async def test_token_file_is_unchanged_and_no_temporary_file_remains_if_the_disk_is_full(
    storage: FileTokenStorage, monkeypatch: pytest.MonkeyPatch
):
    def no_space(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(TokenStorageFailed, match="cannot be written: No space left on device"):
        await storage.save(URL, record("new"))
    assert await storage.load(URL) == record("old")
    assert [path.name for path in storage.folder.iterdir()] == [FILE]


@pytest.mark.commands
async def test_old_token_file_is_kept_if_the_process_is_killed_before_it_renames_the_new_file(
    storage: FileTokenStorage,
):
    code = (
        "import os, sys, trio\n"
        "from trio_mcp.auth import FileTokenStorage, StoredAuthorization\n"
        "os.replace = lambda *_, **__: os._exit(7)\n"
        "trio.run(FileTokenStorage(sys.argv[1]).save, sys.argv[2], StoredAuthorization(current='x'))\n"
    )
    died = await trio.run_process([sys.executable, "-c", code, str(storage.folder), URL], check=False)
    assert died.returncode == 7
    assert await storage.load(URL) == record("old")
    assert await storage.server_urls() == [URL]
    [left] = [path for path in storage.folder.iterdir() if path.name != FILE]
    assert mode(left) == 0o600


async def test_temporary_token_files_of_dead_processes_are_removed_after_an_hour(storage: FileTokenStorage):
    def leave(age: float) -> Path:
        left = storage.folder / f".{FILE}.{age}"
        left.touch()
        now = left.stat().st_mtime
        os.utime(left, (now - age, now - age))
        return left

    young, old = leave(3000), leave(4000)
    await storage.save(URL, record("new"))
    assert [young.exists(), old.exists()] == [True, False]
    await storage.remove(URL)
    assert list(storage.folder.iterdir()) == []


async def test_list_of_stored_servers_includes_all_token_files_and_reports_unknown_files(
    storage: FileTokenStorage, caplog: pytest.LogCaptureFixture
):
    await storage.save("https://a.example.com", record("a"))
    async with storage.lock(URL):
        pass
    (storage.folder / "notes.txt").write_text("hello")
    assert await storage.server_urls() == ["https://a.example.com", URL]
    assert caplog.records == []
    (storage.folder / "foreign.json").touch(0o600)
    assert await storage.server_urls() == ["https://a.example.com", URL]
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
