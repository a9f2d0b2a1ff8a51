"""Exchange is what a request belongs to for the moment: where its lines go, who asks, and what ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from .outbox import Outbox, Owner

if TYPE_CHECKING:
    from ..state.connection_state import ConnectionState
    from ..state.requests import InboundRequest
    from .cancellation import CancelCause
    from .peer import Peer

__all__ = ["BatchExchange", "Exchange", "Held"]


class Held(Protocol):
    """A request that an exchange holds: a `RequestScope`."""

    def end(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the request, unless it was cancelled before or is over."""
        ...


class Exchange:
    """A way between us and one peer, and the requests that belong to it: a connection, or a part of one.

    ``state`` rules on the requests, whose lines go to ``outbox``; ``peer`` says who asks. When an exchange ends, it
    cancels what it holds (`cancel_all`). A request that waits for its client to come back belongs to none.
    """

    __slots__ = ("_emptied", "_held", "_streams", "at_once", "ending", "outbox", "peer", "state")

    def __init__(self, state: ConnectionState, outbox: Outbox, peer: Peer) -> None:
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = trio.Event()
        """Event set when the exchange starts to end: streams end now, and nothing else is hurried."""
        self.at_once = Owner()
        """Owner of replies written directly by the reader, without any task."""
        self._held: dict[InboundRequest, Held] = {}
        self._streams = 0
        self._emptied: trio.lowlevel.ParkingLot | None = None
        """Tasks that wait until no request, or no stream, is left; `None` while there are none."""

    @property
    def caller(self) -> object:
        """The party that may come back for a handler that waits: the principal, or, where nobody has one, the exchange
        itself."""
        return self if self.peer.principal is None else self.peer.principal

    # The requests that it holds

    def hold(self, request: InboundRequest, held: Held) -> None:
        """Take ``held``, which is to be cancelled when this exchange ends, under its ``request``."""
        self._held[request] = held
        if request.method.streams:
            self._streams += 1

    def release(self, request: InboundRequest) -> None:
        """Let go of a request, which has ended or waits for its client to come back. Idempotent."""
        if self._held.pop(request, None) is None:
            return
        if request.method.streams:
            self._streams -= 1
        if self._emptied is not None:
            self._emptied.unpark_all()

    def find(self, request: InboundRequest) -> Held | None:
        """Return what is held under ``request``."""
        return self._held.get(request)

    def cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all requests that it holds, oldest first."""
        for held in tuple(self._held.values()):
            held.end(cause, reason)

    async def idle(self) -> None:
        """Wait until it holds no request."""
        while self._held:
            await self._one_less()

    async def streams_idle(self) -> None:
        """Wait until it holds no stream."""
        while self._streams:
            await self._one_less()

    async def _one_less(self) -> None:
        if self._emptied is None:
            self._emptied = trio.lowlevel.ParkingLot()
        await self._emptied.park()

    # Replies

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Send the reply to one of its requests; `None`: the request is over and gets none. The line can be withdrawn
        with the others of ``owner``."""
        if line is not None:
            self.outbox.put_now(line, owner)

    def reply_at_once(self, line: bytes | None) -> None:
        """Send a reply from the reader, as `reply`."""
        if line is not None:
            self.outbox.put_now(line, self.at_once)


class BatchExchange(Exchange):
    """A batch of ``members`` messages that came over ``connection``, whose replies go out together in one array
    (JSON-RPC 2.0, section 6). All else is that of the connection, which holds the requests, too."""

    __slots__ = ("_connection", "_lines", "_open")

    def __init__(self, connection: Exchange, members: int) -> None:
        super().__init__(connection.state, connection.outbox, connection.peer)
        self.ending = connection.ending
        self._connection = connection
        self._open = members
        self._lines: list[bytes] = []

    @property
    def caller(self) -> object:
        return self._connection.caller

    def hold(self, request: InboundRequest, held: Held) -> None:
        self._connection.hold(request, held)

    def release(self, request: InboundRequest) -> None:
        self._connection.release(request)

    def find(self, request: InboundRequest) -> Held | None:
        return self._connection.find(request)

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Note that one member is done, with this reply or, as notifications and cancelled requests, without. When the
        last is done, send the replies."""
        self._open -= 1
        if line is not None:
            self._lines.append(line.rstrip(b"\n"))
        if self._open == 0 and self._lines:
            self._connection.reply_at_once(b"[" + b",".join(self._lines) + b"]\n")

    def reply_at_once(self, line: bytes | None) -> None:
        self.reply(line)
