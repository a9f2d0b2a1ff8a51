"""Output that nobody reads, at the end of the process."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress

__all__ = ["let_go_of_unread_output", "takes_more"]


def takes_more(descriptor: int) -> bool:
    """Return whether a write to ``descriptor`` would get on now: there is room, or an error to be told."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def let_go_of_unread_output() -> None:
    """Throw away what is still written to a standard output or error that takes no more.

    For the end of the process, when nobody will ever read it. A thread that stands in such a write holds the locks of
    its stream and of its log handler, and the interpreter, which flushes both at its end, would wait for it for ever.
    Must be called in the main thread.
    """
    full = [descriptor for descriptor in (1, 2) if not takes_more(descriptor)]
    if not full:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in full:
        os.dup2(null, descriptor)
    os.close(null)
    # What has begun goes on in the pipe until a signal interrupts it; then Python writes the rest to where the
    # descriptor leads now. The signal is one that nothing else uses; without a handler it would interrupt nothing.
    signal.signal(signal.SIGURG, _go_on)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident is not None:
            signal.pthread_kill(thread.ident, signal.SIGURG)
    if sys.__stdout__ is not None:
        # This waits for who prints, and a thread that goes on to print fails then. At its own end the interpreter would
        # give up waiting, and abort.
        with suppress(OSError, ValueError):
            sys.__stdout__.close()


def _go_on(number: int, frame: object) -> None:
    """Do nothing: what the signal interrupted is tried again."""
