"""Transports, which send and receive whole messages. Users derive their transports from `Transport`; the built-in
transports are derived from `FramedTransport`. A transport receives `Received` objects: bytes, a `Frame`, or a loss.

The errors of transports are in this module as well: `ConnectionLost`, and `HTTPError` for an HTTP exchange without a
reply. So are the observers of requests (`Tracing`), which `trio_mcp.otel.OpenTelemetry`, recordings and your own
observers implement. None of their methods may raise, and all must be quick.
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
    """The connection to the peer was lost, or could not be opened.

    Every call that waited on the connection raises this error once. If the peer was a child process, ``exit_status`` is
    its exit status (a negative number: the signal that killed it), and ``stderr`` has its last lines of standard error.
    Otherwise they are `None` and empty. If the connection could not be opened, ``stdout`` has the child's last output
    lines that weren't messages, and ``command`` is the command as given.
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
        """Why the connection was lost or couldn't be opened, on one line."""
        super().__init__(self.reason)
        self.exit_status = exit_status
        """Exit status of the child process, negative for a signal; `None` if there is none."""
        self.stderr = stderr
        """Last lines of the child process on standard error; otherwise empty."""
        self.stdout = stdout
        """Last output lines of the child process that weren't messages, if connecting failed."""
        self.command = command
        """The command as given, if its connection couldn't be opened; otherwise `None`."""

    def __str__(self) -> str:
        text = self.reason
        if self.exit_status is not None:
            text += f" (exit status {self.exit_status})"
        return text + self.details

    @property
    def details(self) -> str:
        """The server process's command and its last lines of output, as text that can be appended to an error
        message."""
        outputs = {"stderr": self.stderr, "stdout": self.stdout}.items()
        parts = [f"its last lines on {name}:\n  " + "\n  ".join(lines) for name, lines in outputs if lines]
        parts += [] if self.command is None else [f"its command: {self.command}"]
        return "; " + "\n".join(parts) if parts else ""


