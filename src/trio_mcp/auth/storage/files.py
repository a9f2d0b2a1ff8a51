"""FileStorage: records in files of this user alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from ...classes import frozen
from .private_folder import PrivateFolder, file_lock, state_folder
from .records import BINDING, Storage, StorageFailed, Stored, UnreadableTokens, name_of_record

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")

_MOST: Final = 1 << 20
"""Bytes of a record."""
_ENDING: Final = ".json"


def _folder(path: str | os.PathLike[str] | None) -> PrivateFolder:
    return PrivateFolder(state_folder() / "tokens" if path is None else Path(path).absolute())


@frozen
class _StoredFile:
    server_url: str
    record: msgspec.Raw = attrs.field(repr=False)


@frozen
class FileStorage(Storage):
    """Records in a folder, a file for each server, readable by this user alone: safe for many processes at once.

    The default ``folder`` is the ``tokens`` of ``$XDG_STATE_HOME/trio-mcp`` (``~/.local/state``), on macOS of
    ``~/Library/Application Support/trio-mcp``. A record is on the disk when `save` returns, or the old one is: nothing
    but a whole record is ever seen, even where the process is killed. A file that holds something else raises
    `StorageFailed`, and stays. Secrets are not encrypted: see `KeyringStorage`.
    """

    _folder: PrivateFolder = attrs.field(default=None, converter=_folder, alias="folder")

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._folder.path

    async def load(self, server_url: str) -> Stored | None:
        """Return the record: see `Storage.load`."""

        def load() -> Stored | None:
            name = _name(server_url)
            content = self._content(name)
            if content is None:
                return None
            if content.server_url != server_url:
                raise StorageFailed(f"{self.folder / name} is about another server; nothing was changed")
            try:
                return Stored.from_json(bytes(content.record))
            except UnreadableTokens as error:
                raise self._unreadable(name, error) from None

        return await _in_thread(load)

    async def save(self, server_url: str, stored: Stored) -> None:
        """Keep ``stored`` in place of the record there was: see `Storage.save`."""
        data = msgspec.json.encode(_StoredFile(server_url, msgspec.Raw(stored.to_json())))
        if len(data) > _MOST:
            raise StorageFailed(f"a record of {len(data)} bytes is not kept: {_MOST} are the most")
        await _in_thread(lambda: self._folder.replace(_name(server_url), data))

    async def remove(self, server_url: str) -> bool:
        """Forget the record, readable or not: see `Storage.remove`."""
        return await _in_thread(lambda: self._folder.remove(_name(server_url)))

    def lock(self, server_url: str) -> AbstractAsyncContextManager[None]:
        """Hold the record for this task alone: see `Storage.lock`."""
        return file_lock(self._folder, f"{name_of_record(server_url)}.lock")

    async def server_urls(self) -> list[str]:
        """Return the URLs of all servers with a record, sorted. Files that hold something else are logged."""

        def urls() -> list[str]:
            found: list[str] = []
            for name in self._folder.names():
                try:
                    content = self._content(name) if name.endswith(_ENDING) else None
                except StorageFailed as error:
                    logger.warning("%s", error)
                else:
                    is_of_server = content is not None and not content.server_url.startswith(BINDING)
                    found += [content.server_url] if content is not None and is_of_server else []
            return sorted(found)

        return await _in_thread(urls)

    def _content(self, name: str) -> _StoredFile | None:
        data = self._folder.read(name, _MOST)
        try:
            return None if data is None else msgspec.json.decode(data, type=_StoredFile)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(name, error) from None

    def _unreadable(self, name: str, error: Exception) -> StorageFailed:
        """Return the failure that names the file, and tells nothing of its contents."""
        return StorageFailed(
            f"{self.folder / name} holds no record that this version can read ({type(error).__name__}); "
            "remove it to sign in anew"
        )


def _name(server_url: str) -> str:
    return name_of_record(server_url) + _ENDING


async def _in_thread(call: Callable[[], T]) -> T:
    """Return the result of ``call`` in a thread. A call that has begun is not left: a record would change after the
    lock was given back. No place of the threads of handlers is taken, since handlers may wait for tokens."""
    return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))
