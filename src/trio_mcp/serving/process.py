"""A process that serves: `serve_stdio`, handlers of the signals that end a server, and a garbage collector that runs
less often.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.misuse import check_served_under_trio
from ..concurrency.nurseries import open_service_nursery
from ..diagnostics.log import discard_unread_output, log_in_thread
from ..runtime.peer import SOLE_CLIENT
from ..runtime.transport import FramedTransport, Transport, framed
from ..server.servable import Running, Servable, ServedConnection, check_servable, connection_to, end_tasks
from ..transports.stdio import own_stdio

if TYPE_CHECKING:
    from ..recording.recorder import Recorder

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_SECOND: Final = 0.9
_SOON: Final = 0.001
"""Seconds left for an application's timer that would have run out meanwhile."""


class ShutDown(Protocol):
    """The callback that tells a server of a signal."""

    def __call__(self, reason: str, *, hurry: bool) -> None:
        """End for ``reason``. ``hurry`` is true when it is not the first signal: the process has less than a second
        then."""


@contextmanager
def shut_down_on_signals(shut_down: ShutDown, *, for_good: bool = False) -> Generator[None]:
    """Call ``shut_down`` in trio at each SIGTERM and SIGINT while inside. Does nothing outside of the main thread.

    After the second signal the process has less than a second, and is then ended by SIGALRM, whatever any thread is
    doing. When the block is left, the timer is cancelled and an application's SIGALRM handler is restored, unless the
    server ends ``for_good``, together with its process.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread can handle signals
        yield
        return
    listener = _Listener(shut_down, trio.lowlevel.current_trio_token())
    _signals.add(listener)
    try:
        yield
    finally:
        _signals.remove(listener, for_good=for_good)


def exclusive_process() -> None:
    """End all servers for good, because the process has no other purpose."""
    _signals.for_good = True


class _Listener:
    def __init__(self, shut_down: ShutDown, token: trio.lowlevel.TrioToken) -> None:
        self._shut_down = shut_down
        self._token = token
        self.pending: list[int] = []
        """Received signals that ``shut_down`` has not been told yet."""

    def receive(self, number: int, *, hurry: bool) -> None:
        """Take a signal, inside of its handler: trio may be in any state."""
        self.pending.append(number)
        self._token.run_sync_soon(self._notify, hurry)

    def _notify(self, hurry: bool) -> None:
        if self.pending:  # otherwise the server has ended
            self._shut_down(f"the server got {signal.Signals(self.pending.pop(0)).name}", hurry=hurry)


class _ExitTimer:
    """The end of the process in less than a second, unless cancelled.

    The system's own clock and signal end the process. Neither needs our threads or the lock of the interpreter, and
    neither is stopped by the interpreter's end.
    """

    def __init__(self) -> None:
        self._handler: Any = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._begun = time.monotonic()
        self._delay, self._interval = signal.setitimer(signal.ITIMER_REAL, _LAST_SECOND)

    def cancel(self) -> None:
        """Restore the signal's handler and the timer, minus the elapsed time."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _restorable(self._handler))
        if self._delay:
            left = self._delay - (time.monotonic() - self._begun)
            signal.setitimer(signal.ITIMER_REAL, max(left, _SOON), self._interval)


def _restorable(handler: Any) -> Any:
    return signal.SIG_DFL if handler is None else handler  # None: a handler that is not Python's


class _ProcessSignals:
    """The process's handlers of both signals, as long as any server listens."""

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._before: dict[int, Any] = {}
        self._received = 0
        self._last_second: _ExitTimer | None = None
        self.for_good = False

    def add(self, listener: _Listener) -> None:
        if not self._listeners:
            self._received = 0
            self._before = {number: signal.signal(number, self._receive) for number in _ENDING}
        self._listeners.append(listener)

    def remove(self, listener: _Listener, *, for_good: bool) -> None:
        self._listeners.remove(listener)
        untold, listener.pending = listener.pending, []
        if self._listeners:
            return
        for number, before in self._before.items():
            signal.signal(number, _restorable(before))
        if self._last_second is not None and not (for_good or self.for_good):
            self._last_second.cancel()
            self._last_second = None
        for number in untold:  # the signal came too late for us
            signal.raise_signal(number)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received += 1
        if self._received == 2:
            self._last_second = _ExitTimer()
        for listener in self._listeners:
            listener.receive(number, hurry=self._received > 1)


_signals: Final = _ProcessSignals()


_PYTHONS_OWN_THRESHOLDS: Final = (700, 2000)
"""Thresholds of CPython 3.11 and 3.12, and of 3.13."""
_THRESHOLD: Final = 10_000