class UnreadableFrame(Exception):
    """A message could not be read, for example because it was too long. The transport can still be used.

    The ``reason`` is sent to the peer. ``head`` and ``tail`` are the beginning and the end of the message, which may
    contain the id of the waiting call.
    """

    def __init__(self, reason: str, head: bytes | bytearray = b"", tail: bytes | bytearray = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.head = head
        self.tail = tail


@value
class Frame:
    """A received message that the transport itself has decoded, together with its original bytes."""

    message: Message | Batch | Unreadable
    data: bytes
    related_request_id: RequestId | None = None
    """Id of the outgoing request whose HTTP response carried the message. `None` if the transport can't determine
    it."""


@value
class ReplyLost:
    """Returned by a transport if no reply to the outgoing request ``request_id`` will arrive. The call then ends with
    ``error``.

    The transport can still be used. The call may already have ended.
    """

    request_id: RequestId
    error: MCPError


@value
class QuestionsLost:
    """Returned by a transport if the peer no longer waits for the replies to its requests ``request_ids``.

    ``reason`` says why. The connection isn't lost.
    """

    request_ids: tuple[RequestId, ...]
    reason: str


Received: TypeAlias = bytes | bytearray | Frame | ReplyLost | QuestionsLost
"""What `FramedTransport.receive` returns: a received message without its framing, or a notice that a reply or request
was lost."""


@value
class SendRecorder:
    """Functions that record the messages that a transport sends."""

    send_nowait: Callable[[bytes], int]
    """Function that sends like `FramedTransport.send_nowait`, and records the message."""
    record: Callable[[bytes], None]
    """Function that records a message, without its newline, that isn't sent by `send_nowait` or `Transport.send`."""


class Transport(ABC):
    """A channel for whole MCP messages between a client and a server.

    See `open_client` and `serve_transport`. To run MCP over your own protocol, derive from this class. A transport
    doesn't interpret JSON-RPC. One task receives, and one task at a time sends. To refuse a message that is too long,
    raise `ConnectionLost`. The function that opens a client or server over a transport also closes it, even if opening
    fails.
    """

    network: str | None = None
    """Type of network, for OpenTelemetry traces: ``pipe``, ``tcp`` or ``unix``. `None` if messages don't leave the
    process."""

    @abstractmethod
    async def receive(self) -> bytes | bytearray:
        """Return the next message, without a newline.

        Raises `trio.EndOfChannel` if the peer will send no more but may still read, and `ConnectionLost` if both
        directions are lost. `OSError`, `trio.BrokenResourceError` and `trio.ClosedResourceError` count as
        `ConnectionLost`. Cancellation must not lose a message or a byte.
        """

    @abstractmethod
    async def send(self, messages: bytes | bytearray) -> None:
        """Send one or more whole messages. Each ends with a newline, and contains no other newline.

        Raises `ConnectionLost`, or another error that counts as such, if the peer no longer reads. Cancellation may
        leave a partly sent message, so nothing is sent afterwards.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close both directions of the transport. Idempotent.

        If this method is cancelled, it closes the transport forcefully, like `trio.abc.AsyncResource`.
        """


class FramedTransport(Transport):
    """Base class of the built-in transports.

    Unlike a user's `Transport`, a `FramedTransport` can return messages that it had to decode, and can send without
    waiting.
    """

    child: tuple[int, float] | None = None
    """The process id of the child process at the other end, and when the process was started, on trio's clock. `None`
    if this side has started no process."""
    names_calls: bool = False
    """True if each received message carries the id of the request in whose response it arrived: see
    `Frame.related_request_id`."""
    buffered: list[bytes | bytearray] = []  # noqa: RUF012 a transport that fills it creates its own list
    """Received messages, with the oldest message last. The receiving task can pop them instead of calling `receive`,
    which takes much longer."""

    @abstractmethod
    async def receive(self) -> Received:  # pyright: ignore[reportIncompatibleMethodOverride] - for the runtime only
        """Return the next message, or report that a reply or a request was lost.

        A message that the transport had to decode is returned as a `Frame`.

        Raises like `Transport.receive`, and `UnreadableFrame` for a message that was skipped. Doesn't have to be a
        checkpoint while messages are buffered.
        """

    def send_nowait(self, message: bytes) -> int:
        """Send as much as possible of a whole message without waiting. Return the number of bytes sent.

        The message ends with a newline.

        Returns ``0`` if sending would wait, isn't worthwhile, or fails; `send` reports the failure. Never raises.
        Before anything else, the rest of the message must be sent by `send`. Must not be called while a task is in
        `send`, nor after a cancelled `send`.
        """
        return 0

    def make_outbox(self, high_water: int, recorded: SendRecorder | None = None) -> Outbox:
        """Return a new outbox for a connection over this transport.

        If ``recorded`` is given, the outbox sends all messages through ``recorded``.
        """
        return Outbox(high_water, self.send_nowait if recorded is None else recorded.send_nowait)

    def observed_by(self, tracing: Tracing | None) -> Tracing | None:
        """Return the object that observes the requests of a connection over this transport. It is ``tracing``, or an
        object that a subclass wraps around ``tracing`` to record the requests.

        `None` if nothing is observed.
        """
        return tracing


def framed(transport: Transport) -> FramedTransport:
    """Return ``transport`` itself if it's a `FramedTransport`. Otherwise, return a `FramedTransport` that wraps it."""
    if isinstance(transport, FramedTransport):
        return transport
    if not isinstance(transport, Transport):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise TypeError(
            f"a transport must be an instance of a subclass of trio_mcp.Transport, not {repr(transport)[:200]}"
        )
    return _Framed(transport)


class _Framed(FramedTransport):
    """Wraps a user's `Transport`, so that it can be used as a `FramedTransport`."""

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
    """Raised if the HTTP exchange of a request ended without a reply to the request.

    Other calls aren't affected, and the client stays usable. ``status`` is the HTTP status that the server, or a proxy
    in between, returned. It's `None` if no response arrived, for example because nothing listens at the address.
    ``body`` is the text of the response, in plain words, up to 500 characters. ``retry_after`` is the server's
    ``Retry-After`` in seconds, or `None`. ``session_lost`` is true if a legacy server no longer has the session of the
    request: the next request opens a new session. Unless the status rules it out, the server may have executed the
    request. Failed requests aren't retried automatically.
    """

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
        """HTTP status of the response; `None` if no response arrived."""
        self.reason = clean(reason)
        """Why the exchange failed, on one line."""
        self.body = clean(body)
        """Text of the response, up to 500 characters; empty if there is none."""
        super().__init__(status, self.reason, self.body)
        self.retry_after = retry_after
        """Seconds in the server's ``Retry-After`` header; `None` if there is none."""
        self.session_lost = session_lost
        """True if a legacy server no longer has the session of the request."""

    @classmethod
    def _refused(cls, status: int, body: str, retry_after: float | None = None, location: str = "") -> HTTPError:
        """Return the error for a request that got an HTTP response with an error status.

        ``location`` is the URL of a redirect.
        """
        # Import `http` only here, because a stdio server starts 1 ms faster without this module.
        from http import HTTPStatus

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
    """Creates an observer for each connection. The observer traces the requests of the connection."""

    def _watch_load(self, load: Load) -> None:
        """Start to observe the request counters ``load`` of a server or client that is starting."""
        ...

    def _tracer_of(self, network: str | None) -> Tracer:
        """Return an observer for a connection. ``network`` is the connection's type of network: see
        `Transport.network`."""
        ...


class Tracer(Protocol):
    """Observes the requests of one connection."""

    def close(self, role: str, revision: str | None) -> None:
        """Called when the connection has ended. ``role`` is the role of this side: client or server."""
        ...

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Return the tracing span of a request that the current task is about to send.

        ``present`` is the trace context that the new span continues.
        """
        ...

    def handling(self, request: InboundRequest, queued: float = 0.0) -> HandlerSpan | None:
        """Return the tracing span of a handler that is about to run in the current task.

        Its request waited in the queue for ``queued`` seconds.
        """
        ...


class CallSpan(Protocol):
    """Observes one outgoing request until it has ended."""

    @property
    def params(self) -> dict[str, Any] | None:
        """The request's parameters with the trace context added, as they are sent."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """Record how the request ended: with ``result`` as plain data, or with the exception ``error`` that its caller
        gets."""
        ...


class HandlerSpan(Protocol):
    """Observes one incoming request while its handler runs."""

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        """Return the awaitable that runs the handler: ``answer`` itself, or a wrapper around ``answer`` that observes
        the handler.

        A wrapper can record the first step after the cancellation of ``scope``, and the end of the handler.
        """
        ...

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        """Called when the handler and all its tasks have ended.

        ``request`` is the answered request. If the request was cancelled, ``cause`` is the cause, and ``at`` is the
        time on trio's clock.
        """
        ...
