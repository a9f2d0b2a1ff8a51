"""PostedRequest: one request of the client over HTTP, from its POST to the end of the response.

`session_of` reads the session that a server has opened from the response to ``initialize``. `list_tools` lists the
tools of a server again, for their headers, while a call waits.
"""

from __future__ import annotations

import logging
import math
from codecs import BOM_UTF8
from http import HTTPStatus
from typing import Any, Final

import trio

from ...auth.credentials import AuthorizationError
from ...jsonrpc.codec import decode
from ...jsonrpc.errors import MCPError, UnreadableAnswer
from ...jsonrpc.messages import ErrorResponse, RequestId, Response
from ...protocol.errors import HEADER_MISMATCH
from ...protocol.fields import JSONObject, as_object
from ...protocol.meta import PROGRESS_TOKEN
from ...protocol.methods import next_cursor
from ...protocol.revisions import REVISIONS
from ...protocol.types.lifecycle import with_version
from ...runtime.transport import ConnectionLost, HTTPError, ReplyLost
from ...transports.http_client.connection import BodyTooLong, Reply
from ...transports.sse import EventReader, EventTooLong
from ..credentials import Headers
from .endpoint import Endpoint, MaySignIn, cursor_of, deliver_frame
from .listening import EndpointEvent
from .outgoing import OutboundFrame, Session
from .responses import (
    EVENT_STREAM,
    JSON,
    SESSION_NOT_FOUND,
    Backoff,
    StatusPeerError,
    body_text,
    content_type,
    is_good,
    is_object,
    is_passing,
    refusal,
)

logger = logging.getLogger("trio_mcp")

_MOST_IN_VAIN: Final = 10
"""How many times in a row a client reconnects to a server that doesn't respond."""
_LINGER: Final = 1.0
"""Seconds for which the client reads the rest of a stream after the reply, so that the connection can be reused."""
_FAREWELL: Final = 5.0
"""The number of seconds for which the client reads the response to a cancelled request."""
_MOST_WORDS: Final = 16 * 1024


