"""The settings of a client, and the classes that report a server's unreadable output."""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

import attrs

from ..classes import frozen, positive, show_fields
from ..protocol.fields import JSONObject
from ..protocol.revisions import LEGACY_REVISIONS, REVISIONS
from ..protocol.types.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams
from ..protocol.types.lifecycle import ClientCapabilities, Implementation
from ..protocol.types.notifications import ChangedList, LogParams
from ..protocol.types.sampling import CreateMessageParams, CreateMessageResult, Root
from ..runtime.limits import DEFAULT_LIMITS, Limits
from .cache import CachePartition, ResponseCache
from .timeouts import KeepAlive

if TYPE_CHECKING:
    from ..otel import OpenTelemetry
    from ..protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from ..protocol.methods import Method
    from ..recording.recorder import Recorder
    from ..tasks.records import TaskSettings

SamplingHandler: TypeAlias = Callable[[CreateMessageParams], Awaitable[CreateMessageResult] | CreateMessageResult]
"""A function that answers a ``sampling/createMessage`` request with the client's model."""
ElicitationHandler: TypeAlias = Callable[
    [ElicitFormParams], Awaitable[ElicitResult | JSONObject] | ElicitResult | JSONObject
]
"""A function that lets the user fill in a form."""
UrlElicitationHandler: TypeAlias = Callable[[ElicitURLParams], Awaitable[ElicitResult] | ElicitResult]
"""A function that asks the user to visit a URL."""
RootsHandler: TypeAlias = Callable[[], Awaitable[Sequence[Root]] | Sequence[Root]]
"""A function that returns the roots of the client."""


@cache
def _default_info() -> Implementation:
    """Return the name and version of this library, as a client reports them. The result is cached, because the lookup
    reads files of the distribution."""
    return Implementation("trio-mcp", version("trio-mcp"))


@show_fields
class UserOptions(TypedDict, total=False):
    """The handlers that answer the server's requests (sampling, elicitation, roots). They are keyword arguments of
    every ``open_*`` function.

    `ClientSettings` documents them.
    """

    sampling: SamplingHandler
    sampling_tools: bool
    sampling_context: bool
    sampling_asks_user: bool
    elicitation: ElicitationHandler
    elicitation_url: UrlElicitationHandler
    roots: Sequence[Root] | RootsHandler
    question_tasks: TaskSettings | None


@show_fields
class ClientOptions(UserOptions, total=False):
    """The keyword arguments of every ``open_*`` function. `ClientSettings` documents them."""

    info: Implementation
    forwards: ClientCapabilities | None
    answers_later: ClientCapabilities | None
    on_log: Callable[[LogParams], Any]
    on_list_changed: Callable[[ChangedList], Any]
    on_resource_updated: Callable[[str], Any]
    extensions: Sequence[Extension[Any, Any]]
    handlers: Mapping[ExtensionRequest[Any, Any], Callable[..., Any]]
    on_notification: Mapping[ExtensionNotification[Any], Callable[[Any], Any]]
    on_unreadable: Callable[[UnreadableMessage], None] | None
    on_elicitation_complete: Callable[[str], Any]
    tasks: bool
    max_rounds: int
    max_input_requests: int
    max_questions: int
    max_pages: int
    cache: CachePartition | None
    limits: Limits | None
    tracing: OpenTelemetry | None
    record: Recorder | str | os.PathLike[str] | None
    era: Literal["auto", "modern", "legacy"]
    revision: str
    connect_timeout: float
    tell_deadlines: bool
    send_cancels: bool
    probe_timeout: float
    call_timeout: float
    keep_alive: KeepAlive | None
    prior: JSONObject | None


def check_prior(_: Any, __: Any, prior: JSONObject | None) -> None:
    """Raise `ValueError` unless ``prior`` is a saved response to ``server/discover``. This is an attrs validator."""
    if prior is not None:
        from .prior import read_prior  # lazy import: few clients have a prior response

        read_prior(prior)


def _recorder(record: Recorder | str | os.PathLike[str] | None) -> Recorder | None:
    if record is None:
        return None
    from ..recording.recorder import recorder_of  # lazy import: few connections are recorded

    return recorder_of(record)


def _check_legacy(_: Any, __: Any, revision: str | None) -> None:
    names = [row.name for row in LEGACY_REVISIONS]
    if revision is not None and revision not in names:
        raise ValueError(f"revision must be a legacy revision ({', '.join(names)}), not {revision}")


def _check_plain(_: Any, attribute: attrs.Attribute[Any], callback: Any) -> None:
    if inspect.iscoroutinefunction(callback):
        raise ValueError(f"{attribute.name} is called synchronously: write it with def, not with async def")


