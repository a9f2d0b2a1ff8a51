"""Sends HTTP requests to URLs from untrusted sources, such as the metadata of an authorization server, and checks these
URLs.

A server, or a document of an authorization server, names URLs for a client to request. Without limits, this would give
an attacker access to the client's network (2026-07-28 security best practices, SSRF). `UrlRules` says which URLs are
allowed, and `HttpFetcher` sends the requests, each on its own connection. The URLs of metadata under ``/.well-known/``
are such URLs as well.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Literal, Protocol, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..lazy import lazy_pattern
from ..runtime.transport import ConnectionLost
from ..transports.http_client.client import HttpClient
from ..transports.http_client.dialing import AddressRule
from ..transports.http_client.origins import Origin, is_local_host, split_url


class FetchFailed(Exception):
    """The HTTP request got no response, or wasn't sent because its URL is forbidden.

    The error's message contains no secrets, and is meant for the client's operators, not for the server.
    """


@frozen(kw_only=True)
class Fetch:
    """An HTTP request to send. If the request contains secrets, ``secrets_of`` is the only issuer that may receive the
    request."""

    method: Literal["GET", "POST"]
    url: str
    headers: Sequence[tuple[str, str]] = attrs.field(default=(), repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str | None = None
    """The content type of ``body``; `None` if there is no body."""
    secrets_of: str | None = None
    """The issuer whose credentials, codes or tokens the request contains; `None` if it contains none."""


@frozen(kw_only=True)
class Fetched:
    """The HTTP response to a request (`Fetch`)."""

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    """The response's headers, by their names in lower case."""
    body: bytes = attrs.field(repr=False)


class Fetcher(Protocol):
    """Interface for objects that send HTTP requests (`Fetch`). `HttpFetcher` implements this interface.

    Tests can pass a fake implementation to a token verifier.
    """

    async def fetch(self, request: Fetch) -> Fetched:
        """Send ``request`` and return the response, whatever its status.

        Redirects aren't followed. Raises `FetchFailed` if there is no response, or if the URL is forbidden.
        """
        ...


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_URL: Final = 2048
_NUMBER: Final = lazy_pattern(r"[0-9]+|0x[0-9a-f]*")

_PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # RFC 6598: addresses behind a provider's NAT, and Alibaba Cloud's metadata service
        "168.63.129.16/32",  # the address of Azure's metadata service
        "192.0.0.0/24",  # RFC 6890: contains the address of Oracle Cloud's metadata service
        "192.88.99.0/24",  # RFC 7526: contains the address of the anycast relay of 6to4, now deprecated
        "2001::/23",  # RFC 2928: contains Teredo (RFC 4380), whose addresses embed an IPv4 address
        "2002::/16",  # RFC 3056: 6to4 addresses, which embed an IPv4 address
        "3fff::/20",  # RFC 9637: addresses that are for documentation only
    )
)
"""Private networks that `ipaddress` doesn't recognize in all supported releases of Python."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""The prefix of IPv6 addresses whose last 32 bits are an embedded IPv4 address (RFC 6052 section 2.1)."""


