"""Registry holds the offers of one kind, in the order of their registration, in pages with opaque cursors.

An offer may have scopes that its caller needs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Generic, TypeVar

from ..jsonrpc.errors import INVALID_PARAMS, CodedError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one ``kind`` in a stable order. A cursor stays good while things come and go: a cursor holds the
    serial number of the last thing seen, so a listing repeats nothing and skips nothing."""

    def __init__(self, kind: str, page_size: int | None) -> None:
        self.kind = kind
        self._page_size = page_size
        self._items: dict[str, T] = {}
        self._serials: dict[str, int] = {}
        self._last_serial = 0
        self.get: Callable[[str], T | None] = self._items.get
        """Function that returns the thing called so, or `None`."""
        self.names: Callable[[], Collection[str]] = self._items.keys
        """Function that returns the present names."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def add(self, name: str, item: T) -> None:
        """Add ``item``. Raises `ValueError` when the name is taken."""
        if name in self._items:
            raise ValueError(f"there is a {self.kind} named {name!r} already; remove it first")
        self._last_serial += 1
        self._items[name], self._serials[name] = item, self._last_serial

    def remove(self, name: str) -> None:
        """Remove the thing called ``name``. Raises `KeyError` when there is none."""
        if name not in self._items:
            raise KeyError(f"there is no {self.kind} named {name!r}")
        del self._items[name], self._serials[name]

    def page(self, cursor: str | None) -> tuple[list[T], str | None]:
        """Return the things after ``cursor`` and the cursor of the next page, `None` on the last.

        Raises `CodedError` -32602 for a cursor not given by this registry (2025-11-25 pagination, Error Handling).
        """
        after = 0 if cursor is None else self._read_cursor(cursor)
        rest = [name for name, serial in self._serials.items() if serial > after]
        if self._page_size is None or len(rest) <= self._page_size:
            return [self._items[name] for name in rest], None
        page = rest[: self._page_size]
        return [self._items[name] for name in page], self._write_cursor(self._serials[page[-1]])

    def _write_cursor(self, serial: int) -> str:
        return base64.urlsafe_b64encode(f"{self.kind}:{serial}".encode()).decode()

    def _read_cursor(self, cursor: str) -> int:
        try:
            kind, _, serial = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().rpartition(":")
            if kind == self.kind and serial.isascii() and serial.isdigit():
                return int(serial)
        except ValueError:
            pass
        raise CodedError(INVALID_PARAMS, "Invalid params: the cursor is not one of this list")


_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
"""RFC 6749 section 3.3."""


def checked_scopes(name: str, scopes: Sequence[str]) -> frozenset[str]:
    """Return the ``scopes`` of the offer ``name``. Raises `TypeError` for a text in place of several scopes, and
    `ValueError` for a scope that cannot stand in a token."""
    if isinstance(scopes, str):
        raise TypeError(f"{name}: scopes are several:\n    wrong:  scopes={scopes!r}\n    right:  scopes=[{scopes!r}]")
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"{name}: {scope[:200]!r} is no scope: no blanks, quotes and backslashes, ASCII alone")
    return frozenset(scopes)
