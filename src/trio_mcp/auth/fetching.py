"""Fetching: requests to URLs that a stranger has named, as data, the rules for such URLs, and who sends the requests.

A server, or a document of an authorization server, names URLs that a client is to ask: without bounds that would be a
way into the client's network (2026-07-28 security best practices, SSRF). `UrlRules` says which URLs are asked, and
`HttpFetcher` sends the requests, on one connection each. The places of metadata under ``/.well-known/`` are such URLs,
too.
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
    """The exchange brought no answer, or was not tried, since the URL is forbidden. The message has no secret, and is
    for the people who run the client alone."""


@frozen(kw_only=True)
class Fetch:
    """A request. Headers and form are secrets, as far as ``secrets_of`` says so."""

    method: Literal["GET", "POST"]
    url: str
    headers: Sequence[tuple[str, str]] = attrs.field(default=(), repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str | None = None
    """The type of ``body``; `None` without one."""
    secrets_of: str | None = None
    """The issuer whose credentials, codes or tokens the request carries; `None`: none at all."""


@frozen(kw_only=True)
class Fetched:
    """The answer to a `Fetch`."""

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Values by names in lower case."""
    body: bytes = attrs.field(repr=False)


class Fetcher(Protocol):
    """Whoever carries out a `Fetch`: `HttpFetcher`, or what the users of a verifier give, as tests do."""

    async def fetch(self, request: Fetch) -> Fetched:
        """Return the answer, whatever its status; redirects are answers like others. Raises `FetchFailed`."""
        ...


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST_URL: Final = 2048
_NUMBER: Final = lazy_pattern(r"[0-9]+|0x[0-9a-f]*")

_PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # RFC 6598: behind the NAT of a provider; the metadata of Alibaba Cloud
        "168.63.129.16/32",  # the metadata of Azure
        "192.0.0.0/24",  # RFC 6890; the metadata of Oracle Cloud
        "192.88.99.0/24",  # RFC 7526: was the way to IPv6
        "2001::/23",  # RFC 2928: Teredo (RFC 4380), which has an IPv4 address inside, and others
        "2002::/16",  # RFC 3056: 6to4, which has one as well
        "3fff::/20",  # RFC 9637: for documentation
    )
)
"""Networks beside those that `ipaddress` knows to be private in all releases of Python."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052 section 2.1: the last 32 bits are the IPv4 address that is meant."""


@frozen(kw_only=True)
class UrlRules:
    """The rules for URLs that a server, or a document of an authorization server, has named. ``https`` alone is
    allowed, without a user and a fragment, and up to 2048 characters."""

    loopback: bool = False
    """True where the server is on this machine: URLs of this machine are allowed then, with ``http``, too."""
    public_addresses_only: bool = False
    """True refuses each address that the public internet does not reach: private, link-local, multicast and reserved
    addresses, addresses behind the NAT of a provider and of metadata services, and each such IPv4 address inside of an
    IPv6 address; loopback addresses unless `loopback` is true. For clients that run on servers. The address is checked
    that is connected to, not the name."""
    trusted_http_hosts: frozenset[str] = frozenset()
    """Hosts of a private network that are asked with ``http``, too, at addresses that the public internet does not
    reach. `public_addresses_only` does not concern them."""

    @classmethod
    def for_server(
        cls, url: str, *, public_addresses_only: bool = False, trusted_http_hosts: frozenset[str] = frozenset()
    ) -> UrlRules:
        """Return the rules for URLs that the server at ``url`` dictates. ``trusted_http_hosts`` count only for a server
        that is itself asked with ``http`` at one of them: no other server has a client send anything to these hosts.
        Raises `ValueError` for an invalid URL."""
        origin = split_url(url)[0]
        is_trusted = not origin.secure and origin.host in trusted_http_hosts
        return cls(
            loopback=is_local_host(origin.host),
            public_addresses_only=public_addresses_only,
            trusted_http_hosts=trusted_http_hosts if is_trusted else frozenset(),
        )

    def check(self, url: str) -> Origin:
        """Return the origin of ``url``. Raises `FetchFailed` with the reason where the URL is forbidden. A name is
        checked as such; its addresses are for `address_rule`."""
        if len(url) > _LONGEST_URL:
            raise FetchFailed(f"a URL of {len(url)} characters is not asked, those of {_LONGEST_URL} are")
        try:
            origin, _ = split_url(url)
        except ValueError as error:
            raise FetchFailed(str(error)) from None
        if not (origin.secure or self._trusts(origin) or (self.loopback and is_local_host(origin.host))):
            raise FetchFailed(
                f"{origin} is not asked: the scheme is https"
                + (", or http on this machine" if self.loopback else ", as the server is not on this machine")
            )
        if self._forbids(origin):
            raise FetchFailed(f"{origin} is not asked: the rules of this client forbid the address")
        return origin

    def _trusts(self, origin: Origin) -> bool:
        return origin.host in self.trusted_http_hosts

    def _forbids(self, origin: Origin) -> bool:
        """Return whether the host is itself a forbidden address, in any form. Makes no DNS lookup."""
        rule, address = self.address_rule(origin), _literal(origin.host)
        if rule is None:
            return False
        if address is not None:
            return not rule(address)
        near = nearness(origin.host)
        return near is not Nearness.ANYWHERE and not (self.loopback and near is Nearness.MACHINE)

    def address_rule(self, origin: Origin) -> AddressRule | None:
        """Return the rule for addresses of ``origin``; `None` where all are allowed."""
        if not origin.secure:  # where names are, such as localhost, is for a name server to say
            return is_private if self._trusts(origin) else _is_of_this_machine
        if not self.public_addresses_only or self._trusts(origin):
            return None
        return self._allows if self.loopback else is_public

    def _allows(self, address: _Address) -> bool:
        return is_public(address) or _is_of_this_machine(address)


