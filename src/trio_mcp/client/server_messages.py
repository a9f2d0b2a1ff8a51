"""ServerMessages: the requests and notifications that a server sends of its own accord."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

import attrs

from ..protocol.meta import RELATED_TASK
from ..protocol.types.lifecycle import EmptyResult
from ..runtime.exchange import Exchange
from ..runtime.requests.host import LATER, Decision, Now
from ..runtime.requests.scope import RequestScope
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .answers import Answers
from .callbacks import Callbacks

if TYPE_CHECKING:
    from ..protocol.fields import JSONObject
    from ..runtime.requests.host import RequestHost
    from ..tasks.settings import TaskSettings
    from .question_tasks import QuestionTasks


class ServerMessages:
    """Has requests answered by the handlers a client was opened with, and its callbacks told of notifications."""

    seal = None
    """Clients answer no request with questions. See `RequestHandler.seal`."""

    def __init__(self, answers: Answers, callbacks: Callbacks, host: RequestHost, tasks: TaskSettings | None) -> None:
        self._answers = answers
        self.tasks = None if tasks is None else _question_tasks(host, self, tasks)
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


def _question_tasks(host: RequestHost, handler: ServerMessages, settings: TaskSettings) -> QuestionTasks:
    from .question_tasks import QuestionTasks  # late: few clients run tasks

    return QuestionTasks(host, handler, settings)
