"""RequestHeaders: the headers of each request, with those that the user has given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ...protocol.fields import JSONObject
from ...protocol.param_headers import NAMED_BY, encoded_name
from .answers import EVENT_STREAM, JSON
from .outgoing import Outgoing
from .sessions import Session

__all__ = ["Headers", "RequestHeaders", "encoded"]

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
_RESERVED_PREFIX: Final = "mcp-param-"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")

_POST: Final = [
    (b"Content-Type", JSON.encode()),
    (b"Accept", f"{JSON}, {EVENT_STREAM}".encode()),
]
_GET: Final = (b"Accept", EVENT_STREAM.encode())


class RequestHeaders:
    """Writes the headers of requests to one server: those that the specification asks for, and ``given`` ones.

    Raises `ValueError` for given headers that would replace one of the former, or that no HTTP request can have. The
    words of the error have no value, since values are secrets.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = [_checked(name, text) for name, text in given.items()]

    def of_message(self, message: Outgoing) -> Headers:
        """Return the headers of the POST of a modern request."""
        headers = [*_POST, *self._given]
        if message.version is not None:
            headers.append((b"MCP-Protocol-Version", message.version.encode()))
        if message.method is not None:
            headers.append((b"Mcp-Method", encoded(message.method)))
        name = _name_in(message.method, message.params)
        return headers if name is None else [*headers, (b"Mcp-Name", encoded(name))]

    def in_session(self, session: Session | None) -> Headers:
        """Return the headers of the POST of a legacy message; of ``initialize`` without a session."""
        return [*_POST, *self._given, *_of_session(session)]

    def of_stream(self, session: Session | None, last_event_id: str) -> Headers:
        """Return the headers of a GET for events behind ``last_event_id``, for all to come where that is empty."""
        headers = [_GET, *self._given, *_of_session(session)]
        if last_event_id:
            headers.append((b"Last-Event-ID", last_event_id.encode()))
        return headers

    def of_end(self, session: Session) -> Headers:
        """Return the headers of the DELETE that ends ``session``."""
        return [*self._given, *_of_session(session)]


def encoded(text: str) -> bytes:
    """Return the value of a header that mirrors ``text``."""
    return encoded_name(text).encode("ascii")


def _name_in(method: str | None, params: JSONObject) -> str | None:
    name: Any = params.get(NAMED_BY.get(method or "", ""))
    return name if isinstance(name, str) else None


def _of_session(session: Session | None) -> Headers:
    if session is None:
        return []
    version = (b"MCP-Protocol-Version", session.version.encode("ascii"))
    return [version] if session.id is None else [(b"Mcp-Session-Id", session.id.encode("ascii")), version]


def _checked(name: str, text: str) -> tuple[bytes, bytes]:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"no header of HTTP can have the name {name[:100]!r}")
    if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_PREFIX):
        raise ValueError(f"the header {name} is written by the client itself")
    if not _VALUE.fullmatch(text):
        raise ValueError(f"the value of the header {name} has a character that no header can have, or outer blanks")
    return name.encode("ascii"), text.encode("latin-1")
