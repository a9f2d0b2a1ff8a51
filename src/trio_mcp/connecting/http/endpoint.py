"""Endpoint: the things that all exchanges with one server share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

import attrs

from ...auth.credentials import Credentials
from ...transports.event_stream.reading import EventReader
from ...transports.http_client.client import HttpClient
from ...transports.http_client.reply import Reply
from ..given_headers import Headers
from .authorized import Caller, authorized
from .inbox import Inbox
from .outgoing import Outgoing
from .questions import Questions
from .request_headers import RequestHeaders
from .sessions import Session, Sessions
from .tool_headers import ToolHeaders

Seen: TypeAlias = Callable[[bool], None]
"""Callback that is told true before the server may see a message, and false where the server has not let the message
in."""

_CURSOR: Final = re.compile(r"[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,4094}[^\x00-\x20\x7f])?")


@attrs.frozen(eq=False)
class Endpoint:
    """The URL of a server, the ways to and from the server, and all knowledge of the server. With ``credentials`` each
    request is `authorized`."""

    http: HttpClient
    headers: RequestHeaders
    inbox: Inbox
    max_message_bytes: int
    credentials: Credentials | None = None
    sessions: Sessions = attrs.field(factory=Sessions)
    questions: Questions = attrs.field(factory=Questions)
    tools: ToolHeaders = attrs.field(factory=ToolHeaders)

    def post(
        self, message: Outgoing, headers: Headers, seen: Seen | None = None, *, caller: Caller | None = None
    ) -> AbstractAsyncContextManager[Reply]:
        """Send ``message`` in a POST, and wait for the head of the answer: see `HttpClient.request`. ``caller`` is
        whoever usually waits for such a message, unless given."""
        return self._exchange("POST", headers, message.line, seen, caller=caller or _caller_of(message))

    def get(self, session: Session | None, last_event_id: str, caller: Caller) -> AbstractAsyncContextManager[Reply]:
        """Ask for the events behind ``last_event_id``, or for all to come."""
        return self._exchange("GET", self.headers.of_stream(session, last_event_id), caller=caller)

    def delete(self, session: Session) -> AbstractAsyncContextManager[Reply]:
        """Ask the server to end ``session``."""
        return self._exchange("DELETE", self.headers.of_end(session), caller=Caller.NONE)

    def _exchange(
        self,
        method: str,
        headers: Headers,
        body: bytes = b"",
        seen: Seen | None = None,
        *,
        caller: Caller,
    ) -> AbstractAsyncContextManager[Reply]:
        if self.credentials is not None:
            return authorized(self.http, self.credentials, method, headers, body, seen, caller)
        if seen is not None:
            seen(True)
        return self.http.request(method, self.http.target, headers, body)

    def event_reader(self) -> EventReader:
        """Return a reader for a new stream."""
        return EventReader(self.max_message_bytes)

    def lose(self, session: Session) -> None:
        """Note that the server has answered 404 in ``session``: where the session has an id, the session is over
        (2025-11-25 transports, Session Management 4), and nobody waits for answers to its questions any more."""
        if session.id is not None and self.sessions.lose(session):
            for cancel in self.questions.forgotten(session):
                self.inbox.put(cancel)


def _caller_of(message: Outgoing) -> Caller:
    if message.method in ("subscriptions/listen", "notifications/initialized"):
        return Caller.LONG_SINCE
    return Caller.NONE if message.is_notification else Caller.WAITS


def cursor_of(events: EventReader) -> str:
    """Return the id to come back with; empty where the server has given none, or none that a header can have."""
    cursor = events.last_event_id
    return cursor if _CURSOR.fullmatch(cursor) else ""
