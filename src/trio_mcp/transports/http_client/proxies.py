"""Proxies: which one the environment names for an origin, by the rules of curl."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

import attrs

from .origin import Origin, origin_of

_SEPARATORS: Final = re.compile(r"[,\s]+")


@attrs.frozen
class Proxy:
    """An HTTP proxy at ``origin``."""

    origin: Origin
    authorization: str | None = attrs.field(default=None, repr=False)
    """Value of the Proxy-Authorization header, for the proxy alone."""


def proxy_at(url: str) -> Proxy:
    """Return the proxy at ``url``; without a scheme, ``http`` is meant. Raises `ValueError`, without the user and the
    password of ``url`` in its text."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        origin = origin_of(parts)
    except ValueError as error:
        raise ValueError(f"no proxy: {error}; one is like http://127.0.0.1:3128") from None
    if parts.username is None:
        return Proxy(origin)
    user = b":".join(unquote_to_bytes(part or "") for part in (parts.username, parts.password))
    return Proxy(origin, f"Basic {base64.b64encode(user).decode('ascii')}")  # RFC 7617 section 2


def proxy_from(environ: Mapping[str, str], origin: Origin) -> Proxy | None:
    """Return the proxy that ``environ`` names for ``origin``, or `None`. Raises as `proxy_at`.

    ``http_proxy`` or ``https_proxy`` counts before ``all_proxy``, each in lower case before upper case; ``no_proxy``
    has the exceptions. This machine is always one: what it says to itself, tokens in plain text among all else, is
    nothing for another one.
    """
    if is_of_this_machine(origin.host):
        return None
    names = [f"{origin.scheme}_proxy", f"{origin.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if "REQUEST_METHOD" in environ:
        # In a CGI program HTTP_PROXY is the header Proxy of whoever sent the request (CVE-2016-5385).
        names = [name for name in names if name != "HTTP_PROXY"]
    named = next((name for name in names if environ.get(name)), None)
    if named is None or _is_exempt(origin.host, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    try:
        return proxy_at(environ[named])
    except ValueError as error:
        raise ValueError(f"{named} is {error}") from None


def is_of_this_machine(host: str) -> bool:
    """Return whether ``host``, a name in ASCII or an address, means this machine (RFC 6761 section 6.3)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.removesuffix(".").rpartition(".")[2] == "localhost"
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback


def _is_exempt(host: str, exceptions: str) -> bool:
    if exceptions.strip() == "*":
        return True
    entries = [entry for entry in _SEPARATORS.split(exceptions.lower()) if entry]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = f".{host.removesuffix('.')}"
        return any(name.endswith("." + entry.removesuffix(".").removeprefix(".")) for entry in entries)
    return any(_contains(entry, address) for entry in entries)


def _contains(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
