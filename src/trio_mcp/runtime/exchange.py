"""`Exchange` holds the MCP requests of one client, and connects them with that client's outbox, identity and
disconnect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol

import trio

from ..jsonrpc.errors import METHOD_NOT_FOUND, TOO_BUSY, CodedError
from .outbox import Outbox, Owner
from .peer import ANY_CLIENT

if TYPE_CHECKING:
    from ..protocol.param_headers import ParamHeader
    from ..state.connection import ConnectionState
    from ..state.requests import InboundRequest
    from .cancellation import CancelCause
    from .peer import Peer
    from .requests.scope import RequestScope


class ClientChannel(Protocol):
    """Interface for sending messages to a client outside of its running requests. For example, the `Exchange` of a
    connection implements it."""

    @property
    def outbox(self) -> Outbox:
        """The queue of messages that are sent to the client."""
        ...

    @property
    def is_open(self) -> bool:
        """True if messages can be sent to the client now, without waiting until the client reconnects."""
        ...


class Exchange:
    """Holds the MCP requests in progress of one connection, or of a part of a connection, such as an HTTP POST.

    ``state`` decides what is legal for the requests; ``outbox`` gets their lines; ``peer`` is the client or server that
    sent them. The end of an exchange cancels all held requests (`cancel_all`). While a request waits for its client's
    retry, it belongs to no exchange.
    """

    __slots__ = ("_emptied", "_held", "_streams", "at_once", "ending", "outbox", "peer", "state")

    has_headers: ClassVar[bool] = False
    """True if each request has its own HTTP headers, which may mirror the request's arguments."""
    keeps_outcomes: ClassVar[bool] = False
    """True if replies are stored instead of sent. If so, `keep` is called before `reply`."""
    forgot_client: ClassVar[bool] = False
    """True for a background task that was resumed after a restart. The client that created it is unknown, unless the
    peer has a principal."""
    related_task: str | None = None
    """Id of the background task that messages of this exchange name in ``_meta``. `None` if the messages name no
    task."""

    def __init__(self, state: ConnectionState, outbox: Outbox, peer: Peer) -> None:
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = trio.Event()
        """Event that is set when the exchange starts to end. Subscription streams end then, while other requests
        continue."""
        self.at_once = Owner()
        """Owner, in the outbox, of the replies that the reader task writes directly."""
        self._held: dict[InboundRequest, RequestScope] = {}
        self._streams = 0
        self._emptied: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until the exchange has no requests, or no streams. `None` until the first task waits."""

    @property
    def is_keeping(self) -> bool:
        """True if the handler of the request has ended and `keep` has started to store the result."""
        return False

    @property
    def party(self) -> object:
        """The client's identity. If a handler waits for a client's retry, only a client with the same identity can make
        the handler continue.

        This is the principal or, without a principal, the exchange itself. Without principals, all clients of a
        stateless HTTP endpoint, on all of its replicas, count as one client.
        """
        if self.peer.principal is not None:
            return self.peer.principal
        return ANY_CLIENT if self.peer.everybody else self

    @property
    def connection(self) -> trio.Event | None:
        """An object that identifies the client's connection. All requests and tasks of the connection have the same
        object.

        The object lives as long as any of these requests and tasks. `None` if a request doesn't show to which
        connection it belongs.
        """
        return None if self.has_headers or self.peer.everybody else self.ending

    @property
    def client_channel(self) -> ClientChannel:
        """The channel to the client for messages of requests that have already ended."""
        return self

    @property
    def is_open(self) -> bool:
        """True if messages can be sent to the client now, without waiting until the client reconnects."""
        return not self.outbox.over

    # Held requests

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        """Register a running request in this `Exchange`, so that the request is cancelled when the `Exchange` ends.
        ``held`` is the request's `RequestScope`."""
        self._held[request] = held
        if request.method.streams:
            self._streams += 1

    def release(self, request: InboundRequest) -> None:
        """Remove a request from the running requests of this `Exchange`, because the request has ended or waits for its
        client's retry.

        Idempotent.
        """
        if self._held.pop(request, None) is None:
            return
        if request.method.streams:
            self._streams -= 1
        if self._emptied is not None:
            self._emptied.unpark_all()

    def find(self, request: InboundRequest) -> RequestScope | None:
        """Return the `RequestScope` of ``request``, or `None` if the request isn't registered in this `Exchange`."""
        return self._held.get(request)

    def cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all requests that are registered in this `Exchange`, oldest first."""
        for held in tuple(self._held.values()):
            held.abort(cause, reason)

    async def idle(self) -> None:
        """Wait until no requests are registered in this `Exchange`."""
        while self._held:
            await self._one_less()

    async def streams_idle(self) -> None:
        """Wait until no subscription streams are registered in this `Exchange`."""
        while self._streams:
            await self._one_less()

    async def _one_less(self) -> None:
        if self._emptied is None:
            self._emptied = trio.lowlevel.ParkingLot()
        await self._emptied.park()

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        """Called when ``request`` is cancelled.

        From then on, the request gets no reply, even if its handler is still cleaning up.
        """

    def check_headers(self, request: InboundRequest, table: Iterable[ParamHeader]) -> None:
        """Check the HTTP headers that repeat arguments of ``request``: each header must have the value of its argument.

        ``table`` maps the headers to the arguments. Raises `CodedError` if a header differs.
        """

    def check_scopes(self, needed: frozenset[str]) -> None:
        """Raise `CodedError` if the caller's token lacks any of the ``needed`` OAuth scopes.

        Do nothing if the caller's scopes are unknown.
        """
        if needed and self.peer.check_scopes is not None:
            self.peer.check_scopes(needed)

    def unavailable(self, reason: str) -> CodedError:
        """Return the error for a request that can't be served now. ``reason`` is the error message.

        Over HTTP, the error also sets the status, unless the response has already begun.
        """
        return CodedError(TOO_BUSY, reason)

    def method_not_found(self, request: InboundRequest) -> CodedError:
        """Return the "Method not found" error for a request that already runs in a trio task. Only now has its method
        turned out to be unavailable.

        Over HTTP, the error also sets the status, unless the response has already begun.
        """
        return CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})

    def close_stream(self, retry: float) -> bool:
        """Close the HTTP stream to the client. The client reconnects after ``retry`` seconds.

        Return false if the stream can't be closed.
        """
        return False

    # Replies

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        """Store the reply ``line`` for ``request``, whose handler has ended, instead of sending it.

        ``line`` is `None` if the request was cancelled. Called only if `keeps_outcomes` is true.
        """
        raise NotImplementedError

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Send the reply to a request that is registered in this `Exchange`.

        ``None`` means that the request ended without a reply. If ``owner`` withdraws its waiting lines from the outbox,
        the reply is withdrawn too.
        """
        if line is not None:
            self.outbox.put_now(line, owner)

    def reply_at_once(self, line: bytes | None) -> None:
        """Send the reply to a request that the reader task handles itself, without starting a task.

        Otherwise like `reply`.
        """
        if line is not None:
            self.outbox.put_now(line, self.at_once)

    def refuse(self, code: int, line: bytes) -> None:
        """Send an error reply to a message that isn't a valid request. ``line`` is the encoded reply, and ``code`` its
        error code."""
        self.reply_at_once(line)


