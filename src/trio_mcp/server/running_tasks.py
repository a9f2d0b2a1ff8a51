"""RunningTasks: the tasks of a running server, and the methods that tell of them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NoReturn

import trio

from ..classes import frozen
from ..concurrency.time_limits import Graces
from ..jsonrpc.errors import CodedError
from ..protocol.errors import NoWayBack
from ..runtime.exchange import Exchange
from ..runtime.peer import EVERYBODY
from ..runtime.requests.host import LATER, Decision, RequestHost
from ..runtime.requests.runner import RequestRunner
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from ..stores.task_store import TaskRecord
from ..tasks.host import TaskHost
from ..tasks.record_writers import Outcomes
from ..tasks.records import TaskRecords
from ..tasks.settings import TaskSettings
from ..tasks.task_methods import CoreMethods, ExtensionMethods, scope_of, unknown_task
from .tools import Tools


class RunningTasks:
    """The tasks of the ``tools`` of a server, which run in ``host``."""

    def __init__(
        self, tools: Tools, host: RequestHost, outcomes: Outcomes, settings: TaskSettings, lifespan: Any
    ) -> None:
        self._scopes = _TaskScopes(tools)
        work = _ToolWork(tools, lifespan)
        graces = Graces(host.limits.cleanup_grace)
        runner = RequestRunner(host, work, graces, outcomes, _no_client, None, peer=EVERYBODY)
        self.records = TaskRecords(settings)
        self.host = TaskHost(host, runner, self.records, tools.registry.names)
        self.are_kept = settings.store is not None or not host.stateless
        """False in a server that is run stateless, and has no store of its own: there are no tasks."""
        work.run_in(self.host)
        # Not a method of this object: that would be a cycle, for the garbage collector to find.
        self._core = CoreMethods(self.records, self.host.questions, self.host.own, self._scopes.are_had)
        self._extension = ExtensionMethods(self.records)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the tasks until cancelled: see `TaskHost.run`."""
        await self.host.run(task_status=task_status)

    def shut_down(self, *, hurry: bool) -> None:
        """Have the tasks end: see `TaskHost.shut_down`."""
        self.host.shut_down(hurry=hurry)

    async def drain(self) -> None:
        """Wait for the end of the tasks: see `TaskHost.drain`."""
        await self.host.drain()

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        """Answer a method of tasks, in the form of the request's revision."""
        methods = self._core if scope.request.revision.tasks == "core" else self._extension
        if scope.exchange.peer.check_scopes is None:
            return methods.answer(scope)
        return self._answer_checked(methods, scope)

    async def _answer_checked(self, methods: CoreMethods | ExtensionMethods, scope: RequestScope) -> Any:
        task_id = scope.request.params.get("taskId")
        record = await self.records.read(scope_of(scope), task_id) if isinstance(task_id, str) else None
        if record is not None:
            self.check_scopes(scope, record)
        return await methods.answer(scope)

    def check_scopes(self, scope: RequestScope, record: TaskRecord) -> None:
        """Raise `CodedError` where the caller of a request lacks a scope of the tool that has made the task."""
        self._scopes.check(scope, record)


@frozen
class _TaskScopes:
    """The scopes of tasks are those of their tools: the result of a tool is as well protected as the tool."""

    tools: Tools

    def check(self, scope: RequestScope, record: TaskRecord) -> None:
        """Raise `CodedError` where the caller of a request lacks a scope. Of a tool that is gone nobody knows the
        scopes: in a server with scopes its tasks do not exist for callers who have to have some."""
        tool = self.tools.registry.get(record.name)
        if tool is not None:
            scope.exchange.check_scopes(tool.scopes)
        elif scope.exchange.peer.check_scopes is not None and any(entry.scopes for entry in self.tools.registry):
            raise unknown_task()

    def are_had(self, scope: RequestScope, record: TaskRecord) -> bool:
        """Return whether the caller of a request has the scopes, so that a listing shows the task."""
        try:
            self.check(scope, record)
        except CodedError:
            return False
        return True


class _ToolWork:
    """Runs tools for requests that belong to no connection. A `RequestHandler`."""

    seal = None

    def __init__(self, tools: Tools, lifespan: Any) -> None:
        self._tools = tools
        self._lifespan = lifespan
        self._tasks: TaskHost | None = None

    def run_in(self, tasks: TaskHost) -> None:
        """Have tools run as tasks of ``tasks``."""
        self._tasks = tasks

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        return LATER

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        return self._tools.call(scope, self._lifespan, self._tasks)

    def wants(self, event: NotificationReceived) -> bool:
        return False

    async def notified(self, event: NotificationReceived) -> None:
        raise NotImplementedError


async def _no_client(*_: object, **__: object) -> NoReturn:
    raise NoWayBack("the task belongs to no connection")
