"""FedConnection is a connection whose messages come by HTTP requests: an endpoint feeds their events to the connection.
What belongs to no request goes by `FedTransport`, which brings no message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ...runtime.connection import Connection
from ...runtime.exchange import Exchange
from ...runtime.outbox import Outbox
from ...runtime.peer import Peer
from ...runtime.transport import Transport
from ...server.served import Running, connection_to
from ...state.connection import ConnectionState
from ...state.events import Event


class FedTransport(Transport):
    """The way of the messages that belong to no request: to ``outbox``, or, without one, nowhere. 2026-07-28 has such
    messages on the streams of ``subscriptions/listen`` alone."""

    network = "tcp"

    def __init__(self, outbox: Outbox | None) -> None:
        self._outbox = outbox

    async def receive(self) -> bytes:
        """Wait for ever: messages come by POST."""
        return await trio.sleep_forever()

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages, or drop them: see `Transport.send`."""
        if self._outbox is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._outbox.room()
            self._outbox.put(bytes(messages))

    async def aclose(self) -> None:
        """Do nothing more than a checkpoint: whoever has the outbox ends its streams."""
        await trio.lowlevel.checkpoint()


class FedConnection:
    """A connection of ``peer`` to ``running``. What no request asked for goes to ``outbox``. ``state`` rules on the
    messages; a connection's own state by default."""

    def __init__(
        self, running: Running, peer: Peer, outbox: Outbox | None = None, state: ConnectionState | None = None
    ) -> None:
        self.served = connection_to(running, FedTransport(outbox), peer, state)
        self.duplex: Connection = self.served.duplex
        self.state = self.duplex.state
        self.exchange: Exchange = self.duplex.exchange
        self.ended = trio.Event()
        """Event set when the last request is over. From then on `Exchange.ending` is set, too."""
        self._early: list[tuple[Event, bytes, Exchange]] = []
        self.feed: Callable[[Event, bytes, Exchange], None] = partial(_keep, self._early)
        """Carries out an event, which a body brought by an exchange: see `Connection.take`. Events from before the
        start of the connection wait for the start."""

    async def run(self) -> None:
        """Serve until the connection ends. See `Connection.run`."""
        try:
            await self.served.run(task_status=self)
        finally:
            self.exchange.ending.set()
            self.ended.set()

    def started(self, value: None = None) -> None:
        """Carry out the events from before the start."""
        self.feed = self.duplex.take
        for event in self._early:
            self.feed(*event)
        self._early.clear()


def _keep(early: list[tuple[Event, bytes, Exchange]], event: Event, body: bytes, exchange: Exchange) -> None:
    early.append((event, body, exchange))
