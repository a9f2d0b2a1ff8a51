"""Host and Origin checks of HTTP and WebSocket clients, which keep foreign web pages away.

A browser lets any page send requests to any address, the user's own machine included, and a name under the page's
control may be made to point there (DNS rebinding). The browser sends the page's origin and the requested name; both are
checked first (2025-11-25 transports, Security Warning).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, TypeAlias, cast

from ..classes import frozen

logger = logging.getLogger("trio_mcp")

Allowed: TypeAlias = Sequence[str] | Literal["*"] | None

_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_ORIGINS: Final = tuple(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in _LOOPBACK_HOSTS)

_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_LONGEST_NAME: Final = 253
"""Characters of a name in DNS (RFC 1035 section 2.3.4)."""
_MOST_PORT: Final = 65_535
_USUAL_PORTS: Final = {"http": "80", "https": "443"}
"""Ports that browsers leave out of both headers (RFC 6454 section 6.1)."""
_PLAIN: Final = re.compile(r"[a-zA-Z0-9_.:/\[\]+-]{1,300}")
"""What a Host or an Origin is made of."""


@frozen
class HostChecks:
    """The accepted origins and Host headers; ``"*"`` accepts any.

    An origin is ``scheme://host`` or ``scheme://host:port``, where the port ``*`` is any or none; ``null`` is an opaque
    origin, of a local file for example. A host is ``name`` or ``name:*``, with whatever port, or ``name:port``. An IPv6
    address stands in brackets. Other forms match no header of any client; `host_checks_for` refuses them.
    """

    origins: tuple[str, ...] | Literal["*"]
    hosts: tuple[str, ...] | Literal["*"]

    def allows_origin(self, origin: str) -> bool:
        """Return whether a page of ``origin`` may connect. A client that sends no Origin header is no web page."""
        if self.origins == "*":
            return True
        origin = origin.lower()
        return any(
            origin == allowed or (allowed.endswith(":*") and _same_but_for_port(origin, allowed.removesuffix(":*")))
            for allowed in self.origins
        )

    def allows_host(self, host: str) -> bool:
        """Return whether ``host`` is a name under which this server may be reached."""
        host = host.lower()
        return self.hosts == "*" or any(
            host == allowed or _same_but_for_port(host, allowed) or _leaves_out_port(host, allowed)
            for allowed in self.hosts
        )

    def refused_host(self, host: str) -> str:
        """Return the reason for a client whose ``host`` is not allowed, and log the host."""
        shown = _shown(host)
        logger.warning("a request is refused (403): hosts= does not list its Host, %s", shown)
        return (
            f"the Host {shown} is not allowed here: connect by a name that hosts= of the server lists, or have the "
            "server list this one; a reverse proxy in front must pass the Host header on"
        )

    def refused_origin(self, origin: str) -> str:
        """Return the reason for a web page whose ``origin`` is not allowed, and log the origin."""
        shown = _shown(origin)
        logger.warning("a request is refused (403): origins= does not list its Origin, %s", shown)
        return f"the Origin {shown} is not allowed here: have origins= of the server list this web page"


def _shown(value: str) -> str:
    """Return a refused header for the client and the log. Anything but a name may be a secret that went astray."""
    return repr(value) if _PLAIN.fullmatch(value) else f"({len(value)} characters that are no name)"


def _same_but_for_port(value: str, name: str) -> bool:
    rest = value.removeprefix(name)
    return value.startswith(name) and (not rest or (rest[0] == ":" and rest[1:].isdecimal()))


def _leaves_out_port(host: str, allowed: str) -> bool:
    return any(allowed == f"{host}:{port}" for port in _USUAL_PORTS.values())


def is_loopback(host: str | None) -> bool:
    """Return whether only this machine reaches a listener on ``host``."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def host_checks_for(host: str | None, origins: Allowed, hosts: Allowed) -> HostChecks:
    """Return what to let in on ``host``. Raises `ValueError` when either is left open and other machines reach
    ``host``, and for an entry that would match no client."""
    for given in (origins, hosts):
        if isinstance(given, str | bytes) and given != "*":
            raise ValueError(f'origins and hosts must be lists of strings, or "*" for any, not {given!r}')
    if not is_loopback(host) and (origins is None or hosts is None):
        raise ValueError(
            f"other machines can reach {host or 'every address'!r}: say which web pages may connect and under which "
            'names the server is reached, for example origins=["https://app.example.com"], hosts=["mcp.example.com"]; '
            'origins=[] lets no web page in, "*" lets any'
        )
    if hosts is None:  # loopback has more addresses than the usual one: the given one counts, as a Host header names it
        name = (host or "").partition("%")[0]
        hosts = [*_LOOPBACK_HOSTS, *([f"[{name}]" if ":" in name else name] if name else [])]
    elif len(hosts) == 0:
        raise ValueError('hosts=[] lets no client in: list the names of the server, as in hosts=["mcp.example.com"]')
    return HostChecks(
        "*" if isinstance(origins, str) else tuple(map(_origin, _LOOPBACK_ORIGINS if origins is None else origins)),
        "*" if isinstance(hosts, str) else tuple(map(_host, hosts)),
    )


