"""Callers: `CallersByAddress` identifies the sender of each connection and request, so that callers share the
server-wide limits fairly. This module also checks the scopes and the expiry of a caller's token."""

from __future__ import annotations

import logging
import math
import socket
import struct
import time
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache, partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import attrs
import trio

from ..classes import frozen
from ..concurrency.fair_share import Caller, Callers, SharedBytes
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST, CodedError
from ..runtime.limits import Limits
from ..runtime.peer import Auth, CheckScopes
from ..server.servable import Running, needs_scopes
from ..server.server import RunningServer
from ..transports.streams import socket_below

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Gate
    from ..auth.resource_server.refusals import Refusal

_Address: TypeAlias = IPv4Address | IPv6Address
_Network: TypeAlias = IPv4Network | IPv6Network

_SITE: Final = 56
"""Prefix length of the IPv6 network that counts as one caller, because a caller may send from any address in its
network. Providers give a household, or a customer with a server, a network of 56 bits, which contains 256 networks of
64 bits (RFC 6177, RIPE 690). Each machine in that network may use any of these 256 networks."""
_MAX_PROXIES: Final = 16
"""Maximum number of proxies between client and server that are checked for one request."""
_MAX_PAIRS: Final = 16
"""Maximum number of name-value pairs that are read in one element of a Forwarded header."""
_MAX_CACHED_ADDRESSES: Final = 4096
_LONGEST: Final = 100
"""Maximum number of characters of an address in a header, including the port and blanks. Peers can write text of any
length into the header."""
_UNIX: Final = "unix"
_CONNECTIONS: Final = attrgetter("connections")


def _networks(given: Iterable[str]) -> frozenset[_Network | str]:
    if isinstance(given, str):
        raise TypeError(f"TrustedProxies needs a list of addresses and networks, not {given!r}: write [{given!r}]")
    return frozenset(_UNIX if each == _UNIX else _network(each) for each in given)


def _network(text: str) -> _Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(
            f'{error}: a proxy must be an address ("127.0.0.1"), a network ("10.0.0.0/8"), or "unix" for proxies that '
            "connect to a Unix socket"
        ) from None


@frozen
class TrustedProxies:
    """The reverse proxies that a server trusts to report the address of a client.

    The header is read from the right: the client has the last address that isn't the address of a trusted proxy. So a
    client can't forge its address by sending the header itself. If the peer isn't a trusted proxy, the header is
    ignored.

    Args:
      networks: Addresses (``"127.0.0.1"``) and networks (``"10.0.0.0/8"``) of the proxies, or ``"unix"`` for proxies
          that connect to a Unix socket.
      header: The header to which each proxy appends the address of its peer: ``X-Forwarded-For``, another list of that
          form, a header with a single address (``X-Real-IP``), or ``Forwarded`` (RFC 7239).

    Raises:
      TypeError: ``networks`` is not a list.
      ValueError: an item of ``networks`` is invalid.
    """

    networks: frozenset[_Network | str] = attrs.field(converter=_networks)
    header: str = attrs.field(default="X-Forwarded-For", converter=str.lower)

    def _trusts(self, address: _Address | None) -> bool:
        """Return whether ``address`` belongs to a trusted proxy. `None` stands for a client on a Unix socket."""
        if address is None:
            return _UNIX in self.networks
        return any(address in network for network in self.networks if not isinstance(network, str))

    def _client_behind(self, proxy: _Address | None, headers: Mapping[str, str]) -> _Address | None:
        """Return the address of the client whose request the trusted ``proxy`` has forwarded to the server.

        The address is in the request's ``headers``.

        If the headers contain no valid address, return the address of the last known proxy in the chain.
        """
        value = headers.get(self.header)
        if value is None:
            return proxy
        last = proxy
        for hop in reversed(value.rsplit(",", _MAX_PROXIES)[-_MAX_PROXIES:]):
            address = _address(_forwarded_for(hop) if self.header == "forwarded" else hop)
            if address is None:
                break
            last = address
            if not self._trusts(address):
                break
        return last