class PostedRequest:
    """A request of the client (``message``) to the server of ``endpoint``, with its HTTP response.

    `run` puts either the reply or the report of its loss into the inbox, unless `close` is called before. The reply
    counts as lost if none arrives within ``timeout`` seconds after the server may have seen the request.
    """

    def __init__(
        self, endpoint: Endpoint, message: OutboundFrame, request_id: RequestId, timeout: float = math.inf
    ) -> None:
        self._endpoint = endpoint
        self._message = message
        self.method = message.method
        """The method of the request."""
        self._id = request_id
        self._timeout = timeout
        self._scope = trio.CancelScope()
        self._status: int | None = None
        """The HTTP status of the last response; `None` before the first response."""
        self._lost: MCPError | None = None
        self._received_count = 0
        """The number of messages that have arrived in the response."""
        self._is_closed = False
        self._is_abandoned = False
        self.session: Session | None = None
        """The session in which the request was sent."""
        self.is_sent = False
        """True once the server may have received the request, unless the server has refused it because of missing
        authorization."""

    @property
    def is_modern(self) -> bool:
        """True for a request in a modern protocol revision. The client cancels such a request by closing the
        response."""
        return self._message.version is not None

    def close(self, reason: str) -> None:
        """Close the response at once, because the client no longer waits for the reply."""
        self._is_closed = True
        self._scope.cancel(reason=reason)

    def abandon(self) -> None:
        """Read the response for only a moment longer, because the client has cancelled the request.

        In that time the server may cancel its own requests to the client.
        """
        self._is_abandoned = True
        self._scope.deadline = trio.current_time() + _FAREWELL

    def lose(self, error: MCPError) -> None:
        """Close the response, so that the client's call fails with ``error``."""
        self._lost = error
        self._scope.cancel(reason=str(error))

    async def run(self, places: trio.Semaphore) -> None:
        """Wait until ``places`` allows one more concurrent request, send the request, and read the response to its
        end."""
        error: MCPError | None = None
        with self._scope:
            try:
                await self._exchange(places)
            except MCPError as raised:
                error = raised
        error = error or self._lost
        if error is None and self._scope.cancelled_caught and not (self._is_closed or self._is_abandoned):
            error = HTTPError(None, f"the server did not answer within {self._timeout:g} s")
        if error is not None:
            error.__traceback__ = error.__context__ = error.__cause__ = None
            self._endpoint.inbox.put(ReplyLost(self._id, error))

    async def _exchange(self, places: trio.Semaphore) -> None:
        endpoint, message = self._endpoint, self._message
        if not self.is_modern and message.method != "initialize":
            self.session = await endpoint.sessions.wait_opened()
        async with places:
            if not self.is_modern:
                await self._ask(endpoint.headers.in_session(self.session))
            elif message.method == "tools/call":
                await self._ask_with_arguments(endpoint.headers.of_message(message))
            else:
                await self._ask(endpoint.headers.of_message(message))

    async def _ask_with_arguments(self, headers: Headers) -> None:
        """Send a tool call. Repeat it once if the server replies that headers don't match the arguments.

        Before that, list the tools again. Repeat the call only if the tool now requires other headers (2026-07-28
        Streamable HTTP, Client Behavior).
        """
        endpoint, call = self._endpoint, self._message
        mirrored = endpoint.tools.of_call(call)
        try:
            await self._ask(headers + mirrored)
            return
        except StatusPeerError as error:
            if error.code != HEADER_MISMATCH:
                raise
            await list_tools(endpoint, call)
            if endpoint.tools.of_call(call) == mirrored:
                raise
        await self._ask(headers + endpoint.tools.of_call(call))

    async def _ask(self, headers: Headers) -> None:
        """Send the request, and return when its reply was delivered. If there is no reply, raise the error for the
        call."""
        events = self._endpoint.event_reader()
        try:
            async with self._endpoint.post(self._message, headers, self._seen) as reply:
                self._status = reply.status
                if is_good(reply) and self._endpoint.sessions.is_by_sse:
                    await self._by_sse(reply, events)
                    return
                if content_type(reply) != EVENT_STREAM or not is_good(reply):
                    await self._whole(reply)
                    return
                if await self._has_replied(reply, events):
                    return
            broken = "the response stream ended without a reply"
        except ConnectionLost as error:
            broken = error.reason
        if self.is_modern or self._is_abandoned or not cursor_of(events):
            raise HTTPError(self._status, broken)
        await self._reconnect(events, broken)

    def _seen(self, is_seen: bool) -> None:
        self.is_sent = is_seen
        if self._timeout < math.inf and not self._is_abandoned:
            self._scope.deadline = trio.current_time() + self._timeout if is_seen else math.inf
        if self._is_abandoned and not is_seen:
            # Don't prompt the user to sign in for a request that the client has abandoned.
            self._scope.cancel(reason="nobody waits for the reply")

    async def _by_sse(self, reply: Reply, events: EventReader) -> None:
        """Read the response to a POST over HTTP+SSE.

        The reply should arrive on the server's stream, but some servers send it in the response.
        """
        try:
            if content_type(reply) == EVENT_STREAM:
                await self._has_replied(reply, events)
            else:
                await self._whole(reply)
        except (ConnectionLost, HTTPError, UnreadableAnswer) as error:
            logger.debug("the response to the POST contains no reply: %s", error)

    async def _whole(self, reply: Reply) -> None:
        """Read a response that isn't an event stream, and deliver the reply that it contains."""
        if not is_good(reply):
            error = await refusal(reply, self._id)
            self._note_lost_session(error)
            raise error
        kind, limit = content_type(reply), self._endpoint.limits.max_message_bytes
        first = b""
        if kind != JSON:
            first = await _beginning(reply)
            if not is_object(first) or len(first) > limit:
                raise HTTPError(reply.status, _not_a_reply(reply.status, kind, first), body_text(first))
        try:
            body = first + await reply.read(limit - len(first))
        except BodyTooLong:
            raise UnreadableAnswer(f"{self._message.method}: the response is longer than {limit} bytes") from None
        body = body.removeprefix(BOM_UTF8)
        if not body.strip():
            raise HTTPError(reply.status, _not_a_reply(reply.status, kind, b""))
        if not self._arrived(reply, body):
            raise HTTPError(reply.status, "the response contains no reply to the request")

    def _note_lost_session(self, error: HTTPError | StatusPeerError) -> None:
        """If ``error`` means that the server has lost the session, record the loss, and set ``error.session_lost``."""
        if self._endpoint.loses(self.session, error) and isinstance(error, HTTPError):
            error.session_lost = True

    def _arrived(self, reply: Reply, data: bytes) -> bool:
        """Deliver the message in ``data``. Return whether it is the reply to this request: see `deliver_frame`."""
        frame = self._endpoint.frame(data, self._id)
        if self._message.method == "initialize" and not self._endpoint.sessions.is_by_sse:
            session = session_of(frame.message, self._message, reply.headers.get("mcp-session-id"))
            if session is not None:
                self.session = session
                self._endpoint.sessions.start(session)
        elif isinstance(message := frame.message, ErrorResponse) and message.code == SESSION_NOT_FOUND:
            self._note_lost_session(StatusPeerError(message.code, message.message, message.data, reply.status))
        elif isinstance(message, Response | ErrorResponse):
            self._endpoint.sessions.unanswered = 0
        return deliver_frame(self._endpoint, frame, self._message, self.session)

    # Streams

    async def _has_replied(self, reply: Reply, events: EventReader) -> bool:
        """Read an event stream until the reply arrives or the stream ends. Return whether the reply has arrived."""
        while chunk := await reply.receive_some():
            try:
                found = events.feed(chunk)
            except EventTooLong as error:
                raise UnreadableAnswer(f"{self._message.method}: {error}") from None
            for event in found:
                if event.name == "endpoint" and self.session is None:
                    raise EndpointEvent(
                        reply.status,
                        "the server uses HTTP+SSE (2024-11-05): it answered a POST with the event stream of HTTP+SSE",
                    )
                if event.name != "message" or not event.data:
                    continue
                self._received_count += 1
                if self._arrived(reply, event.data):
                    await _finish(reply)
                    return True
            await self._endpoint.inbox.wait_for_room()
        return False

    async def _reconnect(self, events: EventReader, broken: str) -> None:
        """Reconnect to a broken response stream to receive the rest of it, several times if necessary.

        See 2025-11-25 transports, Resumability and Redelivery.
        """
        backoff = Backoff()
        unanswered = 0
        while unanswered < _MOST_IN_VAIN:
            await backoff.pause(events.retry)
            events.drop_unfinished()
            began, brought = trio.current_time(), self._received_count
            cursor = cursor_of(events)
            try:
                async with self._endpoint.get(self.session, cursor, MaySignIn.ALWAYS) as reply:
                    self._status = reply.status
                    if not is_good(reply):
                        error = await refusal(reply, None)
                        if not is_passing(reply.status):
                            self._note_lost_session(error)
                            raise error
                        backoff.record_refusal(reply.headers)
                        broken = str(error)
                        unanswered += 1
                        continue
                    if content_type(reply) != EVENT_STREAM:
                        first = await _beginning(reply)
                        raise HTTPError(reply.status, _not_a_reply(reply.status, content_type(reply), first))
                    unanswered = 0
                    if await self._has_replied(reply, events):
                        return
            except ConnectionLost as error:
                broken = error.reason
                unanswered += 1
            backoff.record_end(began, has_brought=self._received_count > brought)
        raise HTTPError(
            self._status, f"the connection broke during the response, and the server did not send the rest: {broken}"
        )


