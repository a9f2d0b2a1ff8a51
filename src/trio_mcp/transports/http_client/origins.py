"""Origin: the scheme, host and port of an HTTP server. Environment variables can specify a proxy for an origin, by
curl's rules."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit, urlunsplit

import attrs

from ...classes import frozen
from ...lazy import lazy_pattern
from ..sockets import socket_path

TARGET: Final = lazy_pattern(r"/[\x21-\x7e]*")
"""Pattern of a request target in origin form (RFC 9112 section 3.2.1)."""
_NAME: Final = lazy_pattern(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
_LONGEST_NAME: Final = 253
"""Maximum number of characters of a name, without the dot at the end (RFC 1035 section 2.3.4)."""
_AUTHORITY: Final = lazy_pattern(r"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
"""Pattern of the scheme and authority of a URL (RFC 3986 section 3)."""
_LONGEST_AUTHORITY: Final = _LONGEST_NAME + len(".:65535")
_LARGEST_PORT: Final = 65535
_PORTS: Final = {"http": 80, "https": 443}
REDIRECTS: Final = range(300, 400)
_LONGEST_LOCATION: Final = 8192
_LONGEST_PLACE: Final = 300


@frozen
class Origin:
    """The scheme, host and port of an HTTP URL (RFC 9110 section 4.3.1)."""

    scheme: str
    host: str
    """The host name in ASCII, or the IP address without brackets."""
    port: int

    @property
    def secure(self) -> bool:
        """Whether connections to the origin use TLS."""
        return self.scheme == "https"

    @property
    def address(self) -> str:
        """The host and the port, as in ``example.com:443``."""
        return f"{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The value of the Host header: the host, followed by the port unless it is the default of the scheme."""
        return self._bracketed if self.port == _PORTS[self.scheme] else self.address

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def split_url(url: str) -> tuple[Origin, str]:
    """Split an HTTP URL into its origin (scheme, host, port) and its request target (path and query).

    Raises `ValueError` if the URL is invalid. The error's message doesn't contain the URL's password.

    The cost is linear in the length. A non-ASCII name is converted to ASCII (RFC 5890) only up to the length that names
    can have, because the codec, and the normalization in `urlsplit`, take quadratic time.
    """
    start = _AUTHORITY.match(url)
    if start is None:
        raise ValueError(
            f"an HTTP URL must be like http://127.0.0.1:8000/mcp{'' if '@' in url else f', not {url[:300]!r}'}"
        )
    authority = start[1]
    if "@" in authority or "#" in url:
        raise ValueError("an HTTP URL must contain neither a user nor a fragment")
    if not url.isprintable():
        raise ValueError(f"a URL must have printable characters only: {url[:300]!r}")
    if len(authority) > _LONGEST_AUTHORITY:
        raise ValueError(f"{authority[:300]!r} is not a valid host name")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"invalid URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"an HTTP URL must be like http://127.0.0.1:8000/mcp, not {url[:300]!r}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not TARGET.fullmatch(target):
        raise ValueError(
            f"the path of a URL must be printable ASCII, with other characters percent-encoded: {url[:300]!r}"
        )
    return origin_of(parts), target


_ON_SOCKET: Final = lazy_pattern(
    r"http\+unix://(?P<socket>(?:%[0-9a-f]{2}|[a-z0-9._~!$&'()*+,;=-])*)(?P<target>(?:[/?].*)?)",
    re.IGNORECASE | re.DOTALL,
)
"""Pattern of an HTTP URL for a Unix socket. The socket's path is the authority, as a registered name (RFC 3986 section
3.2.2)."""


def names_socket(url: str) -> bool:
    """Return whether ``url`` looks like an HTTP URL for a Unix socket (``http+unix://``)."""
    return url.partition(":")[0].lower() == "http+unix"


def split_socket_url(url: str) -> tuple[str, str]:
    """Split a URL such as ``http+unix://%2Frun%2Fmcp.sock/mcp`` into the path of the Unix socket and an HTTP URL.

    Raises `ValueError` if the URL is invalid.

    `split_url` refuses such URLs, so that a URL from a server can't lead to a socket of this machine.
    """
    found = _ON_SOCKET.fullmatch(url)
    name = "" if found is None else os.fsdecode(unquote_to_bytes(found["socket"]))
    if found is None or not name.startswith("/"):
        raise ValueError(
            "an HTTP URL for a Unix socket must begin with the absolute path of the socket, percent-encoded, as in "
            f"http+unix://%2Frun%2Fmcp.sock/mcp, not {url[:300]!r}"
        )
    rest = f"http://localhost{found['target']}"
    split_url(rest)
    try:
        return socket_path(name), rest
    except OSError as error:
        raise ValueError(error.strerror) from None


def redirect_url(url: str, status: int, headers: Mapping[str, str]) -> str:
    """Return the URL to which a server redirects a request for ``url``, to mention it in an error message.

    The returned URL has up to 300 characters, without the user and the query, which may be secret. Return an empty
    string if the redirect has no URL.
    """
    location = headers.get("location", "")
    if not 0 < len(location) <= _LONGEST_LOCATION or status not in REDIRECTS:
        return ""
    try:
        parts = urlsplit(urljoin(url, location))
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))[:_LONGEST_PLACE]