class RemoteEnd:
    """The remote end of one connection: a client, or a proxy that forwards requests of clients.

    ``address`` is its IP address. ``here`` is the caller for which the connection is counted: an IP address or network,
    the process on a Unix socket, or otherwise the connection itself. ``user`` is the user id of a process on a Unix
    socket: see `Peer`.
    """

    __slots__ = (
        *("_address", "_callers", "_connection", "_last", "_principal", "_trusted_proxies", "_user"),
        *("here", "is_proxy", "user"),
    )

    def __init__(
        self,
        address: _Address | None,
        here: Caller,
        callers: Callers,
        trusted_proxies: TrustedProxies | None,
        user: int | None = None,
    ) -> None:
        self.here = here
        self.user = user
        self._address = address
        self._callers = callers
        self._trusted_proxies = trusted_proxies
        self.is_proxy = trusted_proxies is not None and trusted_proxies._trusts(address)
        """Whether the peer is a trusted proxy, which forwards the requests of many clients."""
        self._user: Caller | None = None
        self._principal: Hashable = None
        self._last = here
        """The caller of the last authenticated request, which will probably send the next request too."""
        self._connection: Caller | None = None

    def caller(self, principal: Hashable, headers: Mapping[str, str] | None) -> Caller:
        """Return the caller that has sent a request with these ``headers``, whose names are in lower case.

        A caller is identified by its ``principal`` or, if it isn't authenticated, by its IP address.
        """
        if principal is not None:
            if principal != self._principal:
                self._last, self._principal = self._callers.of_principal(principal), principal
            return self._last
        if self._trusted_proxies is None or not self.is_proxy or headers is None:
            return self.here
        address = self._trusted_proxies._client_behind(self._address, headers)
        return self.here if address is None or address is self._address else self._callers.at(_party(address))

    def connection(self, caller: Caller) -> Caller:
        """Return a `Caller` for this connection only. It may use a part of the limits of ``caller``.

        ``caller`` sent the current request.
        """
        if self._connection is None or self._connection.within is not caller:
            self._connection = caller.connection()
        return self._connection

    def use(self, caller: Caller, free: int) -> bool:
        """Count this connection of a trusted proxy as a connection of ``caller``, and return true. If ``caller``
        already has its maximum of connections, return false instead.

        ``free`` is the number of connections that the server can still accept.
        """
        if caller is self._user:
            return True
        if not caller.may_take(_CONNECTIONS, free + 1):
            return False
        self.release()
        self._user = caller
        caller.connections += 1
        return True

    def release(self) -> None:
        """Stop counting this connection of a trusted proxy as a connection of any caller. Idempotent."""
        if self._user is not None:
            self._user.connections -= 1
            self._user = None


class CallersByAddress:
    """Identifies the remote end of each connection to a server, and finds the `Caller` for it in ``callers``.

    ``trusted_proxies`` are proxies that forward requests of other clients.
    """

    def __init__(self, callers: Callers, trusted_proxies: TrustedProxies | None = None) -> None:
        self._callers = callers
        self._trusted_proxies = trusted_proxies

    def hop(self, stream: trio.abc.Stream) -> RemoteEnd:
        """Return the `RemoteEnd` for the connection ``stream``."""
        below = socket_below(stream)
        end = None if below is None else below.socket
        try:
            name: object = None if end is None else end.getpeername()
            process, user = (None, None) if end is None or end.family != socket.AF_UNIX else _credentials_of(end)
        except OSError:  # `getpeername` raises this if the client has already disconnected
            name = process = user = None
        address = str(cast("tuple[object, ...]", name)[0]) if isinstance(name, tuple) else None
        return self.hop_at(address, process, user)

    def hop_at(self, text: str | None, process: int | None = None, user: int | None = None) -> RemoteEnd:
        """Return the `RemoteEnd` for a connection whose peer has the IP address ``text``.

        If ``text`` is `None`, the peer is the ``process`` of ``user`` on a Unix socket, or unknown.
        """
        address = None if text is None else _address(text)
        if address is not None:
            here = self._callers.at(_party(address))
        else:
            here = Caller() if process is None else self._callers.of_process(process)
        return RemoteEnd(address, here, self._callers, self._trusted_proxies, user)


def unread_bytes(limits: Limits) -> SharedBytes:
    """Return a counter for the bytes of received messages that are still incomplete or unprocessed.

    See `Limits.max_unread_bytes`.
    """
    return SharedBytes(max(limits.max_unread_bytes, 3 * limits.max_message_bytes))


