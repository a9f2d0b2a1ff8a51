"""Exchange connects requests with their client: the outbox for their lines, the caller, and the end."""

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
    """A channel to a client that outlives the client's requests, such as the `Exchange` of a connection."""

    @property
    def outbox(self) -> Outbox:
        """The outbox for the channel's lines."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether lines reach the client without the client having to reconnect."""
        ...


class Exchange:
    """A connection to one peer, or a part of one, with the requests that belong to it.

    ``state`` decides what is legal for the requests; ``outbox`` gets their lines; ``peer`` is the party that sent them.
    The end of an exchange cancels all held requests (`cancel_all`). While a request waits for its client's retry, it
    belongs to no exchange.
    """

    __slots__ = ("_emptied", "_held", "_streams", "at_once", "ending", "outbox", "peer", "state")

    has_headers: ClassVar[bool] = False
    """Whether each request has its own headers, which can repeat arguments."""
    keeps_outcomes: ClassVar[bool] = False
    """Whether replies are stored instead of sent. If so, `keep` is called before `reply`."""
    forgot_client: ClassVar[bool] = False
    """True for a task that was resumed after a restart: its owner is unknown unless the peer has a principal."""
    related_task: str | None = None
    """Id of the task that the messages of its requests name in ``_meta``; `None` if they name no task."""

    def __init__(self, state: ConnectionState, outbox: Outbox, peer: Peer) -> None:
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = trio.Event()
        """Set when the exchange starts to end. Streams end at this moment; other requests continue."""
        self.at_once = Owner()
        """Owner of the replies that the reader writes directly, without a task."""
        self._held: dict[InboundRequest, RequestScope] = {}
        self._streams = 0
        self._emptied: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until no request, or no stream, is left; `None` until the first such task."""

    @property
    def is_keeping(self) -> bool:
        """Whether `keep` has started to store a result: the handler has ended, and only the package's code waits."""
        return False

    @property
    def party(self) -> object:
        """The party that can retry for a parked handler: the principal or, without one, the exchange itself. Without
        principals, all clients of an HTTP endpoint, on all of its replicas, are one party."""
        if self.peer.principal is not None:
            return self.peer.principal
        return ANY_CLIENT if self.peer.everybody else self

    @property
    def connection(self) -> trio.Event | None:
        """An object that all requests of the client's connection share, including tasks, and that lives as long as they
        do. `None` if a request doesn't tell which others belong to its connection."""
        return None if self.has_headers or self.peer.everybody else self.ending

    @property
    def client_channel(self) -> ClientChannel:
        """The channel for lines that can be sent after the end of their request."""
        return self

    @property
    def is_open(self) -> bool:
        """Whether lines reach the client without the client having to reconnect."""
        return not self.outbox.over

    # Held requests

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        """Register ``held`` under its ``request``, to be cancelled when the exchange ends."""
        self._held[request] = held
        if request.method.streams:
            self._streams += 1

    def release(self, request: InboundRequest) -> None:
        """Remove a request that has ended, or that waits for its client's retry. Idempotent."""
        if self._held.pop(request, None) is None:
            return
        if request.method.streams:
            self._streams -= 1
        if self._emptied is not None:
            self._emptied.unpark_all()

    def find(self, request: InboundRequest) -> RequestScope | None:
        """Return the `RequestScope` of ``request``; `None` if the exchange doesn't hold the request."""
        return self._held.get(request)

    def cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all held requests, oldest first."""
        for held in tuple(self._held.values()):
            held.abort(cause, reason)

    async def idle(self) -> None:
        """Wait until the exchange holds no requests."""
        while self._held:
            await self._one_less()

    async def streams_idle(self) -> None:
        """Wait until the exchange holds no streams."""
        while self._streams:
            await self._one_less()

    async def _one_less(self) -> None:
        if self._emptied is None:
            self._emptied = trio.lowlevel.ParkingLot()
        await self._emptied.park()

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        """Called when ``request`` is cancelled. No reply will be sent, even if its handler is still cleaning up."""

    def check_headers(self, request: InboundRequest, table: Iterable[ParamHeader]) -> None:
        """Raise `CodedError` if a header of ``request`` that ``table`` lists differs from its argument."""

    def check_scopes(self, needed: frozenset[str]) -> None:
        """Raise `CodedError` if the caller lacks one of the ``needed`` scopes. Do nothing if scopes are unknown."""
        if needed and self.peer.check_scopes is not None:
            self.peer.check_scopes(needed)

    def unavailable(self, reason: str) -> CodedError:
        """Return the error for a request that can't be served now; ``reason`` is the message. If the transport has a
        status code for this, it uses that, unless the response has already begun."""
        return CodedError(TOO_BUSY, reason)

    def method_not_found(self, request: InboundRequest) -> CodedError:
        """Return the error for a ``request`` whose method turns out to be missing after its task has begun. If the
        transport has a status code for this, it uses that, unless the response has already begun."""
        return CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})

    def close_stream(self, retry: float) -> bool:
        """Close the client's stream for the requests' lines, so that the client reconnects after ``retry`` seconds.
        Return false if that is impossible."""
        return False

    # Replies

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        """Store the reply ``line`` to ``request``, whose handler has ended; `None` if the request was cancelled. Called
        only if `keeps_outcomes`."""
        raise NotImplementedError

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Send the reply to a request of the exchange; `None` if the request is over without a reply. The line can be
        withdrawn with the other lines of ``owner``."""
        if line is not None:
            self.outbox.put_now(line, owner)

    def reply_at_once(self, line: bytes | None) -> None:
        """Like `reply`, but called by the reader."""
        if line is not None:
            self.outbox.put_now(line, self.at_once)

    def refuse(self, code: int, line: bytes) -> None:
        """Send the error reply ``line``, with this error code, to a message that isn't a legal request."""
        self.reply_at_once(line)


class PartExchange(Exchange):
    """A part of ``connection`` whose ``outbox`` and ``peer`` can differ. The connection holds the part's requests and
    ends the part."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Exchange, outbox: Outbox, peer: Peer) -> None:
        # The connection's `Exchange` holds the requests, so this needs little: a part is created for each POST.
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
    """A batch of ``members`` messages that arrived over ``connection``. The replies are sent together in one array
    (JSON-RPC 2.0, section 6). Otherwise a batch behaves like its connection."""

    __slots__ = ("_lines", "_open")

    def __init__(self, connection: Exchange, members: int) -> None:
        super().__init__(connection, connection.outbox, connection.peer)
        self._open = members
        self._lines: list[bytes] = []

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Finish one member, with this reply or, for notifications and cancelled requests, without one. When the last
        member is finished, send the replies."""
        self._open -= 1
        if line is not None:
            self._lines.append(line.rstrip(b"\n"))
        if self._open == 0:
            self._connection.reply_at_once(b"[" + b",".join(self._lines) + b"]\n" if self._lines else None)

    def reply_at_once(self, line: bytes | None) -> None:
        self.reply(line)
