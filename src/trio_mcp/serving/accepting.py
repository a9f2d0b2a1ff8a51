"""Accepting: streams of many clients of one server, accepted and ended together, each served by a `Front`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol, TypeAlias

import trio

from ..concurrency.fair_share import Caller
from ..diagnostics.log import written_in_a_thread
from ..runtime.channel import ConnectionLost
from ..runtime.limits import Limits
from ..server.served import Running, Servable, check_servable, end_tasks
from ..transports.sockets import keep_alive
from .callers import CallersByAddress, Hop
from .collector import collecting_rarely
from .signals import shutting_down_at_signals

logger = logging.getLogger("trio_mcp")

_MOST_TURNED_AWAY: Final = 64

SocketListeners: TypeAlias = Sequence[trio.abc.Listener[Any]]


class Front(Protocol):
    """What serves accepted streams: a transport's way with its clients."""

    @property
    def callers(self) -> CallersByAddress:
        """Finds the other ends of the streams."""
        ...

    async def serve(self, stream: trio.abc.Stream, hop: Hop) -> None:
        """Serve a stream from ``hop``, from its acceptance to its end. `trio.serve_listeners` closes it."""
        ...

    async def turn_away(self, stream: trio.abc.Stream) -> None:
        """Close a stream for which there is no room, and say why where the client would understand."""
        ...

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Close one connection that nobody would miss, and return whether there was one: the oldest of the caller with
        the greatest ``weight``, which has to be more than 0."""
        ...

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Let each connection end when its accepted requests are done: see `DuplexChannel.shut_down`."""
        ...

    async def ended(self) -> None:
        """Wait, after `shut_down`, until nothing is left but connections that end by themselves."""
        ...


async def serve_streams(
    server: Servable,
    listen: Callable[[], Awaitable[SocketListeners]],
    front: Callable[[Running, trio.Nursery], Front],
    *,
    task_status: trio.TaskStatus[SocketListeners],
    limits: Limits | None = None,
    stateless: bool = False,
    handle_signals: bool = True,
) -> None:
    """Serve ``server`` to all who connect, until a signal or cancel. ``front`` makes the `Front` of the streams, whose
    own tasks run in the nursery given to ``front``. `ServingOptions` documents the last three parameters."""
    check_servable(server)
    async with written_in_a_thread():
        with collecting_rarely(), ExitStack() as signals:  # signals may come until the lifespan has ended
            async with server.running(limits, stateless=stateless) as running:
                listeners = await listen()
                async with trio.open_nursery() as nursery:
                    accepting = _Accepting(front(running, nursery), running)
                    if handle_signals:
                        signals.enter_context(shutting_down_at_signals(accepting.shut_down))
                    await accepting.run(listeners, task_status)
                    nursery.cancel_scope.cancel(reason="nothing is served any more")


class _Accepting:
    def __init__(self, front: Front, running: Running) -> None:
        self._front = front
        self._running = running
        self._limits = running.limits
        self._scope = trio.CancelScope()
        self._count = 0
        self._held = Counter[Caller]()
        """Number of connections of each caller."""
        self._turned_away = 0
        self._is_ending = False

    async def run(self, listeners: SocketListeners, task_status: trio.TaskStatus[SocketListeners]) -> None:
        async with trio.open_nursery() as nursery:
            with self._scope:
                # `trio.serve_listeners` closes the listeners when it is left, survives the errors of accepting, and
                # waits a moment when the system is out of descriptors.
                await trio.serve_listeners(
                    self._serve, list(listeners), handler_nursery=nursery, task_status=task_status
                )
            await self._front.ended()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Accept no more streams, and have the front and the tasks shut down. A second call cancels the remaining
        requests."""
        self._is_ending = True
        self._scope.cancel(reason=reason)
        self._front.shut_down(reason, hurry=hurry)
        end_tasks(self._running, hurry=hurry)

    def _has_room(self, hop: Hop) -> bool:
        free = self._limits.max_connections - self._count
        # A proxy connects for many, whose shares nobody knows before they ask.
        return free > 0 if hop.is_proxy else hop.here.may_take(self._held[hop.here], free)

    def _make_room(self, caller: Caller) -> bool:
        """Close a connection for one more of ``caller``: one of ``caller``, or, where there is none, one of whoever has
        the most."""
        if self._held[caller]:
            return self._front.make_room(lambda other: other is caller)
        return self._front.make_room(self._held.__getitem__)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve one stream. Its errors do not reach other connections."""
        try:
            if self._is_ending:  # it was accepted in the last moment
                return
            hop = self._front.callers.hop(stream)
            caller = hop.here
            if self._has_room(hop) or self._make_room(caller):
                self._count += 1
                self._held[caller] += 1
                try:
                    keep_alive(stream, self._limits.ping_interval, self._limits.ping_timeout)
                    await self._front.serve(stream, hop)
                finally:
                    self._count -= 1
                    self._held[caller] -= 1
                    if not self._held[caller]:
                        del self._held[caller]
            elif self._turned_away < _MOST_TURNED_AWAY:
                self._turned_away += 1
                try:
                    await self._front.turn_away(stream)
                finally:
                    self._turned_away -= 1
        except ConnectionLost as error:
            logger.debug("a client disconnected before it was served: %s", error)
        except Exception:
            logger.exception("a connection failed")