def _not_a_reply(status: int, kind: str, body: bytes) -> str:
    if status == HTTPStatus.ACCEPTED:
        return "the server has accepted a request (HTTP status 202), and will not answer"
    if not body.strip():
        return f"the server answered with HTTP status {status} and an empty body"
    given = f"the Content-Type {kind[:100]}" if kind else "no Content-Type"
    return f"the server answered with HTTP status {status} and {given}; it must be {JSON} or {EVENT_STREAM}"


async def _beginning(reply: Reply) -> bytes:
    """Return the beginning of the response body, to quote it in an error message."""
    body = b""
    while len(body) < _MOST_WORDS and (chunk := await reply.receive_some()):
        body += chunk
    return body


async def _finish(reply: Reply) -> None:
    """Read the rest of a stream after its reply, and ignore it, so that the HTTP connection can be reused."""
    with trio.move_on_after(_LINGER):
        try:
            while await reply.receive_some():
                pass
        except ConnectionLost:
            return


def session_of(message: object, request: OutboundFrame, session_id: str | None) -> Session | None:
    """Return the session that the server has opened. ``message`` is its reply to ``initialize``.

    ``request`` is the ``initialize`` request, and ``session_id`` the id of the session.

    The id is `None` if the server keeps no session. Returns `None` if the message names no revision that we support.
    Raises `HTTPError` for an id that a header can't contain.
    """
    if not isinstance(message, Response):
        return None
    version: Any = as_object(with_version(message.result, request.params.get("protocolVersion"))).get("protocolVersion")
    return Session(session_id, version) if isinstance(version, str) and version in REVISIONS else None


_MOST_PAGES: Final = 1000


async def list_tools(endpoint: Endpoint, call: OutboundFrame) -> None:
    """List the server's tools again to learn which headers they require. Stop when the server doesn't reply.

    The requests have the same ``_meta`` as ``call``. Their ids are strings, to differ from the ids of all other
    requests, which are numbers.
    """
    meta = {key: value for key, value in call.params["_meta"].items() if key != PROGRESS_TOKEN}
    params: JSONObject = {"_meta": meta}
    seen = set[int]()
    for page in range(_MOST_PAGES):
        request = OutboundFrame.request(f"tools of {call.id}, page {page}", "tools/list", params)
        try:
            result = await _ask_for_tools(endpoint, request)
        except (AuthorizationError, ConnectionLost, EventTooLong) as error:
            logger.info("the tools could not be listed again: %s", error)
            return
        cursor = next_cursor(result, seen)
        if cursor is None:
            return
        params = {"_meta": meta, "cursor": cursor}


async def _ask_for_tools(endpoint: Endpoint, request: OutboundFrame) -> Any:
    async with endpoint.post(request, endpoint.headers.of_message(request)) as reply:
        if is_good(reply):
            for line in await _lines_of_answer(endpoint, reply):
                message = decode(line)
                if isinstance(message, Response) and message.id == request.id:
                    endpoint.tools.learn_reply(message)
                    return message.result
    return None


async def _lines_of_answer(endpoint: Endpoint, reply: Reply) -> list[bytes]:
    """Read the response to its end, and return all messages in it as JSON."""
    body = await reply.read(endpoint.limits.max_message_bytes)
    if content_type(reply) != EVENT_STREAM:
        return [body.removeprefix(BOM_UTF8)]
    return [event.data for event in endpoint.event_reader().feed(body)]
