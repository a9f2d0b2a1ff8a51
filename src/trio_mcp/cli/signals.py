"""Ends a command after signals or a time limit, even if the event loop is stuck.

Ctrl-C becomes a cancellation, so that everything is closed, and code is interrupted only at checkpoints.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import FrameType
from typing import Any, Final, TypeVar

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import open_service_nursery
from ..concurrency.time_limits import fail_after_work
from . import OUT_OF_TIME, SIGNALLED

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that request the end of a program."""
_GRACE: Final = 2.0
"""Seconds within which the event loop must show activity when the command should end."""
_LAST_WORDS: Final = 0.5
"""Seconds that printing the last line may take, in case the output isn't read."""
_CURSOR: Final = "\x1b[?25h"


class Signals:
    """Handles the signals that end a command, and applies the command's time limit. A thread kills the process if the
    event loop is stuck.

        with Signals() as signals:

    Use it in the main thread and in a trio run. Inside the block, the signals themselves do nothing. ``numbers`` yields
    them in the order of arrival, and the command reacts to them.

    A thread watches the event loop after a signal, or after the limit of `limited`. If the loop shows no activity for
    two seconds, because of a computation or a blocked write, the thread ends the process with the matching exit status,
    and makes the cursor visible. The connection then isn't closed gracefully: a server that was started sees the end of
    its input. The thread can't run while a C library computes without releasing the interpreter lock.
    """

    def __init__(self) -> None:
        self._arrived, self.numbers = trio.open_memory_channel[int](math.inf)
        self._token = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock()
        self._scope: trio.CancelScope | None = None  # this cancel scope applies the time limit
        self._signal: int | None = None
        self._loop_ran = threading.Event()  # set by the event loop, to show that it isn't stuck
        self._over = False
        self._reads, self._writes = os.pipe()

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._on_signal) for number in _ENDING}
        self._watching = threading.Thread(target=self._watch, name="trio-mcp watch", daemon=True)
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over = True
        self._loop_ran.set()  # wake the waiting thread
        os.close(self._writes)
        self._watching.join()
        os.close(self._reads)

    @contextmanager
    def limited(self, seconds: float | None) -> Generator[None]:
        """Inside the block, apply the command's time limit of ``seconds``, even if the event loop is stuck.

        ``None`` means no limit. See `fail_after_work`.
        """
        if seconds is None:
            yield
            return
        with fail_after_work(seconds) as self._scope:
            self._wake()
            try:
                yield
            finally:
                self._scope = None

    # Python runs the signal handler in the main thread, between any two bytecode instructions.

    def _on_signal(self, number: int, _: FrameType | None) -> Any:
        self._signal = number
        self._token.run_sync_soon(self._arrived.send_nowait, number)
        self._wake()

    def _wake(self) -> None:
        os.write(self._writes, b"!")

    # In the thread

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self._reads], [], [], self._pause())
            if ready and not os.read(self._reads, 64):
                return
            if self._should_end() and self._is_stuck():
                self._exit_process()

    def _pause(self) -> float | None:
        """Return how many seconds the watching thread waits before it checks the event loop. Returns `None` if no check
        is needed."""
        if self._signal is not None:
            return _GRACE
        scope = self._scope
        if scope is None or math.isinf(scope.deadline):
            return None
        return max(self._clock.deadline_to_sleep_time(scope.deadline), _GRACE)

    def _should_end(self) -> bool:
        scope = self._scope
        return self._signal is not None or (
            scope is not None and self._clock.deadline_to_sleep_time(scope.deadline) <= 0
        )

    def _is_stuck(self) -> bool:
        self._loop_ran.clear()
        if self._over:
            return False
        self._token.run_sync_soon(self._loop_ran.set)
        return not self._loop_ran.wait(_GRACE)

    def _exit_process(self) -> None:
        if self._signal is None:
            words, status = "timeout during a computation", OUT_OF_TIME
        else:
            words = f"ended by {signal.Signals(self._signal).name} during a computation"
            status = SIGNALLED + self._signal
        # Don't use `sys.stderr`: the stuck code may hold its lock.
        text = f"{_CURSOR if sys.stderr.isatty() else ''}\ntrio-mcp: {words}\n".encode()
        speaker = threading.Thread(target=_say, args=(text,), daemon=True)
        speaker.start()
        speaker.join(_LAST_WORDS)
        os._exit(status)


def _say(text: bytes) -> None:
    with suppress(OSError):
        os.write(2, text)


T = TypeVar("T")


def run_until_interrupted(work: Callable[[], Awaitable[T]], timeout: float | None = None) -> T:
    """Run the async function ``work`` with `trio.run` until it ends or a signal such as Ctrl-C arrives, and return its
    result.

    If the event loop is stuck, the process is killed: see `Signals`.

    Raises:
      KeyboardInterrupt: after Ctrl-C, when the work has cleaned up.
      SystemExit: after another signal that ends the command.
      trio.TooSlowError: after ``timeout`` seconds.
    """
    results: list[T] = []
    ended_by: list[int] = []

    async def run() -> None:
        with Signals() as signals:
            async with open_service_nursery("the command is over") as nursery:
                with trio.CancelScope() as scope:

                    async def leave_at_signals() -> None:
                        async for number in signals.numbers:
                            ended_by.append(number)
                            scope.cancel(reason=signal.Signals(number).name)

                    nursery.start_soon(leave_at_signals)
                    with signals.limited(timeout):
                        results.append(await work())

    trio.run(run)
    if results:
        return results[0]
    if ended_by[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(SIGNALLED + ended_by[0])
