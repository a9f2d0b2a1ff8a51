"""The client side of HTTP+SSE, the transport of 2024-11-05: one stream of events brings all messages of the server, and
ours go to the URL that the first event names.

`may_use_http_and_sse` says when a server is tried so, after its refusal of a POST of ``initialize``; `receive_all`
reads the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import urljoin

import trio

from ...jsonrpc.errors import ProtocolViolation
from ...jsonrpc.messages import ErrorResponse, RequestId, Response
from ...runtime.transport import ConnectionLost, HTTPError
from ...transports.http_client.origins import split_url
from ...transports.sse import Event, EventTooLong
from .endpoint import Endpoint, MaySignIn
from .outgoing import Session
from .responses import EVENT_STREAM, content_type, is_good

logger = logging.getLogger("trio_mcp")

_REFUSALS: Final = frozenset((*range(400, 500), 501)) - {401, 403, 407, 408, 409, 425, 429}
"""Statuses of servers that know no POST to this URL (2025-06-18 transports, Backwards Compatibility), without those
about something else. Python's `http.server` answers with 501."""
_LONGEST_URL: Final = 4096


class EndpointEvent(HTTPError):
    """The server answered a POST with the stream of HTTP+SSE, as servers do that don't look at the method."""


def may_use_http_and_sse(error: HTTPError) -> bool:
    """Return whether a server that answered ``initialize`` with ``error``, which is no reply, may speak HTTP+SSE."""
    return error.status in _REFUSALS or isinstance(error, EndpointEvent)


async def receive_all(
    endpoint: Endpoint,
    replied: Callable[[RequestId | None], None],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Put all messages of the server into the inbox, until the stream ends, and with it the connection. Started when
    the server has named the URL for our messages. Calls ``replied`` with the id of each reply.

    Raises before that, if the answer isn't such a stream: `HTTPError`, `ConnectionLost`, `AuthorizationError`, and
    `ProtocolViolation` for a URL that a client must not send to.
    """
    events, is_open = endpoint.event_reader(), False
    try:
        async with endpoint.get(None, "", MaySignIn.ALWAYS) as reply:
            if not is_good(reply) or content_type(reply) != EVENT_STREAM:
                raise HTTPError.refused(reply.status, "")
            while chunk := await reply.receive_some():
                for event in events.feed(chunk):
                    if is_open and event.name == "message":
                        frame = endpoint.frame(event.data)
                        if isinstance(frame.message, Response | ErrorResponse):
                            replied(frame.message.id)
                        endpoint.inbox.put(frame)
                    elif not is_open and event.name in ("message", "endpoint"):  # some servers begin with a ping
                        _use_endpoint(endpoint, event)
                        is_open = True
                        task_status.started()
                await endpoint.inbox.wait_for_room()
        raise ConnectionLost("the server has closed its stream of events (HTTP+SSE)")  # noqa: TRY301 - handled as one
    except (ConnectionLost, EventTooLong) as error:
        if not is_open:
            raise HTTPError(None, str(error)) from None
        endpoint.inbox.close(str(error))


def _use_endpoint(endpoint: Endpoint, event: Event) -> None:
    """Send all messages to the URL in the first event from now on."""
    if event.name != "endpoint":
        raise HTTPError(HTTPStatus.OK, "the first message of the stream isn't 'endpoint'")
    http, text = endpoint.http, event.data.decode("utf-8", "replace").strip()
    try:
        # A server must not have our headers, tokens among them, sent to another one.
        origin, target = split_url(urljoin(f"{http.origin}{http.target}", text[: _LONGEST_URL + 1]))
    except ValueError as error:
        raise ProtocolViolation(f"the event 'endpoint' names an invalid URL: {error}") from None
    if origin != http.origin or len(text) > _LONGEST_URL:
        raise ProtocolViolation(f"the event 'endpoint' must name a URL at {http.origin}, not {text[:200]!r}")
    logger.debug("the server speaks HTTP+SSE, the transport of 2024-11-05")
    http.target = target
    endpoint.sessions.start(Session(None, "2024-11-05", is_by_sse=True))
