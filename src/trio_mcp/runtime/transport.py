"""Transport is what users implement: whole messages in and out. `FramedTransport` is what the runtime needs of one:
`Received` is what comes in: bytes, a `Frame`, or a loss.

The errors of transports stand here, too: `ConnectionLost`, and `HTTPError` for an exchange over HTTP that brought no
reply. So do observers of requests (`Tracing`), the parts of `trio_mcp.otel.OpenTelemetry`, of recordings, and of
observers of your own: none of their methods may raise, and all must be quick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from ..classes import value
from ..jsonrpc.errors import MCPError, clean
from ..jsonrpc.messages import Batch, Message, RequestId, Unreadable
from .outbox import Outbox

if TYPE_CHECKING:
    from ..protocol.meta import TraceContext
    from ..state.requests import InboundRequest, OutboundRequest
    from .limits import Load


class ConnectionLost(MCPError):
    """The connection is gone: every call that waited on the connection fails with this error, exactly once.

    Where the peer was a child process of ours, ``exit_status`` is the exit status of the child (negative: minus the
    signal), and ``stderr`` the child's last lines there; else `None` and empty. If the connection could not be opened,
    ``stdout`` has the child's last lines of output that are no messages, and ``command`` is the command as given.
    """

    def __init__(
        self,
        reason: str,
        *,
        exit_status: int | None = None,
        stderr: tuple[str, ...] = (),
        stdout: tuple[str, ...] = (),
        command: str | None = None,
    ) -> None:
        self.reason = clean(reason)
        super().__init__(self.reason)
        self.exit_status = exit_status
        self.stderr = stderr
        self.stdout = stdout
        self.command = command

    def __str__(self) -> str:
        text = self.reason
        if self.exit_status is not None:
            text += f" (exit status {self.exit_status})"
        return text + self.details

    @property
    def details(self) -> str:
        """The last lines and the command, as text to append to a reason."""
        outputs = {"stderr": self.stderr, "stdout": self.stdout}.items()
        parts = [f"its last lines on {name}:\n  " + "\n  ".join(lines) for name, lines in outputs if lines]
        parts += [] if self.command is None else [f"its command: {self.command}"]
        return "; " + "\n".join(parts) if parts else ""


class UnreadableFrame(Exception):
    """Raised when a message could not be read, for example because of its length. The transport goes on.

    The peer is told the ``reason``. ``head`` and ``tail`` are the beginning and the end of the message, where the id of
    the waiting call may be found.
    """

    def __init__(self, reason: str, head: bytes | bytearray = b"", tail: bytes | bytearray = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.head = head
        self.tail = tail


@value
class Frame:
    """A message that its transport has decoded, and the bytes that the message came in."""

    message: Message | Batch | Unreadable
    data: bytes
    related_request_id: RequestId | None = None
    """Id of the request of ours in whose answer the message came; `None` where the way of the message does not tell."""


@value
class ReplyLost:
    """No reply to the request of ours with the id ``request_id`` will come any more; the call ends with ``error``. The
    transport need not know whether the call is still open, and goes on."""

    request_id: RequestId
    error: MCPError


@value
class QuestionsLost:
    """The peer wants no answers to its requests with ``request_ids`` any more, because of ``reason``, and goes on."""

    request_ids: tuple[RequestId, ...]
    reason: str


Received: TypeAlias = bytes | bytearray | Frame | ReplyLost | QuestionsLost
"""Results of `Transport.receive`: a message, without its framing, or a loss."""


@value
class SendRecorder:
    """Functions that stand before the sending of a transport whose messages are recorded."""

    send_nowait: Callable[[bytes], int]
    """Sends as `FramedTransport.send_nowait`."""
    record: Callable[[bytes], None]
    """Notes a message, without its newline, that goes another way than by `send_nowait` and `Transport.send`."""


class Transport(ABC):
    """A way for whole messages, which a client or server runs over: see `open_client` and `serve_transport`.

    To run MCP over something of your own, derive from this class. A transport knows nothing of JSON-RPC. One task
    receives; one task at a time sends. A message longer than your transport wants is the transport's to refuse, by
    `ConnectionLost`. Whoever opens a client or server over a transport closes it, also if opening fails.
    """

    network: str | None = None
    """How the messages travel, for traces: ``pipe``, ``tcp`` or ``unix``; `None` if they don't leave the process."""

    @abstractmethod
    async def receive(self) -> bytes | bytearray:
        """Return the next message, without a newline.

        Raises `trio.EndOfChannel` when the peer sends no more but may still read, and `ConnectionLost` when both
        directions are gone; `OSError`, `trio.BrokenResourceError` and `trio.ClosedResourceError` count as that. A
        cancel loses no message and no byte.
        """

    @abstractmethod
    async def send(self, messages: bytes | bytearray) -> None:
        """Send one or more whole messages, each ended by a newline and holding no other.

        Raises `ConnectionLost`, or another error that counts as that, when the peer reads no more. A cancel may leave
        half a message behind, so nothing is sent afterwards.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close both directions. Idempotent; a cancelled call closes forcefully, as for `trio.abc.AsyncResource`."""


