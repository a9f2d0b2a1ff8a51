"""Host and Origin checks of WebSocket clients, which keep foreign web pages away.

A browser lets any page open a WebSocket to any address, the user's own machine included, and a name under the page's
control may be made to point there (DNS rebinding). The browser sends the page's origin and the requested name; both are
checked before the upgrade (2025-11-25 transports, Security Warning, by analogy).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias

from ..classes import frozen

Allowed: TypeAlias = Sequence[str] | Literal["*"] | None

_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_ORIGINS: Final = tuple(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in _LOOPBACK_HOSTS)


@frozen
class HostChecks:
    """The accepted origins and Host headers; ``"*"`` accepts any.

    An origin is ``scheme://host`` or ``scheme://host:port``, where the port ``*`` is any or none; ``null`` is an opaque
    origin, of a local file for example. A host is ``name``, with whatever port, or ``name:port``.
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
        return self.hosts == "*" or any(host == allowed or _same_but_for_port(host, allowed) for allowed in self.hosts)


def _same_but_for_port(value: str, name: str) -> bool:
    rest = value.removeprefix(name)
    return value.startswith(name) and (not rest or (rest[0] == ":" and rest[1:].isdecimal()))


def is_loopback(host: str | None) -> bool:
    """Return whether only this machine reaches a listener on ``host``."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def host_checks_for(host: str | None, origins: Allowed, hosts: Allowed) -> HostChecks:
    """Return what to let in on ``host``. Raises `ValueError` when either is left open and other machines reach
    ``host``."""
    for given in (origins, hosts):
        if isinstance(given, str) and given != "*":
            raise ValueError(f'origins and hosts must be lists of strings, or "*" for any, not {given!r}')
    if not is_loopback(host) and (origins is None or hosts is None):
        raise ValueError(
            f"other machines can reach {host or 'every address'!r}: say which web pages may connect and under which "
            'names the server is reached, for example origins=["https://app.example.com"], hosts=["mcp.example.com"]; '
            'origins=[] lets no web page in, "*" lets any'
        )
    if hosts is None:  # loopback has more addresses than the usual one: the given one counts, as a Host header names it
        hosts = [*_LOOPBACK_HOSTS, *([f"[{host}]" if ":" in host else host] if host else [])]
    return HostChecks(_lower(_LOOPBACK_ORIGINS if origins is None else origins), _lower(hosts))


def _lower(values: Sequence[str]) -> tuple[str, ...] | Literal["*"]:
    return "*" if isinstance(values, str) else tuple(value.lower() for value in values)
