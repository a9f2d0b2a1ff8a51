"""RequestContext: a handler's view of its request.

The class itself is passive: never cancelled, notifications dropped, requests refused, nothing kept. Test fakes override
one or two members as needed. `LiveContext` has a request; `worker_context` makes the members for threads of those here.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import trio

from ...concurrency.misuse import check_keywords
from ...jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, CodedError
from ...jsonrpc.messages import RequestId
from ...protocol.converters import NotExpressible, unstructure
from ...protocol.errors import CapabilityMissing, MethodUnavailable
from ...protocol.fields import JSONObject
from ...protocol.meta import TraceContext
from ...protocol.revisions import ASKED_BY, LATEST_MODERN, Revision, declares, lacks_notification
from ...protocol.types.content import TextContent
from ...protocol.types.elicitation import ElicitFormParams, ElicitParams, ElicitResult, ElicitURLParams
from ...protocol.types.input_required import ASKABLE, for_elicitation
from ...protocol.types.sampling import CreateMessageParams, CreateMessageResult, ListRootsResult, Root, SamplingMessage
from ...runtime.cancellation import Cancellation
from ...runtime.peer import Auth
from ...runtime.requests.reports import RequestLog
from ...runtime.requests.rounds import ask_client
from ...runtime.requests.scope import RequestScope
from ..options import ContextNames, L_co, SamplingOptions
from .client_data import COMPLETE, ElicitAnswer, Form, should_notify_completion, typed, typed_text
from .input_required import AS_TASK, ask_as_task, bad_answer, checked_params, needed_for, no_back_channel, structured
from .logs import SilentLog

if TYPE_CHECKING:
    from ...protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from ...tasks.host import TaskHost
    from .state import CallerState
    from .tasks import CallerTasks, TaskContext

T = TypeVar("T")
P = TypeVar("P")
C = TypeVar("C")


class RequestContext(ContextNames[L_co]):
    """The request of a handler: the sender, ways to tell and ask the client, and notice of a cancel.

    Every member has a passive default. All values belong to this one request: two concurrent requests of
    different revisions never see each other's values.
    """

    __slots__ = ()

    _live: RequestScope | None = None
    """The request, in a `LiveContext`; `None` in a passive context."""
    _lifespan: Any = None
    _tasks: Callable[[], TaskHost] | None = None

    # Identity

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id of this call, `int` or `str` as received."""
        return 0 if self._live is None else self._live.request.id

    @property
    def revision(self) -> Revision:
        """The protocol revision of this request."""
        return LATEST_MODERN if self._live is None else self._live.request.revision

    @property
    def session_id(self) -> str | None:
        """The name of the connection over WebSocket, or of the session over HTTP in a legacy revision; `None` where
        there is no such name, as on stdio."""
        return None if self._live is None else self._live.exchange.peer.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        """``_meta`` of the request, unknown keys included. Treat the dict as read-only."""
        if self._live is None:
            return {}
        self._live.request.unpack()
        return self._live.request.meta

    @property
    def trace(self) -> TraceContext | None:
        """The distributed trace that the request belongs to; `None` for a request without a trace. Questions of the
        handler to its client, and its calls to other servers with a client of this package, carry the trace on."""
        return None if self._live is None else self._live.request.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers of the HTTP request, by their names in any case; `None` where there was none."""
        return None if self._live is None else self._live.exchange.peer.headers

    @property
    def peer_user(self) -> int | None:
        """The id of the user whose process sent the request over a Unix socket, as Linux tells (``SO_PEERCRED``);
        `None` elsewhere, on other systems, and where the request came to another replica."""
        return None if self._live is None else self._live.exchange.peer.user

    @property
    def auth(self) -> Auth | None:
        """The caller; `None` when no authentication is configured. In a run of a task after a restart, the identity of
        the caller alone: the token is empty, and scopes and claims are gone."""
        return None if self._live is None else self._live.exchange.peer.auth

    @property
    def stateless(self) -> bool:
        """True where nothing is kept between requests: in modern requests, and on servers run that way."""
        # 2026-07-28 basic, Statelessness: each request is processed by itself.
        return self._live is not None and (self._live.runner.stateless or not self._live.request.revision.handshake)

    @property
    def lifespan(self) -> L_co:
        """The value that the server's lifespan yielded: a ``Database`` in a `RequestContext[Database]`."""
        return self._lifespan

    @property
    def task(self) -> TaskContext | None:
        """The task that the request is, or may become; `None` for a call that is no task."""
        if self._live is None or (task := self._live.task) is None:
            return None
        from .tasks import LiveTask  # late: most servers have no tasks

        return LiveTask(task)

    @property
    def caller_tasks(self) -> CallerTasks | None:
        """The tasks of this caller, in the handler of a tool; `None` where the server has no tasks."""
        if self._live is None or self._tasks is None:
            return None
        from .tasks import CallerTasks  # late: most servers have no tasks

        return CallerTasks(self._tasks, self._live)

    @property
    def state(self) -> CallerState:
        """The values that the server keeps for this caller between requests: ``await ctx.state.get("cart", [])``,
        ``await ctx.state.set("cart", cart)``."""
        from .state import CallerState  # late: few servers keep state

        return CallerState(self._live)

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        """The request's nursery. The tasks of the nursery are part of the request: a cancel of the request cancels the
        tasks, and the answer goes out when the handler has returned and all tasks have ended."""
        if self._live is None:
            raise RuntimeError("this context has no nursery: it is a passive one, for tests")
        assert self._live.nursery is not None, "a handler runs inside the nursery"
        return self._live.nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The scope of the whole request. A cancel of this scope aborts the request."""
        return trio.CancelScope() if self._live is None else self.nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled. May be read from any thread."""
        return self._live is not None and self._live.is_cancelled

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled; `None` before a cancel. May be read from any thread.

        The value is set before the handler, or any task in its nursery, sees a `trio.Cancelled` of the request, for
        every source of the cancel. A cancel of a scope inside that of the request leaves the value `None`.
        """
        return None if self._live is None else self._live.cancellation

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the request is cancelled, for threads and foreign code that cannot see
        `trio.Cancelled`.

        The event is set for every source of the cancel: the client, the application, the time limit of the tool, or the
        handler by `cancel_scope`. Ask for the event while the handler runs; a cancel after the handler's return, while
        the nursery still runs, need not set the event. A trio task has no need of it: a cancel reaches the task.
        """
        return threading.Event() if self._live is None else self._live.event

    async def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled; else return at once, without letting others run.

        Call this in long stretches of code that wait for nothing; any other checkpoint does the same. In plain ``def``
        handlers the call is `WorkerContext.check_cancelled`, without ``await``.
        """
        await trio.lowlevel.checkpoint_if_cancelled()

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report how far the work is; ``total`` in the same unit. Never blocks, never raises.

        True when a notification was put on its way: at most one per `Limits.progress_interval`. False until the
        interval is over: the latest value is kept and sent at the end of the interval, at the latest before the answer;
        so a report may follow a log message that was sent later. False too, and without any effect, when the client
        gave no progress token, for a value that does not exceed the value before, and for a report that cannot be sent:
        numbers must be finite (numpy's are accepted), and ``message`` must be text. May be called from any thread;
        outside of trio's thread, true means that trio's thread makes the report soon.
        """
        if (scope := self._live) is None:
            return False
        return scope.progress(progress, total, message)

    @property
    def log(self) -> RequestLog:
        """The client's log: ``await ctx.log.info({"rows": 3}, logger="db")``."""
        return SilentLog() if self._live is None else self._live.log

    @overload
    async def send_notification(self, method: ExtensionNotification[P], params: P) -> None: ...
    @overload
    async def send_notification(self, method: str, params: JSONObject | None = None) -> None: ...
    async def send_notification(self, method: str | ExtensionNotification[Any], params: Any = None) -> None:
        """Send a notification that belongs to this request. A notification after the end of the request is dropped. One
        of an extension takes an object of the class of its parameters, and is dropped, too, where the client has not
        declared the extension.

        Raises, with nothing sent, `MethodUnavailable` for a method of the specification that a server does not send as
        a notification in this revision, and `NotSerializable`.
        """
        scope = self._live
        if not isinstance(method, str):
            if not self.client_supports(f"extensions.{method.extension}"):
                scope = None
            method, params = method.name, unstructure(params, self.revision)
        if scope is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        if lacks_notification(method, "server", scope.request.revision):
            raise MethodUnavailable(method, scope.request.revision)
        line = scope.notification(method, params)
        await trio.lowlevel.checkpoint()
        await scope.outbox.room()
        scope.put(line)

    async def elicitation_complete(self, elicitation_id: str) -> bool:
        """Tell the client that its user is done at the URL of this elicitation: one of `elicit_url`, or of an error
        -32042. The call also works after the end of the request, for as long as the connection lives: keep the context.

        Waits for room in the outbox; cancelled before that, the call sends nothing. True when the notification is on
        its way. False, with nothing sent, where the revision lacks the notification (all but 2025-11-25), the client
        did not declare ``elicitation.url``, or the connection is over. Raises `ValueError` for an empty id.
        """
        scope = self._live
        if scope is None:
            return False
        told = should_notify_completion(elicitation_id, scope.request.revision, scope.request.capabilities)
        line = scope.notification(COMPLETE, {"elicitationId": elicitation_id})
        await trio.lowlevel.checkpoint()
        if not told:
            return False
        outbox = scope.outbox if scope.sends else scope.exchange.client_channel.outbox
        await outbox.room()
        if not (is_over := outbox.over):
            outbox.put_sealed(line)
        return not is_over

    def close_stream(self, retry: float = 1.0) -> bool:
        """Close the HTTP response of this request for now, and let the client come back for the rest after ``retry``
        seconds, so that a long request holds no connection (2025-11-25 transports, SEP-1699).

        Return true when the response is closed. Progress, logs and the result are kept meanwhile, within the bounds of
        `Limits`. False, with nothing changed, if the client can't come back: on every other transport, in other
        revisions, and in a stateless server. Synchronous; never raises in trio's thread. Any other thread waits for
        trio's thread.
        """
        if (scope := self._live) is None:
            return False
        return scope.runner.trio_run.call(lambda: scope.exchange.close_stream(retry))

    # Rounds, for handlers that return `InputRequired`

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        """The client's answers to the last `InputRequired`, by its keys, untrusted; empty in the first round."""
        continuation = None if self._live is None else self._live.request.continuation
        return {} if continuation is None else continuation.responses

    @property
    def request_state(self) -> str:
        """The ``state`` of the last `InputRequired`; empty in the first round, and when none was given."""
        continuation = None if self._live is None else self._live.request.continuation
        return "" if continuation is None else continuation.state

    @property
    def is_resubmit(self) -> bool:
        """True when the client came back with answers."""
        return bool(self.input_responses)

    def has_input_response(self, key: str) -> bool:
        """Return whether the client answered the question ``key``."""
        return key in self.input_responses

    def input_response_as(self, kind: type[T], key: str) -> T:
        """Return the answer to ``key`` as a ``kind``, `ElicitResult` for example, or a class of the handler's own: of
        attrs, a dataclass, TypedDict or msgspec Struct.

        Members in JSON have the names of the fields. An empty object stands for an absent answer. JSON types are never
        coerced. Raises `ValueError` when the answer does not fit.
        """
        return typed(self.input_responses.get(key, {}), kind)

    def request_state_as(self, kind: type[T]) -> T:
        """Return `request_state`, a JSON text, as a ``kind``, see `input_response_as`; ``kind()`` for an empty state.

        Raises `ValueError` when the state is no JSON or does not fit, and for an empty state when ``kind`` has required
        fields.
        """
        return typed_text(self.request_state, kind)

    # Asking the client

    def client_supports(self, capability: str) -> bool:
        """Return whether the client supports ``capability``, ``"sampling"`` or ``"elicitation.url"`` for example.

        True for each capability that the client declared and its revision has. For the capabilities of questions the
        result agrees with `sample`, `elicit`, `elicit_url` and `list_roots`: false where these methods would raise
        `NoBackChannel` or `CapabilityMissing`.
        """
        if capability.partition(".")[0] in ASKED_BY and self._refusal() is not None:
            return False
        return self._declares(capability)

    def client_extension(self, extension: Extension[Any, C]) -> C | None:
        """Return the settings with which the client has declared ``extension``; `None` where it has not."""
        declared = None if self._live is None else self._live.request.capabilities.extensions
        return extension._settings_in(declared, "client")

    def no_channel(self) -> CodedError:
        """Return the error of every question of this context. Subclasses may say why there is no channel."""
        return CodedError(
            INVALID_REQUEST,
            "there is no server-to-client channel: this RequestContext is passive, made without a request; "
            "in tests, use trio_mcp.testing.RecordingContext",
        )

    @overload
    async def send_request(self, method: ExtensionRequest[P, T], params: P) -> T: ...
    @overload
    async def send_request(
        self, method: str, params: JSONObject | None, result_type: type[T], *, task_ttl: float | None = None
    ) -> T: ...
    async def send_request(
        self,
        method: str | ExtensionRequest[Any, T],
        params: Any,
        result_type: type[T] | None = None,
        *,
        task_ttl: float | None = None,
    ) -> T:
        """Send a request to the client, as part of this request, and return its result as a ``result_type``. A method
        of an extension takes and returns objects of its own classes; a client that has not declared the extension is
        `CapabilityMissing`. Modern clients answer the three questions of the specification alone.

        A cancel of this request cancels the sent request, for the same reason. Raises `PeerError`, `ConnectionLost`,
        `ProtocolViolation` for a result that is no ``result_type``, and `CodedError` when the request may not be sent.

        With ``task_ttl`` the client runs the request as a task of its own, and keeps the result for that many seconds;
        ``math.inf``: for as long as the client likes. This method asks how the task is until its end; leaving it
        cancels the task. A client that did not declare to do so (``tasks.requests.sampling.createMessage`` for example;
        revision 2025-11-25 alone) is `CapabilityMissing`; a task that the client's side cancels is `TaskCancelled`.
        """
        if not isinstance(method, str):
            self._check(f"extensions.{method.extension}")
            method, params, result_type = method.name, unstructure(params, self.revision), method.result
        kind = cast("type[T]", result_type)
        return structured(method, await self._ask_raw(method, params, task_ttl), kind, self.revision)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        task_ttl: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        """Ask the client's model. A plain string is one user message. `SamplingOptions` documents the other keywords;
        ``task_ttl``: see `send_request`.

        Raises, before anything is sent and in this order: `NoBackChannel`, `CapabilityMissing` for ``sampling``,
        for ``sampling.tools`` when tools or a tool choice are given, and for ``sampling.context`` when the
        context of servers is to be included. Then as `send_request`.
        """
        if "task" in options:
            raise TypeError(AS_TASK)
        if isinstance(messages, str):
            messages = [SamplingMessage("user", TextContent(messages))]
        try:
            params = CreateMessageParams(list(messages), max_tokens, **options)
        except TypeError:
            check_keywords(RequestContext.sample, options)
            raise
        return await self._ask("sampling/createMessage", params, CreateMessageResult, task_ttl)

    async def sample_raw(self, params: JSONObject) -> JSONObject:
        """Send ``sampling/createMessage`` with unchecked ``params``, plain data in and out."""
        return await self._ask_raw("sampling/createMessage", params)

    async def elicit(
        self,
        message: str,
        form: type | JSONObject | Any,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        """Ask the client's user to fill in ``form``: a class with plain fields, or a JSON Schema object; or to give one
        value: `str`, `int`, `float`, `bool`, a date, an Enum, a Literal, a list of an Enum or of a Literal, or the
        choices themselves, ``["small", "large"]``. That value is `ElicitAnswer.value`. ``task_ttl``: see
        `send_request`.

        Raises, before anything is sent and in this order: `NoBackChannel`, `CapabilityMissing` for
        ``elicitation`` and ``elicitation.form``, `CodedError` (-32602) for a schema that is no flat form.
        Then as `send_request`; an accepted answer that does not fit the form is a `ProtocolViolation`.
        """
        self._check(*for_elicitation("form"))
        asked = Form.of(form)
        question = ElicitFormParams(message, asked.schema, meta=meta)
        asking = self._ask("elicitation/create", question, ElicitResult, task_ttl)
        del question  # here and below: thousands of tasks may wait, and need no words
        answer = await asking
        if answer.action != "accept":
            return ElicitAnswer(answer.action)
        content = answer.content and {name: each for name, each in answer.content.items() if each is not None}
        if fault := asked.faults(content or {}):
            raise bad_answer(f"the accepted form does not fit what was asked: {fault}", self.revision)
        return ElicitAnswer(answer.action, content)

    async def elicit_url(
        self,
        message: str,
        url: str,
        elicitation_id: str,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        """Send the client's user to an absolute http or https ``url``. ``task_ttl``: see `send_request`. Raises as
        `elicit`, with ``elicitation.url``.

        A URL or an id with control characters, an id without text, and a message with control characters other than
        line breaks and tabs are `CodedError` (-32602).
        """
        params = ElicitURLParams(message, url, elicitation_id, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        return ElicitAnswer(answer.action)

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        """Send ``elicitation/create`` with unchecked ``params``, plain data in and out."""
        return await self._ask_raw("elicitation/create", params)

    async def list_roots(self) -> list[Root]:
        """Return the client's roots. Raises as `elicit`, with the capability ``roots``."""
        self._check("roots")
        result = await self._ask_raw("roots/list", None)
        return structured("roots/list", result, ListRootsResult, self.revision).roots

    async def list_roots_raw(self) -> JSONObject:
        """Send ``roots/list`` and return the unchecked result, plain data."""
        return cast("JSONObject", await self._ask_raw("roots/list", None))

    # How it asks

    def _refusal(self) -> CodedError | None:
        """Return the error for each question where the client cannot be asked at all; `None` elsewhere."""
        return self.no_channel() if self._live is None else no_back_channel(self._live)

    def _declares(self, capability: str) -> bool:
        """Return whether the client declared ``capability``, and its revision has that capability."""
        if (scope := self._live) is None:
            return False
        return declares(scope.request.capabilities, capability, scope.request.revision)

    def _check(self, *capabilities: str) -> None:
        """Raise `NoBackChannel`, else `CapabilityMissing`, which names the whole before its part (ruling 18)."""
        if (refusal := self._refusal()) is not None:
            raise refusal
        for capability in capabilities:
            if not self._declares(capability):
                raise CapabilityMissing([each for each in capabilities if not self._declares(each)], self.revision)

    async def _ask(
        self, method: str, params: CreateMessageParams | ElicitParams, result_type: type[T], task_ttl: float | None
    ) -> T:
        self._check(*needed_for(params))
        try:
            data = checked_params(params, revision := self.revision)
        except NotExpressible as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        send = self._deliver if task_ttl is None else self._ask_raw
        asking = send(method, data, task_ttl)
        del params, data
        return structured(method, await asking, result_type, revision)

    def _ask_raw(self, method: str, params: JSONObject | None, task_ttl: float | None = None) -> Awaitable[Any]:
        self._check()
        if method in ASKABLE and params is not None and "task" in params:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
        if task_ttl is not None:
            self._check(f"tasks.requests.{method.replace('/', '.')}")
        elif not self.revision.server_requests and method not in ASKABLE:
            raise MethodUnavailable(method, self.revision)
        return self._deliver(method, params, task_ttl)

    def _deliver(self, method: str, params: JSONObject | None, task_ttl: float | None) -> Awaitable[Any]:
        """Send this question, as a task of the client unless ``task_ttl`` is `None`, and return its result, plain data.
        Raises as `send_request`. The time limit of the handler stands still while the user is asked."""
        scope = self._live
        assert scope is not None, "a passive context asks nothing"
        ask = ask_client(scope, method, params) if task_ttl is None else ask_as_task(scope, method, params, task_ttl)
        return scope.standing_still(ask) if method == "elicitation/create" and scope.has_time_limit else ask


class LiveContext(RequestContext[Any]):
    """The context of a request that runs, a view of its `RequestScope`."""

    __slots__ = ("_lifespan", "_live", "_tasks")

    def __init__(self, scope: RequestScope, lifespan: Any, tasks: Callable[[], TaskHost] | None = None) -> None:
        self._live = scope
        self._lifespan = lifespan
        self._tasks = tasks


def live_scope(ctx: RequestContext[Any]) -> RequestScope | None:
    """Return the request of ``ctx``; `None` for a passive context."""
    return ctx._live


def scope_of(ctx: RequestContext[Any]) -> RequestScope:
    """Return the request of ``ctx``, which is no passive one. For the handlers that come with the package."""
    live = live_scope(ctx)
    assert live is not None, "handlers of extensions run for requests alone"
    return live
