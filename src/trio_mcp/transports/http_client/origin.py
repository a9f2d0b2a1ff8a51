"""Origin: the scheme, host and port that requests go to."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

import attrs

TARGET: Final = re.compile(r"/[\x21-\x7e]*")
"""A request target in origin form (RFC 9112 section 3.2.1)."""
_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
_LONGEST_NAME: Final = 253
"""Characters of a name, without the dot at the end (RFC 1035 section 2.3.4)."""
_AUTHORITY: Final = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
"""Scheme and authority of a URL (RFC 3986 section 3)."""
_LONGEST_AUTHORITY: Final = _LONGEST_NAME + len(".:65535")
_LARGEST_PORT: Final = 65535
_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen
class Origin:
    """The server that a URL names, without path (RFC 9110 section 4.3.1)."""

    scheme: str
    host: str
    """Name in ASCII, or address, without brackets."""
    port: int

    @property
    def secure(self) -> bool:
        """True where TLS is spoken."""
        return self.scheme == "https"

    @property
    def address(self) -> str:
        """The host and the port."""
        return f"{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """The host, and the port unless the scheme implies the port: the value of the Host header."""
        return self._bracketed if self.port == _PORTS[self.scheme] else self.address

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def split_url(url: str) -> tuple[Origin, str]:
    """Return the origin of an HTTP URL, and the target of a request to the URL. Raises `ValueError`, never with a
    password from the URL in its text.

    The cost grows with the length alone. A name of other letters than ASCII is written in ASCII (RFC 5890), up to the
    length that names have: the codec, and the normalization in `urlsplit`, take the square of the length.
    """
    start = _AUTHORITY.match(url)
    if start is None:
        raise ValueError(f"an HTTP URL is like http://127.0.0.1:8000/mcp{'' if '@' in url else f', not {url[:300]!r}'}")
    authority = start[1]
    if "@" in authority or "#" in url:
        raise ValueError("an HTTP URL must contain neither a user nor a fragment")
    if not url.isprintable():
        raise ValueError(f"a URL has printable characters only: {url[:300]!r}")
    if len(authority) > _LONGEST_AUTHORITY:
        raise ValueError(f"no host can have the name {authority[:300]!r}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"no URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"an HTTP URL is like http://127.0.0.1:8000/mcp, not {url[:300]!r}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not TARGET.fullmatch(target):
        raise ValueError(f"the path of a URL has printable ASCII characters only, and the rest encoded: {url[:300]!r}")
    return origin_of(parts), target


def origin_of(parts: SplitResult) -> Origin:
    """Return the origin in the parts of a URL. Raises `ValueError`."""
    if parts.scheme not in _PORTS:
        raise ValueError(f"the scheme is http or https, not {parts.scheme[:100]!r}")
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    if not 0 < port <= _LARGEST_PORT:
        raise ValueError(f"a port is a number from 1 to {_LARGEST_PORT}, not {port}")
    return Origin(parts.scheme, _host_of(parts.hostname or ""), port)


def _host_of(host: str) -> str:
    """Return the name in ASCII, or the address."""
    if len(host) > _LONGEST_NAME + 1:
        raise ValueError(f"no host can have the name {host[:300]!r}")
    try:
        if ":" in host and "%" not in host:  # zones (RFC 6874) are for links, not for servers
            return ipaddress.IPv6Address(host).compressed
        name = host.lower() if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:  # as well of names that cannot be encoded
        name = ""
    if len(name.removesuffix(".")) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"no host can have the name {host[:300]!r}")
    return name