def _check_handlers(settings: ClientSettings, _: Any, handlers: Mapping[Method, Any]) -> None:
    lacking = [row for extension in settings.extensions for row in extension._rows]
    _check_rows("handlers", handlers, lacking, "request")
    if missing := [row.name for row in lacking if row.is_request and row.sent_by("server") and row not in handlers]:
        raise ValueError(
            f"handlers={{...}} must have a function for {', '.join(missing)}, which an extension in "
            "extensions=[...] defines"
        )


def _check_callbacks(settings: ClientSettings, _: Any, callbacks: Mapping[Method, Any]) -> None:
    rows = [row for extension in settings.extensions for row in extension._rows if not row.is_request]
    _check_rows("on_notification", callbacks, rows, "notification")


def _check_rows(option: str, functions: Mapping[Method, Any], rows: Sequence[Method], kind: str) -> None:
    for row in functions:
        if row not in rows or not row.sent_by("server"):
            raise ValueError(
                f"{option}={{...}} has a function for {row.name}, but no extension in extensions=[...] defines it as a "
                f"{kind} that servers send"
            )


def _check_answers_later(settings: ClientSettings, _: Any, later: ClientCapabilities | None) -> None:
    if later is None:
        return
    if later != ClientCapabilities(roots=later.roots, sampling=later.sampling, elicitation=later.elicitation):
        raise ValueError("answers_later may contain only sampling, elicitation and roots")
    if settings.forwards is not None:
        raise ValueError(
            "pass forwards or answers_later, not both: a client that forwards requests doesn't answer them"
        )