class FramedTransport(Transport):
    """A transport of the package: it can also hand over what it had to decode, and send without waiting."""

    names_calls: bool = False
    """True where messages say in whose answer they came: see `Frame.related_request_id`."""
    buffered: list[bytes | bytearray] = []  # noqa: RUF012 transports that fill it have one of their own
    """Messages that have come, the next message last. The task that receives may pop them instead of calling `receive`,
    which takes much longer for each."""

    @abstractmethod
    async def receive(self) -> Received:  # pyright: ignore[reportIncompatibleMethodOverride] - for the runtime alone
        """Return the next message, a `Frame` where the transport had to decode the message, or the next loss.

        Raises as `Transport.receive`, and `UnreadableFrame` for a message that was skipped. Need not be a checkpoint
        while messages are at hand.
        """

    def send_nowait(self, message: bytes) -> int:
        """Send the front of a whole message, ended by a newline, without waiting, and return the number of bytes sent:
        ``0`` where sending would wait or is not worth while, and where sending fails; `send` reports the failure.

        Never raises. The rest of the message must be sent before all else, by `send`. Must not be called while a task
        is in `send`, nor after a `send` that was cancelled.
        """
        return 0

    def make_outbox(self, high_water: int, recorded: SendRecorder | None = None) -> Outbox:
        """Return the outbox for the messages of a connection over this transport, by way of ``recorded`` if given."""
        return Outbox(high_water, self.send_nowait if recorded is None else recorded.send_nowait)

    def observed_by(self, tracing: Tracing | None) -> Tracing | None:
        """Return the observer of the requests of a connection over this transport, whose host has ``tracing``."""
        return tracing


def framed(transport: Transport) -> FramedTransport:
    """Return ``transport`` itself, or a view of a user's transport."""
    if isinstance(transport, FramedTransport):
        return transport
    if not isinstance(transport, Transport):  # pyright: ignore[reportUnnecessaryIsInstance] - as users call it
        raise TypeError(f"a transport is a subclass of trio_mcp.Transport, not {repr(transport)[:200]}")
    return _Framed(transport)


class _Framed(FramedTransport):
    """A transport of a user, for the runtime."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.network = transport.network

    async def receive(self) -> bytes | bytearray:
        try:
            return await self._transport.receive()
        except _LOST as error:
            raise ConnectionLost(f"the transport failed: {error!r}") from error

    async def send(self, messages: bytes | bytearray) -> None:
        try:
            await self._transport.send(messages)
        except _LOST as error:
            raise ConnectionLost(f"the transport failed: {error!r}") from error

    async def aclose(self) -> None:
        await self._transport.aclose()


_LOST: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class HTTPError(MCPError):
    """The exchange of a request over HTTP ended without a reply. Other calls are not concerned, and the client stays
    usable.

    ``status`` is the HTTP status that the server, or a proxy on the way, has answered with; `None` when no answer came,
    because nobody listens for example. ``body`` is what the answer says, in plain words, up to 500 characters.
    ``retry_after`` are the seconds after which the server asks to be asked again (``Retry-After``); `None` where the
    server has not said so. ``session_lost`` is true where a legacy server has forgotten the session of the request: a
    new one is opened, and has the next request. The request may have run, unless the status says otherwise; no request
    is sent again by itself."""

    def __init__(
        self,
        status: int | None,
        reason: str,
        body: str = "",
        *,
        retry_after: float | None = None,
        session_lost: bool = False,
    ) -> None:
        self.status = status
        self.reason = clean(reason)
        self.body = clean(body)
        super().__init__(status, self.reason, self.body)
        self.retry_after = retry_after
        self.session_lost = session_lost

    @classmethod
    def _refused(cls, status: int, body: str, retry_after: float | None = None, location: str = "") -> HTTPError:
        """Return the error for an answer whose status says that the request failed. ``location`` is the URL of a
        redirect."""
        from http import HTTPStatus  # late: the start of a server on stdio is 1 ms shorter without it

        try:
            phrase = f" ({HTTPStatus(status).phrase})"
        except ValueError:
            phrase = ""
        if location:
            phrase += f" to {location}, which isn't followed"
        return cls(status, f"the server answered with HTTP status {status}{phrase}", body, retry_after=retry_after)

    def __str__(self) -> str:
        return f"{self.reason}: {self.body}" if self.body else self.reason


class Tracing(Protocol):
    """An observer of the requests of many connections."""

    def _watch_load(self, load: Load) -> None:
        """Note the counts of a server or client that runs from now on."""
        ...

    def _tracer_of(self, network: str | None) -> Tracer:
        """Return the observer of a connection whose messages travel by ``network``: see `Transport.network`."""
        ...


class Tracer(Protocol):
    """The observer of one connection."""

    def close(self, role: str, revision: str | None) -> None:
        """Note that the connection has ended, in which our side was ``role``."""
        ...

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Note a request of ours that the current task is about to send, while the task works for ``present``."""
        ...

    def handling(self, request: InboundRequest, queued: float = 0.0) -> HandlerSpan | None:
        """Note a handler that is about to run in the current task, after its request has waited ``queued`` seconds."""
        ...


class CallSpan(Protocol):
    """A request of ours, on its way."""

    @property
    def params(self) -> dict[str, Any] | None:
        """The parameters to send."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """Note the end: ``result`` is plain data; ``error`` is the exception that the caller gets instead."""
        ...


class HandlerSpan(Protocol):
    """A request of the peer, while its handler runs."""

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        """Return ``answer``, the handler itself, in a form that may note its first step behind the cancel of
        ``scope``, and its end."""
        ...

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        """Note that the handler and all its tasks have ended: ``request`` is the one that is answered, ``cause`` that
        of a cancel, if any, which came at the time ``at`` on trio's clock."""
        ...
