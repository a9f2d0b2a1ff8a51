"""OwnTasks knows which tasks a connection has made, for clients without a principal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from ...jsonrpc.errors import INVALID_PARAMS, CodedError

if TYPE_CHECKING:
    from ...runtime.outbox import Owner
    from ...runtime.requests.request_scope import RequestScope
    from ..settings import TaskSettings

_CURSOR: Final = re.compile(r"own\.([0-9]{1,15})")

_Numbers: TypeAlias = dict[str, int]


class OwnTasks:
    """The tasks of each connection to a server with a shared store (2025-11-25 tasks, Task Isolation): without a
    principal, a record in the store may belong to any client of any process."""

    def __init__(self, settings: TaskSettings) -> None:
        self._is_shared = settings.store is not None
        self._most = settings.max_kept_of_caller
        self._made: WeakKeyDictionary[Owner, _Numbers] = WeakKeyDictionary()
        """Ids of tasks with their numbers, in the order of their making, by connection."""
        self._numbers = count(1)

    def are_all_of(self, scope: RequestScope) -> bool:
        """Return whether the caller of a request may list no other tasks: else the store has the list."""
        peer = scope.exchange.peer
        return self._is_shared and peer.principal is None and peer.is_told_apart

    def note(self, scope: RequestScope, task_id: str) -> None:
        """Note that a request has made a task."""
        if self.are_all_of(scope):
            made = self._made.setdefault(scope.exchange.at_once, {})
            made[task_id] = next(self._numbers)
            if len(made) > self._most:
                del made[next(iter(made))]

    def after(self, scope: RequestScope, cursor: str | None) -> Iterator[tuple[str, str]]:
        """Iterate over the ids of the tasks of a caller behind ``cursor``, oldest first, each with the cursor for the
        tasks behind. Raises `CodedError` (-32602) for a cursor that is none."""
        match = _CURSOR.fullmatch("own.0" if cursor is None else cursor)
        if match is None:
            raise CodedError(INVALID_PARAMS, "Invalid params: unknown cursor")
        start = int(match[1])
        made = self._made.get(scope.exchange.at_once, {})
        return iter([(task_id, f"own.{number}") for task_id, number in made.items() if number > start])

    def forget(self, scope: RequestScope, task_id: str) -> None:
        """Forget a task whose record is gone."""
        self._made.get(scope.exchange.at_once, {}).pop(task_id, None)
