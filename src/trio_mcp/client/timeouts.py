"""`CallTimeouts`: the timeouts for connecting and for the calls of one client. The timeouts are paused while a handler
waits for the user.

KeepAlive detects that a silent server is gone.
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
"""A context manager that applies no timeout."""


class CallTimeouts:
    """The timeouts of all calls in flight on one connection.

    ``seconds`` is the timeout of a call whose caller set none. A legacy server's request doesn't name the call that it
    belongs to, so the timeouts of all calls are paused meanwhile. A modern server sends its requests during a call: the
    handler runs inside the call and its timeouts.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls: dict[object, tuple[TimeLimit, ...]] = {}
        self._questions = 0
        self._paused_seconds = 0.0
        self._paused_since = 0.0
        self.asked_in_calls = False
        """True if `user_is_asked` is entered in a task of the call that the server's request belongs to."""

    @property
    def paused_seconds(self) -> float:
        """The number of seconds for which all timeouts have been paused so far."""
        return self._paused_seconds + (trio.current_time() - self._paused_since if self._questions else 0)

    @contextmanager
    def move_on_after(self, seconds: float) -> Generator[trio.CancelScope]:
        """Limit the time of the block like `trio.move_on_after`.

        The limit is paused while the timeouts of the calls, or a `fail_after_work` around the block, are paused.
        """
        with trio.CancelScope() as scope:
            limit = TimeLimit(scope, seconds, inf, inf, renewed=False)
            with self._known((*call_limits(), limit)):
                yield scope

    def around_call(self) -> AbstractContextManager[Any]:
        """Apply the timeouts of a call to the block. Raises `trio.TooSlowError` if the client's ``call_timeout`` has
        passed."""
        limits = call_limits()
        if limits:
            return self._known(limits)
        return UNLIMITED if self._seconds == inf else self._limited()

    def around_wait(self) -> AbstractContextManager[Any]:
        """Apply to the block only the timeouts that the caller has set, and not the client's ``call_timeout``.

        Use it if the block waits for more than the response to one request, such as for the end of a task.
        """
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
                raise  # raise the error unchanged, because the caller itself has set the expired timeout
            # The caller set no timeout, so the error names the option call_timeout, which applies to all calls.
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
        """Pause timeouts inside the block, because the user is answering a request of the server.

        The timeouts of the call that the request belongs to are paused or, if this call is unknown, all timeouts.
        """
        return _paused_limits(call_limits()) if self.asked_in_calls else self.pause_all()

    @contextmanager
    def pause_all(self) -> Generator[None]:
        """Pause all timeouts inside the block, including the timeout for connecting.

        Meanwhile, the user answers a request of the server that may belong to any call.
        """
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
    """Pings an idle server. If the server doesn't answer, the connection counts as lost, and all calls in progress
    fail.

    No ping is sent while a request of this client is in progress: its caller decides how long to wait, and a busy
    server may be slow to answer a ping. Any answer is a sign of life, even an error, since many servers don't support
    ping.
    """

    interval: float = attrs.field(default=30.0, validator=positive)
    """Seconds from the server's last message to the next ping."""
    timeout: float = attrs.field(default=10.0, validator=positive)
    """Seconds to wait for the answer to a ping before the ping counts as missed."""
    misses: int = attrs.field(default=2, validator=positive)
    """How many pings in a row may be missed before the connection counts as lost (2025-11-25 ping: multiple failed
    pings MAY trigger connection reset)."""

    async def _run(self, connection: Connection, ping: Callable[[], Awaitable[None]]) -> None:
        """Ping the server until several pings in a row aren't answered. Then mark the connection as lost, so that
        waiting calls raise `ConnectionLost`."""
        missed = 0
        try:
            while missed < self.misses:
                if not missed:
                    await trio.sleep(self.interval)
                missed = 0 if await self._is_alive(connection, ping) else missed + 1
        except ConnectionLost:
            return  # the connection has ended, but not because of missed pings
        connection.lose(ConnectionLost(f"the server did not answer {missed} pings of {self.timeout:g} s each"))

    async def _is_alive(self, connection: Connection, ping: Callable[[], Awaitable[None]]) -> bool:
        # A server that doesn't answer the ping may be busy with a request that this client has sent meanwhile.
        return in_progress(connection) or await has_answered(ping, self.timeout) or in_progress(connection)


async def has_answered(ping: Callable[[], Awaitable[None]], seconds: float) -> bool:
    """Return whether the server answers a ``ping`` in time, with a result or an error. Raises `ConnectionLost` if the
    connection is lost."""
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
        return True  # an error also shows that the server is alive, for example if a token is missing
    return True


def in_progress(connection: Connection) -> bool:
    """Return whether a request of this client is in flight, not counting ``subscriptions/listen`` streams."""
    return any(not request.method.streams for request in connection.state.outbound)