@frozen(kw_only=True)
class ClientSettings:
    """The settings of a client: its name, its handlers for the server's requests, its callbacks, and its limits.

    Handlers and callbacks may be async or plain ``def`` functions. Plain handlers run in worker threads. Plain
    callbacks run in the client's own tasks, so they must be quick.

    Kinds of requests without a handler aren't declared, and such requests are refused, unless ``answers_later`` or
    ``forwards`` contains the kind. If a handler raises `CodedError`, a legacy server gets that error. Any other
    exception is logged and hidden from a legacy server. In modern revisions, every exception propagates from the call
    for which the server sent the request.
    """

    info: Implementation = attrs.field(factory=_default_info)
    """The client's name and version, which servers may show to people."""
    sampling: SamplingHandler | None = None
    """Handler that answers ``sampling/createMessage``. Raise `CodedError` with code -1 if the user declines. A legacy
    server gets that error as the answer. Modern revisions have no error answers: the client's call, during which the
    server sent the request, raises the `CodedError`, and the server is notified that the call was cancelled, with the
    error's message as the reason."""
    sampling_tools: bool = False
    """True if the sampling handler supports tools."""
    sampling_context: bool = False
    """True if the sampling handler can include context from servers."""
    sampling_asks_user: bool = False
    """True if the sampling handler waits for the user (2025-11-25 sampling: there SHOULD always be a human in the
    loop). Timeouts are then paused while the handler runs, as they are for elicitation: see `fail_after_work`."""
    elicitation: ElicitationHandler | None = None
    """Handler that lets the user fill in a form. To accept the form, return a plain dict. Missing fields get the
    defaults of the schema, if they are valid; a field that is `None` is left out. If the form then doesn't match the
    server's schema, the handler fails with `ValueError`."""
    elicitation_url: UrlElicitationHandler | None = None
    """Handler that asks the user to visit a URL. The handler must show the URL and get consent before it opens
    anything."""
    roots: Sequence[Root] | RootsHandler | None = None
    """The client's roots, or a function that returns them."""
    forwards: ClientCapabilities | None = None
    """Capabilities to declare instead of those of the handlers above, because a `proxy` forwards the server's requests
    to its own clients. Until a proxy uses this client, such requests are refused."""
    answers_later: ClientCapabilities | None = attrs.field(default=None, validator=_check_answers_later)
    """Kinds of requests (``sampling``, ``elicitation``, ``roots``) that the client declares although it has no handler
    for them, because another client answers them later. Use it for tasks: this client starts the task
    (`Client.start_task`), and a client with handlers resumes it (`Client.resume_task`). A task's request then stays
    unanswered in this client, and counts among `Limits.max_in_flight`, until the server withdraws it or the client is
    closed. Any other request of these kinds is refused: a legacy server gets an error (-32601); in modern revisions the
    client's call raises `CodedError`."""
    on_log: Callable[[LogParams], Any] | None = None
    """Callback for each log message, called in the order in which the messages arrive, one at a time. A call of the
    client returns only after the callback has handled the messages that arrived during the call, with two exceptions: a
    call that the callback itself makes doesn't wait for the callback, and no call waits longer than
    `Limits.callback_grace` for a single message. Progress callbacks run concurrently, in the tasks of their calls."""
    on_list_changed: Callable[[ChangedList], Any] | None = None
    """Callback for changes of the server's tools, resources or prompts. With a modern server, the client opens a stream
    of ``subscriptions/listen`` for each of the three kinds whose changes the server declares. If the server ends a
    stream, the client reopens it and calls the callback for its list. Callbacks for changes run one at a time, in
    order; calls and log messages don't wait for them."""
    on_resource_updated: Callable[[str], Any] | None = None
    """Callback that gets the URI of a changed resource, for resources that `Client.subscribe` was called with."""
    extensions: Sequence[Extension[Any, Any]] = attrs.field(default=(), converter=tuple[Any, ...])
    """The extensions to declare to the server. `Client.server_extension` returns what the server has declared."""
    handlers: Mapping[ExtensionRequest[Any, Any], Callable[..., Any]] = attrs.field(
        factory=dict[Any, Any], validator=_check_handlers
    )
    """Functions that answer requests of extensions. Each function gets the request's parameters and returns the
    request's result, as instances of the classes that the extension defines for the method. Only legacy servers send
    requests."""
    on_notification: Mapping[ExtensionNotification[Any], Callable[[Any], Any]] = attrs.field(
        factory=dict[Any, Any], validator=_check_callbacks
    )
    """Callbacks for notifications of extensions. Each callback gets an instance of the notification's parameter class.
    Notifications that belong to a request are handled in order with the log messages, like ``on_log``; all others are
    handled like ``on_list_changed``."""
    on_unreadable: Callable[[UnreadableMessage], None] | None = attrs.field(default=None, validator=_check_plain)
    """Callback for output of the server that isn't a JSON-RPC message, mostly text printed to its standard output. The
    server gets no reply. The output is also logged, and counted in `Client.unreadable_messages`. The callback must be a
    plain, quick function, since it runs while the server's output is read; its exceptions are logged."""
    on_elicitation_complete: Callable[[str], Any] | None = None
    """Callback for a completed URL elicitation (2025-11-25 only): it gets the elicitation's id when the server reports
    that the user has completed it. The client calls it once, for an elicitation that the server requested, or that an
    error -32042 required, in order with the callbacks for changes."""
    tasks: bool = True
    """True if the server may continue tool calls as tasks (`Client.call_tool`). If False, the client doesn't declare
    the tasks extension to modern servers, and calls no tool as a task."""
    question_tasks: TaskSettings | None = None
    """Store and limits for sampling and elicitation requests that a server of 2025-11-25 sends as tasks, to fetch the
    answer later. Applies to the kinds that have a handler. The tasks end with the client. If `None`, the client doesn't
    declare such tasks."""
    max_rounds: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    """How many times a modern server may request input during one call, and as many times again during the call's task.
    If the server requests input more often, the call raises `ProtocolViolation`."""
    max_input_requests: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    """How many requests (sampling, elicitation, roots) a modern server may send at once in a call or for a task. Each
    request is answered in a task of its own. If the server sends more, the call raises `ProtocolViolation`. The default
    equals `Limits.max_in_flight`, which limits the requests of a legacy server."""
    max_questions: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """How many handlers of a kind run concurrently (``sampling``; ``elicitation`` and ``elicitation_url`` together;
    ``roots``), in all revisions. Further requests of the server wait in order of arrival, within the two limits above
    and those of `Limits`; the timeouts of calls are paused meanwhile (`fail_after_work`). A handler that calls a server
    doesn't count until it has the reply, since that server may send a further request. Forwarded requests don't
    count."""
    max_pages: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """How many pages a list of the server may have. After that many pages, the iteration ends with a warning. The
    number of items isn't limited, since your code may stop at any item."""
    cache: CachePartition | None = attrs.field(factory=lambda: ResponseCache().partition())
    """Cache for fresh responses of a modern server. By default, each client has a cache of its own. `None` disables
    caching. Most servers don't allow caching."""
    limits: Limits = attrs.field(default=None, converter=attrs.converters.default_if_none(DEFAULT_LIMITS))
    """Limits on the resources of this client that the server may use; `None` means the defaults of `Limits`."""
    tracing: OpenTelemetry | None = None
    """Creates spans and metrics for requests: `trio_mcp.otel.OpenTelemetry`."""
    record: Recorder | None = attrs.field(default=None, converter=_recorder)
    """File or `Recorder` to which the messages of the connection are recorded, with secrets masked; `None` records
    nothing."""
    era: Literal["auto", "modern", "legacy"] = attrs.field(
        default="auto", validator=attrs.validators.in_(("auto", "modern", "legacy"))
    )
    """Whether the server is a ``modern`` or a ``legacy`` one; ``auto`` detects it with ``server/discover``. Some legacy
    servers crash on that request. With ``auto``, a child process that ends without an answer is started once more and
    gets ``initialize``. All further clients in this process then send ``initialize`` to the same command at once."""
    revision: str | None = attrs.field(default=None, validator=_check_legacy)
    """The legacy revision to offer in ``initialize``. `None` offers the latest, and an older one if the server refuses
    it."""
    tell_deadlines: bool = True
    """Send the server with each call how many milliseconds are left until the call's deadline (``trio-mcp/remainingMs``
    in ``_meta``), so that the handler stops even if the cancel gets lost."""
    send_cancels: bool = True
    """True if the server is notified when a call or a stream is cancelled. Some servers crash on that notification
    (``mcp`` 1.9.4 to 1.11.0): ``False`` never sends ``notifications/cancelled``. A cancelled call or stream then ends
    on the client's side only, and late replies and notifications of the server are dropped."""
    connect_timeout: float = 60.0
    """How many seconds connecting may take before `trio.TooSlowError` is raised. Only connecting is limited."""
    probe_timeout: float = 2.0
    """Seconds to wait for an answer to ``server/discover`` before ``initialize`` is tried as well. Also the seconds to
    wait until the stream for ``on_list_changed`` is acknowledged; after that, the client is ready without it."""
    call_timeout: float = attrs.field(default=math.inf, validator=positive)
    """Seconds that each request may take, and each stream until its acknowledgement. Then `trio.TooSlowError` is
    raised, and the server is notified. This is a `fail_after_work`; your own `fail_after_work` or `fail_after_silence`
    around calls replaces it, and so may also allow more time."""
    keep_alive: KeepAlive | None = None
    """Settings of the pings that are sent to an idle server; `None` sends no pings."""
    prior: JSONObject | None = attrs.field(default=None, validator=check_prior, repr=False)
    """A saved `Client.discovery` of an earlier client of the same server: connecting then takes no round trip. The
    client sends ``server/discover`` after all, once, if the response has expired, if the server refuses a request in a
    way that suggests another revision or era, or if a call needs something that the response lacks. A refused request
    is then sent again in the negotiated revision. Raises `ValueError` for anything but such a response, for the
    response of another server, and together with ``era="legacy"`` or ``forwards``."""

    def __attrs_post_init__(self) -> None:
        if self.prior is not None and (self.era == "legacy" or self.forwards is not None):
            raise ValueError(
                "prior= works with modern servers only, and not with forwards=: leave out era='legacy' and forwards="
            )


