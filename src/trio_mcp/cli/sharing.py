"""Sharing: the storage of ``trio-mcp run --shared``, which is the Redis at a URL or a file of this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .printable import CommandError

if TYPE_CHECKING:
    from ..stores.shared import SharedStorage


def storage_at(text: str) -> SharedStorage:
    """Return the storage that ``text`` names: a URL of Redis, or the path of a file. Nothing is connected yet.

    Raises `CommandError` for what can be no such storage. The message shows no password of a URL."""
    return _redis(text) if "://" in text else _file(Path(text))


def _redis(url: str) -> SharedStorage:
    if find_spec("coredis") is None:
        raise CommandError("--shared with a URL needs the package coredis: pip install 'trio-mcp[redis]'")
    from ..fleet.storage.redis.storage import Redis

    try:
        return Redis(url)
    except (ValueError, OSError) as error:  # no such URL, or a certificate that cannot be read
        raise CommandError(f"--shared: {error}") from None


def _file(path: Path) -> SharedStorage:
    if path.is_dir():
        raise CommandError(f"--shared: {str(path)!r} is a folder, not a file")
    if not path.parent.is_dir():
        raise CommandError(f"--shared: there is no folder {str(path.parent)!r}")
    from ..fleet.storage.sqlite.storage import SQLite

    return SQLite(path)
