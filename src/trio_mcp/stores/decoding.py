"""Decoding of stored data: each failure raises `UnreadableRecord`.

Anyone who can write to the storage chooses the bytes. Decoders raise more exceptions than they document: msgspec also
raises `UnicodeDecodeError` and `RecursionError`, and a value of another type raises `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ..jsonrpc.errors import clean
from .task_store import UnreadableRecord

T = TypeVar("T")
D = TypeVar("D")

SESSION: Final = tuple[bytes, bytes]
"""Types of the columns of a session: facts and mark."""
STREAM: Final = tuple[bytes, bytes, int, int, bytes, int]
"""Types of the columns of a stream: holder, request id, last and dropped number, note, end time."""
LINES: Final = list[bytes]
"""Type of the events of a stream."""
_MAX_REASON_LENGTH: Final = 200


def decode_stored(what: str, decode: Callable[[D], T], data: D) -> T:
    """Return ``decode(data)``. Raises `UnreadableRecord` for any failure, with ``what`` as the name of the data."""
    try:
        return decode(data)
    except UnreadableRecord:
        raise
    except Exception as error:
        words = clean(str(error)[:_MAX_REASON_LENGTH]) or type(error).__name__
        raise UnreadableRecord(f"{what} cannot be read: {words}") from None


def decode_columns(what: str, row: Any, kinds: type[T]) -> T:
    """Return ``row``, a sequence of values, as a tuple of the type ``kinds``. Raises `UnreadableRecord` for other
    values: SQLite keeps values of any type in any column, and a hash in Redis may lack fields."""
    return decode_stored(what, partial(msgspec.convert, type=kinds), row)
