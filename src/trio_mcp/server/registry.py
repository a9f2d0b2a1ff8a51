"""Registry holds the offers of one kind, in the order of their registration, in pages with opaque cursors.

An offer has a `UserFunction`, which is run for each request, and perhaps scopes that its caller needs.
"""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import attrs

from ..concurrency.workers import run_in_worker
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.types.lifecycle import Icon
from ..runtime.requests.scope import RequestScope
from ..tasks.host import TaskHost
from .options import PromptOptions
from .request_context import LiveContext
from .signature import Signature
from .worker_context import WorkerContext

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


@attrs.frozen(eq=False)
class UserFunction:
    """A function with its signature. ``doc`` is its docstring, cleaned up."""

    signature: Signature
    doc: str | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> UserFunction:
        """Take ``function`` apart. Raises `TypeError` for a signature that cannot be used."""
        return cls(Signature.of(function), inspect.getdoc(function))

    def listed(self, options: PromptOptions) -> tuple[str, str | None, str | None, list[Icon] | None]:
        """Return the name, the title, the description and the icons of the offer, by ``options`` or of the function."""
        name = options.get("name") or self.signature.function.__name__
        description, icons = options.get("description"), options.get("icons")
        return (
            name,
            options.get("title"),
            description if description is not None else self.doc,
            list(icons) if icons else None,
        )

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: TaskHost | None = None
    ) -> Awaitable[Any]:
        """Run the function with ``bound`` arguments: async functions right here, plain functions in a worker thread.
        ``tasks``: the host of the tasks that the function may look at."""
        signature = self.signature
        if signature.is_async:
            if signature.context_name is not None:
                bound[signature.context_name] = LiveContext(scope, lifespan, tasks)
            return signature.function(**bound)
        if signature.context_name is not None:
            bound[signature.context_name] = WorkerContext(LiveContext(scope, lifespan, tasks))
        call, threads = partial(signature.function, **bound), scope.runner.workers.share(scope.ticket.caller)
        return run_in_worker(call, threads, lambda: scope.runner.graces)  # a task has another runner in the end


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
