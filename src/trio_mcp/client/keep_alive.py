"""KeepAlive: finding out that a silent server is no longer there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from ..classes import frozen
from ..concurrency.time_limits import fail_after_work
from ..jsonrpc.errors import MCPError
from ..runtime.connection import Connection
from ..runtime.transport import ConnectionLost, HTTPError


def _positive(_: Any, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than 0, not {value!r}")


@frozen(kw_only=True)
class KeepAlive:
    """Pings for an idle server; a server that does not answer is given up, with all calls to that server.

    No ping is sent while a request of ours is in progress: the caller knows best how long to wait, and a server busy
    with the request may be slow to answer a ping. Any answer is a sign of life, an error too: many servers know no
    ping.
    """

    interval: float = attrs.field(default=30.0, validator=_positive)
    """Seconds from one sign of life to the next ping."""
    timeout: float = attrs.field(default=10.0, validator=_positive)
    """Seconds until a ping counts as missed."""
    misses: int = attrs.field(default=2, validator=_positive)
    """Pings missed in a row after which the connection is lost (2025-11-25 ping: multiple failed pings MAY
    trigger connection reset)."""

    async def run(self, duplex: Connection, ping: Callable[[], Awaitable[None]]) -> None:
        """Watch the connection until its loss: waiters get `ConnectionLost`, nobody is cancelled."""
        missed = 0
        try:
            while missed < self.misses:
                if not missed:
                    await trio.sleep(self.interval)
                missed = 0 if await self._is_there(duplex, ping) else missed + 1
        except ConnectionLost:
            return  # the connection ended in another way
        duplex.lose(ConnectionLost(f"the server did not answer {missed} pings of {self.timeout:g} s each"))

    async def _is_there(self, duplex: Connection, ping: Callable[[], Awaitable[None]]) -> bool:
        # A request of ours that began meanwhile may keep the server busy.
        return in_progress(duplex) or await answers(ping, self.timeout) or in_progress(duplex)


async def answers(ping: Callable[[], Awaitable[None]], seconds: float) -> bool:
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


def in_progress(duplex: Connection) -> bool:
    """Return whether a request of ours is in flight, streams not counted."""
    return any(not request.method.streams for request in duplex.state.outbound)
