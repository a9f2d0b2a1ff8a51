"""CallTimeouts: the time limits for the calls of one client, and for connecting, not counting the time of its user.

KeepAlive finds out that a silent server is no longer there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import Any, Final

import attrs
import trio

from ..classes import frozen, positive
from ..concurrency.contexts import contextmanager
from ..concurrency.time_limits import TimeLimit, call_limits, fail_after_work
from ..jsonrpc.errors import MCPError
from ..runtime.connection import Connection
from ..runtime.transport import ConnectionLost, HTTPError

UNLIMITED: Final = nullcontext()
"""Keeps no limit."""


class CallTimeouts:
    """The time limits of all calls in flight on one connection.

    ``seconds`` is the limit of a call whose caller set no limit. A legacy server asks without naming a call, so the
    limits of all calls stand still during its questions. A modern server asks by answering the call: the handler runs
    inside the call, and under its limits.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[object, tuple[TimeLimit, ...]] = {}
        self._questions = 0
        self._paused_seconds = 0.0
        self._paused_since = 0.0
        self.asked_in_calls = False
        """True when `user_is_asked` runs inside the call that the question belongs to."""

    @property
    def paused_seconds(self) -> float:
        """Seconds in which all limits have stood still so far."""
        return self._paused_seconds + (trio.current_time() - self._paused_since if self._questions else 0)

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[trio.CancelScope]:
        """Limit the time of the block as `trio.move_on_after` does, but for the time in which all limits stand still:
        this limit, and those of `fail_after_work` around the block."""
        with trio.CancelScope() as scope:
            limit = TimeLimit(scope, seconds, inf, inf, renewed=False)
            with self._known((*call_limits(), limit)):
                yield scope

    def around_call(self) -> AbstractContextManager[Any]:
        """Keep the limits of the call inside. Raises `trio.TooSlowError` for the limit that is set here."""
        limits = call_limits()
        if limits:
            return self._known(limits)
        return UNLIMITED if self._seconds == inf else self._limited()

    def around_wait(self) -> AbstractContextManager[Any]:
        """Keep the limits of the caller inside, who waits for more than the answer to one request."""
        limits = call_limits()
        return self._known(limits) if limits else UNLIMITED

    @contextmanager
    def _limited(self) -> Generator[None]:
        scope: trio.CancelScope | None = None
        hint = ""
        try:
            with fail_after_work(self._seconds) as scope, self._known(limits := call_limits()):
                try:
                    yield
                finally:
                    hint = limits[-1].hint
        except trio.TooSlowError:
            if scope is None or not scope.cancelled_caught:
                raise  # not by this limit
            # The caller set no limit, so the error names the source of this limit.
            raise trio.TooSlowError(f"no answer within {self._seconds:g} s (call_timeout){hint}") from None

    @contextmanager
    def _known(self, limits: tuple[TimeLimit, ...]) -> Generator[None]:
        key = object()
        self._calls[key] = limits
        if self._questions:
            _pause(limits)
        try:
            yield
        finally:
            del self._calls[key]
            if self._questions:
                _resume(limits)

    def user_is_asked(self) -> AbstractContextManager[None]:
        """Stop the clocks while our user makes up their mind."""
        return _paused_limits(call_limits()) if self.asked_in_calls else self.pause_all()

    @contextmanager
    def pause_all(self) -> Generator[None]:
        """Stop all clocks, that of connecting included, while our user makes up their mind: nobody knows in the course
        of which call."""
        self._questions += 1
        if self._questions == 1:
            self._paused_since = trio.current_time()
            for limits in self._calls.values():
                _pause(limits)
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._paused_seconds += trio.current_time() - self._paused_since
                for limits in self._calls.values():
                    _resume(limits)


@contextmanager
def _paused_limits(limits: tuple[TimeLimit, ...]) -> Generator[None]:
    _pause(limits)
    try:
        yield
    finally:
        _resume(limits)


def _pause(limits: tuple[TimeLimit, ...]) -> None:
    for limit in limits:
        limit.pause()


def _resume(limits: tuple[TimeLimit, ...]) -> None:
    for limit in limits:
        limit.resume()


@frozen(kw_only=True)
class KeepAlive:
    """Pings for an idle server; a server that does not answer is given up, with all calls to that server.

    No ping is sent while a request of ours is in progress: the caller knows best how long to wait, and a server busy
    with the request may be slow to answer a ping. Any answer is a sign of life, an error too: many servers know no
    ping.
    """

    interval: float = attrs.field(default=30.0, validator=positive)
    """Seconds from one sign of life to the next ping."""
    timeout: float = attrs.field(default=10.0, validator=positive)
    """Seconds until a ping counts as missed."""
    misses: int = attrs.field(default=2, validator=positive)
    """Pings missed in a row after which the connection is lost (2025-11-25 ping: multiple failed pings MAY
    trigger connection reset)."""

    async def _run(self, connection: Connection, ping: Callable[[], Awaitable[None]]) -> None:
        """Watch the connection until its loss: waiters get `ConnectionLost`, nobody is cancelled."""
        missed = 0
        try:
            while missed < self.misses:
                if not missed:
                    await trio.sleep(self.interval)
                missed = 0 if await self._is_alive(connection, ping) else missed + 1
        except ConnectionLost:
            return  # the connection ended in another way
        connection.lose(ConnectionLost(f"the server did not answer {missed} pings of {self.timeout:g} s each"))

    async def _is_alive(self, connection: Connection, ping: Callable[[], Awaitable[None]]) -> bool:
        # A request of ours that began meanwhile may keep the server busy.
        return in_progress(connection) or await has_answered(ping, self.timeout) or in_progress(connection)


async def has_answered(ping: Callable[[], Awaitable[None]], seconds: float) -> bool:
    """Return whether there is an answer of any kind to ``ping`` in this time. Raises `ConnectionLost`."""
    try:
        with fail_after_work(seconds):
            await ping()
    except trio.TooSlowError:
        return False
    except HTTPError as error:
        return error.status is not None
    except ConnectionLost:
        raise
    except MCPError:
        return True  # an answer all the same, even one that refuses for want of a token
    return True


def in_progress(connection: Connection) -> bool:
    """Return whether a request of ours is in flight, streams not counted."""
    return any(not request.method.streams for request in connection.state.outbound)
