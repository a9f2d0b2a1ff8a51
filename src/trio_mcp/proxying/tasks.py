"""Tasks of the server behind a proxy: their owners, and the calls that wait for a task.

The task of a principal exists for that principal alone. Tasks that clients run for the server are known, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.bounded import BoundedDict
from ..concurrency.contexts import contextmanager
from ..concurrency.fair_share import leaves_enough
from ..protocol.fields import JSONObject, as_object
from ..protocol.meta import ProgressToken, related_task_of
from ..runtime.peer import PrincipalId
from ..state.events import NotificationReceived
from ..tasks.task_state import FINAL
from .downstream import Downstream, ForwardedCall

_MAX_OWNED_TASKS: Final = 50_000
_MAX_TOKENS: Final = 10_000
_STATUS: Final = "notifications/tasks/status"
LONGEST_TASK_ID: Final = 1000
"""Characters of the longest id that is kept."""

Owner: TypeAlias = PrincipalId | Downstream
"""A principal; or, where the transport knows none, the last client that has created or named the task."""


class TaskOwners:
    """The owners of the latest tasks, up to 50,000, of which no owner takes the share of another."""

    def __init__(self, limit: int = _MAX_OWNED_TASKS) -> None:
        self._limit = limit
        self._owners: dict[str, Owner] = {}
        self._held: dict[Owner, dict[str, None]] = {}

    def add(self, task_id: str, owner: Owner) -> None:
        """Note that the task belongs to ``owner``. The task of a principal stays the task of that principal. An id of
        more than 1,000 characters is not noted."""
        before = self._owners.get(task_id)
        if isinstance(before, PrincipalId) or before is owner or len(task_id) > LONGEST_TASK_ID:
            return
        self._drop(task_id)
        held = self._held.setdefault(owner, {})
        while self._owners and not leaves_enough(len(held), self._limit - len(self._owners)):
            self._drop(next(iter(held or self._owners)))
            held = self._held.setdefault(owner, {})
        self._owners[task_id] = owner
        held[task_id] = None

    def owner(self, task_id: object) -> Owner | None:
        """Return the owner of the task; `None` for a task that is not, or no longer, known."""
        return self._owners.get(task_id) if isinstance(task_id, str) else None

    def exists_for(self, principal: PrincipalId | None, task_id: object) -> bool:
        """Return whether a caller may name the task. The task of a principal does not exist for other callers
        (ruling 22). Where nobody knows the caller, the id alone gives access."""
        owner = self.owner(task_id)
        return not isinstance(owner, PrincipalId) if principal is None else owner == principal

    def forget(self, downstream: Downstream) -> None:
        """Forget the tasks of a client that is gone, and that nobody knew."""
        for task_id in tuple(self._held.get(downstream, ())):
            self._drop(task_id)

    def _drop(self, task_id: str) -> None:
        owner = self._owners.pop(task_id, None)
        if owner is None:
            return
        held = self._held[owner]
        del held[task_id]
        if not held:
            del self._held[owner]


@frozen
class KnownTasks:
    """The tasks that the server behind and its clients run for each other, with the clients concerned."""

    of_server: TaskOwners
    """Tasks of the server behind, with their owners."""
    shared: bool
    """True where several clients share the server behind: a message of a task that nobody is known to own is for
    nobody."""
    of_clients: TaskOwners = attrs.field(factory=TaskOwners)
    """Tasks of clients (2025-11-25), each with the client that runs it."""

    waiting: dict[str, ForwardedCall] = attrs.field(factory=dict[str, ForwardedCall], init=False)
    """Tasks of the server behind that the proxy itself waits for, with the calls that have become tasks."""

    tokens: BoundedDict[str, tuple[Downstream, ProgressToken]] = attrs.field(
        factory=lambda: BoundedDict[str, tuple[Downstream, ProgressToken]](_MAX_TOKENS), init=False
    )
    """Tasks of the server behind whose clients want progress, with the tokens of the calls that became tasks."""

    def add_token(self, task_id: str, downstream: Downstream, token: ProgressToken) -> None:
        """Note that ``downstream`` wants progress of a task, under ``token``. The oldest such wish makes room."""
        if len(task_id) <= LONGEST_TASK_ID:
            self.tokens[task_id] = (downstream, token)

    def progressed(self, event: NotificationReceived) -> None:
        """Tell the client of progress of a task, under the client's own token."""
        task_id = related_task_of(event.params)
        wanted = None if task_id is None else self.tokens.get(task_id)
        if wanted is not None:
            downstream, token = wanted
            params = {**event.params, "progressToken": token}
            downstream.put(NotificationReceived(event.method, params, event.revision), named=False)

    @contextmanager
    def waiting_in(self, call: ForwardedCall) -> Generator[Callable[[str], None]]:
        """Inside of the block, the proxy waits for the task with which the server behind goes on with ``call``; the id
        of the task is given to the yielded function."""
        ids: list[str] = []

        def on_task(task_id: str) -> None:
            call.record_task(task_id)
            ids.append(task_id)
            self.waiting[task_id] = call

        try:
            yield on_task
        finally:
            for task_id in ids:
                del self.waiting[task_id]

    def call_of(self, params: JSONObject) -> ForwardedCall | None:
        """Return the call whose task asks by a request with ``params``; `None` for a task that the proxy does not wait
        for, and for a request of no task."""
        task_id = related_task_of(params)
        return None if task_id is None else self.waiting.get(task_id)

    def clients_concerned(self, method: str, params: JSONObject, downstreams: Iterable[Downstream]) -> list[Downstream]:
        """Return those of ``downstreams`` that a request of the server behind may concern: where the request is about a
        task, or belongs to one, whose client is known, that client alone."""
        if method.startswith("tasks/"):
            owner = self.of_clients.owner(_task_id(params))
            return [each for each in downstreams if owner is None or owner in (each, each.principal)]
        return self.recipients(method, params, downstreams)

    def names_client(self, method: str, params: JSONObject) -> bool:
        """Return whether a request of the server behind says whom it concerns, by its task."""
        if method.startswith("tasks/"):
            return self.of_clients.owner(_task_id(params)) is not None
        return related_task_of(params) is not None

    def recipients(self, method: str, params: JSONObject, downstreams: Iterable[Downstream]) -> list[Downstream]:
        """Return those of ``downstreams`` that a message of the server behind is for: where the message belongs to a
        task, its owner alone; where the owner is not known, a client that shares the server with nobody."""
        task_id = _task_id(params) if method == _STATUS else related_task_of(params)
        if task_id is None:
            return list(downstreams)
        if task_id in self.waiting:
            return [self.waiting[task_id].downstream]
        owner = self.of_server.owner(task_id)
        if owner is not None:
            return [each for each in downstreams if owner in (each, each.principal)]
        # The status of a task has its name, which no other caller should learn.
        return [] if self.shared else [each for each in downstreams if each.principal is None or method != _STATUS]

    def record_created(self, answer: JSONObject, downstream: Downstream) -> None:
        """Note the task with which ``downstream`` answers, if it does."""
        task_id = _task_id(answer.get("task"))
        if task_id is not None:
            self.of_clients.add(task_id, downstream)

    def forget(self, downstream: Downstream) -> None:
        """Forget the tasks of a client that is gone: see `TaskOwners.forget`."""
        self.of_server.forget(downstream)
        self.of_clients.forget(downstream)
        if downstream.is_connectionless:
            return  # such clients cannot be told of progress after the call
        for task_id in [each for each, (wishing, _) in self.tokens.items() if wishing is downstream]:
            del self.tokens[task_id]


