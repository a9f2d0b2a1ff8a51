"""RunningTasks: the tasks of a running server, and the methods that tell of them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..protocol.fields import JSONObject
from ..runtime.exchange import Exchange
from ..runtime.requests.host import LATER, Decision, RequestHost
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from ..tasks.host import TaskHost
from ..tasks.record_writers import OutcomeReplies
from ..tasks.settings import TaskSettings
from ..tasks.task_methods import CoreMethods, ExtensionMethods, scope_of
from .offers.tools import Tools

if TYPE_CHECKING:
    from .middleware import MiddlewareChains


class RunningTasks:
    """The tasks of the ``tools`` of a server, which run in ``host``."""

    def __init__(
        self,
        tools: Tools,
        host: RequestHost,
        outcomes: OutcomeReplies,
        settings: TaskSettings,
        lifespan: Any,
        middleware: MiddlewareChains | None,
    ) -> None:
        self._tools = tools
        work = _ToolTaskHandler(tools, lifespan, middleware)
        self.host = TaskHost(host, work, outcomes, settings, tools.names)
        self.records = self.host.records
        self.are_stored = settings.store is not None or not host.stateless
        """False in a server that is run stateless, and has no store of its own: there are no tasks."""
        work.tasks = self.host
        # Not a method of this object: that would be a cycle, for the garbage collector to find.
        self.core = CoreMethods(self.records, self.host.questions, self.host.own_tasks, tools.has_task_scopes)
        self.extension = ExtensionMethods(self.records)

    async def answer_checked(self, methods: CoreMethods | ExtensionMethods, scope: RequestScope) -> Any:
        """Answer by ``methods``, if the caller has the OAuth scopes that the tool of the task takes."""
        task_id = scope.request.params.get("taskId")
        record = await self.records.read(scope_of(scope), task_id) if isinstance(task_id, str) else None
        if record is not None:
            self._tools.check_scopes(scope, record)
        return await methods.answer(scope)


class _ToolTaskHandler:
    """Runs tools for requests that belong to no connection. A `RequestHandler`."""

    seal = None

    def __init__(self, tools: Tools, lifespan: Any, middleware: MiddlewareChains | None) -> None:
        self._tools = tools
        self._lifespan = lifespan
        self._middleware = middleware
        self.tasks: TaskHost | None = None
        """The host that runs tools as tasks."""

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
