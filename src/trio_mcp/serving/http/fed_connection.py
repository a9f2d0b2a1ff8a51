"""FedConnection is a connection whose messages come by HTTP requests: an endpoint feeds events to the connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ...runtime.connection import Connection
from ...runtime.exchange import Exchange
from ...runtime.outbox import Outbox, dropping_outbox
from ...runtime.peer import Peer
from ...server.served import Running, connection_to
from ...state.connection import ConnectionState
from ...state.events import Event


class FedConnection:
    """A connection of ``peer`` to ``running``. What no request asked for goes to ``outbox``, or, without one, nowhere:
    2026-07-28 has such messages on the streams of ``subscriptions/listen`` alone. ``state`` rules on the messages; a
    connection's own state by default."""

    def __init__(
        self, running: Running, peer: Peer, outbox: Outbox | None = None, state: ConnectionState | None = None
    ) -> None:
        outbox = outbox or dropping_outbox(running.limits.high_water)
        self.served = connection_to(running, outbox, peer, state)
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
