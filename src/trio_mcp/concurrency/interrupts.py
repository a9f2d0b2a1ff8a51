"""cancel_on_interrupt: Ctrl-C cancels one call, and not the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from functools import partial
from types import FrameType
from typing import Any

import trio

from .contexts import contextmanager


@contextmanager
def cancel_on_interrupt() -> Generator[trio.CancelScope]:
    """Open a scope that the first Ctrl-C (SIGINT) inside cancels. The second one does what it did before the block:
    raise `KeyboardInterrupt`, usually.

        with cancel_on_interrupt() as scope:
            result = await client.call_tool("search", {"text": "trio"})
        if scope.cancelled_caught:
            print("cancelled")

    For the main thread; elsewhere `RuntimeError`. Blocks of several tasks must be nested, as the handlers of a signal
    are: the innermost gets the interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("interrupts come to the main thread: open cancel_on_interrupt() where trio runs there")
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> Any:
        nonlocal interrupted
        if interrupted and callable(before):
            return before(number, frame)
        interrupted = True
        return token.run_sync_soon(partial(scope.cancel, reason="the user pressed Ctrl-C"))

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with scope:
            yield scope
    finally:
        signal.signal(signal.SIGINT, before)
