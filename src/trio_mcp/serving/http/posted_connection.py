"""PostedConnection is a connection whose messages come in POSTs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ...runtime.channel import MessageChannel
from ...runtime.duplex import DuplexChannel
from ...runtime.exchange import Exchange
from ...runtime.peer import Peer
from ...server.served import Running, connection_to
from ...state.connection_state import ConnectionState
from ...state.events import Event


class PostedConnection:
    """A connection to ``running``. What no request asked for goes to ``channel``, by which no message comes. ``state``
    rules on the messages; a connection's own state by default."""

    def __init__(
        self, running: Running, channel: MessageChannel, peer: Peer, state: ConnectionState | None = None
    ) -> None:
        self._connection = connection_to(running, channel, peer, state)
        self.duplex: DuplexChannel = self._connection.duplex
        self.state = self.duplex.state
        self.exchange: Exchange = self.duplex.exchange
        self.ended = trio.Event()
        """Event set when the last request is over."""
        self._early: list[Callable[[], None]] | None = []
        """Events from before the start of the connection; `None` from then on."""

    async def run(self) -> None:
        """Serve until the connection ends. See `DuplexChannel.run`."""
        try:
            await self._connection.run(task_status=self)
        finally:
            self._early = None
            self.ended.set()

    def started(self, value: None = None) -> None:
        """Carry out the events from before the start."""
        early, self._early = self._early or [], None
        for each in early:
            each()

    @property
    def is_over(self) -> bool:
        """True once the connection is over, or takes no requests any more although the server goes on."""
        return self.ended.is_set() or self.duplex.is_ending

    def take(self, event: Event, body: bytes, exchange: Exchange) -> None:
        """Carry out ``event``, which ``body`` brought by ``exchange``. Synchronous."""
        if self._early is None:
            self.duplex.take(event, body, exchange)
        else:
            self._early.append(partial(self.duplex.take, event, body, exchange))

    def everything_changed(self) -> None:
        """Tell the client that everything may have changed: see `Connection.everything_changed`."""
        self._connection.everything_changed()