@frozen(kw_only=True)
class UrlRules:
    """Rules that decide which URLs a client may fetch. They apply to URLs that an MCP server or an authorization server
    has named.

    By default a URL must use ``https``, contain no user and no fragment, and have at most 2048 characters.
    """

    loopback: bool = False
    """True if the server runs on this machine. Then URLs of this machine are allowed, even with ``http``."""
    public_addresses_only: bool = False
    """If true, every address that isn't reachable from the public internet is refused: private, link-local, multicast
    and reserved addresses, addresses behind a provider's NAT and of metadata services, and such IPv4 addresses embedded
    in IPv6 addresses. Loopback addresses are refused unless `loopback` is true. Use this for clients that run on
    servers. The address of the connection is checked, not the name."""
    trusted_http_hosts: frozenset[str] = frozenset()
    """Hosts of a private network to which ``http`` is allowed as well, at addresses that aren't reachable from the
    public internet. `public_addresses_only` doesn't apply to these hosts."""

    @classmethod
    def for_server(
        cls, url: str, *, public_addresses_only: bool = False, trusted_http_hosts: frozenset[str] = frozenset()
    ) -> UrlRules:
        """Return the rules for the URLs that the MCP server at ``url`` names, such as the URL of its authorization
        server.

        ``trusted_http_hosts`` only apply if the server itself is reached with ``http`` at one of them: no other server
        can make a client send anything to these hosts. Raises `ValueError` for an invalid URL.
        """
        origin = split_url(url)[0]
        is_trusted = not origin.secure and origin.host in trusted_http_hosts
        return cls(
            loopback=is_local_host(origin.host),
            public_addresses_only=public_addresses_only,
            trusted_http_hosts=trusted_http_hosts if is_trusted else frozenset(),
        )

    def check(self, url: str) -> Origin:
        """Return the origin of ``url`` if the rules allow the URL. Raises `FetchFailed` with the reason if the URL is
        forbidden.

        Only the host's name is checked, not the addresses it resolves to: see `address_rule`.
        """
        if len(url) > _LONGEST_URL:
            raise FetchFailed(f"refusing to fetch a URL of {len(url)} characters: at most {_LONGEST_URL} are allowed")
        try:
            origin, _ = split_url(url)
        except ValueError as error:
            raise FetchFailed(str(error)) from None
        if not (origin.secure or self._trusts(origin) or (self.loopback and is_local_host(origin.host))):
            raise FetchFailed(
                f"refusing to fetch from {origin}: only https is allowed"
                + (", or http on this machine" if self.loopback else ", since the server is not on this machine")
            )
        if self._forbids(origin):
            raise FetchFailed(f"refusing to fetch from {origin}: the rules of this client forbid the address")
        return origin

    def _trusts(self, origin: Origin) -> bool:
        return origin.host in self.trusted_http_hosts

    def _forbids(self, origin: Origin) -> bool:
        """Return whether the host of a URL is an IP address that the rules forbid, in any notation. Host names aren't
        looked up."""
        rule, address = self.address_rule(origin), _literal(origin.host)
        if rule is None:
            return False
        if address is not None:
            return not rule(address)
        near = nearness(origin.host)
        return near is not Nearness.ANYWHERE and not (self.loopback and near is Nearness.MACHINE)

    def address_rule(self, origin: Origin) -> AddressRule | None:
        """Return the function that checks an IP address of ``origin`` before the client connects to it. Returns `None`
        if all addresses are allowed."""
        if not origin.secure:  # check each address, since a name such as localhost may resolve to any address
            return is_private if self._trusts(origin) else _is_of_this_machine
        if not self.public_addresses_only or self._trusts(origin):
            return None
        return self._allows if self.loopback else is_public

    def _allows(self, address: _Address) -> bool:
        return is_public(address) or _is_of_this_machine(address)


def is_private(address: _Address) -> bool:
    """Return whether ``address`` isn't reachable from the public internet."""
    return not is_public(address)


def is_public(address: _Address) -> bool:
    """Return whether ``address`` is reachable from the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := _inner(address)) is not None:
            return is_public(inner)
        if address not in _PUBLIC_6:
            return False
    elif address.is_multicast:
        return False
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


class Nearness(IntEnum):
    """The network location of a host: this machine, a private network, or the internet.

    It depends only on the host's name or address, since names are resolved again for each connection.
    """

    ANYWHERE = 0
    """The host is a name, or an address of the public internet."""
    NETWORK = 1
    """The host is an address that isn't reachable from the public internet."""
    MACHINE = 2
    """The host is this machine."""


def nearness(host: str) -> Nearness:
    """Return where ``host`` is: on this machine, in a private network, or possibly on the internet.

    ``host`` is an ASCII name or an IP address. Addresses are parsed as browsers do: ``127.1`` and ``0x7f000001`` are
    addresses, and ``a.localhost`` is this machine (WHATWG URL, host parsing; RFC 6761 section 6.3).
    """
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return Nearness.MACHINE
    address = _literal(name)
    if address is None and _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except OSError:
            return Nearness.NETWORK  # a valid host name never ends with a number, so it's unclear which host this is
    if address is None or is_public(address):
        return Nearness.ANYWHERE
    # The unspecified address (0.0.0.0 or ::) also leads to this machine.
    return Nearness.MACHINE if _is_of_this_machine(address) or address.is_unspecified else Nearness.NETWORK