def speaking(revision: str | None, options: ClientOptions, prior: JSONObject | None = None) -> ClientOptions:
    """Return ``options`` with two additions: the client uses only the protocol revision ``revision``, and opens with
    the discovery response ``prior``.

    If ``revision`` or ``prior`` is `None`, it isn't added. Raises `ValueError` if the revision is unknown.
    """
    if prior is not None:
        options = {**options, "prior": prior}
    if revision is None:
        return options
    if revision not in REVISIONS:
        raise ValueError(f"the revision (protocolVersion) must be one of {', '.join(REVISIONS)}, not {revision[:40]!r}")
    if REVISIONS[revision].handshake:
        return {**options, "era": "legacy", "revision": revision}
    return {**options, "era": "modern"}


def check_revision(_: Any, __: Any, revision: str | None) -> None:
    """Raise `ValueError` unless the value is the name of a known protocol revision. This is an attrs validator."""
    speaking(revision, {})


logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 2000


@frozen
class UnreadableMessage:
    """A line of a server's output, or a message of its WebSocket, that isn't a JSON-RPC message."""

    reason: str
    """The reason why the line can't be read, as readable text."""
    text: str
    """The first 2,000 bytes of the line. Bytes that aren't UTF-8 are replaced. The text is untrusted."""


class UnreadableMessages:
    """Counts the unreadable lines in a server's output, and calls ``callback`` with each line."""

    def __init__(self, callback: Callable[[UnreadableMessage], None] | None) -> None:
        self.count = 0
        self._callback = callback

    def add(self, reason: str, line: bytes | bytearray) -> None:
        """Count an unreadable line of the server, and call the callback with the beginning of the line. Exceptions of
        the callback are logged, not raised."""
        self.count += 1
        if self._callback is not None:
            try:
                self._callback(UnreadableMessage(reason, line[:_MOST_BYTES].decode("utf-8", "replace")))
            except Exception:
                logger.exception("on_unreadable failed")