def _host(given: str) -> str:
    """Return an entry of ``hosts`` in the form for comparison. Raises `ValueError`."""
    text = _text("hosts", given)
    if text == "*":
        raise _unusable("hosts", given, '"*" is no name', 'write hosts="*", without a list, for any name')
    if "://" in text:
        name = text.partition("://")[2].partition("/")[0] or "mcp.example.com"
        raise _unusable("hosts", given, "a host has no scheme", f'write "{name}"')
    name, port = _name_and_port("hosts", given, text)
    return name if port in ("", "*") else f"{name}:{port}"


def _origin(given: str) -> str:
    """Return an entry of ``origins`` in the form for comparison. Raises `ValueError`."""
    text = _text("origins", given)
    if text == "*":
        raise _unusable("origins", given, '"*" is no origin', 'write origins="*", without a list, for any web page')
    if text == "null":
        return text
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme or _SCHEME.fullmatch(scheme) is None:
        raise _unusable("origins", given, "an origin begins with a scheme", 'write it as in "https://app.example.com"')
    name, port = _name_and_port("origins", given, rest)
    return f"{scheme}://{name}" if port in ("", _USUAL_PORTS.get(scheme)) else f"{scheme}://{name}:{port}"


def _text(option: str, given: Any) -> str:
    if not isinstance(given, str):
        raise _unusable(option, given, "an entry is text", 'write a list of strings, as in ["mcp.example.com"]')
    if not given:
        raise _unusable(option, given, "an entry is empty", "leave it out")
    if given != given.strip() or any(character.isspace() for character in given):
        raise _unusable(option, given, "an entry has no spaces", "write each name as an entry of its own")
    if not given.isascii():
        raise _unusable(option, given, "clients send names in ASCII", 'write the name as in its URL, "xn--…"')
    return given.lower()


def _name_and_port(option: str, given: str, text: str) -> tuple[str, str]:
    """Return the name in ``text``, and the port: empty where there is none, ``*`` for any."""
    if any(mark in text for mark in "/?#\\"):
        raise _unusable(option, given, "clients send no path in this header", "leave out what follows the name")
    if "@" in text:
        raise _unusable(option, given, "clients send no user in this header", "leave out what stands before the name")
    name, colon, port = text, "", ""
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        name, colon, port = f"[{_ipv6(option, given, inside)}]", rest[:1], rest[1:]
        if not closed or colon not in ("", ":"):
            raise _unusable(option, given, "an IPv6 address stands in brackets", 'write it as in "[::1]:8000"')
    elif text.count(":") > 1:
        raise _unusable(option, given, "an IPv6 address stands in brackets", f'write "[{text}]"')
    else:
        name, colon, port = text.partition(":")
        if "*" in name:
            raise _unusable(
                option, given, "only a port may be *, as in name:*", "write each name as an entry of its own"
            )
        if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None or ".." in name:
            raise _unusable(option, given, f"{name!r} is no name of a host", "write a name or an IP address")
    if colon and port != "*":
        if not port.isdecimal() or not 1 <= int(port[:6]) <= _MOST_PORT:
            raise _unusable(option, given, f"a port is 1 to {_MOST_PORT}, or *", "leave it out for any port")
        port = str(int(port))
    return name, port


def _ipv6(option: str, given: str, text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        address = None
    if not isinstance(address, IPv6Address) or address.scope_id is not None:
        raise _unusable(option, given, f"{text!r} is no IPv6 address", 'write it as in "[::1]"')
    return str(address)


def _unusable(option: str, given: object, reason: str, cure: str) -> ValueError:
    return ValueError(f"{option}= has {cast('Any', given)!r:.200}, which matches no client: {reason}; {cure}")
