"""Connections: many clients of one server, accepted and ended together, each with its own connection."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs
import trio

from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..diagnostics.log import written_in_a_thread
from ..runtime.channel import ConnectionLost, MessageChannel
from ..runtime.limits import Limits
from ..runtime.peer import Peer
from ..server.served import Connection, Running, Servable, connection_to
from .collector import collecting_rarely
from .signals import shutting_down_at_signals

__all__ = ["Arrival", "Greeting", "SocketListeners", "serve_connections"]

logger = logging.getLogger("trio_mcp")

_MOST_TURNED_AWAY: Final = 64

SocketListeners: TypeAlias = Sequence[trio.abc.Listener[Any]]


@attrs.frozen(eq=False)
class Arrival:
    """An accepted client, with the channel to that client."""

    channel: MessageChannel
    peer: Peer


class Greeting(Protocol):
    """The way in which a transport admits an accepted stream, or turns the stream away."""

    async def greet(self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery) -> Arrival | None:
        """Settle who the client is; return `None` for a client turned away. Tasks of the channel go to ``nursery``."""
        ...

    async def turn_away(self, stream: trio.abc.Stream) -> None:
        """Close a stream for which there is no room, and say why where the client would understand."""
        ...


async def serve_connections(
    server: Servable,
    listen: Callable[[], Awaitable[SocketListeners]],
    greeting: Greeting,
    *,
    task_status: trio.TaskStatus[SocketListeners],
    limits: Limits | None = None,
    stateless: bool = False,
    handle_signals: bool = True,
) -> None:
    """Serve ``server`` to whoever connects, until a signal or a cancel. `ServingOptions` documents the last three
    parameters."""
    async with written_in_a_thread():
        with collecting_rarely(), ExitStack() as signals:  # signals may come until the lifespan has ended
            async with server.running(limits, stateless=stateless) as running:
                connections = _Connections(running, greeting)
                if handle_signals:
                    signals.enter_context(shutting_down_at_signals(connections.shut_down))
                await connections.run(await listen(), task_status)


class _Connections:
    def __init__(self, running: Running, greeting: Greeting) -> None:
        self._running = running
        self._greeting = greeting
        self._limits = running.limits
        self._accepting = trio.CancelScope()
        self._greeted: dict[trio.CancelScope, Literal[True]] = {}
        """Scopes of the unidentified clients, oldest first."""
        self._open: set[Connection] = set()
        self._turned_away = 0
        self._ending: str | None = None

    async def run(self, listeners: SocketListeners, task_status: trio.TaskStatus[SocketListeners]) -> None:
        async with trio.open_nursery() as nursery:
            with self._accepting:
                # `trio.serve_listeners` closes the listeners when it is left, survives the errors of accepting, and
                # waits a moment when the system is out of descriptors.
                await trio.serve_listeners(
                    self._serve, list(listeners), handler_nursery=nursery, task_status=task_status
                )

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Accept no more connections, and let each one end when its accepted requests are done. A second call cancels
        the remaining requests. ``hurry``: see `DuplexChannel.shut_down`."""
        self._ending = reason
        self._accepting.cancel(reason=reason)
        for scope in tuple(self._greeted):
            scope.cancel(reason=reason)
        for connection in tuple(self._open):
            connection.duplex.shut_down(reason, hurry=hurry)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection from its acceptance to its end. Its errors do not reach other connections."""
        try:
            if self._ending is not None:  # it was accepted in the last moment
                return
            if self._has_room():
                await self._serve_admitted(stream)
            elif self._turned_away < _MOST_TURNED_AWAY:
                self._turned_away += 1
                try:
                    await self._greeting.turn_away(stream)
                finally:
                    self._turned_away -= 1
        except ConnectionLost as error:
            logger.debug("a client disconnected before it was served: %s", error)
        except Exception:
            logger.exception("a connection failed")

    def _has_room(self) -> bool:
        """Return whether there is room for one more connection. A full server makes room by cancelling the oldest
        client that has sent nothing yet; otherwise a few machines that connect again and again would shut out everybody
        else."""
        if len(self._open) + len(self._greeted) < self._limits.max_connections:
            return True
        oldest = next(iter(self._greeted), None)
        if oldest is None:
            return False
        del self._greeted[oldest]
        oldest.cancel(reason="it has said nothing, and another client wants its place")
        return True

    async def _serve_admitted(self, stream: trio.abc.Stream) -> None:
        async with open_service_nursery("the connection has ended") as nursery:
            arrival: Arrival | None = None
            has_place = False
            with trio.move_on_after(self._limits.handshake_timeout) as scope:
                self._greeted[scope] = True
                try:
                    arrival = await self._greeting.greet(stream, self._limits, nursery)
                finally:
                    has_place = self._greeted.pop(scope, False)
            if arrival is None or not has_place:
                return
            connection = connection_to(self._running, arrival.channel, arrival.peer)
            self._open.add(connection)
            try:
                if self._ending is not None:
                    connection.duplex.shut_down(self._ending)
                await connection.run()
            finally:
                self._open.discard(connection)
