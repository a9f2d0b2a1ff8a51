"""The event streams on which a legacy server sends messages that don't belong to a request of the client.

`listen` reads the stream of Streamable HTTP (2025-11-25 transports, Listening for Messages from the Server). In
HTTP+SSE, the transport of 2024-11-05, one stream contains all messages of the server, and the client posts its own
messages to the URL in the first event. `may_use_http_and_sse` decides whether to try HTTP+SSE after a server has
refused ``initialize``. `receive_all` reads the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin

import trio

from ...auth.credentials import AuthorizationError
from ...jsonrpc.errors import ProtocolViolation
from ...jsonrpc.messages import ErrorResponse, RequestId, Response
from ...runtime.transport import ConnectionLost, HTTPError
from ...transports.http_client.connection import Reply
from ...transports.http_client.origins import split_url
from ...transports.sse import Event, EventReader, EventTooLong
from .endpoint import Endpoint, MaySignIn, cursor_of, deliver_unrequested
from .outgoing import OutboundFrame, Session
from .responses import EVENT_STREAM, Backoff, content_type, is_about_session, is_good, is_passing, refusal

logger = logging.getLogger("trio_mcp")

_PING_TIMEOUT: Final = 30.0


class _Next(Enum):
    """The client's next step if the response to its GET request isn't a stream."""

    END = auto()
    """Continue without a stream, until the next session begins."""
    ASK = auto()
    """Check whether the server has lost the session; if not, continue without a stream."""
    AGAIN = auto()
    """Request the stream again after a pause."""
    ANEW = auto()
    """Request the stream again at once, without the cursor, so that the events after the cursor are lost."""


async def listen(endpoint: Endpoint, session: Session) -> None:
    """Until ``session`` ends, keep a stream open for messages from the server.

    Return earlier if the server doesn't offer a stream.

    The client works without a stream, and most refusals mean that there is none: HTTP servers without the stream answer
    with 405, 404, 406, 400 or 501.
    """
    backoff = Backoff()
    events = endpoint.event_reader()
    while not session.over.is_set():
        began, heard = trio.current_time(), session.received_count
        cursor = cursor_of(events)
        try:
            async with endpoint.get(session, cursor, MaySignIn.NEVER) as reply:
                if is_good(reply) and content_type(reply) == EVENT_STREAM:
                    session.has_stream = True
                    await _hear(endpoint, session, reply, events)
                    then = _Next.AGAIN
                else:
                    then = await _refused(endpoint, session, reply, cursor)
                    backoff.record_refusal(reply.headers)
            if then is _Next.ASK:
                await _ask_for_session(endpoint, session)
            if then in (_Next.ASK, _Next.END):
                return
        except AuthorizationError as error:
            logger.info("the server opens no stream: %s", error)
            return
        except (ConnectionLost, EventTooLong) as error:
            logger.debug("the stream of the server broke: %s", error)
            then = _Next.AGAIN
        if then is _Next.ANEW:
            events = endpoint.event_reader()
            endpoint.sessions.report_missed()
            continue
        backoff.record_end(began, has_brought=session.received_count > heard)
        events.drop_unfinished()
        await backoff.pause(events.retry)


async def _refused(endpoint: Endpoint, session: Session, reply: Reply, cursor: str) -> _Next:
    error = await refusal(reply, None)
    status = reply.status
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        logger.debug("the server offers no stream")
        return _Next.END
    if session.id is not None and is_about_session(error):
        if not session.has_stream:
            return _Next.ASK
        endpoint.loses(session, error)
        return _Next.END
    # Status 409: the server hasn't noticed the end of the previous stream yet, so try again.
    again = status == HTTPStatus.CONFLICT or (is_passing(status) and status != HTTPStatus.NOT_IMPLEMENTED)
    logger.info("the server opens no stream%s: %s", " now" if again else "", error)
    if again:
        return _Next.AGAIN
    # Reconnect without the event id, because the server no longer has the events after it.
    return _Next.ANEW if cursor else _Next.END


async def _ask_for_session(endpoint: Endpoint, session: Session) -> None:
    """Send a ping to find out whether the server still knows ``session``.

    Call this if the server refuses the first GET with a status for lost sessions: a server without streams may do the
    same, and ending its session would fail all pending calls.
    """
    ping = OutboundFrame.request("is the session known?", "ping")
    headers = endpoint.headers.in_session(session)
    with trio.move_on_after(_PING_TIMEOUT):
        async with endpoint.post(ping, headers, sign_in=MaySignIn.NEVER) as reply:
            if not is_good(reply) and endpoint.loses(session, await refusal(reply, ping.id)):
                return
    logger.info("the server opens no stream, but knows the session")


async def _hear(endpoint: Endpoint, session: Session, reply: Reply, events: EventReader) -> None:
    while chunk := await reply.receive_some():
        for event in events.feed(chunk):
            if event.name != "message" or not event.data:
                continue
            if deliver_unrequested(endpoint, event.data, session):
                session.received_count += 1
            else:
                logger.warning("ignored a message that the server sent outside of any request: %.200r", event.data)
        await endpoint.inbox.wait_for_room()


_REFUSALS: Final = frozenset((*range(400, 500), 501)) - {401, 403, 407, 408, 409, 425, 429}
"""Statuses of servers that accept no POST at this URL (2025-06-18 transports, Backwards Compatibility), without those
that have other causes. Python's `http.server` responds with 501."""
_LONGEST_URL: Final = 4096


