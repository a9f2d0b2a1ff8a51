"""ServerMessages: the requests and notifications that a server sends of its own accord; QuestionTasks: the
questions that a server of 2025-11-25 has its client answer as tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import attrs
import trio

from ..concurrency.time_limits import Graces
from ..protocol.errors import NoWayBack
from ..protocol.meta import RELATED_TASK
from ..protocol.types.lifecycle import EmptyResult
from ..runtime.exchange import Exchange
from ..runtime.peer import EVERYBODY
from ..runtime.requests.host import LATER, Decision, Now
from ..runtime.requests.runner import RequestRunner
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from ..tasks.host import TaskHost
from ..tasks.record_writers import Outcomes
from ..tasks.records import TaskRecords
from ..tasks.request_task import RequestTask
from ..tasks.task_methods import CoreMethods, asked_ttl
from .answers import Answer, Answers
from .callbacks import Callbacks

if TYPE_CHECKING:
    from ..protocol.fields import JSONObject
    from ..runtime.requests.host import RequestHandler, RequestHost
    from ..tasks.settings import TaskSettings


class ServerMessages:
    """Has requests answered by the handlers a client was opened with, and its callbacks told of notifications."""

    seal = None
    """Clients answer no request with questions. See `RequestHandler.seal`."""

    def __init__(self, answers: Answers, callbacks: Callbacks, host: RequestHost, tasks: TaskSettings | None) -> None:
        self._answers = answers
        self.tasks = None if tasks is None else QuestionTasks(host, self, tasks)
        """The questions that are tasks; `None`: there are none."""
        self._callbacks = callbacks
        self.wants = callbacks.wants
        """Says whether `notified` is to be called for an event. See `RequestHandler.wants`."""

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Answer a request that needs no waiting. See `RequestHandler.answer_now`."""
        if request.method.name == "ping":
            return Now(EmptyResult())
        if request.method.name == "elicitation/create":
            self._callbacks.urls.asked(request.params)  # here, since the end of the request may come in the same read
        if self._callbacks.relay is not None:
            self._callbacks.relay.came(request)
        return LATER

    async def answer(self, scope: RequestScope) -> Any:
        """Answer a request with its handler, or as a task. See `RequestHandler.answer`."""
        request, tasks = scope.request, self.tasks
        if tasks is not None and request.method.name.startswith("tasks/"):
            return await tasks.tell(scope)
        of_task = RELATED_TASK in request.meta
        answer = self._answers.prepare(request.method.name, request.params, request.revision, of_task=of_task)
        if tasks is not None and (task := tasks.wanted(scope)) is not None:
            return _related(await tasks.run_task(task, scope, answer), request)
        return _related(await answer(), request)

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """Call the callback for ``event``. See `RequestHandler.notified`."""
        return self._callbacks.notified(event)


def _related(result: Any, request: InboundRequest) -> Any:
    """Return ``result`` with the task of the server that the request belongs to (2025-11-25 tasks, Related Task
    Metadata: MUST be in responses)."""
    related: Any = request.meta.get(RELATED_TASK)
    if not isinstance(related, dict):
        return result
    if type(result) is dict:  # of somebody else, to whom the question was forwarded
        plain = cast("JSONObject", result)
        return {**plain, "_meta": _with(related, plain.get("_meta"))}
    return attrs.evolve(result, meta=_with(related, result.meta))


def _with(related: Any, meta: JSONObject | None) -> JSONObject:
    return {RELATED_TASK: related, **(meta or {})}


class QuestionTasks:
    """The tasks that a client runs for its server, in ``host``: questions answered by ``handler``."""

    def __init__(self, host: RequestHost, handler: RequestHandler, settings: TaskSettings) -> None:
        graces = Graces(host.limits.cleanup_grace)
        runner = RequestRunner(host, handler, graces, Outcomes(), _no_server, None, peer=EVERYBODY)
        records = TaskRecords(settings)
        self._host = TaskHost(host, runner, records, lambda: ("",))  # questions have no names
        self._methods = CoreMethods(records, self._host.questions, self._host.own)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the tasks until cancelled: see `TaskHost.run`."""
        await self._host.run(task_status=task_status)

    def shut_down(self) -> None:
        """Cancel all tasks, since the client is being closed. Synchronous."""
        self._host.shut_down(hurry=True)

    def tell(self, scope: RequestScope) -> Awaitable[Any]:
        """Answer a method of tasks. Raises `CodedError`."""
        return self._methods.answer(scope)

    def wanted(self, scope: RequestScope) -> RequestTask | None:
        """Return the task that the question of this request, whose parameters were checked, is to be; `None` where no
        task was asked for. Raises `CodedError`."""
        request, host = scope.request, self._host
        is_declared = request.revision.tasks == "core" and request.method.name != "roots/list"
        if not is_declared or request.params.get("task") is None:
            return None  # 2025-11-25 tasks, Task Support 1: MUST be ignored where not declared
        return RequestTask(host, scope, ttl_ms=asked_ttl(scope, host.settings), on_restart="fail", must_be=True)

    async def run_task(self, task: RequestTask, scope: RequestScope, answer: Answer) -> Any:
        """Tell the server of the ``task``, and return the answer then, which the task keeps."""
        scope.task = task
        await task.start()
        return await answer()


async def _no_server(*_: object, **__: object) -> NoReturn:
    raise NoWayBack("the task belongs to no connection")
