"""Connection: one TCP connection to a server or proxy, with or without TLS."""

from __future__ import annotations

from typing import Final

import trio

from ...concurrency.nurseries import ServiceNursery
from ...runtime.channel import ConnectionLost
from ..broken import let_go_of_cause
from .errors import RequestNotSent
from .wire import Wire

_AT_ONCE: Final = 32768
"""Bytes that the system takes of a request though the server reads nothing."""


class Connection:
    """A connection over ``wire``, on which ``stream`` speaks TLS, or which is ``stream`` itself. One exchange at a time
    uses the connection. ``name`` is for the words of errors."""

    __slots__ = ("_sending", "_sent_before", "_stream", "_wire", "is_closed", "name")

    def __init__(self, wire: Wire, stream: trio.abc.Stream, name: str) -> None:
        self._wire = wire
        self._stream = stream
        self.name = name
        self._sent_before = 0
        """Bytes that the system took before the present request."""
        self._sending = False
        self.is_closed = False

    @property
    def is_sending(self) -> bool:
        """True while not all of the request is sent, and after sending failed."""
        return self._sending

    @property
    def is_stale(self) -> bool:
        """True when an idle connection is of no use: nothing but its end can have come."""
        return self._wire.is_readable()

    @property
    def has_taken(self) -> bool:
        """True when the system took a byte since `send` was called."""
        return self._wire.taken > self._sent_before

    async def send(self, request: bytes, nursery: ServiceNursery) -> None:
        """Send ``request``, the rest of a long one in the background, by a task of ``nursery``: a server may answer,
        and read no more, before the request is over. A failure is for `receive` to tell, who may find an answer before
        the failure."""
        self._sent_before = self._wire.taken
        if len(request) <= _AT_ONCE:
            await self._send(request)
        else:
            rest = memoryview(request)
            await self._send(rest[:_AT_ONCE])
            if not self._sending:
                self._sending = True
                nursery.start_soon(self._send, rest[_AT_ONCE:])

    async def _send(self, data: bytes | memoryview) -> None:
        self._sending = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            let_go_of_cause(error)
        else:
            self._sending = False

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes of the answer, and return up to ``max_bytes``; empty at the end. Raises `ConnectionLost`."""
        if self.is_closed:
            raise self._closed()
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except trio.ClosedResourceError as error:
            let_go_of_cause(error)
            raise self._closed() from None
        except trio.BrokenResourceError as error:
            let_go_of_cause(error)
            raise self.lost(f"the connection to {self.name} broke: {error.__cause__ or error}") from None

    def _closed(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.name} was closed on this side")

    def lost(self, reason: str) -> ConnectionLost:
        """Return the error for the request that `send` sent last."""
        return ConnectionLost(reason) if self.has_taken else RequestNotSent(reason)

    def close(self) -> None:
        """Close at once, without TLS's word of farewell, which a server may be slow to take. Idempotent."""
        self.is_closed = True
        self._wire.close()