class EndpointEvent(HTTPError):
    """Raised if the server responds to a POST with the event stream of HTTP+SSE, the transport of 2024-11-05.

    A server sends this stream if it ignores the HTTP method.
    """


def may_use_http_and_sse(error: HTTPError) -> bool:
    """Return whether the server may use HTTP+SSE, the transport of 2024-11-05.

    ``error`` is the error of ``initialize``, which must not be an error reply.
    """
    return error.status in _REFUSALS or isinstance(error, EndpointEvent)


async def receive_all(
    endpoint: Endpoint,
    replied: Callable[[RequestId | None], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Receive all messages of the server on its HTTP+SSE stream, and put them into the inbox.

    The connection ends when the stream ends.

    This counts as started when the server has named the URL for our messages. ``replied`` is called with the id of each
    reply. Raises before that if the response isn't such a stream: `HTTPError`, `ConnectionLost`, `AuthorizationError`,
    and `ProtocolViolation` for a URL that a client must not send to.
    """
    events, is_open = endpoint.event_reader(), False
    try:
        async with endpoint.get(None, "", MaySignIn.ALWAYS) as reply:
            if not is_good(reply) or content_type(reply) != EVENT_STREAM:
                raise HTTPError._refused(reply.status, "")
            while chunk := await reply.receive_some():
                for event in events.feed(chunk):
                    if is_open and event.name == "message":
                        frame = endpoint.frame(event.data)
                        if isinstance(frame.message, Response | ErrorResponse):
                            replied(frame.message.id)
                        endpoint.inbox.put(frame)
                    elif not is_open and event.name in ("message", "endpoint"):  # skips an early ping
                        _use_endpoint(endpoint, event)
                        is_open = True
                        task_status.started()
                await endpoint.inbox.wait_for_room()
        raise ConnectionLost("the server closed its event stream (HTTP+SSE)")  # noqa: TRY301 - handled as one
    except (ConnectionLost, EventTooLong) as error:
        if not is_open:
            raise HTTPError(None, str(error)) from None
        endpoint.inbox.close(str(error))


def _use_endpoint(endpoint: Endpoint, event: Event) -> None:
    """Send all further messages to the URL that the first event of the HTTP+SSE stream contains."""
    if event.name != "endpoint":
        raise HTTPError(HTTPStatus.OK, "the first event of the HTTP+SSE stream must be 'endpoint'")
    http, text = endpoint.http, event.data.decode("utf-8", "replace").strip()
    try:
        # Require the same origin: a server must not send the client's headers, such as tokens, to another server.
        origin, target = split_url(urljoin(f"{http.origin}{http.target}", text[: _LONGEST_URL + 1]))
    except ValueError as error:
        raise ProtocolViolation(f"the event 'endpoint' contains an invalid URL: {error}") from None
    if origin != http.origin or len(text) > _LONGEST_URL:
        raise ProtocolViolation(f"the event 'endpoint' must contain a URL of {http.origin}, not {text[:200]!r}")
    logger.debug("the server speaks HTTP+SSE, the transport of 2024-11-05")
    http.target = target
    endpoint.sessions.start(Session(None, "2024-11-05", is_by_sse=True))
