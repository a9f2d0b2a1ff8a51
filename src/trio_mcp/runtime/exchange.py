"""Exchange is the way to a peer that a request belongs to for the moment, with the outbox for its lines, the caller,
and the end."""

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
    """A way to a client that outlives the client's requests: an `Exchange` that is a connection, for example."""

    @property
    def outbox(self) -> Outbox:
        """The outbox for the lines."""
        ...

    @property
    def is_open(self) -> bool:
        """True while lines that are put go to the client without its coming back."""
        ...


class Exchange:
    """A way between us and one peer, with the requests that belong to this way: a connection, or a part of a
    connection.

    ``state`` rules on the requests; their lines go to ``outbox``; ``peer`` is the party that asks. The end of an
    exchange cancels all held requests (`cancel_all`). A request that waits for its client to come back belongs to no
    exchange.
    """

    __slots__ = ("_emptied", "_held", "_streams", "at_once", "ending", "outbox", "peer", "state")

    has_headers: ClassVar[bool] = False
    """True where each request comes with headers of its own, which may repeat arguments."""
    keeps_outcomes: ClassVar[bool] = False
    """True where replies are kept instead of sent: `keep` comes before `reply` then."""
    forgot_client: ClassVar[bool] = False
    """True for a task after a restart: whose it is, nobody knows any more, unless the peer has a principal."""
    related_task: str | None = None
    """Id of the task that the messages of its requests name in ``_meta``; `None` where they name none."""

    def __init__(self, state: ConnectionState, outbox: Outbox, peer: Peer) -> None:
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = trio.Event()
        """Event set when the exchange starts to end: streams end now, and nothing else is hurried."""
        self.at_once = Owner()
        """Owner of replies written directly by the reader, without any task."""
        self._held: dict[InboundRequest, RequestScope] = {}
        self._streams = 0
        self._emptied: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until no request, or no stream, is left; `None` until the first such task."""

    @property
    def is_keeping(self) -> bool:
        """True once `keep` begins to store a result: the handler has ended, and only our code waits."""
        return False

    @property
    def party(self) -> object:
        """The party that may come back for a waiting handler: the principal, or, where the transport knows no
        principal, the exchange itself. All who come to an endpoint without principals are one party, on each of its
        replicas."""
        if self.peer.principal is not None:
            return self.peer.principal
        return ANY_CLIENT if self.peer.everybody else self

    @property
    def connection(self) -> trio.Event | None:
        """An object that is the same for all requests of the client's connection, tasks included, and that lives as
        long as these; `None` where a request says nothing of the others on its connection."""
        return None if self.has_headers or self.peer.everybody else self.ending

    @property
    def client_channel(self) -> ClientChannel:
        """The way for lines that may come after the end of their request."""
        return self

    @property
    def is_open(self) -> bool:
        """True while lines that are put go to the client without its coming back."""
        return not self.outbox.over

    # Held requests

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        """Hold ``held`` under its ``request``, to be cancelled when the exchange ends."""
        self._held[request] = held
        if request.method.streams:
            self._streams += 1

    def release(self, request: InboundRequest) -> None:
        """Release a request that has ended or waits for its client to come back. Idempotent."""
        if self._held.pop(request, None) is None:
            return
        if request.method.streams:
            self._streams -= 1
        if self._emptied is not None:
            self._emptied.unpark_all()

    def find(self, request: InboundRequest) -> RequestScope | None:
        """Return the `RequestScope` of ``request``; `None` when the exchange does not hold the request."""
        return self._held.get(request)

    def cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all held requests, oldest first."""
        for held in tuple(self._held.values()):
            held.abort(cause, reason)

    async def idle(self) -> None:
        """Wait until no request is held."""
        while self._held:
            await self._one_less()

    async def streams_idle(self) -> None:
        """Wait until no stream is held."""
        while self._streams:
            await self._one_less()

    async def _one_less(self) -> None:
        if self._emptied is None:
            self._emptied = trio.lowlevel.ParkingLot()
        await self._emptied.park()

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        """Note that ``request`` was cancelled: no reply comes, even while the handler still cleans up."""

    def check_headers(self, request: InboundRequest, table: Iterable[ParamHeader]) -> None:
        """Raise `CodedError` where the headers of ``request`` that ``table`` names differ from its arguments."""

    def check_scopes(self, needed: frozenset[str]) -> None:
        """Raise `CodedError` where the caller lacks one of the ``needed`` scopes, as far as anybody knows scopes."""
        if needed and self.peer.check_scopes is not None:
            self.peer.check_scopes(needed)

    def unavailable(self, reason: str) -> CodedError:
        """Return the error for a request that cannot be served now, for a ``reason`` in words. A transport with a
        status for that answers so, where there is still time."""
        return CodedError(TOO_BUSY, reason)

    def method_not_found(self, request: InboundRequest) -> CodedError:
        """Return the error for a ``request`` whose method is known to be missing only once its task has begun. A
        transport with a status for that answers so, where there is still time."""
        return CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})

    def close_stream(self, retry: float) -> bool:
        """Close the client's way to the lines of its requests for now. The client comes back after ``retry`` seconds.
        Return false where that is impossible."""
        return False

    # Replies

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        """Keep the reply ``line`` to ``request``, whose handler has ended; `None`: the request was cancelled. Only
        where `keeps_outcomes`."""
        raise NotImplementedError

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Send the reply to a request of the exchange; `None`: the request is over and gets no reply. The line can be
        withdrawn with the other lines of ``owner``."""
        if line is not None:
            self.outbox.put_now(line, owner)

    def reply_at_once(self, line: bytes | None) -> None:
        """Send a reply from the reader, as `reply`."""
        if line is not None:
            self.outbox.put_now(line, self.at_once)

    def refuse(self, code: int, line: bytes) -> None:
        """Send the error reply ``line``, with this error code, to a message that is no legal request."""
        self.reply_at_once(line)


class PartExchange(Exchange):
    """A part of ``connection``, which holds the requests of the part and ends the part, with an ``outbox`` and a
    ``peer`` that may be others."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Exchange, outbox: Outbox, peer: Peer) -> None:
        # The connection's `Exchange` holds and ends, so nothing more is needed here: a part is made for each POST.
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
    """A batch of ``members`` messages that came over ``connection``. The replies go out together in one array (JSON-RPC
    2.0, section 6). In all else the batch is like the connection."""

    __slots__ = ("_lines", "_open")

    def __init__(self, connection: Exchange, members: int) -> None:
        super().__init__(connection, connection.outbox, connection.peer)
        self._open = members
        self._lines: list[bytes] = []

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Note that one member is done, with this reply or, for notifications and cancelled requests, without a reply.
        When the last member is done, send the replies."""
        self._open -= 1
        if line is not None:
            self._lines.append(line.rstrip(b"\n"))
        if self._open == 0:
            self._connection.reply_at_once(b"[" + b",".join(self._lines) + b"]\n" if self._lines else None)

    def reply_at_once(self, line: bytes | None) -> None:
        self.reply(line)
