"""Records about the MCP tasks of the upstream server: the owner of each task, and the calls that wait for a task.

A principal's task exists only for that principal. Tasks that clients run for the server are tracked as well.
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
"""The maximum length of a task id that is stored, in characters."""

Owner: TypeAlias = PrincipalId | Downstream
"""The owner of a task: a principal or, if the transport knows no principal, the last client that has created or named
the task."""


class TaskOwners:
    """Stores who owns each MCP task, for the latest 50,000 tasks. This limit is shared fairly among the owners."""

    def __init__(self, limit: int = _MAX_OWNED_TASKS) -> None:
        self._limit = limit
        self._owners: dict[str, Owner] = {}
        self._held: dict[Owner, dict[str, None]] = {}

    def add(self, task_id: str, owner: Owner) -> None:
        """Record ``owner`` as the owner of an MCP task.

        If the recorded owner is a principal, it isn't replaced. Ids of more than 1,000 characters aren't recorded.
        """
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
        """Return the owner of a task; `None` if the owner is unknown."""
        return self._owners.get(task_id) if isinstance(task_id, str) else None

    def exists_for(self, principal: PrincipalId | None, task_id: object) -> bool:
        """Return whether a caller may access an MCP task.

        If a principal owns the task, only this principal may (docs/rulings.md, ruling 22). A caller without a principal
        may access any other task whose id it knows.
        """
        owner = self.owner(task_id)
        return not isinstance(owner, PrincipalId) if principal is None else owner == principal

    def forget(self, downstream: Downstream) -> None:
        """Drop the records of the MCP tasks that belong to a client without a principal, because its connection has
        ended."""
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
    """The known MCP tasks of the upstream server and of the proxy's clients. For each task, it stores which client is
    concerned."""

    of_server: TaskOwners
    """The tasks of the upstream server, with their owners."""
    shared: bool
    """True if several clients share the upstream connection. In this case a message about a task of unknown owner is
    dropped."""
    of_clients: TaskOwners = attrs.field(factory=TaskOwners)
    """Tasks of clients (2025-11-25), each with the client that runs it."""

    waiting: dict[str, ForwardedCall] = attrs.field(factory=dict[str, ForwardedCall], init=False)
    """Tasks of the upstream server that the proxy itself waits for, with the calls that have become tasks."""

    tokens: BoundedDict[str, tuple[Downstream, ProgressToken]] = attrs.field(
        factory=lambda: BoundedDict[str, tuple[Downstream, ProgressToken]](_MAX_TOKENS), init=False
    )
    """Tasks of the upstream server whose clients want progress, with the progress tokens of the calls that became
    tasks."""

    def add_token(self, task_id: str, downstream: Downstream, token: ProgressToken) -> None:
        """Record that ``downstream`` wants progress notifications of an MCP task, with the progress token ``token``.

        If too many tokens are stored, the oldest is dropped.
        """
        if len(task_id) <= LONGEST_TASK_ID:
            self.tokens[task_id] = (downstream, token)

    def progressed(self, event: NotificationReceived) -> None:
        """Forward a progress notification of an MCP task to the client that wants it, with the client's own progress
        token."""
        task_id = related_task_of(event.params)
        wanted = None if task_id is None else self.tokens.get(task_id)
        if wanted is not None:
            downstream, token = wanted
            params = {**event.params, "progressToken": token}
            downstream.put(NotificationReceived(event.method, params, event.revision), named=False)

    @contextmanager
    def waiting_in(self, call: ForwardedCall) -> Generator[Callable[[str], None]]:
        """While the ``with`` block runs, record that the upstream server runs ``call`` as an MCP task for which the
        proxy waits.

        Messages of the task belong to the call. Yields a function to call with the task's id.
        """
        ids: list[str] = []

        def on_task(task_id: str) -> None:
            call.task_id = task_id
            ids.append(task_id)
            self.waiting[task_id] = call

        try:
            yield on_task
        finally:
            for task_id in ids:
                del self.waiting[task_id]

    def call_of(self, params: JSONObject) -> ForwardedCall | None:
        """Return the forwarded call that waits for the MCP task to which a request of the server belongs. ``params``
        are the request's parameters, which name the task.

        Returns `None` if the request belongs to no task, or if no call waits for the task.
        """
        task_id = related_task_of(params)
        return None if task_id is None else self.waiting.get(task_id)

    def clients_concerned(self, method: str, params: JSONObject, downstreams: Iterable[Downstream]) -> list[Downstream]:
        """Return the clients in ``downstreams`` to which a request of the upstream server may be forwarded.

        If the request concerns a task whose client is known, this is only that client.
        """
        if method.startswith("tasks/"):
            owner = self.of_clients.owner(_task_id(params))
            return [each for each in downstreams if owner is None or owner in (each, each.principal)]
        return self.recipients(method, params, downstreams)

    def names_client(self, method: str, params: JSONObject) -> bool:
        """Return whether a request of the upstream server names an MCP task. Such a request concerns only the client of
        the task."""
        if method.startswith("tasks/"):
            return self.of_clients.owner(_task_id(params)) is not None
        return related_task_of(params) is not None

    def recipients(self, method: str, params: JSONObject, downstreams: Iterable[Downstream]) -> list[Downstream]:
        """Return the clients in ``downstreams`` to which a message of the upstream server may be forwarded.

        The message of an MCP task is only for the task's owner. If the owner is unknown, it is only for a client that
        doesn't share the upstream connection.
        """
        task_id = _task_id(params) if method == _STATUS else related_task_of(params)
        if task_id is None:
            return list(downstreams)
        if task_id in self.waiting:
            return [self.waiting[task_id].downstream]
        owner = self.of_server.owner(task_id)
        if owner is not None:
            return [each for each in downstreams if owner in (each, each.principal)]
        # Send a task's status only to its owner: it contains the task's id, which would give other callers access.
        return [] if self.shared else [each for each in downstreams if each.principal is None or method != _STATUS]

    def record_created(self, answer: JSONObject, downstream: Downstream) -> None:
        """If ``answer``, a response to ``downstream``, describes an MCP task, record this client as the task's
        owner."""
        task_id = _task_id(answer.get("task"))
        if task_id is not None:
            self.of_clients.add(task_id, downstream)

    def forget(self, downstream: Downstream) -> None:
        """Drop the records of the tasks of a client whose connection has ended: see `TaskOwners.forget`."""
        self.of_server.forget(downstream)
        self.of_clients.forget(downstream)
        if downstream.is_connectionless:
            return  # a client without a connection gets no progress notifications after its call
        for task_id in [each for each, (wishing, _) in self.tokens.items() if wishing is downstream]:
            del self.tokens[task_id]


def _task_id(value: Any) -> str | None:
    """Return the ``taskId`` in ``value``; `None` if there is none, or if ``value`` isn't an object."""
    task_id = as_object(value).get("taskId")
    return task_id if isinstance(task_id, str) else None