def tune_gc() -> None:
    """Tune the garbage collector for a process that is the server: a short call takes at least a tenth less time.

    Imported objects live as long as the process, so the collector need not look at them. Neither requests nor
    connections leave reference cycles behind (tests hold that), so a collection after every few hundred objects finds
    nothing. An application's own threshold is left alone.
    """
    gc.freeze()
    _collect_rarely()


@contextmanager
def infrequent_gc() -> Generator[None]:
    """Run the garbage collector less often while inside. An application's own threshold is left alone.

    Requests in flight on many connections exceed Python's own threshold again and again. The collector takes the
    requests for long-lived objects, and then traverses everything that the connections hold. The traversal took half of
    the time of an echo on each of a thousand connections, and found nothing.
    """
    before = gc.get_threshold()
    _collect_rarely()
    during = gc.get_threshold()
    try:
        yield
    finally:
        if gc.get_threshold() == during:
            gc.set_threshold(*before)


def _collect_rarely() -> None:
    if gc.get_threshold()[0] in _PYTHONS_OWN_THRESHOLDS:
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])


logger = logging.getLogger("trio_mcp")


def recorder_of(record: Recorder | str | os.PathLike[str] | None) -> Recorder | None:
    """Return the recorder for what is given as ``record``."""
    if record is None:
        return None
    from ..recording.recorder import recorder_of  # late: few servers are recorded

    return recorder_of(record)


async def serve_stdio(
    server: Servable,
    *,
    stateless: bool = False,
    handle_signals: bool = True,
    record: Recorder | str | os.PathLike[str] | None = None,
) -> None:
    """Serve ``server`` on this process's standard input and output until the client closes them.

    After the end of input, and after SIGTERM or SIGINT, no new request is taken. Accepted requests and tasks go on for
    up to `Limits.drain_timeout` seconds and are then cancelled, threads are abandoned `Limits.shutdown_grace` later,
    the lifespan is left, and the function returns. A second signal skips the waiting, and the process ends within a
    second, by SIGALRM if necessary. Signals are handled in the main thread only, and not with ``handle_signals=False``.
    ``stateless``: see `ServingOptions`. ``record`` is the file to which the messages are recorded, or a `Recorder`.

    During the call no other code of this process can touch the wire: ``print`` writes to standard error, and standard
    input is empty. If nobody reads standard error at the return, later text is dropped, so that the process can end.
    Raises `OSError` when standard input or output is not open.
    """
    check_served_under_trio("serve_stdio")
    check_servable(server)
    tune_gc()
    try:
        async with log_in_thread():
            recorder = recorder_of(record)
            with own_stdio(server.limits.max_message_bytes) as stdio:
                transport = stdio if recorder is None else recorder._recorded(stdio, "server")
                await _serve(server, transport, stateless=stateless, handle_signals=handle_signals)
    finally:
        discard_unread_output()


async def serve_transport(
    server: Servable,
    transport: Transport,
    *,
    stateless: bool = False,
    record: Recorder | str | os.PathLike[str] | None = None,
) -> None:
    """Serve ``server`` to the one client at the other end of ``transport``, for example over a transport of your own.

    Returns at the end of input, as `serve_stdio` does, and closes the transport. Cancel the call to end earlier: the
    client's requests are cancelled, and the function returns when they have ended. ``stateless``: see `serve_http`.
    ``record`` is the file to which the messages are recorded, or a `Recorder`.
    """
    check_served_under_trio("serve_transport")
    check_servable(server)
    served, recorder = framed(transport), recorder_of(record)
    if recorder is not None:
        served = recorder._recorded(served, "server")
    try:
        async with log_in_thread():
            await _serve(server, served, stateless=stateless, handle_signals=False)
    finally:
        with trio.CancelScope(shield=True) as by_force:  # the shield ends at once, since the scope is cancelled
            by_force.cancel(reason="the server has ended")
            await served.aclose()  # nothing, unless the server didn't start


async def _serve(server: Servable, transport: FramedTransport, *, stateless: bool, handle_signals: bool) -> None:
    with ExitStack() as signals:  # they may come until the lifespan has ended
        async with server._running(stateless=stateless) as running:
            connection = connection_to(running, transport, SOLE_CLIENT)
            connection.connection.is_only = True
            if handle_signals:

                def shut_down(reason: str, *, hurry: bool) -> None:
                    connection.connection.shut_down(reason, hurry=hurry)
                    end_tasks(running, hurry=hurry)

                signals.enter_context(shut_down_on_signals(shut_down, for_good=True))
            async with open_service_nursery("the connection has ended") as services:
                services.start_soon(_end_tasks, running, connection)
                await connection.run()
            if connection.connection.lost is not None:
                logger.warning("the client is gone: %s", connection.connection.lost.reason)


async def _end_tasks(running: Running, connection: ServedConnection) -> None:
    """Have the tasks end as soon as the connection starts to: at the end of input, too."""
    await connection.connection.until_ending()
    end_tasks(running, hurry=False)
