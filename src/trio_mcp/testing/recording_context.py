"""RecordingContext: a handler context for tests, to call handlers as plain functions.

`RecordedTask` is the task of a handler that is called this way. `in_turn` returns a callback that gives scripted
answers, as a client does: as the model, the user and the roots.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import trio

from ..classes import frozen
from ..client.answers import Answers
from ..client.options import ClientSettings, UserOptions
from ..client.timeouts import CallTimeouts
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.fair_share import Caller
from ..concurrency.misuse import check_keywords
from ..concurrency.nurseries import failures_in
from ..concurrency.time_limits import Graces
from ..concurrency.workers import Workers
from ..jsonrpc.codec import encode_readable, encode_value, frame_notification
from ..jsonrpc.errors import CodedError, PeerError
from ..jsonrpc.messages import RequestId
from ..protocol.converters import unstructure
from ..protocol.errors import MethodUnavailable
from ..protocol.extensions import ExtensionNotification
from ..protocol.fields import JSONObject
from ..protocol.meta import TraceContext
from ..protocol.revisions import LATEST_MODERN, REVISIONS, declares, lacks_notification
from ..protocol.types.notifications import LogParams, should_log
from ..runtime.calls import Progress
from ..runtime.cancellation import CancelCause, Cancellation
from ..runtime.limits import DEFAULT_LIMITS
from ..runtime.peer import Auth, Headers
from ..runtime.requests.reports import RequestLog, reportable
from ..server.context.client_data import COMPLETE, should_notify_completion
from ..server.context.request_context import RequestContext
from ..server.context.state import CallerState, HostState
from ..server.context.tasks import TaskContext


def _answers_of(user: UserOptions) -> Answers:
    """Return the answers to a handler's server-to-client requests, which call the given client callbacks in the
    handler's trio task.

    Plain ``def`` callbacks run without a thread, because a virtual clock would not wait for threads.
    """
    handlers: dict[str, Any] = {
        name: _in_this_task(option) if callable(option) else option for name, option in user.items()
    }
    # Don't check elicitation answers against the requested schema: a test may want to give invalid answers.
    return Answers(
        ClientSettings(**handlers),
        Workers(running=1, asking=1, abandoned=1).share(Caller(alone=True)),
        Graces(DEFAULT_LIMITS.cleanup_grace),
        CallTimeouts(math.inf),
        check_forms=False,
    )


def _in_this_task(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def answer(*question: Any) -> Any:
        given = handler(*question)
        return await given if inspect.isawaitable(given) else given

    return answer


def in_turn(*answers: Any) -> Callable[..., Awaitable[Any]]:
    """Return a client callback that returns ``answers`` in order, one per call, whatever the requests contain.

    An answer that is an exception is raised. A request after the last answer raises `AssertionError`. Use it for the
    callbacks of a client (``sampling``, ``elicitation``, ``elicitation_url``, ``roots``) or of a `RecordingContext`.
    """
    left = list(answers)

    async def answer(*question: Any) -> Any:
        if not left:
            raise AssertionError(f"in_turn() got another request after its {len(answers)} answers: {question}")
        given = left.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    return answer


@frozen
class SentMessage:
    """A request or a notification that a handler sent, as the JSON data in the message."""

    method: str
    """Method of the message, such as ``notifications/progress``."""
    params: JSONObject | None
    """Parameters of the message as JSON data; `None` if it has no parameters."""


C = TypeVar("C", bound=type)
P = TypeVar("P")


def recording(cls: C) -> C:
    """Class decorator for test contexts: each inherited property returns the value that the test has given for it, if
    any."""
    for name, member in vars(cls.__base__).items():
        if isinstance(member, property) and name not in vars(cls):
            setattr(cls, name, property(_given_or(name, member.fget)))
    return cls


def _given_or(name: str, passive: Any) -> Callable[[Any], Any]:
    @wraps(passive)
    def read(self: Any) -> Any:
        return self._given[name] if name in self._given else passive(self)

    return read


@recording
class RecordingContext(RequestContext):
    """A handler context for tests. It records what the handler reports, and answers the handler's requests with
    callbacks.

        async with RecordingContext(elicitation=in_turn({"name": "Ann"})) as ctx:
            assert await greet(ctx) == "Hello, Ann"
        assert ctx.progress_reports == [Progress(1), Progress(2)]

    The client callbacks (``**user``) answer the handler's requests, in the task of the handler. They also determine
    which capabilities the client declares. Use `in_turn` for a callback with prepared answers. Requests are validated
    as in a real context, but no rate limit applies. `state` keeps its values as long as the context exists. To test a
    plain ``def`` handler, wrap the context in a `WorkerContext`, and call the handler in a thread.

    With ``async with`` the context has a `nursery`. The end of the block waits for the tasks in the nursery, and
    `cancel` cancels everything inside the block. Exceptions of the block are raised unchanged.

    Args:
        task: The task of the request, a `RecordedTask`.
        log_level: The lowest level of the log messages that are recorded.
    """

    def __init__(
        self,
        *,
        request_id: RequestId = 1,
        revision: str = LATEST_MODERN.name,
        session_id: str | None = None,
        meta: JSONObject | None = None,
        headers: Mapping[str, str] | None = None,
        peer_user: int | None = None,
        auth: Auth | None = None,
        lifespan: Any = None,
        log_level: str = "debug",
        input_responses: Mapping[str, JSONObject] | None = None,
        request_state: str = "",
        task: TaskContext | None = None,
        **user: Unpack[UserOptions],
    ) -> None:
        check_keywords(RecordingContext.__init__, user)
        self._given = {
            "request_id": request_id,
            "revision": REVISIONS[revision],
            "session_id": session_id,
            "meta": meta or {},
            "headers": None if headers is None else Headers(headers),
            "peer_user": peer_user,
            "auth": auth,
            "stateless": not REVISIONS[revision].handshake,
            "lifespan": lifespan,
            "input_responses": input_responses or {},
            "request_state": request_state,
            "task": task,
            "log": _RecordedLog(self, log_level),
            "cancelled": threading.Event(),
            "state": CallerState(None, passive=HostState(None)),
        }
        self._answers = _answers_of(user)
        self._cancellation: Cancellation | None = None
        self._nursery: trio.Nursery | None = None
        self._scope_alone = trio.CancelScope()
        self._running: AbstractAsyncContextManager[None] | None = None
        self.progress_reports: list[Progress] = []
        """The progress reports that a server would have sent.

        A report isn't recorded if it doesn't exceed the previous one or can't be sent. In revisions without progress
        messages, its message is left out.
        """
        self.logs: list[LogParams] = []
        """The log messages with level ``log_level`` or higher."""
        self.notifications: list[SentMessage] = []
        """The notifications sent by `send_notification` and `elicitation_complete`."""
        self.questions: list[SentMessage] = []
        """The handler's requests to the client, except requests that were refused before they were sent."""

    @property
    def trace(self) -> TraceContext | None:
        return TraceContext.of(self.meta)

    # Lifecycle

    async def __aenter__(self) -> Self:
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None]:
        failure: Exception | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                if self._cancellation is not None:
                    self._nursery.cancel_scope.cancel(reason=self._cancellation.reason)
                try:
                    yield
                except Exception as error:  # cancel the context's tasks, as a server does when the handler fails
                    failure = error
                    self._nursery.cancel_scope.cancel(reason="the block failed")
        except BaseExceptionGroup as group:
            if failure is None:
                raise
            # If tasks in this context's nursery have failed as well, show their errors as the cause of `failure`.
            if failures_in(group):
                raise failure from group
        if failure is not None:
            raise failure

    def cancel(self, reason: str | None = None, *, cause: CancelCause = CancelCause.PEER) -> None:
        """Cancel this context's request, as a client would. Afterwards, progress reports and notifications of the
        handler aren't recorded.

        Only the first call has an effect.
        """
        if self._cancellation is None:
            self._cancellation = Cancellation(cause, reason, trio.current_time())
            self.cancelled.set()
            self.cancel_scope.cancel(reason=reason or cause.value)

    @property
    def nursery(self) -> trio.Nursery:
        if self._nursery is None:
            raise RuntimeError("RecordingContext.nursery is only available inside `async with`")
        return self._nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        return self._scope_alone if self._nursery is None else self._nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        return self._cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        return self._cancellation

    # Progress and notifications

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        reports = self.progress_reports
        plain = None if self.is_cancelled else reportable(progress, total, message)
        if plain is None or (reports and not plain[0] > reports[-1].progress):
            return False
        number, plain_total, text = plain
        reports.append(Progress(number, plain_total, text if self.revision.progress_message else None))
        return True

    @overload
    async def send_notification(self, method: ExtensionNotification[P], params: P) -> None: ...
    @overload
    async def send_notification(self, method: str, params: JSONObject | None = None) -> None: ...
    async def send_notification(self, method: str | ExtensionNotification[Any], params: Any = None) -> None:
        if not isinstance(method, str):
            if not self.client_supports(f"extensions.{method.extension}"):
                return
            method, params = method.name, unstructure(params, self.revision)
        if lacks_notification(method, "server", self.revision):
            raise MethodUnavailable(method, self.revision)
        frame_notification(method, params)  # if the message can't be encoded, raise an error, as a real context does
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self.is_cancelled:
            self.notifications.append(SentMessage(method, params))

    async def elicitation_complete(self, elicitation_id: str) -> bool:
        told = should_notify_completion(elicitation_id, self.revision, self._answers.capabilities)
        params = {"elicitationId": elicitation_id}
        frame_notification(COMPLETE, params)
        await trio.lowlevel.checkpoint()
        if told:  # record the notification even after a cancellation, because it doesn't belong to the request
            self.notifications.append(SentMessage(COMPLETE, params))
        return told

    # Requests to the client

    def _declares(self, capability: str) -> bool:
        return declares(self._answers.capabilities, capability, self.revision)

    def _refusal(self) -> None:
        return None

    async def _deliver(self, method: str, params: JSONObject | None, task_ttl: float | None) -> Any:
        encode_value(params)
        await trio.lowlevel.checkpoint_if_cancelled()
        self.questions.append(SentMessage(method, params))
        # Call the test's callbacks also if the handler runs as a background task.
        try:
            return unstructure(await self._answers.prepare(method, params, self.revision)(), self.revision)
        except CodedError as error:
            raise PeerError(error.code, error.message, error.data) from error


