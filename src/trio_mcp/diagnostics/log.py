"""Passes log records of this package to the logging handlers in a thread, and limits the number of records per peer.

Importing this module is enough: code that calls ``logging.getLogger("trio_mcp").warning(...)`` doesn't have to use this
module. The application keeps control of levels, filters, handlers and propagation. While a server runs, a thread, the
`Writer`, writes the log, so that no other code waits for it.
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
"""When the process exits, the maximum number of seconds to wait for the log thread."""


def call_handlers(record: logging.LogRecord) -> None:
    """Pass ``record`` to the logging handlers of its logger and of the application. Wait until the handlers return."""
    logger = logging.getLogger(record.name)
    type(logger).callHandlers(logger, record)


class Writer:
    """Writes the log in a daemon thread, which exists only while it has work.

    The thread runs jobs in the order of the `put` calls. The queue is limited. Further jobs are dropped and counted,
    and the number is logged once the thread has caught up. `put` can be called in any thread, and never waits for a
    thread that writes, because the lock isn't held during writing. If no thread can be started, jobs stay in the queue,
    and each `put` tries again.
    """

    def __init__(self) -> None:
        self._reset()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):  # false on Windows, which has no fork
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs = queue.SimpleQueue[tuple[Callable[[], object], int]]()
        self._waiting = self._characters = self._dropped = 0
        self._thread: threading.Thread | None = None
        self._shares: dict[LogShares, int] = {}
        """The log limits (`LogShares`) of the running servers, and how often `enter` was called for each."""

    @property
    def serving(self) -> bool:
        """True while a server is running. Then log records are written in the log thread."""
        return bool(self._shares)

    def enter(self, shares: LogShares) -> None:
        """From now on, write log records in the log thread, because a server starts.

        The thread also reports how many records ``shares`` has suppressed.
        """
        with self._lock:
            self._shares[shares] = self._shares.get(shares, 0) + 1

    def leave(self, shares: LogShares) -> None:
        """Undo one call of `enter`, because a server has ended.

        Jobs that are already in the queue still run.
        """
        with self._lock:
            self._shares[shares] -= 1
            last = not self._shares[shares]
            if last:
                del self._shares[shares]
        if last:
            for record in shares.due(at_end=True):
                self.put_record(record)

    def put_record(self, record: logging.LogRecord) -> None:
        """Queue ``record``, so that the log thread writes it.

        The handlers get its exception object only if no other jobs wait, because an exception keeps all objects in its
        frames alive.
        """
        characters = resolve(record, keep_exception=not self._waiting)
        self.put(partial(call_handlers, record), characters)

    def put(self, job: Callable[[], object], characters: int) -> None:
        """Queue ``job``, so that the log thread runs it.

        ``characters`` is the number of characters that the job writes. If too many characters already wait to be
        written, drop the job.
        """
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
            # Python raises RuntimeError if it can't start another thread, or at exit. The next `put` tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def wake(self) -> None:
        """Wake the log thread.

        The thread then checks when the next report is due, and whether it should end.
        """
        with self._lock:
            if self._thread is not None or self._waiting:
                self._put(_nothing, 0)

    def wait_until_written(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until all queued jobs are done.

        Return false if some jobs aren't done by then.
        """
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
        """Return true if the log thread has something to do now, or may have something to do later."""
        with self._lock:
            if not self._waiting and not self._shares:
                self._thread = None
            return self._thread is not None

    def _due_in(self) -> float | None:
        """Return the seconds until the next report is due, or `None` if there is no report."""
        with self._lock:
            times = [time for shares in self._shares if (time := shares.due_in()) is not None]
        return min(times, default=None)

    def _do(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException:
            # The job raised an exception, although a logging handler should report its own errors.
            # Show the exception like an uncaught exception of any thread, and continue with the next job.
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

    # The method below runs when the process ends

    def _at_exit(self) -> None:
        if not self.wait_until_written(_LAST_WAIT):
            # Unblock the log thread, because at exit Python would wait for locks that the log thread holds.
            discard_unread_output()
            self.wait_until_written(_LAST_WAIT)


def _nothing() -> None:
    """Do nothing, as a job that only wakes the log thread."""


def is_writable(descriptor: int) -> bool:
    """Return true if a write to ``descriptor`` would return or fail at once, without blocking.

    Always true on Windows, where only sockets can be checked.
    """
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def discard_unread_output() -> None:
    """If the pipe of standard output or standard error is full, discard all text that is written to it from now on.

    Use it in a process that is about to exit and whose output will never be read. A thread that blocks in a write holds
    the locks of its stream and of its log handler. The interpreter flushes both at the end of a script and of the
    process, and would wait for the thread forever. Outside the main thread, this does nothing.
    """
    # Skip an output stream that was closed when Python started: its descriptor may now belong to another file.
    ours = [descriptor for descriptor, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is not None]
    full = [descriptor for descriptor in ours if not is_writable(descriptor)]
    if full and threading.current_thread() is threading.main_thread():
        _discard_output_of(full)


def _discard_output_of(descriptors: Sequence[int]) -> None:
    """Discard text that is written to ``descriptors`` from now on, even if threads are already blocked in a write.

    Call this in the main thread.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)
    # Interrupt blocked writes by a signal. Python then repeats each write on its descriptor, now the null device.
    # Set a handler that does nothing, because a signal that is ignored doesn't interrupt a write.
    signal.signal(signal.SIGURG, _ignore_signal)
    # Don't take the threads from `threading.enumerate`, which may list ended threads that Python didn't start.
    # Never send a signal to an ended thread, because that can crash the process.
    threads = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented; lists only existing threads
    for ident in threads.keys() - {threading.get_ident()}:
        with suppress(ProcessLookupError):  # ignore a thread that has ended by now
            signal.pthread_kill(ident, signal.SIGURG)
    atexit.unregister(_end_printing)
    atexit.register(_end_printing)


def _end_printing() -> None:
    """Close standard output when the process ends.

    This waits for a thread that is printing, and makes later prints fail. Otherwise the interpreter would abort because
    of such a thread.
    """
    if sys.__stdout__ is not None:
        with suppress(OSError, ValueError):
            sys.__stdout__.close()


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing, as a signal handler.

    Python then repeats the system call that the signal has interrupted.
    """


_OTHERS: Final = ("trio.serve_listeners", "trio.async_generator_errors", "trio-websocket")
"""Loggers of libraries that servers use, because peers can cause log records there as well."""
_FLUSH: Final = 0.5
"""When a server shuts down, the maximum number of seconds to wait for unwritten records."""

_entering: Final = threading.Lock()
"""Lock that is needed if trio runs in several threads, and these threads start or stop servers at the same time."""

writer: Final = Writer()
_of_process: Final = LogShares(time.monotonic, writer.wake)
_of_run: trio.lowlevel.RunVar[LogShares] = trio.lowlevel.RunVar("trio_mcp.log_shares")
_share: ContextVar[LogShare | None] = ContextVar("trio_mcp.log_share", default=None)
"""The log limit (`LogShare`) of the peer that this task or thread works for."""


def _shares_here() -> LogShares:
    """Return the log limits (`LogShares`) of this trio run.

    Each run has its own limits, so that one run, such as a test, doesn't affect the next.
    """
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
    """Inside the ``with`` block, count log records of this task and its child tasks towards the limit of one peer.

    This is the limit of ``caller``. If ``caller`` is `None`, it is a new limit that ends with the block.
    """
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
"""Sets the log share in which records of the current task and its children count from now on: `Caller.log_share`, or
else `new_share`. Called for each request."""


def new_share(caller: Caller) -> LogShare:
    """Create the log limit (`LogShare`) of ``caller`` and all its connections, if there is none yet.

    Return it, and store it as `Caller.log_share`.
    """
    shares, whole = _shares_here(), caller.whole
    share = whole.log_share or (LogShare(shares) if whole.key is None else shares.of(whole.key))
    caller.log_share = whole.log_share = share
    return share


@asynccontextmanager
async def log_in_thread() -> AsyncGenerator[None]:
    """Inside the ``with`` block, write the log in a thread. So the server needn't wait if the log's output, such as a
    pipe, is blocked.

    At the end, the block waits for unwritten records, for half a second at most; the thread continues with the rest. If
    records are left because standard error isn't read, later text for standard error is discarded. Otherwise even the
    end of a script would wait for a reader. These blocks can be nested, and can run concurrently.
    """
    shares = _shares_here()
    with _entering:
        if not writer.serving:
            for name in _OTHERS:
                _route(logging.getLogger(name))
        writer.enter(shares)
    try:
        yield
    finally:
        with _entering:
            writer.leave(shares)
            if not writer.serving:
                for name in _OTHERS:
                    del logging.getLogger(name).callHandlers
        is_read = writer.wait_until_written(0)
        if not is_read:
            # Wait even if this task is cancelled, because the wait has its own time limit.
            with trio.CancelScope(shield=True):
                limiter = trio.CapacityLimiter(1)
                is_read = await trio.to_thread.run_sync(writer.wait_until_written, _FLUSH, limiter=limiter)
            if not is_read and not writer.serving:
                discard_unread_output()
        writer.wake()


class ThreadedSink:
    """A text sink that calls ``write``, which may block, in the log thread.

    The text is queued after earlier log records, and the same limits apply to it. If ``write`` raises, the next call of
    this object's `write` raises the error.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write_now = write
        self._error: Exception | None = None

    def write(self, text: str, /) -> None:
        """Queue ``text`` for writing in the log thread. Never waits."""
        if self._error is not None:
            raise self._error
        writer.put(partial(self._write, text), len(text))

    def _write(self, text: str) -> None:
        try:
            self._write_now(text)
        except (OSError, ValueError) as error:
            self._error = error


def _route(logger: logging.Logger) -> None:
    """Let ``logger`` pass its records to the function `_handle`, and not to its logging handlers.

    The logger's level and filters still apply.
    """
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
    """Return a logger whose records are written in the log thread, without the usual limit on the log records that one
    peer can cause.

    It is for logs that need a line for each event.
    """
    logger = logging.getLogger(name)
    logger.callHandlers = _emit
    return logger


access_log: Final = unlimited_logger("trio_mcp.access")
"""The logger of the HTTP access log."""