class PartExchange(Exchange):
    """The exchange for a part of ``connection``, such as one HTTP POST. It has its own ``outbox`` and ``peer``.

    The exchange of the whole connection holds and cancels the MCP requests.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: Exchange, outbox: Outbox, peer: Peer) -> None:
        # Keep this object small, because each HTTP POST creates one. The connection's `Exchange` holds the requests.
        self.state = connection.state
        self.outbox = outbox
        self.peer = peer
        self.ending = connection.ending
        self.at_once = connection.at_once
        self._connection = connection

    @property
    def party(self) -> object:
        return self._connection.party if self.peer.principal is None else self.peer.principal

    @property
    def client_channel(self) -> ClientChannel:
        return self._connection.client_channel

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        self._connection.hold(request, held)

    def release(self, request: InboundRequest) -> None:
        self._connection.release(request)

    def find(self, request: InboundRequest) -> RequestScope | None:
        return self._connection.find(request)


class BatchExchange(PartExchange):
    """Collects the replies to a JSON-RPC batch that arrived over ``connection``. ``members`` is the number of messages
    in the batch.

    The replies are sent together in one array (JSON-RPC 2.0, section 6). In all other respects, a batch behaves like
    the connection's own exchange.
    """

    __slots__ = ("_lines", "_open")

    def __init__(self, connection: Exchange, members: int) -> None:
        super().__init__(connection, connection.outbox, connection.peer)
        self._open = members
        self._lines: list[bytes] = []

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Add the reply to one message of the JSON-RPC batch. ``line`` is `None` if the message gets no reply: a
        notification or a cancelled request.

        After the last message, send all replies.
        """
        self._open -= 1
        if line is not None:
            self._lines.append(line.rstrip(b"\n"))
        if self._open == 0:
            self._connection.reply_at_once(b"[" + b",".join(self._lines) + b"]\n" if self._lines else None)

    def reply_at_once(self, line: bytes | None) -> None:
        self.reply(line)
