"""`RequestContext`: gives a handler access to its request and its client.

The class itself is passive, for tests: it is never cancelled, drops notifications, refuses requests to the client, and
keeps no state. Test fakes override single members. `LiveContext` is the context of a real request; `worker_context`
adapts the members for threads. `ClientLogHandler` sends log records of the standard library's `logging` to the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, cast, overload

import trio

from ...concurrency.misuse import check_keywords
from ...jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, CodedError, NotSerializable
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
from ...runtime.requests.scope import RequestScope, current_request
from ..options import ContextNames, L_co, SamplingOptions
from .client_data import COMPLETE, ElicitAnswer, Form, should_notify_completion, typed, typed_text
from .input_required import AS_TASK, ask_as_task, bad_answer, checked_params, needed_for, no_back_channel, structured

if TYPE_CHECKING:
    from ...protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from ...tasks.host import TaskHost
    from .state import CallerState
    from .tasks import CallerTasks, TaskContext

T = TypeVar("T")
P = TypeVar("P")
C = TypeVar("C")

GetTaskHost: TypeAlias = "Callable[[], TaskHost] | None"
"""Function that returns the host that runs the server's MCP tasks, and creates the host when it is first called. `None`
if the server has no tasks."""


_LEVELS = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)


class RequestContext(ContextNames[L_co]):
    """The context of a handler's request: who sent the request, whether the request was cancelled, and how to reach the
    client.

        @server.tool
        async def index(folder: str, ctx: RequestContext) -> int:
            ctx.progress(0, total=10)
            await ctx.log.info("indexing")
            ...

    Every value belongs to this one request: concurrent requests never see each other's values, even in different
    protocol revisions. A context that you create yourself, for a test, is passive: it has a harmless default for every
    member.
    """

    __slots__ = ()

    _live: RequestScope | None = None
    """The running request, in a `LiveContext`. `None` in a passive context, which tests create."""
    _lifespan: Any = None
    _tasks: GetTaskHost = None

    # Identity

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id of this request, `int` or `str` as received."""
        return 0 if self._live is None else self._live.request.id

    @property
    def revision(self) -> Revision:
        """The protocol revision of this request."""
        return LATEST_MODERN if self._live is None else self._live.request.revision

    @property
    def session_id(self) -> str | None:
        """The id of the WebSocket connection or, in legacy protocol revisions, of the HTTP session. `None` if the
        transport has no such id, for example stdio."""
        return None if self._live is None else self._live.exchange.peer.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's ``_meta``, including unknown keys. Treat the dict as read-only."""
        if self._live is None:
            return {}
        self._live.request.unpack()
        return self._live.request.meta

    @property
    def trace(self) -> TraceContext | None:
        """The distributed trace that the request belongs to.

        `None` if the request has no trace. The trace continues in the handler's requests to its client, and in the
        handler's calls to other servers with a client of this package.
        """
        return None if self._live is None else self._live.request.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers of the HTTP request, with case-insensitive names. `None` for other transports."""
        return None if self._live is None else self._live.exchange.peer.headers

    @property
    def peer_user(self) -> int | None:
        """The user id of the process that sent the request over a Unix socket, from Linux's ``SO_PEERCRED``.

        `None` on other transports and systems, and if another replica received the request.
        """
        return None if self._live is None else self._live.exchange.peer.user

    @property
    def auth(self) -> Auth | None:
        """The authenticated caller.

        `None` if authentication isn't configured. When a task runs again after a restart, only the caller's identity is
        known: the token is empty, and there are no scopes and claims.
        """
        return None if self._live is None else self._live.exchange.peer.auth

    @property
    def stateless(self) -> bool:
        """True if the server keeps no state between this request and later requests: in modern protocol revisions, and
        on stateless servers."""
        # By MCP 2026-07-28 (basic page), each request of a modern protocol revision is processed independently.
        return self._live is not None and (self._live.runner.stateless or not self._live.request.revision.handshake)

    @property
    def lifespan(self) -> L_co:
        """The value that the server's lifespan yielded, for example a ``Database`` in a `RequestContext[Database]`."""
        return self._lifespan

    @property
    def task(self) -> TaskContext | None:
        """The MCP task that runs this request, or that the request may become. `None` for an ordinary call."""
        if self._live is None or (task := self._live.task) is None:
            return None
        from .tasks import LiveTask  # lazy import: most servers have no MCP tasks

        return LiveTask(task)

    @property
    def caller_tasks(self) -> CallerTasks | None:
        """The MCP tasks of this request's caller. Tool handlers can create and read them. `None` if the server has no
        tasks."""
        if self._live is None or self._tasks is None:
            return None
        from .tasks import CallerTasks  # lazy import: most servers have no MCP tasks

        return CallerTasks(self._tasks, self._live)

    @property
    def state(self) -> CallerState:
        """Values that the server keeps for this caller between requests: ``await ctx.state.get("cart", [])``, ``await
        ctx.state.set("cart", cart)``."""
        from .state import CallerState  # lazy import: few servers keep state

        return CallerState(self._live)

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        """The request's nursery. Tasks that you start in it are cancelled with the request.

        The response is sent only when the handler has returned and all of these tasks have ended.
        """
        if self._live is None:
            raise RuntimeError("this RequestContext has no nursery: it is a passive context for tests")
        assert self._live.nursery is not None, "a handler runs inside the nursery"
        return self._live.nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The cancel scope of the whole request. Cancelling this scope aborts the request."""
        return trio.CancelScope() if self._live is None else self.nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        """True once the request has been cancelled. Any thread may read this property."""
        return self._live is not None and self._live.is_cancelled

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled. `None` if it wasn't cancelled. Any thread may read this property.

        For every source of the cancel, the value is set before the handler, or any task in its nursery, gets
        `trio.Cancelled`. Cancelling a scope inside the request's own scope leaves the value `None`.
        """
        return None if self._live is None else self._live.cancellation

    @property
    def cancelled(self) -> threading.Event:
        """An event that is set when the request is cancelled. Use it in code that `trio.Cancelled` doesn't reach, for
        example in threads.

        It is set for every source of the cancel: the client, the application, the tool's timeout, or the handler
        through `cancel_scope`. Read this property while the handler is running. If the request is cancelled after the
        handler has returned, while its nursery is still open, the event might not be set. Trio tasks don't need it:
        they are cancelled.
        """
        return threading.Event() if self._live is None else self._live.event

    async def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled. Otherwise return at once, without yielding to other
        tasks.

        Call this in long-running code that never awaits; any other checkpoint has the same effect. In plain ``def``
        handlers, call `WorkerContext.check_cancelled`, without ``await``.
        """
        await trio.lowlevel.checkpoint_if_cancelled()

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report progress to the client. ``total`` is in the same unit as ``progress``. Never blocks and never raises.

        Returns true if a notification is being sent. At most one is sent per `Limits.progress_interval`. Returns false
        before the interval is over: the latest value is then sent at its end, at the latest before the response. So a
        report can arrive after a log message that was sent later.

        Also returns false, with no effect, if the client gave no progress token, if the value isn't greater than the
        previous one, or if the report is invalid: numbers must be finite (numpy's are accepted), and ``message`` must
        be a string.

        May be called from any thread. Outside of trio's thread, true means that trio's thread will make the report
        soon.
        """
        if (scope := self._live) is None:
            return False
        return scope.progress(progress, total, message)

    @property
    def log(self) -> RequestLog:
        """The log of this request, which sends messages to the client: ``await ctx.log.info({"rows": 3},
        logger="db")``."""
        return SilentLog() if self._live is None else self._live.log

    @overload
    async def send_notification(self, method: ExtensionNotification[P], params: P) -> None: ...
    @overload
    async def send_notification(self, method: str, params: JSONObject | None = None) -> None: ...
    async def send_notification(self, method: str | ExtensionNotification[Any], params: Any = None) -> None:
        """Send the client a notification that belongs to this request. If the request has ended, the notification is
        dropped.

        For an extension notification, pass an instance of its parameter class. It is dropped if the client hasn't
        declared the extension.

        Raises:
            MethodUnavailable: Before anything is sent, if the method belongs to the specification, but servers don't
                send it as a notification in this revision.
            NotSerializable: Before anything is sent, if a parameter has no JSON form.
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
        """Notify the client that its user has completed a URL elicitation. The server requested it with `elicit_url`,
        or with the error -32042 (URL elicitation required).

        You can keep the context and call this after the end of the request, as long as the connection is open. The call
        waits for room in the outbox; if it is cancelled before, nothing is sent.

        Returns true if the notification is being sent. Returns false, with nothing sent, if the revision has no such
        notification (only 2025-11-25 has), the client didn't declare ``elicitation.url``, or the connection is closed.
        Raises `ValueError` for an empty id.
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
        """Close the HTTP response of this request before the request ends.

        The client reconnects after ``retry`` seconds and gets the messages sent later, so a long request doesn't keep
        an HTTP connection open (2025-11-25 transports, SEP-1699).

        Returns true if the response was closed. Progress, logs and the result are kept meanwhile, up to the `Limits`.
        Returns false, with nothing changed, if the client cannot reconnect: on all other transports, in other
        revisions, and on a stateless server.

        Synchronous. Never raises in trio's thread; called in another thread, it waits for trio's thread.
        """
        if (scope := self._live) is None:
            return False
        return scope.runner.trio_run.call(lambda: scope.exchange.close_stream(retry))

    # The client's answers, for handlers that return `InputRequired`

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        """The client's answers to the requests in the last `InputRequired`, by the keys that you chose. Empty when the
        handler first runs. The data is untrusted."""
        continuation = None if self._live is None else self._live.request.continuation
        return {} if continuation is None else continuation.responses

    @property
    def request_state(self) -> str:
        """The ``state`` of the last `InputRequired`. Empty when the handler first runs, or if the `InputRequired` had
        no state."""
        continuation = None if self._live is None else self._live.request.continuation
        return "" if continuation is None else continuation.state

    @property
    def is_resubmit(self) -> bool:
        """True if the client has sent this request again, with answers to an `InputRequired`."""
        return bool(self.input_responses)

    def has_input_response(self, key: str) -> bool:
        """Return whether the client answered the request that the last `InputRequired` contained under ``key``."""
        return key in self.input_responses

    def input_response_as(self, kind: type[T], key: str) -> T:
        """Return the client's answer to the request under ``key`` in the last `InputRequired`, as an instance of
        ``kind``.

        ``kind`` is a class of the specification, such as `ElicitResult`, or your own attrs class, dataclass, TypedDict
        or msgspec Struct.

        In your own classes, JSON members have the names of the fields. A missing answer counts as an empty object. JSON
        types are never converted. Raises `ValueError` if the answer doesn't fit.
        """
        return typed(self.input_responses.get(key, {}), kind)

    def request_state_as(self, kind: type[T]) -> T:
        """Parse `request_state` as JSON, and return it as an instance of ``kind`` (see `input_response_as`). For an
        empty state, return ``kind()``.

        Raises `ValueError` if the state isn't JSON or doesn't fit, or if it is empty and ``kind`` has required fields.
        """
        return typed_text(self.request_state, kind)

    # Asking the client

    def client_supports(self, capability: str) -> bool:
        """Return whether the client supports a ``capability``, for example ``"sampling"`` or ``"elicitation.url"``.

        True if the client declared the capability and its revision has it. For questions, the result agrees with
        `sample`, `elicit`, `elicit_url` and `list_roots`: it is false if they would raise `NoBackChannel` or
        `CapabilityMissing`.
        """
        if capability.partition(".")[0] in ASKED_BY and self._refusal() is not None:
            return False
        return self._declares(capability)

    def client_extension(self, extension: Extension[Any, C]) -> C | None:
        """Return the settings that the client declared for ``extension``. Return `None` if the client didn't declare
        the extension."""
        declared = None if self._live is None else self._live.request.capabilities.extensions
        return extension._settings_in(declared, "client")

    def no_channel(self) -> CodedError:
        """Return the error that elicitation, sampling and roots requests raise in this context, because the context was
        created without a client's request.

        A subclass can override this method to explain the reason.
        """
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
        """Send the client a request as part of the request that this handler handles. Return the result as an instance
        of ``result_type``.

        For a method of an extension, the parameters and the result are instances of its own classes. Modern clients
        answer only the specification's three questions (sampling, elicitation, roots). If this request is cancelled,
        the sent request is cancelled with the same reason.

        With ``task_ttl``, the client runs the request as a task, and keeps the result for that many seconds; with
        ``math.inf``, for as long as the client chooses. This method polls the task until it ends. Leaving the method
        cancels the task. Only clients of revision 2025-11-25 that declared it (for example
        ``tasks.requests.sampling.createMessage``) support this.

        Raises:
            CapabilityMissing: If the client didn't declare the extension, or the support for tasks.
            CodedError: If the request may not be sent.
            PeerError: If the client answers with an error.
            ConnectionLost: If the connection closes before the answer.
            ProtocolViolation: If the result doesn't fit ``result_type``.
            TaskCancelled: If the client cancelled the task.
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
        """Ask the client's model to generate a message. A plain string is one user message.

        `SamplingOptions` documents the other keywords, `send_request` documents ``task_ttl``.

        Raises, before anything is sent and in this order, `NoBackChannel`, then `CapabilityMissing` for:

        - ``sampling``;
        - ``sampling.tools``, if tools or a tool choice are given;
        - ``sampling.context``, if the context of servers is to be included.

        After that, raises as `send_request`.
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
        """Send ``sampling/createMessage`` with ``params``, and return the client's result. Both are plain data, and are
        neither changed nor validated."""
        return await self._ask_raw("sampling/createMessage", params)

    async def elicit(
        self,
        message: str,
        form: type | JSONObject | Any,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        """Ask the client's user to fill in a form, or to enter one value.

            answer = await ctx.elicit("Which size?", ["small", "large"])
            if answer.action == "accept":
                size = answer.value

        For a form, ``form`` is a class with simple fields, or a JSON Schema object. For one value, it is `str`, `int`,
        `float`, `bool`, a date, an Enum, a Literal, a list of an Enum or Literal, or a list of choices;
        `ElicitAnswer.value` is the user's value. `send_request` documents ``task_ttl``.

        Raises, before anything is sent and in this order: `NoBackChannel`; `CapabilityMissing` for ``elicitation`` and
        ``elicitation.form``; `CodedError` (-32602) if the schema isn't a flat form. After that, raises as
        `send_request`, and `ProtocolViolation` if the accepted answer doesn't fit the form.
        """
        self._check(*for_elicitation("form"))
        asked = Form.of(form)
        question = ElicitFormParams(message, asked.schema, meta=meta)
        asking = self._ask("elicitation/create", question, ElicitResult, task_ttl)
        del question  # free the input request's memory, because thousands of tasks may wait for answers
        answer = await asking
        if answer.action != "accept":
            return ElicitAnswer(answer.action)
        content = answer.content and {name: each for name, each in answer.content.items() if each is not None}
        if fault := asked.faults(content or {}):
            raise bad_answer(f"the answer of the user does not fit the form: {fault}", self.revision)
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
        """Ask the client's user to open ``url``, an absolute http or https URL. See `send_request` for ``task_ttl``.

        Raises the errors of `elicit`, with the capability ``elicitation.url``. Also raises `CodedError` (-32602) if the
        URL or id contains control characters, the id is empty, or the message contains control characters other than
        line breaks and tabs.
        """
        params = ElicitURLParams(message, url, elicitation_id, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        return ElicitAnswer(answer.action)

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        """Send ``elicitation/create`` with ``params``, and return the client's result. Both are plain data, and are
        neither changed nor validated."""
        return await self._ask_raw("elicitation/create", params)

    async def list_roots(self) -> list[Root]:
        """Request the client's roots, and return them. Raises the same errors as `elicit`. The required capability is
        ``roots``."""
        self._check("roots")
        result = await self._ask_raw("roots/list", None)
        return structured("roots/list", result, ListRootsResult, self.revision).roots

    async def list_roots_raw(self) -> JSONObject:
        """Send ``roots/list`` to the client, and return the result as plain data, unvalidated."""
        return cast("JSONObject", await self._ask_raw("roots/list", None))

    # How it asks

    def _refusal(self) -> CodedError | None:
        """Return the error to raise if the handler sends an elicitation, sampling or roots request. Return `None` if
        this client can receive such requests."""
        return self.no_channel() if self._live is None else no_back_channel(self._live)

    def _declares(self, capability: str) -> bool:
        """Return whether the client declared ``capability``, and the request's protocol revision has that
        capability."""
        if (scope := self._live) is None:
            return False
        return declares(scope.request.capabilities, capability, scope.request.revision)

    def _check(self, *capabilities: str) -> None:
        """Raise `NoBackChannel` if the client can't receive requests. Raise `CapabilityMissing` if the client lacks any
        of the ``capabilities``.

        The error names all missing capabilities, each before its sub-capabilities.
        """
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
        """Send a request to the client, wait for the reply, and return the result as plain data.

        If ``task_ttl`` isn't `None`, the client runs the request as a task. Raises the errors of `send_request`.
        Waiting for the user doesn't count towards the handler's timeout.
        """
        scope = self._live
        assert scope is not None, "a passive context asks nothing"
        ask = ask_client(scope, method, params) if task_ttl is None else ask_as_task(scope, method, params, task_ttl)
        return scope.standing_still(ask) if method == "elicitation/create" and scope.has_time_limit else ask


class SilentLog(RequestLog):
    """A log that sends nothing to the client."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send nothing to the client, and return `False`."""
        return False


class LiveContext(RequestContext[Any]):
    """The `RequestContext` of a running request. Its values come from the request's `RequestScope`."""

    __slots__ = ("_lifespan", "_live", "_tasks")

    def __init__(self, scope: RequestScope, lifespan: Any, tasks: GetTaskHost = None) -> None:
        self._live = scope
        self._lifespan = lifespan
        self._tasks = tasks


def scope_of(ctx: RequestContext[Any]) -> RequestScope:
    """Return the running request that the context ``ctx`` belongs to.

    Only for handlers of this package itself, whose context is never created by a test.
    """
    assert ctx._live is not None, "handlers of extensions run for requests alone"
    return ctx._live


class ClientLogHandler(logging.Handler):
    """A `logging.Handler` that sends each log record to the client of the current request.

        logging.getLogger("myapp").addHandler(ClientLogHandler())

    Records made in child tasks and worker threads of a request belong to that request. Records made outside of
    requests, and this package's own records, are not sent. The handler never blocks: if the outbox is full, the record
    is dropped and counted in ``dropped``.
    """

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.dropped = 0
        """The number of log records that were dropped, for example because an outbox was full."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record to the client of the current request. See `logging.Handler.emit`."""
        scope = current_request.get(None)
        if scope is None or record.name.partition(".")[0] == "trio_mcp":
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        level = next((name for number, name in _LEVELS if record.levelno >= number), "debug")
        if not scope.runner.trio_run.call_soon(self._send, scope, level, text, record.name):
            self.dropped += 1

    def _send(self, scope: RequestScope, level: str, text: str, name: str) -> None:
        try:
            sent = scope.log.log_nowait(level, text, name) or not scope.log._admits(level)
        except NotSerializable:
            sent = False
        if not sent:
            self.dropped += 1
            scope.runner.load.dropped_logs += 1
