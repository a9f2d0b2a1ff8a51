"""Token storages that outlast the process: FileTokenStorage stores token records as files in a folder that only this
user can access, and KeyringTokenStorage in the keyring of the user's desktop.

PrivateFolder: files that only their owner can read, each replaced atomically; for worker threads. `file_lock` holds a
lock that spans processes; waiting for it can be cancelled at any time.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager, contextmanager
from ...transports.streams import IS_POSIX
from .records import BINDING, StoredAuthorization, TokenStorage, TokenStorageFailed, UnreadableTokens, name_of_record

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")

_FILE: Final = 0o600
_FOLDER: Final = 0o700
_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
_LEFTOVER_SECONDS: Final = 3600.0
"""The age in seconds from which a partial file must come from a dead process, since no write takes that long."""


def state_folder() -> Path:
    """Return the folder in which trio-mcp stores its state on this platform. Raises `TokenStorageFailed` if the user
    has no home folder."""
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "trio-mcp"
        # XDG base directory specification: ignore a relative path in XDG_STATE_HOME.
        told = Path(os.environ.get("XDG_STATE_HOME", ""))
        return (told if told.is_absolute() else Path.home() / ".local" / "state") / "trio-mcp"
    except RuntimeError:
        raise TokenStorageFailed("this user has no home folder: pass a folder for the tokens") from None


@frozen
class PrivateFolder:
    """A folder of files that only this user can access. The folder is created when the first file is written.

    Other users can never read a file, nor replace it: a folder that belongs to another user, or that others can write
    to, is refused. If others can read a file, their permission is removed, with a warning. Symbolic links are never
    followed, neither for the folder nor for a file. All methods raise `TokenStorageFailed`.
    """

    path: Path

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the contents of a file in the folder; `None` if there is no such file. Raises `TokenStorageFailed` if
        the file is longer than ``limit`` bytes."""
        with self._opened("read") as folder:
            if folder is None:
                return None
            try:
                descriptor = self._opened_file(folder, name, os.O_RDONLY)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(limit + 1)
        if len(data) > limit:
            raise TokenStorageFailed(
                f"{self.path / name} is longer than {limit} bytes: trio-mcp never writes files of this size"
            )
        return data

    def replace(self, name: str, data: bytes) -> None:
        """Replace the contents of a file in the folder with ``data``, atomically and durably."""
        with self._opened("written", made=True) as folder:
            assert folder is not None
            self._sweep(folder, name, _LEFTOVER_SECONDS)
            beginning = f".{name}.{secrets.token_hex(8)}"
            descriptor = os.open(beginning, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(beginning, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(beginning, dir_fd=folder)
                raise
            os.fsync(folder)

    def remove(self, name: str) -> bool:
        """Remove a file from the folder, and return whether it existed."""
        with self._opened("removed") as folder:
            if folder is None:
                return False
            self._sweep(folder, name, 0)
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                return False
            os.fsync(folder)
            return True

    def names(self) -> list[str]:
        """Return the names of all files in the folder, without temporary files that are still being written."""
        with self._opened("listed") as folder:
            return [] if folder is None else sorted(one for one in os.listdir(folder) if not one.startswith("."))

    def locked(self, name: str) -> int:
        """Wait until this process holds the lock on the lock file ``name``. Returns the file descriptor that holds the
        lock.

        Release the lock with `unlock`. The lock file is never deleted.
        """
        with self._opened("locked", made=True) as folder:
            from fcntl import LOCK_EX, flock  # Windows has none

            assert folder is not None
            descriptor = self._opened_file(folder, name, os.O_RDWR | os.O_CREAT)
            try:
                flock(descriptor, LOCK_EX)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    @contextmanager
    def _opened(self, what: str, *, made: bool = False) -> Generator[int | None]:
        """Open the folder, and yield its file descriptor, or `None` if the folder doesn't exist and ``made`` is false.

        Converts OS errors in the block to `TokenStorageFailed`. The error's message says that the files "cannot be
        ``what``".
        """
        if not IS_POSIX:
            raise TokenStorageFailed("token files are supported on POSIX systems only: use KeyringTokenStorage")
        try:
            if made:
                _make(self.path)
            try:
                folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                folder = None
            if folder is None:
                yield None
                return
            try:
                self._check_folder(os.fstat(folder))
                yield folder
            finally:
                os.close(folder)
        except OSError as error:
            if self.path.is_symlink() or error.errno == errno.ELOOP:
                raise TokenStorageFailed(f"refusing to follow a symbolic link at or in {self.path}") from None
            raise TokenStorageFailed(f"the files in {self.path} cannot be {what}: {error.strerror}") from None

    def _check_folder(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"refusing to keep tokens in {self.path}: the folder belongs to another user")
        if status.st_mode & _OTHERS_WRITE:
            raise TokenStorageFailed(
                f"refusing to keep tokens in {self.path}: other users may write to it (run chmod 700)"
            )

    def _check_file(self, name: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TokenStorageFailed(f"{self.path / name} must be a regular file of this user")

    def _opened_file(self, folder: int, name: str, flags: int) -> int:
        # O_NONBLOCK: don't wait for a writer if the file is a named pipe, which is refused below.
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, _FILE, dir_fd=folder)
        try:
            status = os.fstat(descriptor)
            self._check_file(name, status)
            if status.st_mode & _OTHERS:
                os.fchmod(descriptor, _FILE)
                logger.warning("other users could read %s until now, and may know its tokens", self.path / name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _sweep(self, folder: int, name: str, age: float) -> None:
        """Remove temporary files that are older than ``age`` seconds, because the process that wrote them no longer
        runs."""
        for one in os.listdir(folder):
            if one.startswith(f".{name}."):
                with suppress(FileNotFoundError):
                    if os.stat(one, dir_fd=folder, follow_symlinks=False).st_mtime <= time.time() - age:
                        os.unlink(one, dir_fd=folder)


def unlock(descriptor: int) -> None:
    """Release the file lock that ``descriptor`` holds, and close the descriptor."""
    from fcntl import LOCK_UN, flock

    try:
        # Unlock first: closing the descriptor doesn't unlock the file if a child process has a copy.
        flock(descriptor, LOCK_UN)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Create the folder and its missing parents, with permissions for this user only."""
    if not path.parent.exists():
        _make(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path, _FOLDER)


_Turns: TypeAlias = WeakValueDictionary[Hashable, trio.CapacityLimiter]

_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("trio_mcp.token_storage_turns")


@asynccontextmanager
async def file_lock(folder: PrivateFolder, name: str) -> AsyncGenerator[None]:
    """Hold the lock on the lock file ``name`` inside the block, so that no other task or process holds it.

    Raises `TokenStorageFailed` if the file can't be locked.

    If a wait is cancelled, its thread is abandoned: it continues to wait, releases the lock as soon as it gets it, and
    ends. The system offers no better way. At most one thread waits for a lock, however many tasks are cancelled.
    """
    claim = _Claim(folder, name)
    try:
        await trio.to_thread.run_sync(claim.wait, abandon_on_cancel=True, limiter=_turn((folder, name)))
        yield
    finally:
        claim.give_up()


def _turn(wanted: Hashable) -> trio.CapacityLimiter:
    """Return the limiter that lets one thread at a time wait for ``wanted``: one file lock, or the keyring. A thread
    that was abandoned counts against the limit until it ends."""
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
    return turns.setdefault(wanted, trio.CapacityLimiter(1))


class _Claim:
    """A file lock that a thread acquires for a task. The task may be cancelled while the thread is waiting."""

    def __init__(self, folder: PrivateFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._given_up = False

    def wait(self) -> None:
        """Block until this thread holds the file lock. Call this in a worker thread."""
        with self._mutex:
            if self._given_up:
                return
        descriptor = self._folder.locked(self._name)
        with self._mutex:
            if not self._given_up:
                self._descriptor = descriptor
                return
        unlock(descriptor)

    def give_up(self) -> None:
        """Release the file lock. If a thread is still waiting for the lock, that thread acquires the lock and releases
        it at once."""
        with self._mutex:
            self._given_up = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            unlock(descriptor)


_MAX_RECORD_BYTES: Final = 1 << 20
"""The maximum size of a token record, in bytes."""
_ENDING: Final = ".json"


def _folder(path: str | os.PathLike[str] | None) -> PrivateFolder:
    return PrivateFolder(state_folder() / "tokens" if path is None else Path(path).absolute())


@frozen
class _StoredFile:
    server_url: str
    record: msgspec.Raw = attrs.field(repr=False)


# Create the decoder at import: two threads that create a decoder for the same class concurrently crash (msgspec 0.22).
_stored_files: Final = msgspec.json.Decoder(_StoredFile)


@frozen
class FileTokenStorage(TokenStorage):
    """Stores token records in a folder that several processes may use. There is one file per server, which only this
    user can read.

    The default ``folder`` is ``$XDG_STATE_HOME/trio-mcp/tokens`` (``~/.local/state``), on macOS ``~/Library/Application
    Support/trio-mcp/tokens``. A record is replaced atomically: when `save` returns, the new one is on the disk, and
    even if the process is killed, readers see the old or the new one. If a file contains anything else,
    `TokenStorageFailed` is raised and the file isn't changed. Secrets aren't encrypted: see `KeyringTokenStorage`.
    """

    _folder: PrivateFolder = attrs.field(default=None, converter=_folder, alias="folder")

    @property
    def folder(self) -> Path:
        """The folder in which the token records are stored."""
        return self._folder.path

    async def load(self, server_url: str) -> StoredAuthorization | None:
        """Return the token record of a server: see `TokenStorage.load`."""

        def load() -> StoredAuthorization | None:
            name = _name(server_url)
            content = self._content(name)
            if content is None:
                return None
            if content.server_url != server_url:
                raise TokenStorageFailed(
                    f"{self.folder / name} contains the record of another server; the file was not changed"
                )
            try:
                return StoredAuthorization.from_json(bytes(content.record))
            except UnreadableTokens as error:
                raise self._unreadable(name, error) from None

        return await _in_thread(load)

    async def save(self, server_url: str, stored: StoredAuthorization) -> None:
        """Replace the token record of a server with ``stored``: see `TokenStorage.save`."""
        data = msgspec.json.encode(_StoredFile(server_url, msgspec.Raw(stored.to_json())))
        if len(data) > _MAX_RECORD_BYTES:
            raise TokenStorageFailed(f"a token record must have at most {_MAX_RECORD_BYTES} bytes, not {len(data)}")
        await _in_thread(lambda: self._folder.replace(_name(server_url), data))

    async def remove(self, server_url: str) -> bool:
        """Delete the token record of a server, even if it is unreadable: see `TokenStorage.remove`."""
        return await _in_thread(lambda: self._folder.remove(_name(server_url)))

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Lock the token record of a server for this task: see `TokenStorage.lock`."""
        return file_lock(self._folder, f"{name_of_record(server_url)}.lock")

    async def server_urls(self) -> list[str]:
        """Return the URLs of all servers that have a stored record, sorted. Files that aren't token records are logged
        and skipped."""

        def urls() -> list[str]:
            found: list[str] = []
            for name in self._folder.names():
                try:
                    content = self._content(name) if name.endswith(_ENDING) else None
                except TokenStorageFailed as error:
                    logger.warning("%s", error)
                else:
                    is_of_server = content is not None and not content.server_url.startswith(BINDING)
                    found += [content.server_url] if content is not None and is_of_server else []
            return sorted(found)

        return await _in_thread(urls)

    def _content(self, name: str) -> _StoredFile | None:
        data = self._folder.read(name, _MAX_RECORD_BYTES)
        try:
            return None if data is None else _stored_files.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: Exception) -> TokenStorageFailed:
        """Return the error to raise for an unreadable record file. The message names the file, and reveals nothing of
        its contents."""
        return TokenStorageFailed(
            f"{self.folder / name} is not a record that this version can read ({type(error).__name__}); "
            "remove it to sign in again"
        )


def _name(server_url: str) -> str:
    return name_of_record(server_url) + _ENDING


async def _in_thread(call: Callable[[], T]) -> T:
    """Run ``call`` in a thread, and return its result.

    A call that has begun isn't abandoned: a record would change after its lock was released. The thread isn't counted
    among those of handlers, since handlers may wait for tokens.
    """
    return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))


_SERVICE: Final = "trio-mcp"
"""The service name of the records in the keyring. Their user name is the server's URL."""


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
        missing = await _in_keyring_thread(_missing, can_be_left=True)
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

    return await _in_keyring_thread(call, can_be_left=can_be_left)


async def _in_keyring_thread(call: Callable[[], T], *, can_be_left: bool) -> T:
    """Run ``call`` in the only thread that uses the keyring, and return its result.

    A call that changes a record isn't abandoned on cancellation: otherwise the record could be changed after the lock
    was released. A thread that was abandoned while the keyring asked the user occupies its place until it ends.
    """
    return await trio.to_thread.run_sync(call, abandon_on_cancel=can_be_left, limiter=_turn("keyring"))