def is_private(address: _Address) -> bool:
    """Return whether the public internet does not reach ``address``."""
    return not is_public(address)


def is_public(address: _Address) -> bool:
    """Return whether ``address`` is one of the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := _inner(address)) is not None:
            return is_public(inner)
        if address not in _PUBLIC_6:
            return False
    elif address.is_multicast:
        return False
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


class Nearness(IntEnum):
    """The place of a host, as far as its name says: each connection looks the name up anew."""

    ANYWHERE = 0
    """A name, or an address of the public internet."""
    NETWORK = 1
    """An address that the public internet does not reach."""
    MACHINE = 2
    """This machine."""


def nearness(host: str) -> Nearness:
    """Return the nearness of ``host``, a name in ASCII or an address, as browsers read hosts: ``127.1`` and
    ``0x7f000001`` are addresses, and ``a.localhost`` is this machine (WHATWG URL, host parsing; RFC 6761 section
    6.3)."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return Nearness.MACHINE
    address = _literal(name)
    if address is None and _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except OSError:
            return Nearness.NETWORK  # no name ends with a number: nobody knows where that leads
    if address is None or is_public(address):
        return Nearness.ANYWHERE
    # The unspecified address leads to this machine, too.
    return Nearness.MACHINE if _is_of_this_machine(address) or address.is_unspecified else Nearness.NETWORK


def _is_of_this_machine(address: _Address) -> bool:
    inner = _inner(address) if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets for ``address`` go to."""
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
    """Return the URLs to ask for the metadata of ``issuer``, in this order (2026-07-28 authorization, Authorization
    Server Metadata Discovery). Raises `ValueError` for what is no HTTP URL."""
    origin, target = split_url(issuer)
    # RFC 8414 section 3.1, OpenID Connect Discovery section 4: without the slash at the end.
    path = target.rstrip("/")
    appended = [f"{origin}{path}{_OPENID_METADATA}"] if path else []
    return (f"{origin}{_OAUTH_METADATA}{path}", f"{origin}{_OPENID_METADATA}{path}", *appended)


def same_issuer(one: str, other: str) -> bool:
    """Return whether two names of an issuer are equal, a slash at the end aside: the metadata of both are at the same
    URLs, and many resources name their authorization server with or without that slash."""
    return one.removesuffix("/") == other.removesuffix("/")


_LONGEST_BODY: Final = 256 * 1024


@frozen
class HttpFetcher:
    """A `Fetcher` that follows ``rules``. No redirect is followed, and no compressed answer is read."""

    rules: UrlRules
    deadline: float = attrs.field(default=30.0, kw_only=True)
    """Seconds for all of an exchange, from looking up the name to the end of the body."""
    max_bytes: int = attrs.field(default=_LONGEST_BODY, kw_only=True)
    """Most bytes of the body of an answer."""
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, kw_only=True, repr=False)
    """Replaces the system's usual one."""
    http_proxy: str | Literal[True] | None = attrs.field(default=True, kw_only=True, repr=False)
    """The URL of an HTTP proxy, `None` for none, `True` for the one that the environment names. A proxy looks up names
    itself, so with `UrlRules.public_addresses_only` the one of the environment is not used. A proxy that is given
    here is used, and has to check the addresses of names. URLs of this machine, and all with ``http``, are asked
    without a proxy."""

    async def fetch(self, request: Fetch) -> Fetched:
        """Return the answer to ``request``: see `Fetcher.fetch`."""
        origin = self.rules.check(request.url)
        failure = f"no whole answer within {self.deadline:g} s"
        try:
            with trio.move_on_after(self.deadline):
                return await self._exchange(request, origin)
        except UnicodeEncodeError:  # whose words have a character of a secret
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
