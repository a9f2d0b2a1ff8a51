"""Log: the way of this package's log records to the handlers, the records of each peer within its share.

Importing this module is enough: code that calls ``logging.getLogger("trio_mcp").warning(...)`` need not know of the
module. Levels, filters, handlers and propagation remain under the application's control.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from functools import partial
from typing import Final

import trio

from ..concurrency.contexts import asynccontextmanager, contextmanager
from ..concurrency.fair_share import Caller
from .log_shares import Share, Shares, bound
from .writer import Writer, hand_over, let_go_of_unread_output

_OTHERS: Final = ("trio.serve_listeners", "trio.async_generator_errors", "trio-websocket")
"""Loggers of the libraries that are used for serving; peers can cause records there, too."""
_FLUSH: Final = 0.5
"""Seconds for which the end of serving waits for unwritten records."""

_entering: Final = threading.Lock()
"""Lock for runs of trio in several threads, which may begin and end to serve at once."""

writer: Final = Writer()
_of_process: Final = Shares(time.monotonic, writer.wake)
_of_run: trio.lowlevel.RunVar[Shares] = trio.lowlevel.RunVar("trio_mcp.log_shares")
_share: ContextVar[Share | None] = ContextVar("trio_mcp.log_share", default=None)
"""Share of the peer for whom this task or thread works."""


def _shares_here() -> Shares:
    """Return the shares of this run of trio, so that one run never affects another, such as the next test."""
    try:
        return _of_run.get()
    except LookupError:
        shares = Shares(time.monotonic, writer.wake)
        _of_run.set(shares)
        return shares
    except RuntimeError:  # outside of trio
        return _of_process


@contextmanager
def share_of_a_peer(caller: Caller | None = None) -> Generator[None]:
    """Count all records logged inside, by this task and its children, as caused by one peer: within the share of
    ``caller``, or, where nobody knows who calls, within one of its own, which ends with the block."""
    share = Share(_shares_here()) if caller is None else caller.log_share or new_share(caller)
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
        if caller is None or caller.key is None:
            for record in share.shares.end(share):
                _pass_on(record)


set_share: Final = _share.set
"""Counts all that the present task, and its children from now on, log within a share: `Caller.log_share`, or else
`new_share`. Called for each request."""


def new_share(caller: Caller) -> Share:
    """Return the share of ``caller``, and note it as `Caller.log_share`."""
    shares = _shares_here()
    share = caller.log_share = Share(shares) if caller.key is None else shares.of(caller.key)
    return share


@asynccontextmanager
async def written_in_a_thread() -> AsyncGenerator[None]:
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
                let_go_of_unread_output()
        writer.wake()


def _enter(shares: Shares) -> None:
    with _entering:
        if not writer.serving:
            for name in _OTHERS:
                _route(logging.getLogger(name))
        writer.enter(shares)


def _leave(shares: Shares) -> None:
    with _entering:
        writer.leave(shares)
        if not writer.serving:
            for name in _OTHERS:
                del logging.getLogger(name).callHandlers


class WrittenInAThread:
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
    """Call `_take` where ``logger`` would call its handlers: behind its level and its filters."""
    logger.callHandlers = _take


def _take(record: logging.LogRecord) -> None:
    share = _share.get() or _shares_here().of_nobody
    for told in share.shares.due():
        _pass_on(told)
    if share.shares.admit(record, share):
        _pass_on(record)


def _pass_on(record: logging.LogRecord) -> None:
    if writer.serving:
        writer.put_record(record)
    else:
        bound(record)
        hand_over(record)


_route(logging.getLogger("trio_mcp"))

access_log: Final = logging.getLogger("trio_mcp.access")
"""The log of accesses. Written in the thread during serving like all records, but beside all shares: who asks for the
log wants a line for each access."""
access_log.callHandlers = _pass_on
