"""ClientSettings: the settings that a client is opened with; and UnreadableMessage, which a callback among the
settings gets for output of a server that is no message.
"""

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
from ..tasks.settings import TaskSettings
from .cache import CachePartition, ResponseCache
from .timeouts import KeepAlive

if TYPE_CHECKING:
    from ..otel import OpenTelemetry
    from ..protocol.extensions import Extension, ExtensionNotification, ExtensionRequest
    from ..protocol.methods import Method
    from ..recording.recorder import Recorder

SamplingHandler: TypeAlias = Callable[[CreateMessageParams], Awaitable[CreateMessageResult] | CreateMessageResult]
"""A function that answers a request for the client's model."""
ElicitationHandler: TypeAlias = Callable[
    [ElicitFormParams], Awaitable[ElicitResult | JSONObject] | ElicitResult | JSONObject
]
"""A function that has the user fill in a form."""
UrlElicitationHandler: TypeAlias = Callable[[ElicitURLParams], Awaitable[ElicitResult] | ElicitResult]
"""A function that has the user visit a URL."""
RootsHandler: TypeAlias = Callable[[], Awaitable[Sequence[Root]] | Sequence[Root]]
"""A function that returns the roots of the client."""


@cache
def _default_info() -> Implementation:
    """Return our own name and version. Cached, since the lookup reads files of the distribution."""
    return Implementation("trio-mcp", version("trio-mcp"))


@show_fields
class UserOptions(TypedDict, total=False):
    """The handlers of a client, as every ``open_*`` takes them; `ClientSettings` documents them."""

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
    """The keyword arguments of every ``open_*``, documented in `ClientSettings`."""

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
    """Raise `ValueError` unless ``prior`` is an answer to ``server/discover``. A validator of fields."""
    if prior is not None:
        from .prior import read_prior  # late: few clients have one

        read_prior(prior)


def _recorder(record: Recorder | str | os.PathLike[str] | None) -> Recorder | None:
    if record is None:
        return None
    from ..recording.recorder import recorder_of  # late: few connections are recorded

    return recorder_of(record)


def _limits(limits: Limits | None) -> Limits:
    return limits or DEFAULT_LIMITS


def _check_legacy(_: Any, __: Any, revision: str | None) -> None:
    names = [row.name for row in LEGACY_REVISIONS]
    if revision is not None and revision not in names:
        raise ValueError(f"the legacy revisions are {', '.join(names)}, not {revision}")


def _check_plain(_: Any, attribute: attrs.Attribute[Any], callback: Any) -> None:
    if inspect.iscoroutinefunction(callback):
        raise ValueError(f"{attribute.name} is called while reading, so write it with def, not with async def")


def _check_handlers(settings: ClientSettings, _: Any, handlers: Mapping[Method, Any]) -> None:
    lacking = [row for extension in settings.extensions for row in extension._rows]
    for row in handlers:
        if row not in lacking or not row.sent_by("server"):
            raise ValueError(f"{row.name} is not sent by servers in any of the extensions: extensions=[...]")
    if missing := [row.name for row in lacking if row.is_request and row.sent_by("server") and row not in handlers]:
        raise ValueError(f"{', '.join(missing)} of a declared extension has no function: handlers={{...}}")


def _check_callbacks(settings: ClientSettings, _: Any, callbacks: Mapping[Method, Any]) -> None:
    rows = [row for extension in settings.extensions for row in extension._rows if not row.is_request]
    for row in callbacks:
        if row not in rows or not row.sent_by("server"):
            raise ValueError(f"{row.name} is no notification of servers in any of the extensions: extensions=[...]")


def _check_answers_later(settings: ClientSettings, _: Any, later: ClientCapabilities | None) -> None:
    if later is None:
        return
    if later != ClientCapabilities(roots=later.roots, sampling=later.sampling, elicitation=later.elicitation):
        raise ValueError("answers_later is for questions: sampling, elicitation and roots")
    if settings.forwards is not None:
        raise ValueError("a client that forwards all questions leaves none for later: forwards or answers_later")


