"""Serving in one process: `serve_stdio`, the signal handlers that shut a server down, and less frequent garbage
collection."""

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
"""Minimum number of seconds, after the server has ended, until a timer of the application fires."""


class ShutDown(Protocol):
    """Type of the callback that shuts a server down when the process receives a signal."""

    def __call__(self, reason: str, *, hurry: bool) -> None:
        """Shut the server down because of ``reason``.

        From the second signal on, ``hurry`` is true: the process then ends in less than a second.
        """


@contextmanager
def shut_down_on_signals(shut_down: ShutDown, *, for_good: bool = False) -> Generator[None]:
    """While inside the block, call ``shut_down`` in trio for each SIGTERM and SIGINT.

    Outside the main thread, this does nothing.

    After the second signal, the process has less than a second. SIGALRM then ends it, whatever its threads are doing.
    On exit from the block, the timer is cancelled and an application's SIGALRM handler is restored, unless the server
    ends ``for_good``, together with its process.
    """
    # Only the main thread of a process can handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener(shut_down, trio.lowlevel.current_trio_token())
    _signals.add(listener)
    try:
        yield
    finally:
        _signals.remove(listener, for_good=for_good)


def exclusive_process() -> None:
    """Declare that this process only runs servers. A signal then ends the process together with the servers.

    See ``for_good`` of `shut_down_on_signals`.
    """
    _signals.for_good = True


class _Listener:
    def __init__(self, shut_down: ShutDown, token: trio.lowlevel.TrioToken) -> None:
        self._shut_down = shut_down
        self._token = token
        self.pending: list[int] = []
        """Received signals that haven't been passed to ``shut_down`` yet."""

    def receive(self, number: int, *, hurry: bool) -> None:
        """Record a signal, and notify trio of it. This runs in the signal handler, so trio may be in any state."""
        self.pending.append(number)
        self._token.run_sync_soon(self._notify, hurry)

    def _notify(self, hurry: bool) -> None:
        if self.pending:  # an empty list means that the server ended before trio called this method
            self._shut_down(f"the server got {signal.Signals(self.pending.pop(0)).name}", hurry=hurry)


class _ExitTimer:
    """A timer that ends the process in less than a second, unless it is cancelled.

    The operating system's own clock and signal end the process. Neither needs our threads or the interpreter lock, and
    both keep working while the interpreter shuts down.
    """

    def __init__(self) -> None:
        self._handler: Any = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._begun = time.monotonic()
        self._delay, self._interval = signal.setitimer(signal.ITIMER_REAL, _LAST_SECOND)

    def cancel(self) -> None:
        """Cancel the timer. Restore the previous SIGALRM handler, and start the previous timer again with its remaining
        time."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _restorable(self._handler))
        if self._delay:
            left = self._delay - (time.monotonic() - self._begun)
            signal.setitimer(signal.ITIMER_REAL, max(left, _SOON), self._interval)


def _restorable(handler: Any) -> Any:
    # None means that the handler wasn't installed from Python and can't be restored.
    return signal.SIG_DFL if handler is None else handler


class _ProcessSignals:
    """The handlers of SIGTERM and SIGINT for the whole process. They stay installed while any server listens for
    signals."""

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
        for number in untold:  # the server can't handle these signals any more, so let the previous handler do it
            signal.raise_signal(number)

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received += 1
        if self._received == 2:
            self._last_second = _ExitTimer()
        for listener in self._listeners:
            listener.receive(number, hurry=self._received > 1)


_signals: Final = _ProcessSignals()


_PYTHONS_OWN_THRESHOLDS: Final = (700, 2000)
"""Default thresholds of the garbage collector: first in CPython 3.11 and 3.12, second in CPython 3.13."""
_THRESHOLD: Final = 10_000


def tune_gc() -> None:
    """Tune Python's garbage collector for a process that only runs servers: short calls then take at least 10 % less
    time.

    Imported objects live as long as the process, so the collector needn't examine them. Requests and connections leave
    no reference cycles behind, which tests check. So a collection after every few hundred objects finds nothing. If the
    application has set its own threshold, nothing changes.
    """
    gc.freeze()
    _collect_rarely()


@contextmanager
def infrequent_gc() -> Generator[None]:
    """While inside the block, run the garbage collector less often.

    If the application has set a threshold of its own, this does nothing.

    Requests in flight on many connections exceed Python's default threshold again and again. The collector then treats
    the requests as long-lived objects, and traverses everything that the connections hold. This took half of the time
    of an echo on each of a thousand connections, and found nothing.
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
    """Return the recorder for ``record``, the value of the option with this name. Return `None` if nothing is
    recorded."""
    if record is None:
        return None
    from ..recording.recorder import recorder_of  # imported late, because few servers record their messages

    return recorder_of(record)


async def serve_stdio(
    server: Servable,
    *,
    stateless: bool = False,
    handle_signals: bool = True,
    record: Recorder | str | os.PathLike[str] | None = None,
) -> None:
    """Serve ``server`` on this process's standard input and output, until the client closes standard input.

    After the end of input, SIGTERM or SIGINT, the server shuts down gracefully:

    1. It accepts no new requests. Accepted requests and tasks get up to `Limits.drain_timeout` seconds, and are then
       cancelled.
    2. Threads that still run are abandoned `Limits.shutdown_grace` seconds later.
    3. The lifespan exits, and the function returns.

    After a second signal, the process ends within a second, by SIGALRM if necessary.

    During the call no other code of this process can use the real standard streams: ``print`` writes to standard error,
    and standard input is empty. If standard error has no reader when the function returns, later output is dropped, so
    that the process can end.

    Args:
      stateless: see `ServingOptions`.
      handle_signals: false leaves SIGTERM and SIGINT alone. Signals are handled in the main thread only.
      record: a file to which the messages are recorded, or a `Recorder`.

    Raises:
      OSError: standard input or output is not open.
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
    """Serve ``server`` to the client at the other end of ``transport``, which may be an object of your own class.

    Returns at the end of input, like `serve_stdio`, and closes the transport. To end earlier, cancel the call: the
    client's requests are cancelled, and the function returns when they have ended.

    Args:
      stateless: see `serve_http`.
      record: a file to which the messages are recorded, or a `Recorder`.
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
        # In a cancelled scope, aclose() doesn't wait.
        with trio.CancelScope(shield=True) as by_force:
            by_force.cancel(reason="the server has ended")
            # The transport is already closed here, unless the server failed before it began to use the transport.
            await served.aclose()


async def _serve(server: Servable, transport: FramedTransport, *, stateless: bool, handle_signals: bool) -> None:
    with ExitStack() as signals:  # handle signals until the server's lifespan has ended
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
                logger.warning("the client has disconnected: %s", connection.connection.lost.reason)


async def _end_tasks(running: Running, connection: ServedConnection) -> None:
    """Shut down the server's MCP tasks when the connection begins to end, for example because the client has closed
    standard input."""
    await connection.connection.until_ending()
    end_tasks(running, hurry=False)
