"""Host and Origin checks for HTTP and WebSocket servers, to protect them from requests by foreign web pages.

A browser lets any page send requests to any address, including the user's own machine. The page's owner can also make a
domain name point to that machine (DNS rebinding). The browser sends the page's origin and the requested host name, so
both are checked first (2025-11-25 transports, Security Warning).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, TypeAlias

from ..classes import frozen
from ..lazy import lazy_pattern

logger = logging.getLogger("trio_mcp")

Allowed: TypeAlias = Sequence[str] | Literal["*"] | None
"""Type of the allowed names: a list, ``"*"`` for any name, or `None` for the default."""

_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_ORIGINS: Final = tuple(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in _LOOPBACK_HOSTS)

_NAME: Final = lazy_pattern(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?")
_SCHEME: Final = lazy_pattern(r"[a-z][a-z0-9+.-]*")
_LONGEST_NAME: Final = 253
"""Maximum number of characters of a DNS name (RFC 1035 section 2.3.4)."""
_MOST_PORT: Final = 65_535
_USUAL_PORTS: Final = {"http": "80", "https": "443"}
"""Default port of each scheme. Browsers omit it in the Host and Origin headers (RFC 6454 section 6.1)."""
_PLAIN: Final = lazy_pattern(r"[a-zA-Z0-9_.:/\[\]+-]{1,300}")
"""Pattern of the characters that may occur in a Host or Origin header."""


@frozen
class HostChecks:
    """The values of the Origin and Host headers that a server accepts. ``"*"`` accepts any value.

    An origin is ``scheme://host`` or ``scheme://host:port``. The port ``*`` means any port or none. ``null`` is an
    opaque origin, such as a local file. A host is ``name`` or ``name:*``, both with any port, or ``name:port``. An IPv6
    address must be in brackets. The host ``localhost`` includes the names below it, such as ``app.localhost``. Other
    forms can't match a client's header; `host_checks_for` refuses them.
    """

    allowed_origins: tuple[str, ...] | Literal["*"]
    allowed_hosts: tuple[str, ...] | Literal["*"]

    def allows_origin(self, origin: str) -> bool:
        """Return whether a web page of ``origin`` may connect.

        A client without an Origin header isn't a web page, and may always connect.
        """
        if self.allowed_origins == "*":
            return True
        origin = origin.lower()
        return any(
            origin == allowed or (allowed.endswith(":*") and _same_but_for_port(origin, allowed.removesuffix(":*")))
            for allowed in self.allowed_origins
        )

    def allows_host(self, host: str) -> bool:
        """Return whether ``host``, from a Host header, is an allowed name of this server."""
        host = host.lower()
        return (
            self.allowed_hosts == "*"
            or any(
                host == allowed or _same_but_for_port(host, allowed) or _leaves_out_port(host, allowed)
                for allowed in self.allowed_hosts
            )
            or self._allows_below_localhost(host)
        )

    def _allows_below_localhost(self, host: str) -> bool:
        """Return whether ``localhost`` is an allowed host, and ``host`` is one of its subdomains.

        Subdomains of ``localhost`` always name this machine (RFC 6761 section 6.3).
        """
        name, _, port = host.partition(":")
        if not name.removesuffix(".").endswith(".localhost"):
            return False
        return self.allows_host(f"localhost:{port}" if port else "localhost")

    def refused_host(self, host: str) -> str:
        """Log a Host header that isn't allowed, and return the error message for the client that sent it."""
        shown = _shown(host)
        logger.warning("refused a request (403): its Host %s is not in allowed_hosts=", shown)
        return (
            f"the Host {shown} is not allowed: connect by a name in allowed_hosts= of the server, or add this name to "
            "allowed_hosts=. A reverse proxy must pass the Host header on"
        )

    def refused_origin(self, origin: str) -> str:
        """Log an Origin header that isn't allowed, and return the error message for the web page that sent it."""
        shown = _shown(origin)
        logger.warning("refused a request (403): its Origin %s is not in allowed_origins=", shown)
        return f"the Origin {shown} is not allowed: add this web page to allowed_origins= of the server"


def _shown(value: str) -> str:
    """Return a refused header value in the form in which it is shown in the error message and the log.

    A value that isn't a host name is hidden, because it may be a secret.
    """
    return repr(value) if _PLAIN.fullmatch(value) else f"({len(value)} characters that are not a name)"


def _same_but_for_port(value: str, name: str) -> bool:
    rest = value.removeprefix(name)
    return value.startswith(name) and (not rest or (rest[0] == ":" and rest[1:].isdecimal()))


def _leaves_out_port(host: str, allowed: str) -> bool:
    return any(allowed == f"{host}:{port}" for port in _USUAL_PORTS.values())