def _is_of_this_machine(address: _Address) -> bool:
    inner = _inner(address) if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that is embedded in the IPv6 ``address``, if there is one.

    Routers send packets for such an IPv6 address to the embedded IPv4 address.
    """
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_OAUTH_METADATA: Final = "/.well-known/oauth-authorization-server"
_OPENID_METADATA: Final = "/.well-known/openid-configuration"


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs at which the metadata of the authorization server ``issuer`` may be found.

    Try the URLs in the returned order (2026-07-28 authorization, Authorization Server Metadata Discovery). Raises
    `ValueError` unless the issuer is an HTTP URL.
    """
    origin, target = split_url(issuer)
    # RFC 8414 section 3.1, OpenID Connect Discovery section 4: remove a trailing slash from the issuer's path.
    path = target.rstrip("/")
    appended = [f"{origin}{path}{_OPENID_METADATA}"] if path else []
    return (f"{origin}{_OAUTH_METADATA}{path}", f"{origin}{_OPENID_METADATA}{path}", *appended)


def same_issuer(one: str, other: str) -> bool:
    """Return whether two issuer URLs are equal, ignoring a trailing slash.

    The metadata URLs are the same with and without the slash, and many resources name their authorization server in
    either form.
    """
    return one.removesuffix("/") == other.removesuffix("/")


_LONGEST_BODY: Final = 256 * 1024


@frozen
class HttpFetcher:
    """A `Fetcher` that sends requests over HTTP, to URLs that ``rules`` allow. It doesn't follow redirects, and doesn't
    accept compressed responses."""

    rules: UrlRules
    deadline: float = attrs.field(default=30.0, kw_only=True)
    """Seconds that a request may take in total, from the DNS lookup to the end of the body."""
    max_bytes: int = attrs.field(default=_LONGEST_BODY, kw_only=True)
    """The maximum size of a response's body, in bytes."""
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, kw_only=True, repr=False)
    """The TLS settings to use instead of the system's defaults."""
    http_proxy: str | Literal[True] | None = attrs.field(default=True, kw_only=True, repr=False)
    """The URL of an HTTP proxy, `None` for no proxy, or `True` for the proxy that the environment names. A proxy looks
    up names itself, so with `UrlRules.public_addresses_only` the proxy of the environment isn't used. A proxy that you
    pass here is used, and has to check the addresses of names. No proxy is used for URLs of this machine and for
    ``http`` URLs."""

    async def fetch(self, request: Fetch) -> Fetched:
        """Send ``request`` over HTTP, and return the response. See `Fetcher.fetch`."""
        origin = self.rules.check(request.url)
        failure = f"no complete response within {self.deadline:g} s"
        try:
            with trio.move_on_after(self.deadline):
                return await self._exchange(request, origin)
        except UnicodeEncodeError:  # don't use the exception's message, because it quotes a character of the secret
            failure = "a header that is not ASCII cannot be sent"
        except (ConnectionLost, ValueError) as error:
            failure = str(error)
        raise FetchFailed(f"{request.method} {origin}: {failure}")

    async def _exchange(self, request: Fetch, origin: Origin) -> Fetched:
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in request.headers]
        if request.content_type is not None:
            headers.append((b"Content-Type", request.content_type.encode("ascii")))
        async with (
            HttpClient(
                request.url,
                ssl_context=self.ssl_context if origin.secure else None,
                http_proxy=self._proxy_for(origin),
                allows=self.rules.address_rule(origin),
                follow_redirects=False,
            ) as client,
            client.request(request.method, client.target, headers, request.body) as reply,
        ):
            return Fetched(status=reply.status, headers=reply.headers, body=await reply.read(self.max_bytes))

    def _proxy_for(self, origin: Origin) -> str | Literal[True] | None:
        if not origin.secure or is_local_host(origin.host):
            return None
        if self.http_proxy is True and self.rules.public_addresses_only:
            return None
        return self.http_proxy
