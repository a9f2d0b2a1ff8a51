"""Output that nobody reads, when a server on standard input and output has ended and the process is to end."""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress


def takes_more(descriptor: int) -> bool:
    """Return whether a write to ``descriptor`` would get on now: there is room, or an error to report."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def let_go_of_unread_output() -> None:
    """Discard, from now on, text for a standard output or error that accepts no more.

    The function is for a process that is to end, and whose output nobody will ever read. A thread that waits in such a
    write holds the locks of its stream and of its log handler. The interpreter flushes both at the end of a script and
    of the process, and would wait for the thread for ever. Does nothing outside of the main thread.
    """
    # The descriptor of a stream that was closed when Python started may have been given to somebody else since.
    ours = [descriptor for descriptor, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is not None]
    full = [descriptor for descriptor in ours if not takes_more(descriptor)]
    if full and threading.current_thread() is threading.main_thread():
        _throw_away(full)


def _throw_away(descriptors: Sequence[int]) -> None:
    """Discard text for ``descriptors``, even if threads wait in writes already. For the main thread."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)
    # A write that has begun waits at the pipe until a signal interrupts it; then Python writes the rest to where the
    # descriptor leads now. The signal is one that nothing else uses; without a handler it would interrupt nothing.
    signal.signal(signal.SIGURG, _go_on)
    # `threading.enumerate` does not fit: it does not hear of the end of threads that others have started, and a signal
    # to a thread that is gone may crash the process.
    threads = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented; of threads that are there
    for ident in threads.keys() - {threading.get_ident()}:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            signal.pthread_kill(ident, signal.SIGURG)
    atexit.unregister(_end_printing)
    atexit.register(_end_printing)


def _end_printing() -> None:
    """Close standard output, at the end of the process. Closing waits for a thread that prints; later prints fail.
    Without the close, the interpreter would later give up waiting, and abort."""
    if sys.__stdout__ is not None:
        with suppress(OSError, ValueError):
            sys.__stdout__.close()


def _go_on(number: int, frame: object) -> None:
    """Do nothing: the interrupted call is tried again."""
