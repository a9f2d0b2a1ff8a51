"""list_tools lists the tools of a server anew, for their headers, while a call waits."""

from __future__ import annotations

import logging
from typing import Any, Final, cast

from ...auth.errors import AuthorizationError
from ...jsonrpc.codec import decode, frame_request
from ...jsonrpc.messages import Response
from ...protocol.fields import JSONObject
from ...protocol.meta import PROGRESS_TOKEN
from ...runtime.channel import ConnectionLost
from ...transports.event_stream.reading import EventTooLong
from ...transports.http_client.reply import Reply
from .answers import EVENT_STREAM, content_type, is_good
from .endpoint import Endpoint
from .outgoing import Outgoing

logger = logging.getLogger("trio_mcp")

_MOST_PAGES: Final = 1000


async def list_tools(endpoint: Endpoint, call: Outgoing) -> None:
    """Learn the headers of the tools, as far as the server answers. The requests describe the client as ``call`` does,
    and nobody else sees the requests: their ids are texts, and the ids of all others are numbers."""
    meta = {key: value for key, value in call.params["_meta"].items() if key != PROGRESS_TOKEN}
    params: JSONObject = {"_meta": meta}
    for page in range(_MOST_PAGES):
        line = frame_request(f"tools of {call.id}, page {page}", "tools/list", params)
        try:
            result = await _ask(endpoint, Outgoing.of(line))
        except (AuthorizationError, ConnectionLost, EventTooLong) as error:
            logger.info("the tools could not be listed anew: %s", error)
            return
        cursor = cast("JSONObject", result).get("nextCursor") if isinstance(result, dict) else None
        if not isinstance(cursor, str):
            return
        params = {"_meta": meta, "cursor": cursor}


async def _ask(endpoint: Endpoint, request: Outgoing) -> Any:
    async with endpoint.post(request, endpoint.headers.of_message(request)) as reply:
        if is_good(reply):
            for line in await _lines(endpoint, reply):
                message = decode(line)
                if isinstance(message, Response) and message.id == request.id:
                    endpoint.tools.learn(line)
                    return message.result
    return None


async def _lines(endpoint: Endpoint, reply: Reply) -> list[bytes]:
    """Return the messages of the whole answer."""
    body = await reply.read(endpoint.max_message_bytes)
    if content_type(reply) != EVENT_STREAM:
        return [body]
    return [event.data for event in endpoint.event_reader().feed(body)]
