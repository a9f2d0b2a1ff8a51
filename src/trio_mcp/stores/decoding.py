"""One way to decode what a storage holds: each failure is an `UnreadableRecord`.

Anybody who can write to the storage chooses the bytes. Decoders raise more than they say: msgspec raises
`UnicodeDecodeError` and `RecursionError` beside its own errors, and a value of another type is a `TypeError`.
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
"""The kinds of the columns of a session: facts and mark."""
STREAM: Final = tuple[bytes, bytes, int, int, bytes, int]
"""The kinds of the columns of a stream: holder, id of the request, last and dropped number, note, time of the end."""
LINES: Final = list[bytes]
"""The kind of the events of a stream."""
_MOST_WORDS: Final = 200


def decode_stored(what: str, decode: Callable[[D], T], data: D) -> T:
    """Return ``decode(data)``. Raises `UnreadableRecord` for any failure; ``what`` names the data in its message."""
    try:
        return decode(data)
    except UnreadableRecord:
        raise
    except Exception as error:
        words = clean(str(error)[:_MOST_WORDS]) or type(error).__name__
        raise UnreadableRecord(f"{what} cannot be read: {words}") from None


def columns(what: str, row: Any, kinds: type[T]) -> T:
    """Return ``row``, a sequence of values, as a tuple of these ``kinds``. Raises `UnreadableRecord` for other ones:
    SQLite keeps values of any type in any column, and a hash in Redis may lack fields."""
    return decode_stored(what, partial(msgspec.convert, type=kinds), row)
