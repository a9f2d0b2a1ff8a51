"""Registry: the offers of one kind, in the order of their registration, in pages with opaque cursors."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from ...jsonrpc.errors import INVALID_PARAMS, CodedError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named things of one ``kind`` in a stable order. A cursor stays good while things come and go: a cursor holds the
    serial number of the last thing seen, so a listing repeats nothing and skips nothing."""

    def __init__(self, kind: str, page_size: int | None) -> None:
        self.kind = kind
        self._page_size = page_size
        self._items: dict[str, tuple[int, T]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter([item for _, item in self._items.values()])

    def names(self) -> Collection[str]:
        """Return the present names."""
        return self._items.keys()

    def add(self, name: str, item: T) -> None:
        """Add ``item``. Raises `ValueError` when the name is taken."""
        if name in self._items:
            raise ValueError(f"there is a {self.kind} named {name!r} already; remove it first")
        self._serial += 1
        self._items[name] = (self._serial, item)

    def remove(self, name: str) -> None:
        """Remove the thing called ``name``. Raises `KeyError` when there is none."""
        if name not in self._items:
            raise KeyError(f"there is no {self.kind} named {name!r}")
        del self._items[name]

    def get(self, name: str) -> T | None:
        """Return the thing called ``name``, or `None`."""
        entry = self._items.get(name)
        return None if entry is None else entry[1]

    def page(self, cursor: str | None) -> tuple[list[T], str | None]:
        """Return the things after ``cursor`` and the cursor of the next page, `None` on the last.

        Raises `CodedError` -32602 for a cursor not given by this registry (2025-11-25 pagination, Error Handling).
        """
        after = 0 if cursor is None else self._read_cursor(cursor)
        rest = [entry for entry in self._items.values() if entry[0] > after]
        if self._page_size is None or len(rest) <= self._page_size:
            return [item for _, item in rest], None
        page = rest[: self._page_size]
        return [item for _, item in page], self._write_cursor(page[-1][0])

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