def origin_of(parts: SplitResult) -> Origin:
    """Return the origin (scheme, host, port) of a URL that was split into ``parts``.

    Raises `ValueError` if the scheme, host or port is invalid.
    """
    if parts.scheme not in _PORTS:
        raise ValueError(f"the scheme must be http or https, not {parts.scheme[:100]!r}")
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if not 0 < port <= _LARGEST_PORT:
        raise ValueError(f"a port must be a number from 1 to {_LARGEST_PORT}, not {port}")
    return Origin(parts.scheme, _host_of(parts.hostname or ""), port)


def _host_of(host: str) -> str:
    """Return the host name in ASCII, or the IP address without brackets."""
    if len(host) > _LONGEST_NAME + 1:
        raise ValueError(f"{host[:300]!r} is not a valid host name")
    try:
        if ":" in host and "%" not in host:  # only link-local addresses have zone identifiers (RFC 6874)
            return ipaddress.IPv6Address(host).compressed
        name = host.lower() if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:  # the IDNA codec raises `UnicodeError`, a `ValueError`, for an invalid name
        name = ""
    if len(name.removesuffix(".")) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"{host[:300]!r} is not a valid host name")
    return name


_SEPARATORS: Final = lazy_pattern(r"[,\s]+")


@frozen
class HttpProxy:
    """An HTTP proxy at ``origin``, with the credentials for it."""

    origin: Origin
    authorization: str | None = attrs.field(default=None, repr=False)
    """Value of the Proxy-Authorization header. The client sends this header only to the proxy."""


def proxy_at(url: str) -> HttpProxy:
    """Return the proxy at ``url``. The default scheme is ``http``.

    Raises `ValueError` if ``url`` is invalid. The error's message contains neither the user nor the password of
    ``url``.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        origin = origin_of(parts)
    except ValueError as error:
        raise ValueError(f"invalid proxy URL: {error}; write a URL such as http://127.0.0.1:3128") from None
    if parts.username is None:
        return HttpProxy(origin)
    user = b":".join(unquote_to_bytes(part or "") for part in (parts.username, parts.password))
    return HttpProxy(origin, f"Basic {base64.b64encode(user).decode('ascii')}")  # RFC 7617 section 2


def proxy_from_environment(environ: Mapping[str, str], origin: Origin) -> HttpProxy | None:
    """Return the proxy that the variables in ``environ``, such as ``https_proxy``, set for ``origin``. Return `None` if
    they set none.

    Raises the errors of `proxy_at`.

    ``http_proxy`` or ``https_proxy`` takes precedence over ``all_proxy``, and lower case over upper case. ``no_proxy``
    lists exceptions. This machine is always an exception: its local requests, which may contain tokens in plain text,
    must not leave it.
    """
    if is_local_host(origin.host):
        return None
    names = [f"{origin.scheme}_proxy", f"{origin.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if "REQUEST_METHOD" in environ:
        # In a CGI program, HTTP_PROXY contains the client's Proxy header, so an attacker could set it (CVE-2016-5385).
        names = [name for name in names if name != "HTTP_PROXY"]
    named = next((name for name in names if environ.get(name)), None)
    if named is None or _is_exempt(origin, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    try:
        return proxy_at(environ[named])
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from None


def host_names(names: Collection[str]) -> frozenset[str]:
    """Return the host names in ``names``, converted to lower case.

    Raises `TypeError` if ``names`` is a single string, and `ValueError` if a host name or address is invalid.
    """
    if isinstance(names, str):
        raise TypeError(f"trusted_http_hosts must be a list of names, such as [{names!r}], not a string")
    return frozenset(map(_host_name, names))


def _host_name(name: str) -> str:
    found: tuple[Origin, str] | None = None
    with suppress(ValueError):
        found = split_url(f"http://[{name}]" if ":" in name else f"http://{name}")
    if found is None or found[0].host != name.lower() or found[1] != "/":
        raise ValueError(
            f"trusted_http_hosts must not contain {name[:300]!r}: write a name or an address, without scheme and port"
        )
    return found[0].host


def is_local_host(host: str) -> bool:
    """Return whether ``host``, an ASCII name or an IP address, is this machine (RFC 6761 section 6.3)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _is_localhost(host)
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback


def looked_up(host: str) -> str:
    """Return the name to look up for ``host``: ``localhost`` for itself and its subdomains, otherwise ``host``.

    The form ``localhost.`` counts as well. Many resolvers don't know these names, and name servers must not
    be queried for them (RFC 6761 section 6.3).
    """
    return "localhost" if _is_localhost(host) else host


def _is_localhost(name: str) -> bool:
    return name.removesuffix(".").rpartition(".")[2] == "localhost"


def _is_exempt(origin: Origin, exceptions: str) -> bool:
    """Return whether ``exceptions``, the value of the variable ``no_proxy``, contains ``origin``.

    An item can be a name, a domain (``x``, ``.x`` or ``*.x``), an address or a network, each with or without a port.

    A single ``*`` matches every origin.
    """
    if exceptions.strip() == "*":
        return True
    entries = [_without_port(entry, origin.port) for entry in _SEPARATORS.split(exceptions.lower()) if entry]
    try:
        address = ipaddress.ip_address(origin.host)
    except ValueError:
        name = f".{origin.host.removesuffix('.')}"
        domains = [entry.removesuffix(".").removeprefix("*").removeprefix(".") for entry in entries]
        return any(domain and name.endswith(f".{domain}") for domain in domains)
    return any(_contains(entry, address) for entry in entries)


def _without_port(entry: str, port: int) -> str:
    """Return ``entry``, a host with or without a port, without its port.

    If ``entry`` has another port than ``port``, return an empty string.
    """
    host, colon, number = entry.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # an IPv6 address
        return entry
    return host if number == str(port) else ""


def _contains(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
