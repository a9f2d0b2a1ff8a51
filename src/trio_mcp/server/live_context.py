"""LiveContext and LiveTask: the contexts of a request that came over a connection.

`AskingContext` asks the questions of a context to its client. Clients may run questions as tasks of their own
(2025-11-25 tasks, Client Capabilities).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Mapping, Sequence
from math import inf
from typing import Any, TypeVar, Unpack, cast

import trio

from ..jsonrpc.codec import decode_value
from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation
from ..jsonrpc.messages import RequestId
from ..protocol.converters import NotExpressible, structure
from ..protocol.errors import BadAnswer, CapabilityMissing, MethodUnavailable, NoWayBack
from ..protocol.fields import JSONObject
from ..protocol.meta import TraceContext
from ..protocol.revisions import ASKED_BY, Revision, declares, lacks_notification
from ..protocol.schema_validator import SchemaValidator
from ..protocol.types.content import TextContent
from ..protocol.types.elicitation import ElicitFormParams, ElicitParams, ElicitResult, ElicitURLParams
from ..protocol.types.input_required import ASKABLE, for_elicitation, for_sampling
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult, ListRootsResult, Root, SamplingMessage
from ..runtime.calls import send_unheeded
from ..runtime.cancellation import Cancellation
from ..runtime.peer import Auth
from ..runtime.requests.logs import RequestLog
from ..runtime.requests.scope import RequestScope
from ..tasks.host import TaskHost
from ..tasks.remote_task import CoreRemoteTask, wish_for_task
from ..tasks.request_task import RequestTask
from ..tasks.task_state import TaskState
from .client_data import COMPLETE, ElicitAnswer, tells_completion
from .input_required import AS_TASK, checked_params, no_way_back_when_stateless
from .kept_tasks import CallerTasks
from .options import SamplingOptions
from .request_context import RequestContext, TaskContext
from .signature import form_schema

T = TypeVar("T")


class AskingContext(RequestContext):
    """Checks and sends the questions of a handler, and checks the answers. Subclasses say which questions the client
    takes, in `_no_way_back` and `_declares`, and how a question is sent, in `_deliver`."""

    __slots__ = ()

    def _no_way_back(self) -> NoWayBack | None:
        """Return the error for each question where the client cannot be asked at all; `None` elsewhere."""
        raise NotImplementedError

    def _declares(self, capability: str) -> bool:
        """Return whether the client declared ``capability``, and its revision has that capability."""
        raise NotImplementedError

    def _deliver(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        """Send this question and return its result, plain data. Raises as `RequestContext.send_request`."""
        raise NotImplementedError

    def _deliver_as_task(self, method: str, params: JSONObject | None, ttl: float) -> Awaitable[Any]:
        """Have the client run this question as a task, and return its result, plain data. Raises as
        `RequestContext.send_request`."""
        raise NotImplementedError

    def client_supports(self, capability: str) -> bool:
        if capability.partition(".")[0] in ASKED_BY and self._no_way_back() is not None:
            return False
        return self._declares(capability)

    async def send_request(
        self, method: str, params: JSONObject | None, result_type: type[T], *, task_ttl: float | None = None
    ) -> T:
        return self._structured(method, await self._ask_raw(method, params, task_ttl), result_type)

    def _structured(self, method: str, result: Any, result_type: type[T]) -> T:
        try:
            return structure(result, result_type)
        except ValueError as error:
            raise self._bad_answer(f"the result of {method} makes no sense: {error}") from None

    def _bad_answer(self, reason: str) -> ProtocolViolation:
        # 2026-07-28 mrtr, Error Handling: in modern revisions answers arrive as parameters of a request.
        return ProtocolViolation(reason) if self.revision.server_requests else BadAnswer(reason)

    def _ask_raw(self, method: str, params: JSONObject | None, task_ttl: float | None = None) -> Awaitable[Any]:
        self._check()
        if method in ASKABLE and params is not None and "task" in params:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
        if task_ttl is not None:
            return self._send(method, params, task_ttl)
        if not self.revision.server_requests and method not in ASKABLE:
            raise MethodUnavailable(method, self.revision)
        return self._deliver(method, params)

    def _send(self, method: str, params: JSONObject | None, task_ttl: float | None) -> Awaitable[Any]:
        """Send a question, as a task of the client unless ``task_ttl`` is `None`."""
        if task_ttl is None:
            return self._deliver(method, params)
        self._check(capability_for_task(method))
        return self._deliver_as_task(method, params, task_ttl)

    async def _ask(
        self,
        method: str,
        params: CreateMessageParams | ElicitParams,
        result_type: type[T],
        task_ttl: float | None = None,
    ) -> T:
        """Send a question that `_check` has let pass, and return its result as a ``result_type``."""
        try:
            data = checked_params(params, self.revision)
        except NotExpressible as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        return self._structured(method, await self._send(method, data, task_ttl), result_type)

    def _check(self, *capabilities: str) -> None:
        """Raise `NoWayBack`, else `CapabilityMissing`, which names the whole before its part (DESIGN ruling 18)."""
        if (no_way_back := self._no_way_back()) is not None:
            raise no_way_back
        for capability in capabilities:
            if not self._declares(capability):
                raise CapabilityMissing([each for each in capabilities if not self._declares(each)], self.revision)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        task_ttl: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        if "task" in options:
            raise TypeError(AS_TASK)
        has_tools = options.get("tools") is not None or options.get("tool_choice") is not None
        self._check(*for_sampling(tools=has_tools, context=options.get("include_context")))
        if isinstance(messages, str):
            messages = [SamplingMessage("user", TextContent(messages))]
        params = CreateMessageParams(list(messages), max_tokens, **options)
        return await self._ask("sampling/createMessage", params, CreateMessageResult, task_ttl)

    async def sample_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("sampling/createMessage", params)

    async def elicit(
        self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None, task_ttl: float | None = None
    ) -> ElicitAnswer:
        self._check(*for_elicitation("form"))
        schema = form_schema(form)
        params = ElicitFormParams(message, schema, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        if answer.action == "accept" and (fault := SchemaValidator(schema).faults(answer.content or {})):
            raise self._bad_answer(f"the accepted form does not fit what was asked: {fault}")
        return ElicitAnswer(answer.action, answer.content if answer.action == "accept" else None)

    async def elicit_url(
        self,
        message: str,
        url: str,
        elicitation_id: str,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        self._check(*for_elicitation("url"))
        params = ElicitURLParams(message, url, elicitation_id, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        return ElicitAnswer(answer.action)

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("elicitation/create", params)

    async def list_roots(self) -> list[Root]:
        self._check("roots")
        return self._structured("roots/list", await self._deliver("roots/list", None), ListRootsResult).roots

    async def list_roots_raw(self) -> JSONObject:
        return cast("JSONObject", await self._ask_raw("roots/list", None))


class LiveContext(AskingContext):
    """A view of one `RequestScope`."""

    __slots__ = ("_lifespan", "_scope", "_tasks")

    def __init__(self, scope: RequestScope, lifespan: Any, tasks: TaskHost | None = None) -> None:
        self._scope = scope
        self._lifespan = lifespan
        self._tasks = tasks

    # Identity

    @property
    def request_id(self) -> RequestId:
        return self._scope.request.id

    @property
    def revision(self) -> Revision:
        return self._scope.request.revision

    @property
    def session_id(self) -> str | None:
        return self._scope.exchange.peer.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        request = self._scope.request
        request.unpack()
        return request.meta

    @property
    def trace(self) -> TraceContext | None:
        return self._scope.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        return self._scope.exchange.peer.headers

    @property
    def auth(self) -> Auth | None:
        return self._scope.exchange.peer.auth

    @property
    def stateless(self) -> bool:
        # 2026-07-28 basic, Statelessness: each request is processed by itself.
        return self._scope.runner.stateless or not self._scope.request.revision.handshake

    @property
    def lifespan(self) -> Any:
        return self._lifespan

    @property
    def task(self) -> TaskContext | None:
        task = self._scope.task
        return LiveTask(task) if isinstance(task, RequestTask) else None

    @property
    def task_store(self) -> CallerTasks | None:
        return None if self._tasks is None else CallerTasks(self._tasks, self._scope)

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        nursery = self._scope.abort.nursery
        assert nursery is not None, "a handler runs inside the nursery"
        return nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        return self.nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        return self._scope.is_cancelled

    @property
    def cancellation(self) -> Cancellation | None:
        return self._scope.cancellation

    @property
    def cancelled(self) -> threading.Event:
        return self._scope.abort.event

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        return self._scope.progress(progress, total, message)

    @property
    def log(self) -> RequestLog:
        return self._scope.log

    async def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        scope = self._scope
        if lacks_notification(method, "server", scope.request.revision):
            raise MethodUnavailable(method, scope.request.revision)
        line = scope.notification(method, params)
        await trio.lowlevel.checkpoint()
        await scope.outbox.room()
        scope.put(line)

    async def elicitation_complete(self, elicitation_id: str) -> bool:
        request, scope = self._scope.request, self._scope
        told = tells_completion(elicitation_id, request.revision, request.capabilities)
        line = scope.notification(COMPLETE, {"elicitationId": elicitation_id})
        await trio.lowlevel.checkpoint()
        if not told:
            return False
        outbox = scope.outbox if scope.sends else scope.exchange.lasting.outbox
        await outbox.room()
        if outbox.over:
            return False
        outbox.put_sealed(line)
        return True

    def close_stream(self, retry: float = 1.0) -> bool:
        return self._scope.exchange.close_stream(retry)

    # Rounds

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        continuation = self._scope.request.continuation
        return {} if continuation is None else continuation.responses

    @property
    def request_state(self) -> str:
        continuation = self._scope.request.continuation
        return "" if continuation is None else continuation.state

    # Asking the client

    def _declares(self, capability: str) -> bool:
        request = self._scope.request
        return declares(request.capabilities, capability, request.revision)

    def _deliver(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        ask = self._scope.ask_client(method, params)
        return self._in_time(ask) if method == "elicitation/create" else ask

    def _deliver_as_task(self, method: str, params: JSONObject | None, ttl: float) -> Awaitable[Any]:
        ask = ask_as_task(self._scope, method, params, ttl)
        return self._in_time(ask) if method == "elicitation/create" else ask

    def _in_time(self, ask: Awaitable[Any]) -> Awaitable[Any]:
        """Let the time limit of the handler stand still while the user is asked."""
        abort = self._scope.abort
        return abort.standing_still(ask) if abort.has_time_limit else ask

    def _no_way_back(self) -> NoWayBack | None:
        scope = self._scope
        method, revision = scope.request.method, scope.request.revision
        if not revision.server_requests and not method.may_ask:
            return NoWayBack(f"{method.name} cannot ask its client in revision {revision}")
        is_told = scope.rounds is not None or (scope.task is not None and scope.task.has_started)
        if scope.runner.stateless and (revision.server_requests or not is_told):
            return no_way_back_when_stateless(method, revision)
        return None


class LiveTask(TaskContext):
    """A view of one `RequestTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task

    @property
    def id(self) -> str:
        return self._task.id

    @property
    def ttl(self) -> float | None:
        return None if self._task.ttl_ms is None else self._task.ttl_ms / 1000

    @property
    def requested_ttl(self) -> float | None:
        request = self._task.scope.request
        request.unpack()
        wish: JSONObject = request.params.get("task", {}) if request.revision.tasks == "core" else {}
        if "ttl" not in wish:
            return None
        return math.inf if wish["ttl"] is None else wish["ttl"] / 1000

    @property
    def has_started(self) -> bool:
        return self._task.has_started

    @property
    def attempt(self) -> int:
        return self._task.attempt

    @property
    def restored(self) -> Any:
        restored = self._task.restored
        return None if restored is None else decode_value(restored)

    def status(self, message: str) -> None:
        self._task.tell(message)

    async def start(self) -> None:
        await self._task.start()

    async def checkpoint(self, value: Any) -> None:
        await self._task.checkpoint(value)


def capability_for_task(method: str) -> str:
    """Return the capability of clients that run requests of ``method`` as tasks."""
    return f"tasks.requests.{method.replace('/', '.')}"


async def ask_as_task(scope: RequestScope, method: str, params: JSONObject | None, ttl: float) -> Any:
    """Have the client run a question of ``scope`` as a task that the client is to keep for ``ttl`` seconds, and return
    its result, plain data.

    Leaving the call for any reason cancels the task. Raises as `RequestScope.ask`, `TaskCancelled` for a task that was
    cancelled over there, and `ValueError` for a ``ttl`` that is no time.
    """
    if not scope.sends_questions:
        raise NoWayBack("the questions of a task go to its requestor, and are no tasks themselves")
    revision = scope.request.revision

    async def ask(method: str, params: JSONObject) -> Any:
        return await scope.ask(method, params, revision)

    def forget(task_id: str) -> None:
        send_unheeded(scope.exchange.state, scope.outbox, "tasks/cancel", {"taskId": task_id}, revision)

    asked = {**(params or {}), "task": wish_for_task(None if ttl == inf else ttl)}
    result = await scope.ask(method, asked, revision, cancel_task=forget)
    return await CoreRemoteTask.created(method, result, ask, forget).result(_told, cancels=True)


async def _told(_: TaskState) -> None:
    """Take a state that nobody wants to know."""
