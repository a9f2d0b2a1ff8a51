"""RequestContext and TaskContext: a handler's view of its request, and of the task that its request is or may become.

The classes themselves are passive: never cancelled, notifications dropped, requests refused, nothing kept. Test fakes
override one or two members as needed; the real contexts are in `trio_mcp.server.live_context`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack

import trio

from ..jsonrpc.errors import INVALID_REQUEST, CodedError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import TraceContext
from ..protocol.revisions import LATEST_MODERN, Revision
from ..protocol.types.sampling import CreateMessageResult, Root, SamplingMessage
from ..runtime.cancellation import Cancellation
from ..runtime.peer import Auth
from ..runtime.requests.logs import RequestLog
from .client_data import ElicitAnswer, typed, typed_text
from .foreign_names import ContextNames
from .kept_tasks import CallerTasks
from .logs import SilentLog
from .options import SamplingOptions

T = TypeVar("T")


class RequestContext(ContextNames):
    """The request of a handler: the sender, ways to tell and ask the client, and notice of a cancel.

    Every member has a passive default. All values belong to this one request: two concurrent requests of
    different revisions never see each other's values.
    """

    __slots__ = ()

    # Identity

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id of this call, `int` or `str` as received."""
        return 0

    @property
    def revision(self) -> Revision:
        """The protocol revision of this request."""
        return LATEST_MODERN

    @property
    def session_id(self) -> str | None:
        """The name of the connection over WebSocket, or of the session over HTTP in a legacy revision; `None` where
        there is no such name, as on stdio."""
        return None

    @property
    def meta(self) -> Mapping[str, Any]:
        """``_meta`` of the request, unknown keys included. Treat the dict as read-only."""
        return {}

    @property
    def trace(self) -> TraceContext | None:
        """The distributed trace that the request belongs to; `None` for a request without a trace. Questions of the
        handler to its client, and its calls to other servers with a client of this package, carry the trace on."""
        return None

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers of the HTTP request, by their names in any case; `None` where there was none."""
        return None

    @property
    def auth(self) -> Auth | None:
        """The caller; `None` when no authentication is configured. In a run of a task after a restart, the identity of
        the caller alone: the token is empty, and scopes and claims are gone."""
        return None

    @property
    def stateless(self) -> bool:
        """True where nothing is kept between requests: in modern requests, and on servers run that way."""
        return False

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return None

    @property
    def task(self) -> TaskContext | None:
        """The task that the request is, or may become; `None` for a call that is no task."""
        return None

    @property
    def task_store(self) -> CallerTasks | None:
        """The tasks of this caller, in the handler of a tool; `None` where the server has no tasks."""
        return None

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        """The request's nursery. The tasks of the nursery are part of the request: a cancel of the request cancels the
        tasks, and the answer goes out when the handler has returned and all tasks have ended."""
        raise RuntimeError("this context has no nursery: it is a passive one, for tests")

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The scope of the whole request. A cancel of this scope aborts the request."""
        return trio.CancelScope()

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled. May be read from any thread."""
        return False

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled; `None` before a cancel. May be read from any thread.

        The value is set before the handler, or any task in its nursery, sees a `trio.Cancelled` of the request, for
        every source of the cancel. A cancel of a scope of the handler's own, inside that of the request, leaves the
        value `None`.
        """
        return None

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the request is cancelled, for threads and foreign code that cannot see
        `trio.Cancelled`.

        The event is set for every source of the cancel: the client, the application, the time limit of the tool, or the
        handler by `cancel_scope`. Ask for the event while the handler runs; a cancel after the handler's return, while
        the nursery still runs, need not set the event. A trio task has no need of the event: the task is cancelled with
        the request.
        """
        return threading.Event()

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
        numbers must be finite (numpy's are accepted), and ``message`` must be text.
        """
        return False

    @property
    def log(self) -> RequestLog:
        """The client's log: ``await ctx.log.info({"rows": 3}, logger="db")``."""
        return SilentLog()

    async def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        """Send a notification that belongs to this request. A notification after the end of the request is dropped.

        Raises, with nothing sent, `MethodUnavailable` for a method of the specification that a server does not send as
        a notification in this revision, and `NotSerializable`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()

    async def elicitation_complete(self, elicitation_id: str) -> bool:
        """Tell the client that its user is done at the URL of this elicitation: one of `elicit_url`, or of an error
        -32042. The call also works after the end of the request, for as long as the connection lives: keep the context.

        Waits for room in the outbox; cancelled before that, the call sends nothing. True when the notification is on
        its way. False, with nothing sent, where the revision lacks the notification (all but 2025-11-25), the client
        did not declare ``elicitation.url``, or the connection is over. Raises `ValueError` for an empty id.
        """
        return False

    def close_stream(self, retry: float = 1.0) -> bool:
        """Close the HTTP response of this request for now, and let the client come back for the rest after ``retry``
        seconds, so that a long request holds no connection (2025-11-25 transports, SEP-1699).

        Return true when the response is closed. Progress, logs and the result are kept meanwhile, within the bounds of
        `Limits`. False, with nothing changed, where a client cannot come back: on every other transport, in other
        revisions, and in a server that is run stateless. Synchronous; never raises.
        """
        return False

    # Rounds, for handlers that return `InputRequired`

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        """The client's answers to the last `InputRequired`, by its keys, as received: plain and untrusted. Empty in the
        first round."""
        return {}

    @property
    def request_state(self) -> str:
        """The ``state`` of the last `InputRequired`; empty in the first round, and when none was given."""
        return ""

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
        `NoWayBack` or `CapabilityMissing`.
        """
        return False

    def no_channel(self) -> CodedError:
        """Return the error of every question of this context. Subclasses may say why there is no channel."""
        return CodedError(
            INVALID_REQUEST,
            "there is no server-to-client channel: this RequestContext is passive, made without a request; "
            "in tests, use trio_mcp.testing.RecordingContext",
        )

    async def send_request(
        self, method: str, params: JSONObject | None, result_type: type[T], *, task_ttl: float | None = None
    ) -> T:
        """Send a request to the client, as part of this request, and return its result as a ``result_type``.

        A cancel of this request cancels the sent request, for the same reason. Raises `PeerError`, `ConnectionLost`,
        `ProtocolViolation` for a result that is no ``result_type``, and `CodedError` when the request may not be sent.

        With ``task_ttl`` the client runs the request as a task of its own, and keeps the result for that many seconds;
        ``math.inf``: for as long as the client likes. This method asks how the task is until its end; leaving it
        cancels the task. A client that did not declare to do so (``tasks.requests.sampling.createMessage`` for example;
        revision 2025-11-25 alone) is `CapabilityMissing`; a task that the client's side cancels is `TaskCancelled`.
        """
        raise self.no_channel()

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

        Raises, before anything is sent and in this order: `NoWayBack`, `CapabilityMissing` for ``sampling``,
        for ``sampling.tools`` when tools or a tool choice are given, and for ``sampling.context`` when the
        context of servers is to be included. Then as `send_request`.
        """
        raise self.no_channel()

    async def sample_raw(self, params: JSONObject) -> JSONObject:
        """Send ``sampling/createMessage`` with unchecked ``params``, plain data in and out."""
        raise self.no_channel()

    async def elicit(
        self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None, task_ttl: float | None = None
    ) -> ElicitAnswer:
        """Ask the client's user to fill in ``form``: a class with plain fields, or a JSON Schema object. ``task_ttl``:
        see `send_request`.

        Raises, before anything is sent and in this order: `NoWayBack`, `CapabilityMissing` for
        ``elicitation`` and ``elicitation.form``, `CodedError` (-32602) for a schema that is no flat form.
        Then as `send_request`; an accepted answer that does not fit the form is a `ProtocolViolation`.
        """
        raise self.no_channel()

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
        raise self.no_channel()

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        """Send ``elicitation/create`` with unchecked ``params``, plain data in and out."""
        raise self.no_channel()

    async def list_roots(self) -> list[Root]:
        """Return the client's roots. Raises as `elicit`, with the capability ``roots``."""
        raise self.no_channel()

    async def list_roots_raw(self) -> JSONObject:
        """Send ``roots/list`` and return the unchecked result, plain data."""
        raise self.no_channel()