class _RecordedLog(RequestLog):
    __slots__ = ("_context", "_minimum")

    def __init__(self, context: RecordingContext, minimum: str) -> None:
        self._context = context
        self._minimum = minimum

    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.log_nowait(level, data, logger)

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Record a log message. See `RequestLog.log_nowait`."""
        if self._context.is_cancelled or not should_log(level, self._minimum):
            return False
        encode_readable(data)
        self._context.logs.append(LogParams(level, data, logger))
        return True


@recording
class RecordedTask(TaskContext):
    """A task context for tests. It records the status messages and checkpoints of a handler that runs as an MCP task.

    Pass it to the context: ``RecordingContext(task=RecordedTask())``. ``restored`` and ``attempt`` simulate a run after
    a restart. ``ttl`` and ``requested_ttl`` are in seconds.
    """

    def __init__(
        self,
        *,
        id: str = "task",
        ttl: float | None = 3600.0,
        requested_ttl: float | None = None,
        attempt: int = 1,
        restored: Any = None,
    ) -> None:
        self._given = {
            "id": id,
            "ttl": ttl,
            "requested_ttl": requested_ttl,
            "has_started": attempt > 1,
            "attempt": attempt,
            "restored": restored,
        }
        self.messages: list[str] = []
        """The messages passed to `status`."""
        self.checkpoints: list[Any] = []
        """The values passed to `checkpoint`."""

    def status(self, message: str) -> None:
        self.messages.append(message)

    async def start(self) -> None:
        await trio.lowlevel.checkpoint()
        self._given["has_started"] = True

    async def checkpoint(self, value: Any) -> None:
        encode_value(value)
        await trio.lowlevel.checkpoint()
        self.checkpoints.append(value)
