"""Dialer: opens connections to one origin."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import cache
from typing import Final

import trio

from ..broken import let_go_of_cause
from .connection import Connection
from .errors import RequestNotSent
from .origin import Origin
from .wire import Wire

__all__ = ["Dialer"]

_HTTP: Final = "http/1.1"


class Dialer:
    """Opens connections to ``origin``, each within ``timeout`` seconds."""

    def __init__(self, origin: Origin, ssl_context: ssl.SSLContext | None, timeout: float) -> None:
        self._origin = origin
        self._ssl_context = ssl_context
        self._timeout = timeout

    async def dial(self) -> Connection:
        """Open a connection. Raises `RequestNotSent` with the reason when nobody listens, the name is unknown, TLS
        fails, or all of it takes too long."""
        origin = self._origin
        with trio.move_on_after(self._timeout) as scope:
            wire = await _connected(origin)
            try:
                stream = await self._secured(wire, origin) if origin.secure else wire
            except BaseException:
                wire.close()
                raise
            return Connection(wire, stream, origin.address)
        assert scope.cancelled_caught
        raise RequestNotSent(f"no connection to {origin.address} within {self._timeout:g} s")

    async def _secured(self, stream: trio.abc.Stream, origin: Origin) -> trio.abc.Stream:
        # Not HTTPS-compatible: an end without TLS's farewell must be told from the end of a body that has no length
        # (RFC 9112 section 9.8).
        secured = trio.SSLStream(stream, self._ssl_context or _usual_context(), server_hostname=origin.host)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            let_go_of_cause(error)
            raise RequestNotSent(f"no TLS connection to {origin.address}: {error.__cause__ or error}") from None
        if secured.selected_alpn_protocol() not in (None, _HTTP):
            raise RequestNotSent(
                f"{origin.address} speaks {secured.selected_alpn_protocol()}, which the given ssl_context offers, "
                f"and this client does not speak"
            )
        return secured


@cache
def _usual_context() -> ssl.SSLContext:
    """Return the system's usual context. Cached, since the certificates of all authorities take a while to read."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([_HTTP])
    return context


async def _connected(origin: Origin) -> Wire:
    try:
        return Wire(await trio.open_tcp_stream(origin.host, origin.port))
    except OSError as error:
        words = "; ".join(dict.fromkeys(_causes(error)))
        raise RequestNotSent(f"no connection to {origin.address}: {words}") from None


def _causes(error: OSError) -> Iterable[str]:
    """Return the words of each attempt: trio has tried all addresses of a name, and puts the errors into a group."""
    match error.__cause__:
        case BaseExceptionGroup(exceptions=causes):
            return [_words(cause) for cause in causes if isinstance(cause, OSError)]
        case _:
            return [_words(error)]


def _words(error: OSError) -> str:
    return error.strerror or str(error)