def _task_id(value: Any) -> str | None:
    """Return the member ``taskId`` of what should be an object; `None` where there is none."""
    task_id = as_object(value).get("taskId")
    return task_id if isinstance(task_id, str) else None


_MAX_WORKING_TASKS: Final = 1000


class WorkingTasks:
    """The latest 1,000 tasks that have not ended, as far as is known. The end of the connection is the end of the tasks
    of a child process, and of any server that keeps tasks with the connection."""

    def __init__(self) -> None:
        self._ends = BoundedDict[str, float](_MAX_WORKING_TASKS)

    def end_time(self) -> float:
        """Return the time on trio's clock at which all tasks are over; ``-inf`` where none is known, ``inf`` where one
        has no end of its own."""
        now = trio.current_time()
        for task_id in [each for each, end in self._ends.items() if end <= now]:
            del self._ends[task_id]
        return max(self._ends.values(), default=-math.inf)

    def update(self, task_id: str, status: JSONObject) -> None:
        """Note the words of the server on a task."""
        if status.get("status") in FINAL:
            self.remove(task_id)
            return
        ttl: Any = status.get("ttlMs", status.get("ttl"))
        known = type(ttl) in (int, float) and ttl >= 0
        self._ends[task_id] = trio.current_time() + ttl / 1000 if known else math.inf

    def remove(self, task_id: str) -> None:
        """Note that a task has ended."""
        self._ends.pop(task_id, None)
