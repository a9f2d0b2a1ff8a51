"""CallersByAddress: the party behind each connection and request, by which the bounds of a server are shared."""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, cast

import trio

from ..concurrency.fair_share import Caller, Callers

__all__ = ["CallersByAddress", "Hop"]

_SITE: Final = 64
"""Bits of an IPv6 address that one party has for itself: it may send from any address with the same first ones."""


class Hop:
    """The other end of one connection to us. ``here``: the party at its address, or the connection itself where there
    is no address, as on a Unix socket. ``callers`` has the parties of the server."""

    __slots__ = ("_callers", "_last", "_principal", "here")

    def __init__(self, here: Caller, callers: Callers) -> None:
        self.here = here
        self._callers = callers
        self._principal: Hashable = None
        self._last = here
        """The principal that has sent the last request, and will probably send the next one."""

    def caller(self, principal: Hashable) -> Caller:
        """Return the party that has sent a request: ``principal``, or, where that is `None`, whoever is at the
        address."""
        if principal is None:
            return self.here
        if principal != self._principal:
            self._last, self._principal = self._callers.of_principal(principal), principal
        return self._last


class CallersByAddress:
    """Finds the other ends of connections to a server, whose parties ``callers`` has."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def hop(self, stream: trio.abc.Stream) -> Hop:
        """Return the other end of ``stream``."""
        return self.hop_at(address_of(stream))

    def hop_at(self, address: str | None) -> Hop:
        """Return the other end of a connection from ``address``; `None`: from no IP address."""
        party = None if address is None else party_at(address)
        return Hop(Caller() if party is None else self._callers.at(party), self._callers)


def address_of(stream: trio.abc.Stream) -> str | None:
    """Return the IP address at the other end of ``stream``, also below TLS; `None` where there is none."""
    while isinstance(stream, trio.SSLStream):
        stream = cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        name: object = stream.socket.getpeername()
    except OSError:  # the client is gone already
        return None
    return str(cast("tuple[object, ...]", name)[0]) if isinstance(name, tuple) else None


def party_at(address: str) -> str | None:
    """Return the name of the party that has an IP address: the address, or, in IPv6, the network of 64 bits, all of
    whose addresses one machine may have. `None`: ``address`` is none."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found, _SITE), strict=False))