_MAX_WORKING_TASKS: Final = 1000


class WorkingTasks:
    """Records the latest 1,000 unfinished MCP tasks of an upstream server.

    Its connection should stay open for them, because the tasks of a child process, and of some other servers, end with
    the connection.
    """

    def __init__(self) -> None:
        self._ends = BoundedDict[str, float](_MAX_WORKING_TASKS)

    def end_time(self) -> float:
        """Return the latest time, on trio's clock, at which any of the unfinished tasks expires.

        This is ``-inf`` if there are no tasks, and ``inf`` if a task never expires.
        """
        now = trio.current_time()
        for task_id in [each for each, end in self._ends.items() if end <= now]:
            del self._ends[task_id]
        return max(self._ends.values(), default=-math.inf)

    def update(self, task_id: str, status: JSONObject) -> None:
        """Record the state of an MCP task that the upstream server has reported."""
        if status.get("status") in FINAL:
            self.remove(task_id)
            return
        ttl: Any = status.get("ttlMs", status.get("ttl"))
        known = type(ttl) in (int, float) and ttl >= 0
        self._ends[task_id] = trio.current_time() + ttl / 1000 if known else math.inf

    def remove(self, task_id: str) -> None:
        """Record that an MCP task has ended, so that the connection isn't kept open for it."""
        self._ends.pop(task_id, None)
