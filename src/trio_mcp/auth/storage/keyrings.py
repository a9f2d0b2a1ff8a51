"""KeyringTokenStorage: stores token records in the keyring of the user's desktop."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from .files import PrivateFolder, file_lock, state_folder
from .records import StoredAuthorization, TokenStorage, TokenStorageFailed, UnreadableTokens, name_of_record

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

T = TypeVar("T")

_SERVICE: Final = "trio-mcp"
"""The service name of the records in the keyring. Their user name is the server's URL."""

_turn: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trio_mcp.keyring_turn")
"""Limits the use of the keyring to one thread. A thread that was abandoned while the keyring asked the user occupies
its place until it ends."""


def _lock_folder(path: str | os.PathLike[str] | None) -> PrivateFolder:
    return PrivateFolder(state_folder() / "keyring" if path is None else Path(path).absolute())


@frozen(kw_only=True)
class KeyringTokenStorage(TokenStorage):
    """Stores token records in the keyring of the user's desktop, with the package ``keyring`` (``trio-mcp[keyring]``).

    The records are encrypted, and unlocked while the user is logged in.

    A machine without a desktop has no keyring. Then ``fallback`` is used, a `FileTokenStorage` for example; without a
    fallback all methods raise `TokenStorageFailed`. The user may have to unlock the keyring; a `load` can be cancelled
    meanwhile.

    Args:
        fallback: The storage to use if there is no keyring.
        lock_folder: A folder for empty lock files; by default ``keyring`` beside the default folder of
            `FileTokenStorage`.
    """

    fallback: TokenStorage | None = None
    _lock_folder: PrivateFolder = attrs.field(default=None, converter=_lock_folder, repr=False)

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the token record of a server: see `TokenStorage.load`."""
        if (other := await self._in_place()) is not None:
            return await other.load(server_url)
        text = await _used(lambda keyring: keyring.get_password(_SERVICE, server_url), can_be_left=True)
        try:
            return None if text is None else StoredAuthorization.from_json(text.encode())
        except (UnreadableTokens, UnicodeEncodeError) as error:
            raise TokenStorageFailed(
                f"this version cannot read the keyring's entry for {server_url} (service {_SERVICE!r}): "
                f"{type(error).__name__}; remove the entry to sign in again"
            ) from None

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Replace the token record of a server with ``stored``: see `TokenStorage.save`."""
        if (other := await self._in_place()) is not None:
            return await other.save(server_url, stored)
        text = stored.to_json().decode()

        def save(keyring: KeyringBackend) -> None:
            keyring.set_password(_SERVICE, server_url, text)  # pyright: ignore[reportUnknownMemberType]

        return await _used(save)

    async def remove(self, server_url: str) -> bool:
        """Delete the token record of a server, and return whether it existed: see `TokenStorage.remove`."""

        def removed(keyring: KeyringBackend) -> bool:
            if keyring.get_password(_SERVICE, server_url) is None:
                return False
            keyring.delete_password(_SERVICE, server_url)
            return True

        if (other := await self._in_place()) is not None:
            return await other.remove(server_url)
        return await _used(removed)

    @asynccontextmanager
    async def lock(self, server_url: str) -> AsyncGenerator[None]:
        """Lock the token record of a server for this task: see `TokenStorage.lock`. Uses a lock file, since keyrings
        have no locks."""
        other = await self._in_place()
        lock = file_lock(self._lock_folder, name_of_record(server_url)) if other is None else other.lock(server_url)
        async with lock:
            yield

    async def _in_place(self) -> TokenStorage | None:
        """If the desktop has no keyring, return the fallback storage to use in its place. Otherwise return `None`.

        Raises `TokenStorageFailed` if there is neither a keyring nor another storage.
        """
        missing = await _in_thread(_missing, can_be_left=True)
        if missing is None:
            return None
        if self.fallback is None:
            raise TokenStorageFailed(f"{missing}; to keep tokens in files instead, use FileTokenStorage")
        return self.fallback


def _missing() -> str | None:
    """Return the reason why no keyring can be used; `None` if a keyring is available."""
    try:
        import keyring
        from keyring.backends import fail, null
    except ModuleNotFoundError:
        return "keyrings need an extra: install 'trio-mcp[keyring]'"
    try:
        backend = keyring.get_keyring()
    except Exception as error:  # keyring's configuration can name any backend, which may raise any exception
        return f"the keyring cannot be opened ({type(error).__name__})"
    if isinstance(backend, null.Keyring):
        return "the keyring is disabled by its configuration"
    return "this machine has no keyring that could be used" if isinstance(backend, fail.Keyring) else None


async def _used(use: Callable[[KeyringBackend], T], *, can_be_left: bool = False) -> T:
    """Call the function ``use`` in a thread, with the keyring as its argument, and return its result.

    If the call fails, raises `TokenStorageFailed` without the message of the keyring backend, which may be third-party
    code and may contain secrets.
    """

    def call() -> T:
        import keyring

        try:
            return use(keyring.get_keyring())
        except Exception as error:
            raise TokenStorageFailed(f"the keyring failed: {type(error).__name__}") from None

    return await _in_thread(call, can_be_left=can_be_left)


async def _in_thread(call: Callable[[], T], *, can_be_left: bool) -> T:
    """Run ``call`` in a thread, and return its result.

    A call that changes a record isn't abandoned on cancellation: otherwise the record could be changed after the lock
    was released.
    """
    try:
        turn = _turn.get()
    except LookupError:
        turn = trio.CapacityLimiter(1)
        _turn.set(turn)
    return await trio.to_thread.run_sync(call, abandon_on_cancel=can_be_left, limiter=turn)
