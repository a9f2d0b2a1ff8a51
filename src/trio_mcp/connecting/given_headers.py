"""given_headers: the headers that a user gives for requests to one server, checked where they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

_RESERVED: Final = frozenset(
    (
        *("accept", "content-type", "last-event-id", "mcp-method", "mcp-name"),
        *("mcp-protocol-version", "mcp-session-id"),
        # of HTTP itself
        *("accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
_RESERVED_PREFIXES: Final = ("mcp-param-", "sec-websocket-")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")


def given_headers(given: Mapping[str, str]) -> Headers:
    """Return headers that a user gives for requests to one server, by HTTP or for a WebSocket.

    Raises `TypeError` for what is no mapping of names to texts, and `ValueError` for headers that the client itself
    writes, or that no HTTP request can have. The words of the error have no value, since values are secrets.
    """
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] users' own
        raise TypeError(f"headers are a mapping, such as {{'X-Name': 'text'}}, not a {type(given).__name__}")
    return [_checked(name, text) for name, text in given.items()]


def _checked(name: str, text: str) -> tuple[bytes, bytes]:
    if not isinstance(name, str) or not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"headers have texts as names and values; the value of {name!r} is a {type(text).__name__}")
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"no header of HTTP can have the name {name[:100]!r}")
    if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_PREFIXES):
        raise ValueError(f"the header {name} is written by the client itself")
    if not _VALUE.fullmatch(text):
        raise ValueError(f"the value of the header {name} has a character that no header can have, or outer blanks")
    return name.encode("ascii"), text.encode("latin-1")
