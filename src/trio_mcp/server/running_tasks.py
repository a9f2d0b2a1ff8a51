"""`RunningTasks`: the tasks of a running server, and the protocol methods for tasks."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..protocol.fields import JSONObject
from ..runtime.exchange import Exchange
from ..runtime.requests.host import LATER, Decision, RequestHost
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .context.request_context import GetTaskHost
from .offers.tools import Tools

if TYPE_CHECKING:
    from ..concurrency.nurseries import ServiceNursery
    from ..tasks.host import TaskHost
    from ..tasks.records import TaskRecords, TaskSettings
    from ..tasks.task_methods import CoreMethods, ExtensionMethods
    from .middleware import MiddlewareChains


class RunningTasks:
    """The MCP tasks of a running server, created by calls of its ``tools``. Task handlers run in ``host``.

    Most servers have no tasks. So the `TaskHost` is created, and its modules imported, only when a task is first
    requested, or at the start if `TaskSettings.store` may hold tasks of earlier runs. It runs in the nursery
    ``services``.
    """

    def __init__(
        self,
        tools: Tools,
        host: RequestHost,
        settings: TaskSettings | None,
        lifespan: Any,
        middleware: MiddlewareChains | None,
        services: ServiceNursery,
        *,
        expose_errors: bool,
    ) -> None:
        self._tools = tools
        self._request_host = host
        self._settings = settings
        self._lifespan = lifespan
        self._middleware = middleware
        self._services = services
        self._context = copy_context()
        """The server's context variables, with which the task host runs. Otherwise, the host would run with its first
        caller's variables, and keep them alive."""
        self._expose_errors = expose_errors
        self._host: TaskHost | None = None
        self._shuts_down = self._hurries = False
        has_store = settings is not None and settings.store is not None
        self.are_stored = has_store or not host.stateless
        """False if the server is stateless and has no task store, because then it has no tasks."""
        if has_store:
            self.host()

    def host(self) -> TaskHost:
        """Return the `TaskHost` that runs the MCP tasks. The first use creates it."""
        if self._host is None:
            from ..tasks.host import TaskHost  # lazy import: servers without MCP tasks start faster
            from ..tasks.record_writers import OutcomeReplies
            from ..tasks.records import DEFAULT_TASKS

            work = _ToolTaskHandler(self._tools, self._lifespan, self._middleware)
            outcomes, settings = OutcomeReplies(expose_errors=self._expose_errors), self._settings or DEFAULT_TASKS
            self._host = host = TaskHost(self._request_host, work, outcomes, settings, self._tools.names)
            work.tasks = lambda: host
            self._context.run(self._services.start_soon, host.run)
            if self._shuts_down:
                host.shut_down(hurry=self._hurries)
        return self._host

    @property
    def has_host(self) -> bool:
        """True if this server has created its `TaskHost`, which runs MCP tasks. Otherwise there are no task records
        yet. Any thread may read this property."""
        return self._host is not None

    @property
    def records(self) -> TaskRecords:
        """The records of this server's MCP tasks."""
        return self.host().records

    @cached_property
    def core(self) -> CoreMethods:
        """Handles requests about MCP tasks in protocol revision 2025-11-25."""
        from ..tasks.task_methods import CoreMethods  # lazy import, see `host`

        host = self.host()
        # Don't pass a bound method of this object: only the garbage collector could free the resulting reference cycle.
        return CoreMethods(host.records, host.questions, host.own_tasks, self._tools.has_task_scopes)

    @cached_property
    def extension(self) -> ExtensionMethods:
        """Handles requests of the tasks extension, which replaces the MCP tasks of revision 2025-11-25 in later
        revisions."""
        from ..tasks.task_methods import ExtensionMethods  # lazy import, see `host`

        return ExtensionMethods(self.records)

    def shut_down(self, *, hurry: bool = False) -> None:
        """From now on, refuse new tasks. See `TaskHost.shut_down`."""
        self._shuts_down, self._hurries = True, self._hurries or hurry
        if self._host is not None:
            self._host.shut_down(hurry=hurry)

    async def drain(self) -> None:
        """Refuse new MCP tasks, and wait until no task is running in this process."""
        self.shut_down()
        if self._host is not None:
            await self._host.drain()

    async def answer_checked(self, methods: CoreMethods | ExtensionMethods, scope: RequestScope) -> Any:
        """Check that the caller has the OAuth scopes of an MCP task's tool. Then let ``methods`` answer the caller's
        request about the task."""
        from ..tasks.task_methods import scope_of  # lazy import, see `host`

        task_id = scope.request.params.get("taskId")
        record = await self.records.read(scope_of(scope), task_id) if isinstance(task_id, str) else None
        if record is not None:
            self._tools.check_scopes(scope, record)
        return await methods.answer(scope)


class _ToolTaskHandler:
    """A `RequestHandler` that runs tool calls as MCP tasks, without a connection to the client."""

    seal = None

    def __init__(self, tools: Tools, lifespan: Any, middleware: MiddlewareChains | None) -> None:
        self._tools = tools
        self._lifespan = lifespan
        self._middleware = middleware
        self.tasks: GetTaskHost = None
        """Function that returns the host, which runs tools as tasks."""

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        return LATER

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        if self._middleware is None:
            return self._tools.call(scope, self._lifespan, self.tasks)
        return self._middleware.answer(self._call, scope, self._lifespan, self.tasks)

    def _call(self, scope: RequestScope, arguments: JSONObject | None = None) -> Awaitable[Any]:
        return self._tools.call(scope, self._lifespan, self.tasks, arguments)

    def wants(self, event: NotificationReceived) -> bool:
        return False

    async def notified(self, event: NotificationReceived) -> None:
        raise NotImplementedError
