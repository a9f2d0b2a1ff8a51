"""listen hears what a legacy server says outside of any request (2025-11-25 transports, Listening for Messages from the
Server)."""

from __future__ import annotations

import logging
from enum import Enum, auto
from http import HTTPStatus
from typing import Final

import trio

from ...auth.credentials import AuthorizationError
from ...runtime.transport import ConnectionLost
from ...transports.http_client.connection import Reply
from ...transports.sse import EventReader, EventTooLong
from .endpoint import Endpoint, MaySignIn, cursor_of, deliver_unrequested
from .outgoing import OutboundFrame, Session
from .responses import EVENT_STREAM, Backoff, content_type, is_about_session, is_good, is_passing, refusal

logger = logging.getLogger("trio_mcp")

_PING_TIMEOUT: Final = 30.0


class _Next(Enum):
    """The next step of a client after an answer to a GET that opens no stream."""

    END = auto()
    """Do without a stream, until the next session."""
    ASK = auto()
    """Find out whether the session is forgotten, and else do without a stream."""
    AGAIN = auto()
    """Come back after a pause."""
    ANEW = auto()
    """Come back at once, without the cursor: events behind the cursor are lost."""


async def listen(endpoint: Endpoint, session: Session) -> None:
    """Hold a stream open until ``session`` is over. Returns when the server offers no stream; the client works without
    one, and most refusals mean the same (HTTP servers without the stream answer 405, 404, 406, 400 or 501)."""
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
    # 409: the server has not noticed yet that the stream before is gone.
    again = status == HTTPStatus.CONFLICT or (is_passing(status) and status != HTTPStatus.NOT_IMPLEMENTED)
    logger.info("the server opens no stream%s: %s", " now" if again else "", error)
    if again:
        return _Next.AGAIN
    return _Next.ANEW if cursor else _Next.END  # the server does not know the cursor any more


async def _ask_for_session(endpoint: Endpoint, session: Session) -> None:
    """Find out, by a ping, whether ``session`` is forgotten, after its first stream was refused as if it were: servers
    without streams answer like that, too, and the end of a session would fail the calls in flight."""
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
                logger.warning("ignored: what the server sent outside of any request: %.200r", event.data)
        await endpoint.inbox.wait_for_room()