class TaskContext:
    """The task of a handler, ``ctx.task``. The class itself is passive: nothing is kept, and nobody is told.

    A request becomes a task when `start` is called, or after `TaskSettings.grace`; in revision 2025-11-25, where the
    requestor decides, before the handler runs. From then on the questions of the handler are questions of the task.
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """The unguessable name of the task, known before the start."""
        return ""

    @property
    def ttl(self) -> float | None:
        """Seconds from the start of the task until the task is cancelled and fails; `None`: never."""
        return None

    @property
    def requested_ttl(self) -> float | None:
        """Seconds for which the requestor wishes the task to exist; ``math.inf``: for ever; `None`: no wish. The
        requestor has a say in revision 2025-11-25 only. `ttl` holds in any case."""
        return None

    @property
    def has_started(self) -> bool:
        """True once the request was answered with the task."""
        return False

    @property
    def attempt(self) -> int:
        """The number of this run: more than 1 where a run before was cut off by the end of its process. Runs that were
        given up in good order, at a shutdown, do not count."""
        return 1

    @property
    def restored(self) -> Any:
        """The last value given to `checkpoint` by a run before; `None` in the first run, and for a tool that is not
        declared with ``on_restart="resume"``."""
        return None

    def status(self, message: str) -> None:
        """Tell the client how the task is: words for people, of which the latest are kept. Never waits."""

    async def start(self) -> None:
        """Answer the request with the task, now. The handler goes on afterwards, as long as it likes.

        Idempotent. While the request is answered with questions, waits until the client comes back. Raises `CodedError`
        (-31000) where there are too many tasks.
        """
        await trio.lowlevel.checkpoint_if_cancelled()

    async def checkpoint(self, value: Any) -> None:
        """Keep ``value``, JSON data, for a run after a restart: see `restored`. Raises `NotSerializable`.

        A run that starts from here asks, in the same order, what this run asks from here on, and gets no answer to what
        was asked before.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