def is_loopback(host: str | None) -> bool:
    """Return whether a server that listens on ``host`` can be reached only from this machine."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def host_checks_for(host: str | None, allowed_origins: Allowed, allowed_hosts: Allowed) -> HostChecks:
    """Return the Host and Origin checks for a server that listens on ``host``.

    Raises `ValueError` if other machines can reach ``host`` and ``allowed_origins`` or ``allowed_hosts`` is missing, or
    if an entry can't match any client.
    """
    for given in (allowed_origins, allowed_hosts):
        if isinstance(given, str | bytes) and given != "*":
            raise ValueError(
                f'allowed_origins and allowed_hosts must be lists of strings, or "*" for any, not {given!r}'
            )
    if not is_loopback(host) and (allowed_origins is None or allowed_hosts is None):
        raise ValueError(
            f"other machines can reach {host or 'every address'!r}, so allowed_origins (web pages that may connect) "
            "and allowed_hosts (names of the server) are required, for example "
            'allowed_origins=["https://app.example.com"], allowed_hosts=["mcp.example.com"]; '
            'allowed_origins=[] allows no web page, "*" allows any'
        )
    # A server may listen on an unusual loopback address, such as 127.0.0.2.
    # Allow this address as a Host, because clients send it in the Host header.
    if allowed_hosts is None:
        name = (host or "").partition("%")[0]
        allowed_hosts = [*_LOOPBACK_HOSTS, *([f"[{name}]" if ":" in name else name] if name else [])]
    elif len(allowed_hosts) == 0:
        raise ValueError(
            "allowed_hosts=[] would refuse every client: list the names of the server, as in "
            'allowed_hosts=["mcp.example.com"]'
        )
    origins = _LOOPBACK_ORIGINS if allowed_origins is None else allowed_origins
    return HostChecks(_entries("allowed_origins", origins, _origin), _entries("allowed_hosts", allowed_hosts, _host))


def _entries(option: str, given: Sequence[str], normalized: Callable[[str], str]) -> tuple[str, ...] | Literal["*"]:
    """Return the entries of ``option`` in ``normalized`` form. Raises `ValueError` if one of them matches no client."""
    if given == "*":
        return "*"
    entries: list[str] = []
    for entry in given:
        try:
            entries.append(normalized(_text(entry)))
        except _Unusable as error:
            raise ValueError(f"{option}= has {entry!r:.200}, which matches no client: {error}") from None
    return tuple(entries)


class _Unusable(Exception):
    """Raised for an entry that matches no client. The message says why, and what to write instead."""


def _host(text: str) -> str:
    """Return an entry of ``allowed_hosts`` in normalized form."""
    if text == "*":
        raise _Unusable('"*" is not a host name; write allowed_hosts="*", without a list, for any name')
    if "://" in text:
        name = text.partition("://")[2].partition("/")[0] or "mcp.example.com"
        raise _Unusable(f'a host name must not contain a scheme; write "{name}"')
    name, port = _name_and_port(text)
    return name if port in ("", "*") else f"{name}:{port}"


def _origin(text: str) -> str:
    """Return an entry of ``allowed_origins`` in normalized form."""
    if text == "*":
        raise _Unusable('"*" is not an origin; write allowed_origins="*", without a list, for any web page')
    if text == "null":
        return text
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme or _SCHEME.fullmatch(scheme) is None:
        raise _Unusable('an origin must begin with a scheme; write the origin as in "https://app.example.com"')
    name, port = _name_and_port(rest)
    return f"{scheme}://{name}" if port in ("", _USUAL_PORTS.get(scheme)) else f"{scheme}://{name}:{port}"


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise _Unusable('a host name or an origin must be a string; write a list of strings, as in ["mcp.example.com"]')
    if not given:
        raise _Unusable("an entry of the list must not be empty; remove it")
    if given != given.strip() or any(character.isspace() for character in given):
        raise _Unusable("an entry of the list must not contain spaces; write each name as a separate entry")
    if not given.isascii():
        raise _Unusable('a host name must be ASCII; write its ASCII form, "xn--…"')
    return given.lower()


def _name_and_port(text: str) -> tuple[str, str]:
    """Split ``text`` into a host name and a port.

    A missing port is returned as an empty string, and any port as ``*``.
    """
    if any(mark in text for mark in "/?#\\"):
        raise _Unusable(
            "an entry of the list must not contain a path, a query or a fragment; remove everything after the host and "
            "port"
        )
    if "@" in text:
        raise _Unusable(
            "an entry of the list must not contain a user name; remove the user name, the password, and the @"
        )
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        name, colon, port = f"[{_ipv6(inside)}]", rest[:1], rest[1:]
        if not closed or colon not in ("", ":"):
            raise _Unusable('an IPv6 address must be in brackets; write the address as in "[::1]:8000"')
    elif text.count(":") > 1:
        raise _Unusable(f'an IPv6 address must be in brackets; write "[{text}]"')
    else:
        name, colon, port = text.partition(":")
        if "*" in name:
            raise _Unusable("only the port may be *, as in example.com:*; write each name as a separate entry")
        if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None or ".." in name:
            raise _Unusable(f"{name!r} is not a host name; write a host name or an IP address")
    if colon and port != "*":
        if not port.isdecimal() or not 1 <= int(port[:6]) <= _MOST_PORT:
            raise _Unusable(
                f"a port must be a number from 1 to {_MOST_PORT}, or *; leave out the port to allow any port"
            )
        port = str(int(port))
    return name, port


def _ipv6(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        address = None
    if not isinstance(address, IPv6Address) or address.scope_id is not None:
        raise _Unusable(f'{text!r} is not an IPv6 address; write the address as in "[::1]"')
    return str(address)
