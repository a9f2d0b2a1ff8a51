"""Records in the keyring of the desktop, and machines that have none."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from keyring.backends import fail, null
from keyring.errors import KeyringLocked
from tests.auth.storage.places import URL, FakeKeyring, keyring_of, record

from trio_mcp.auth import FileTokenStorage, KeyringTokenStorage, TokenStorageFailed


async def test_token_record_is_stored_as_a_keyring_entry_named_by_its_server_url(tmp_path: Path):
    backend = FakeKeyring()
    with keyring_of(backend):
        await KeyringTokenStorage(lock_folder=tmp_path).save(URL, record("x"))
    assert list(backend.entries) == [("trio-mcp", URL)]


async def test_keyring_storage_uses_files_only_for_locks(tmp_path: Path):
    with keyring_of(FakeKeyring()):
        storage = KeyringTokenStorage(lock_folder=tmp_path / "locks")
        async with storage.lock(URL):
            await storage.save(URL, record("x"))
    assert [path.stat().st_size for path in (tmp_path / "locks").iterdir()] == [0]


@pytest.mark.parametrize(
    ("backend", "reason"),
    [(fail.Keyring(), "this machine has no keyring"), (null.Keyring(), "the keyring is disabled")],
)
async def test_missing_keyring_backend_raises_an_error_that_suggests_file_storage(
    tmp_path: Path, backend: fail.Keyring, reason: str
):
    storage = KeyringTokenStorage(lock_folder=tmp_path)
    with keyring_of(backend):
        with pytest.raises(TokenStorageFailed, match=rf"{reason}.*FileTokenStorage"):
            await storage.load(URL)
        with pytest.raises(TokenStorageFailed, match=reason):
            await storage.save(URL, record("x"))
        with pytest.raises(TokenStorageFailed, match=reason):
            await storage.remove(URL)
        with pytest.raises(TokenStorageFailed, match=reason):
            async with storage.lock(URL):
                pass


async def test_missing_keyring_backend_uses_the_configured_file_fallback(tmp_path: Path):
    files = FileTokenStorage(tmp_path / "tokens")
    storage = KeyringTokenStorage(fallback=files, lock_folder=tmp_path / "locks")
    with keyring_of(fail.Keyring()):
        async with storage.lock(URL):
            await storage.save(URL, record("x"))
        assert await storage.load(URL) == await files.load(URL) == record("x")
        assert await storage.remove(URL)
    assert await files.load(URL) is None
    assert not (tmp_path / "locks").exists()


async def test_error_for_a_missing_keyring_package_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(TokenStorageFailed, match=r"install 'trio-mcp\[keyring\]'"):
        await KeyringTokenStorage(lock_folder=tmp_path).load(URL)


async def test_broken_keyring_configuration_raises_or_uses_the_configured_fallback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def broken() -> None:
        raise RuntimeError("no such backend")

    monkeypatch.setattr("keyring.get_keyring", broken)
    with pytest.raises(TokenStorageFailed, match=r"the keyring cannot be opened \(RuntimeError\)"):
        await KeyringTokenStorage(lock_folder=tmp_path).load(URL)
    assert (
        await KeyringTokenStorage(lock_folder=tmp_path, fallback=FileTokenStorage(tmp_path / "tokens")).load(URL)
        is None
    )


async def test_exception_does_not_quote_the_error_text_of_a_failing_keyring(tmp_path: Path):
    class Locked(FakeKeyring):
        def set_password(self, service: str, username: str, password: str) -> None:
            raise KeyringLocked(password)

    with keyring_of(Locked()), pytest.raises(TokenStorageFailed) as raised:
        await KeyringTokenStorage(lock_folder=tmp_path).save(URL, record("the token"))
    assert raised.value.reason == "the keyring failed: KeyringLocked"
    assert raised.value.__suppress_context__


async def test_keyring_entry_of_another_program_raises_and_is_kept(tmp_path: Path):
    backend = FakeKeyring()
    backend.set_password("trio-mcp", URL, "the secret of another")
    with (
        keyring_of(backend),
        pytest.raises(TokenStorageFailed, match="this version cannot read the keyring") as raised,
    ):
        await KeyringTokenStorage(lock_folder=tmp_path).load(URL)
    assert "secret" not in raised.value.reason
    assert backend.entries == {("trio-mcp", URL): "the secret of another"}


async def test_wait_for_a_keyring_prompt_can_be_cancelled(tmp_path: Path):
    class Asking(FakeKeyring):
        def get_password(self, service: str, username: str) -> str | None:
            unlocked.wait()
            return super().get_password(service, username)

    unlocked = threading.Event()
    with keyring_of(Asking()):
        storage = KeyringTokenStorage(lock_folder=tmp_path)
        with trio.move_on_after(0.01) as patience:
            await storage.load(URL)
        unlocked.set()
        assert patience.cancelled_caught
        await storage.save(URL, record("x"))
        assert await storage.load(URL) == record("x")


@pytest.mark.commands
def test_keyring_package_is_not_imported_before_a_token_record_is_requested():
    code = (
        "import sys, trio_mcp; trio_mcp.auth.KeyringTokenStorage(lock_folder='x'); assert 'keyring' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