@frozen(kw_only=True)
class ClientSettings:
    """The settings of a client: its name, its answers to questions, and its callbacks.

    Handlers and callbacks are async, or plain ``def``: plain handlers run in worker threads, plain callbacks in the
    client's own tasks, so plain callbacks must be quick. Questions without a handler are not declared, and are refused,
    but for the kinds in ``answers_later`` or ``forwards``. Any other exception of a handler than `CodedError` is
    logged and hidden from a legacy server; in modern revisions the exception leaves the call for which the server
    asked.
    """

    info: Implementation = attrs.field(factory=_default_info)
    """Name and version, shown to the server's people."""
    sampling: SamplingHandler | None = None
    """Answers ``sampling/createMessage``. Raise `CodedError` with code -1 when the user says no: a legacy server gets
    that error as the answer; in modern revisions, which have no place for an error, the call that asked ends with the
    `CodedError`, and the server is told that the call was given up, with the error's message as the reason."""
    sampling_tools: bool = False
    """True: the sampling handler knows tools."""
    sampling_context: bool = False
    """True: the sampling handler can include the context of servers."""
    sampling_asks_user: bool = False
    """True: the sampling handler waits for the user (2025-11-25 sampling: there SHOULD always be a human in the loop).
    Time limits then stand still while the handler runs, as for elicitation: see `fail_after_work`."""
    elicitation: ElicitationHandler | None = None
    """Asks the user to fill in a form. A plain dict is an accepted form. Fields left out of an accepted form get the
    defaults of its schema that fit; a field that is `None` stays out. A form that then does not fit the server's schema
    is an error of the handler, a `ValueError`."""
    elicitation_url: UrlElicitationHandler | None = None
    """Asks the user to visit a URL. The handler shows the URL and gets consent before opening anything."""
    roots: Sequence[Root] | RootsHandler | None = None
    """The roots, or a function that returns the roots."""
    forwards: ClientCapabilities | None = None
    """Capabilities that are declared in place of the capabilities of the handlers above, because a `proxy` hands the
    server's questions on to its own clients. The questions are refused while there is no proxy."""
    answers_later: ClientCapabilities | None = attrs.field(default=None, validator=_check_answers_later)
    """Kinds of questions (``sampling``, ``elicitation``, ``roots``) that are declared without a handler, besides the
    kinds that have one, since a task that is started here (`Client.start_task`) is resumed later, by another client
    that has handlers (`Client.resume_task`). A question of a task is left unanswered here, and counts among
    `Limits.max_in_flight` until the server takes it back or the client is closed. Any other question cannot wait so
    long, and is refused: a legacy server gets an error (-32601); in modern revisions the call that asked ends with the
    `CodedError`."""
    on_log: Callable[[LogParams], Any] | None = None
    """Called for each log message, one after another, in wire order. A call returns when the callback is done with the
    messages that came while the call was in flight. Two exceptions: a call made while the callback runs does not wait
    for the callback, since the callback may wait for the call; and no call waits longer than `Limits.callback_grace`
    for a single message. The order is kept among log messages; progress callbacks run beside, in the tasks that
    called."""
    on_list_changed: Callable[[ChangedList], Any] | None = None
    """Called when the server's tools, resources or prompts changed. With a modern server this opens a stream of
    ``subscriptions/listen`` for each of the three kinds whose changes the server declares. A stream that the server
    ended is opened anew, and its lists count as changed then. Callbacks for changes run one after another, in wire
    order; no call and no log message waits for such a callback."""
    on_resource_updated: Callable[[str], Any] | None = None
    """Called with the URI of a changed resource after `Client.subscribe` for that URI."""
    extensions: Sequence[Extension[Any, Any]] = attrs.field(default=(), converter=tuple[Any, ...])
    """The extensions that are declared to the server. `Client.server_extension` tells what the server has declared."""
    handlers: Mapping[ExtensionRequest[Any, Any], Callable[..., Any]] = attrs.field(
        factory=dict[Any, Any], validator=_check_handlers
    )
    """The functions that answer requests of extensions: each takes the parameters and returns the result, objects of
    the classes of the method. Legacy servers alone send requests."""
    on_notification: Mapping[ExtensionNotification[Any], Callable[[Any], Any]] = attrs.field(
        factory=dict[Any, Any], validator=_check_callbacks
    )
    """The callbacks for notifications of extensions, each called with the parameters, an object of the class of the
    notification. Those that belong to a request are called in order with the logs, as ``on_log`` is; all others as
    ``on_list_changed``."""
    on_unreadable: Callable[[UnreadableMessage], None] | None = attrs.field(default=None, validator=_check_plain)
    """Called with output of the server that is no message of JSON-RPC: mostly text printed to its standard output. The
    server gets no answer. The output is logged, too, and counted: `Client.unreadable_messages`. The callback is a plain
    function that must be quick, since the call runs while the server's output is read; exceptions of the callback are
    logged."""
    on_elicitation_complete: Callable[[str], Any] | None = None
    """Called with the id of a URL elicitation when the server says that the user is done there (2025-11-25 only): once,
    for an elicitation that the server asked for, or that an error -32042 required. The call takes its turn among the
    callbacks for changes."""
    tasks: bool = True
    """True: calls of tools may become tasks of the server (`Client.call_tool`). False: modern servers are not told of
    the extension, and no tool is called as a task."""
    question_tasks: TaskSettings | None = None
    """Store and bounds of the questions that are answered as tasks, because a server of 2025-11-25 wants to ask for the
    answer later: sampling and elicitation, as far as there are handlers. `None`: no such tasks are declared. The tasks
    end with the client."""
    max_rounds: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    """Times that a modern server may ask for input during one call, and as many times during its task;
    `ProtocolViolation` beyond."""
    max_input_requests: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    """Questions that a modern server may ask at once, in a call or for a task, each answered in a task of its own;
    `ProtocolViolation` beyond.
    As many as requests of a legacy server run at the same time (`Limits.max_in_flight`)."""
    max_questions: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """Handlers of a kind (``sampling``; ``elicitation`` and ``elicitation_url`` together; ``roots``) that run at the
    same time, in either era; further questions wait, first come, first served, within the bounds above and those of
    `Limits`. The time limits of calls stand still meanwhile (`fail_after_work`). A handler that calls a server does not
    count until the call has its answer: that server may ask again. Forwarded questions are not counted here."""
    max_pages: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """Pages that a listing may have; it ends there with a warning. Items are not counted: the iterating code may stop
    at any item."""
    cache: CachePartition | None = attrs.field(factory=lambda: ResponseCache().partition())
    """Cache for fresh answers of a modern server, by default a cache of the client alone. With `None` nothing is kept;
    most servers ask for no caching anyway."""
    limits: Limits = attrs.field(default=None, converter=_limits)
    """Bounds on the server's use of this client; `None`: those of `Limits`."""
    tracing: OpenTelemetry | None = None
    """Observer that is told of requests, `trio_mcp.otel.OpenTelemetry` for example."""
    record: Recorder | None = attrs.field(default=None, converter=_recorder)
    """File to which the messages of the connection are recorded, secrets masked, or a `Recorder`; `None`: none."""
    era: Literal["auto", "modern", "legacy"] = attrs.field(
        default="auto", validator=attrs.validators.in_(("auto", "modern", "legacy"))
    )
    """Era of the server: ``auto`` finds the era out with ``server/discover``, the other values state the era. With
    ``auto``, a child process that ends without an answer is started once more and greeted with ``initialize``: some
    legacy servers die of the question. All clients of this process then greet the same command with ``initialize`` at
    once."""
    revision: str | None = attrs.field(default=None, validator=_check_legacy)
    """The legacy revision to offer in ``initialize``; `None` is the latest, and an older one if the server refuses the
    latest."""
    tell_deadlines: bool = True
    """Tell the server with each call how many milliseconds are left of the call's deadline (``trio-mcp/remainingMs`` in
    ``_meta``), so that the handler stops even if no cancel gets through."""
    send_cancels: bool = True
    """Tell the server when a call or a stream is left. Some servers die of that notification (``mcp`` 1.9.4 to 1.11.0):
    ``False`` sends no ``notifications/cancelled`` at all. A call or stream that is left is then given up on this side
    alone, and late answers and notifications of the server are dropped."""
    connect_timeout: float = 60.0
    """Seconds until the connection must be ready; then `trio.TooSlowError`. Only connecting is limited."""
    probe_timeout: float = 2.0
    """Seconds without an answer to ``server/discover`` after which ``initialize`` is tried at the same time, and
    without an acknowledgement of the stream for ``on_list_changed`` after which the client is ready all the same."""
    call_timeout: float = attrs.field(default=math.inf, validator=positive)
    """Seconds that each request may take, and a stream until its acknowledgement; then `trio.TooSlowError`, and the
    server is told to stop. The limit is a `fail_after_work`; a `fail_after_work` or `fail_after_silence` that the
    caller opened around calls replaces the limit. So a caller may grant more time, too."""
    keep_alive: KeepAlive | None = None
    """Pings for a server that is idle; `None`: no pings."""
    prior: JSONObject | None = attrs.field(default=None, validator=check_prior, repr=False)
    """What `Client.discovery` gave of an earlier client of the same server: connecting then asks nothing. The client
    asks ``server/discover`` after all, once, when the time to live of the answer is over, when the server refuses a
    request as one of another revision or era would, and when a call needs something that the answer lacks; a refused
    request is then sent again in the revision found. Raises `ValueError` for anything but such an answer, for the
    answer of another server, and with ``era="legacy"`` or ``forwards``."""

    def __attrs_post_init__(self) -> None:
        if self.prior is not None and (self.era == "legacy" or self.forwards is not None):
            raise ValueError(
                "prior= is for modern servers, and not for clients that forward: leave out era= and forwards="
            )


def speaking(revision: str | None, options: ClientOptions, prior: JSONObject | None = None) -> ClientOptions:
    """Return ``options`` for a client that only speaks ``revision`` and opens with ``prior``; the same for `None`.
    Raises `ValueError` for an unknown revision."""
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
    """Raise as `speaking`. A validator of fields."""
    speaking(revision, {})


logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 2000


@frozen
class UnreadableMessage:
    """A line of a server, or a message of its WebSocket, that is no message of JSON-RPC."""

    reason: str
    """The reason, for people."""
    text: str
    """The first 2,000 bytes; bytes that are not UTF-8 are replaced. Untrusted."""


class UnreadableMessages:
    """Counts unreadable messages, and tells ``callback`` of each."""

    def __init__(self, callback: Callable[[UnreadableMessage], None] | None) -> None:
        self.count = 0
        self._callback = callback

    def add(self, reason: str, line: bytes | bytearray) -> None:
        """Count a message that begins with ``line``, and tell the callback. Raises nothing."""
        self.count += 1
        if self._callback is not None:
            try:
                self._callback(UnreadableMessage(reason, line[:_MOST_BYTES].decode("utf-8", "replace")))
            except Exception:
                logger.exception("on_unreadable failed")
