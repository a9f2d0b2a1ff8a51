"""RequestHeaders: the headers of each request, with the ones that the user has given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...protocol.fields import JSONObject
from ...protocol.param_headers import NAMED_BY, encoded_name
from ..given_headers import Headers, given_headers
from .answers import EVENT_STREAM, JSON
from .outgoing import Outgoing
from .sessions import Session

_POST: Final = [
    (b"Content-Type", JSON.encode()),
    (b"Accept", f"{JSON}, {EVENT_STREAM}".encode()),
]
_USER_AGENT: Final = b"user-agent"
_GET: Final = (b"Accept", EVENT_STREAM.encode())


class RequestHeaders:
    """Writes the headers of requests to one server: the ones that the specification asks for, and ``given`` ones.

    Raises as `given_headers`.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        headers = given_headers(given)
        self.user_agent = next((text.decode("latin-1") for name, text in headers if name.lower() == _USER_AGENT), None)
        """The given ``User-Agent``, which the HTTP client sends; `None` where none is given."""
        self._given = [header for header in headers if header[0].lower() != _USER_AGENT]

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