_PEER_CREDENTIALS: Final = struct.Struct("iII")
"""Format of the peer's process, user and group ids: unix(7), SO_PEERCRED."""


def _credentials_of(end: trio.socket.SocketType) -> tuple[int | None, int | None]:
    """Return the process id and the user id of the peer of a Unix socket.

    Both are `None` without SO_PEERCRED, which only Linux has. The process id is `None` if the process is in another
    namespace. Raises `OSError` if the socket is disconnected.
    """
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None, None
    found = end.getsockopt(socket.SOL_SOCKET, option, _PEER_CREDENTIALS.size)
    process, user, _ = _PEER_CREDENTIALS.unpack(found)
    return process or None, user


def _address(text: str) -> _Address | None:
    """Parse the IP address in ``text``, with or without a port. Return `None` if ``text`` is invalid."""
    return _short_address(text) if len(text) <= _LONGEST else None


@lru_cache(_MAX_CACHED_ADDRESSES)
def _short_address(text: str) -> _Address | None:
    text = text.strip(' \t"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


@lru_cache(_MAX_CACHED_ADDRESSES)
def _party(address: _Address) -> str:
    """Return the key by which connections from one ``address`` are grouped: the IPv4 address, or the network of the
    IPv6 address."""
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((int(address), _SITE), strict=False))


def _forwarded_for(element: str) -> str:
    """Return the client address in one element of a Forwarded header (RFC 7239 section 4).

    Return an empty string if there is no address.
    """
    for pair in element.split(";", _MAX_PAIRS)[:_MAX_PAIRS]:
        name, _, value = pair.partition("=")
        if name.strip(" \t").lower() == "for":
            return value
    return ""


logger = logging.getLogger("trio_mcp")


class InsufficientScope(CodedError):
    """Raised if the token of a request lacks a required OAuth scope. ``refusal`` is the HTTP response to send."""

    def __init__(self, refusal: Refusal, needed: frozenset[str]) -> None:
        data = {"error": "insufficient_scope", "scopes": sorted(needed)}
        super().__init__(INVALID_REQUEST, f"Invalid request: {refusal.reason}", data)
        self.refusal = refusal


def insufficient_scope(refusal: Refusal, needed: frozenset[str]) -> CodedError:
    """Return the error for a request whose caller lacks at least one of the ``needed`` scopes."""
    # The status is 500 if the author's function ``satisfies`` has raised an exception.
    if refusal.status != HTTPStatus.FORBIDDEN:
        return CodedError(INTERNAL_ERROR, "Internal error")
    return InsufficientScope(refusal, needed)


def scope_check(gate: Gate, auth: Auth) -> CheckScopes:
    """Return a function that checks whether the caller of a request has the scopes that the request needs."""
    return partial(_check, gate, auth)


def _check(gate: Gate, auth: Auth, needed: frozenset[str]) -> None:
    if needed and (refusal := gate.missing(auth, needed)) is not None:
        raise insufficient_scope(refusal, needed)


def warn_of_unchecked_scopes(running: Running, gate: Gate | None) -> None:
    """Log a warning if the server requires scopes, but has no authentication to check them.

    ``running`` is the running server, and ``gate`` its authentication.
    """
    if gate is None and needs_scopes(running):
        logger.warning(
            "tools, resources or prompts of this server need scopes, which are not checked: serve it with auth=..."
        )


def share_proofs(running: Running, gate: Gate | None) -> None:
    """Let the replicas of a server, taken together, accept each DPoP proof only once.

    ``running`` is the running server, and ``gate`` its authentication. Does nothing for a server without replicas.
    """
    if gate is not None and isinstance(running, RunningServer) and running.host.replica is not None:
        gate.share(running.host.replica.replay_guard, running.host.replica.secret)


def token_expiry(auth: Auth | None) -> float:
    """Return the time on trio's clock at which the token of ``auth`` expires.

    The time is infinite if it is unknown, or if the server requires no token.
    """
    expires_at = None if auth is None else auth.principal.expires_at
    return math.inf if expires_at is None else trio.current_time() + expires_at - time.time()
