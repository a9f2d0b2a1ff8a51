"""Log: the way of this package's log records to the handlers, the records of each peer within its share.

Importing this module is enough: code that calls ``logging.getLogger("trio_mcp").warning(...)`` need not know of the
module. Levels, filters, handlers and propagation remain under the application's control. During serving a thread, the
`Writer`, writes the log, so that no other code waits for the log.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Final

import trio

from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..concurrency.fair_share import Caller
from .log_shares import LogShare, LogShares, bound, resolve

_MOST_WAITING: Final = 1000
_MOST_CHARACTERS: Final = 4 * 1024 * 1024
_LAST_WAIT: Final = 0.2
"""Seconds that the end of the process waits for the thread."""


def call_handlers(record: logging.LogRecord) -> None:
    """Pass ``record`` to the handlers of its logger, or of the application, and wait for the handlers."""
    logger = logging.getLogger(record.name)
    type(logger).callHandlers(logger, record)


class Writer:
    """Calls jobs in the order of `put`, in a daemon thread that exists while there are jobs.

    The queue is bounded; further jobs are dropped, counted, and reported once the thread has caught up. `put` may be
    called in any thread and never waits for a writing thread, because the lock is not held during writing. If no thread
    can be started, jobs stay in the queue, and each `put` tries again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue[tuple[Callable[[], object], int]]()
        self._waiting = self._characters = self._dropped = 0
        self._thread: threading.Thread | None = None
        self._shares: dict[LogShares, int] = {}
        """Shares of the servers that run now, and how often each was entered."""
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._start_again)

    def _start_again(self) -> None:
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue[tuple[Callable[[], object], int]]()
        self._waiting = self._characters = self._dropped = 0
        self._thread = None
        self._shares = {}

    @property
    def serving(self) -> bool:
        """True while something is served: records are to be written here."""
        return bool(self._shares)

    def enter(self, shares: LogShares) -> None:
        """Note that a server runs from now on; the thread reports the records suppressed by ``shares``."""
        with self._lock:
            self._shares[shares] = self._shares.get(shares, 0) + 1

    def leave(self, shares: LogShares) -> None:
        """Undo one `enter`. Waiting jobs are still done."""
        with self._lock:
            self._shares[shares] -= 1
            last = not self._shares[shares]
            if last:
                del self._shares[shares]
        if last:
            for record in shares.rest():
                self.put_record(record)

    def put_record(self, record: logging.LogRecord) -> None:
        """Write ``record`` in the thread. Handlers get its exception, too, unless other jobs wait: an exception keeps
        alive everything that its frames refer to."""
        characters = resolve(record, keep_exception=not self._waiting)
        self.put(partial(call_handlers, record), characters)

    def put(self, job: Callable[[], object], characters: int) -> None:
        """Call ``job``, which writes ``characters`` characters, in the thread."""
        with self._lock:
            if self._waiting >= _MOST_WAITING or self._characters + characters > _MOST_CHARACTERS:
                self._dropped += 1
            else:
                self._put(job, characters)

    def _put(self, job: Callable[[], object], characters: int) -> None:
        self._waiting += 1
        self._characters += characters
        self._jobs.put((job, characters))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="trio_mcp log", daemon=True)
            # There may be no room for one more thread, or the interpreter is about to end: the next `put` tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def wake(self) -> None:
        """Have the thread check again when something is due, and whether to go on."""
        with self._lock:
            if self._thread is not None or self._waiting:
                self._put(_nothing, 0)

    def wait_until_written(self, timeout: float) -> bool:
        """Wait until all jobs in the queue are done, at most ``timeout`` seconds. Return False when time runs out."""
        written = threading.Event()
        with self._lock:
            if not self._waiting:
                return True
            self._put(written.set, 0)
        return written.wait(timeout)

    # In the thread

    def _run(self) -> None:
        while self._has_work():
            characters = 0
            with suppress(queue.Empty):
                job, characters = self._jobs.get(timeout=self._due_in())
                self._do(job)
                del job
                with self._lock:
                    self._waiting -= 1
                    self._characters -= characters
            for shares in tuple(self._shares):
                self._do(partial(self._report_due, shares))
            self._do(self._report_dropped)

    def _has_work(self) -> bool:
        """Return whether there is something to do, or will be."""
        with self._lock:
            if not self._waiting and not self._shares:
                self._thread = None
            return self._thread is not None

    def _due_in(self) -> float | None:
        """Return the seconds until something is to be reported; `None`: for ever."""
        with self._lock:
            times = [time for shares in self._shares if (time := shares.due_in()) is not None]
        return min(times, default=None)

    def _do(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException:
            # A handler raised instead of reporting it: shown as for any other thread, but this one goes on.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _report_due(self, shares: LogShares) -> None:
        for record in shares.due():
            self._do(partial(call_handlers, record))

    def _report_dropped(self) -> None:
        with self._lock:
            if self._waiting or not self._dropped:
                return
            number, self._dropped = f"{self._dropped:,}", 0
        text = "%s records were dropped: this log is written more slowly than it grows"
        make = logging.getLogRecordFactory()
        record = make("trio_mcp", logging.WARNING, __file__, 0, text, (number,), None)
        if logging.getLogger("trio_mcp").isEnabledFor(logging.WARNING):
            call_handlers(record)

    # At the end of the process

    def _at_exit(self) -> None:
        if not self.wait_until_written(_LAST_WAIT):
            # The thread holds the locks of a stream and a handler, for which the interpreter would wait.
            discard_unread_output()
            self.wait_until_written(_LAST_WAIT)


def _nothing() -> None:
    """Do nothing: the job only wakes the thread."""


def is_writable(descriptor: int) -> bool:
    """Return whether a write to ``descriptor`` would get on now: there is room, or an error to report. True on Windows,
    where only sockets can be asked."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def discard_unread_output() -> None:
    """Discard, from now on, text for a standard output or error that accepts no more.

    The function is for a process that is to end, and whose output nobody will ever read. A thread that waits in such a
    write holds the locks of its stream and of its log handler. The interpreter flushes both at the end of a script and
    of the process, and would wait for the thread for ever. Does nothing outside of the main thread.
    """
    # The descriptor of a stream that was closed when Python started may have been given to somebody else since.
    ours = [descriptor for descriptor, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is not None]
    full = [descriptor for descriptor in ours if not is_writable(descriptor)]
    if full and threading.current_thread() is threading.main_thread():
        _discard_output_of(full)


def _discard_output_of(descriptors: Sequence[int]) -> None:
    """Discard text for ``descriptors``, even if threads wait in writes already. For the main thread."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)
    # A write that has begun waits at the pipe until a signal interrupts it; then Python writes the rest to where the
    # descriptor leads now. The signal is one that nothing else uses; without a handler it would interrupt nothing.
    signal.signal(signal.SIGURG, _ignore_signal)
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


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the interrupted call is tried again."""


_OTHERS: Final = ("trio.serve_listeners", "trio.async_generator_errors", "trio-websocket")
"""Loggers of the libraries that are used for serving; peers can cause records there, too."""
_FLUSH: Final = 0.5
"""Seconds for which the end of serving waits for unwritten records."""

_entering: Final = threading.Lock()
"""Lock for runs of trio in several threads, which may begin and end to serve at once."""

writer: Final = Writer()
_of_process: Final = LogShares(time.monotonic, writer.wake)
_of_run: trio.lowlevel.RunVar[LogShares] = trio.lowlevel.RunVar("trio_mcp.log_shares")
_share: ContextVar[LogShare | None] = ContextVar("trio_mcp.log_share", default=None)
"""Share of the peer for whom this task or thread works."""


def _shares_here() -> LogShares:
    """Return the shares of this run of trio, so that one run never affects another, such as the next test."""
    try:
        return _of_run.get()
    except LookupError:
        shares = LogShares(time.monotonic, writer.wake)
        _of_run.set(shares)
        return shares
    except RuntimeError:  # outside of trio
        return _of_process


@contextmanager
def peer_log_share(caller: Caller | None = None) -> Generator[None]:
    """Count all records logged inside, by this task and its children, as caused by one peer: within the share of
    ``caller``, or, where nobody knows who calls, within one of its own, which ends with the block."""
    share = LogShare(_shares_here()) if caller is None else caller.log_share or new_share(caller)
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
        if caller is None or caller.key is caller.within is None:
            for record in share.shares.close(share):
                _emit(record)


set_share: Final = _share.set
"""Counts all that the present task, and its children from now on, log within a share: `Caller.log_share`, or else
`new_share`. Called for each request."""


def new_share(caller: Caller) -> LogShare:
    """Return the share of ``caller``, common to all its parts, and store it as `Caller.log_share`."""
    shares, whole = _shares_here(), caller.whole
    share = whole.log_share or (LogShare(shares) if whole.key is None else shares.of(whole.key))
    caller.log_share = whole.log_share = share
    return share


@asynccontextmanager
async def log_in_thread() -> AsyncGenerator[None]:
    """Write the log in a thread while inside, because a process that serves must not wait for the reader of the log.

    At the end the block waits for unwritten records, for half a second at most; the thread goes on with the rest. If
    records are left because nobody reads standard error, later text for standard error is discarded, since even the end
    of a script would wait for a reader. Any number of these blocks may be nested, or run beside each other.
    """
    shares = _shares_here()
    _enter(shares)
    try:
        yield
    finally:
        _leave(shares)
        is_read = writer.wait_until_written(0)
        if not is_read:
            with trio.CancelScope(shield=True):  # the wait has its own deadline, and a thread in any case
                limiter = trio.CapacityLimiter(1)
                is_read = await trio.to_thread.run_sync(writer.wait_until_written, _FLUSH, limiter=limiter)
            if not is_read and not writer.serving:
                discard_unread_output()
        writer.wake()


def _enter(shares: LogShares) -> None:
    with _entering:
        if not writer.serving:
            for name in _OTHERS:
                _route(logging.getLogger(name))
        writer.enter(shares)


def _leave(shares: LogShares) -> None:
    with _entering:
        writer.leave(shares)
        if not writer.serving:
            for name in _OTHERS:
                del logging.getLogger(name).callHandlers


class ThreadedSink:
    """A text sink that calls ``write`` behind the records of the log, with the same bounds; ``write`` may block.

    An error of writing is raised at the next `write`.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write_now = write
        self._error: Exception | None = None

    def write(self, text: str, /) -> None:
        """Have ``text`` written. Never waits."""
        if self._error is not None:
            raise self._error
        writer.put(partial(self._write, text), len(text))

    def _write(self, text: str) -> None:
        try:
            self._write_now(text)
        except (OSError, ValueError) as error:
            self._error = error


def _route(logger: logging.Logger) -> None:
    """Call `_handle` where ``logger`` would call its handlers: behind its level and its filters."""
    logger.callHandlers = _handle


def _handle(record: logging.LogRecord) -> None:
    share = _share.get() or _shares_here().unattributed
    for told in share.shares.due():
        _emit(told)
    if share.shares.admit(record, share):
        _emit(record)


def _emit(record: logging.LogRecord) -> None:
    if writer.serving:
        writer.put_record(record)
    else:
        bound(record)
        call_handlers(record)


_route(logging.getLogger("trio_mcp"))


def unlimited_logger(name: str) -> logging.Logger:
    """Return a logger whose records are written in the thread during serving like all records, but beside all shares:
    who asks for such a log wants a line for each event."""
    logger = logging.getLogger(name)
    logger.callHandlers = _emit
    return logger


access_log: Final = unlimited_logger("trio_mcp.access")
"""The log of accesses."""
