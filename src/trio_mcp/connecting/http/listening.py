"""listen hears what a legacy server says outside of any request (2025-11-25 transports, Listening for Messages from the
Server)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Final

import trio

from ...auth.errors import AuthorizationError
from ...runtime.channel import ConnectionLost
from ...transports.event_stream.reading import EventReader, EventTooLong
from ...transports.http_client.reply import Reply
from .answers import EVENT_STREAM, content_type, is_good, is_passing, refusal
from .arrivals import arrived_unasked
from .authorized import Caller
from .comebacks import Comebacks
from .endpoint import Endpoint, cursor_of
from .sessions import Session

__all__ = ["listen"]

logger = logging.getLogger("trio_mcp")

_LIVED: Final = 10.0
"""Seconds that a stream must have lasted for its end to count as the first again."""


async def listen(endpoint: Endpoint, session: Session) -> None:
    """Hold a stream open until ``session`` is over. Returns when the server offers no stream; the client works without
    one, and any refusal means the same (HTTP servers without the stream answer 405, 404, 406, 400 or 501)."""
    comebacks = Comebacks()
    events = endpoint.event_reader()
    while not session.over.is_set():
        began = trio.current_time()
        cursor = cursor_of(events)
        try:
            async with endpoint.get(session, cursor, Caller.NONE) as reply:
                if not is_good(reply) or content_type(reply) != EVENT_STREAM:
                    if not await _is_to_be_tried_again(reply, cursor):
                        return
                    events = endpoint.event_reader()
                else:
                    await _hear(endpoint, session, reply, events)
        except AuthorizationError as error:
            logger.info("the server opens no stream: %s", error)
            return
        except (ConnectionLost, EventTooLong) as error:
            logger.debug("the stream of the server broke: %s", error)
        if trio.current_time() - began >= _LIVED:
            comebacks.was_worth_it()
        events.end()
        await comebacks.pause(events.retry)


async def _is_to_be_tried_again(reply: Reply, cursor: str) -> bool:
    error = await refusal(reply, None)
    if reply.status == HTTPStatus.METHOD_NOT_ALLOWED:
        logger.debug("the server offers no stream")
        return False
    again = is_passing(reply.status) and reply.status != HTTPStatus.NOT_IMPLEMENTED
    logger.info("the server opens no stream%s: %s", " now" if again else "", error)
    return again or bool(cursor)  # perhaps the server knows the cursor no more


async def _hear(endpoint: Endpoint, session: Session, reply: Reply, events: EventReader) -> None:
    while chunk := await reply.receive_some():
        for event in events.feed(chunk):
            if event.name == "message" and event.data and not arrived_unasked(endpoint, event.data, session):
                logger.warning("ignored: what the server sent outside of any request: %.200r", event.data)
        await endpoint.inbox.room()
