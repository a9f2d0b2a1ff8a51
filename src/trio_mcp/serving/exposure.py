"""Exposure: a warning where other machines reach a server that lets everybody in."""

from __future__ import annotations

import logging
import ssl
from typing import Any, Final, cast

import trio

from ..transports.host_checks import is_loopback
from .accepting import SocketListeners

logger = logging.getLogger("trio_mcp")

_HTTP_ADVICE: Final = (
    "give auth=Protected(resource=..., authorization_servers=[...], verifier=...), "
    'or host="127.0.0.1" behind a reverse proxy that knows the callers'
)
LINES_ADVICE: Final = (
    'give host="127.0.0.1", or use serve_unix on this machine, or serve_http(..., auth=Protected(...)) for others'
)


async def open_listeners(
    given: SocketListeners | None,
    host: str | None,
    port: int,
    ssl_context: ssl.SSLContext | None,
    *,
    asks_for_tokens: bool,
) -> SocketListeners:
    """Open the listeners of a server over HTTP or WebSocket, unless they are ``given``. Warn where other machines reach
    one of them, and neither a token nor a certificate says who calls."""
    if given is not None:
        opened = given
    elif ssl_context is None:
        opened = await trio.open_tcp_listeners(port, host=host)
    else:
        opened = await trio.open_ssl_over_tcp_listeners(port, ssl_context, host=host, https_compatible=True)
    if not asks_for_tokens and (ssl_context is None or ssl_context.verify_mode is not ssl.CERT_REQUIRED):
        warn_if_exposed(opened, _HTTP_ADVICE)
    return opened


def warn_if_exposed(listeners: SocketListeners, advice: str) -> None:
    """Log a warning, with the ``advice`` on what to write, where others than this machine reach one of ``listeners``.
    To be called once for each server that asks nobody for a token."""
    open_ones = [address for address in map(_address, listeners) if address is not None and not is_loopback(address)]
    if open_ones:
        logger.warning(
            "other machines reach this server at %s, and whoever does may use all of it: %s",
            ", ".join(dict.fromkeys(open_ones)),
            advice,
        )


def _address(listener: trio.abc.Listener[Any]) -> str | None:
    """Return the address at which ``listener`` listens; `None` for one of another kind, such as a Unix socket."""
    inner: Any = getattr(listener, "transport_listener", listener)
    socket: Any = getattr(inner, "socket", None)
    name: object = None if socket is None else socket.getsockname()
    return str(cast("tuple[object, ...]", name)[0]) if isinstance(name, tuple) else None
