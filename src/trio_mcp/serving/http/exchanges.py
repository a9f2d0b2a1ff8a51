"""PostExchange: one POST request and its response. The first line to be sent decides whether the response is JSON or an
event stream. `FedConnection` is an MCP connection whose messages arrive in POST requests."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs
import trio

from ...classes import define
from ...concurrency.fair_share import Caller
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, TOO_BUSY
from ...jsonrpc.messages import Batch, Message, Notification, Request
from ...protocol.errors import MISSING_REQUIRED_CLIENT_CAPABILITY
from ...runtime.cancellation import CancelCause
from ...runtime.connection import Connection
from ...runtime.exchange import Exchange, PartExchange
from ...runtime.outbox import Outbox, Owner, dropping_outbox
from ...runtime.peer import Auth, CheckScopes, Headers, Peer, PrincipalId
from ...server.servable import Running, connection_to, scopes_of
from ...state.connection import ConnectionState
from ...state.events import Event
from ...transports.http.application import Answer, RequestHead, ResponseHandle
from ...transports.sse import STREAM_HEADERS, events
from ..callers import InsufficientScope, insufficient_scope
from .responses import JSON, JSON_HEADERS, RETRY_AFTER, STREAM, empty, error, lines_of, status_of_refusal, unavailable

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate
    from ...auth.resource_server.refusals import Refusal
    from ...state.requests import InboundRequest

logger = logging.getLogger("trio_mcp")


@define(eq=False)
class HttpRequest:
    """An admitted HTTP request to the MCP endpoint, and the response to it."""

    head: RequestHead
    body: bytes = attrs.field(repr=False)
    response: ResponseHandle
    extra: bytes
    """Headers that every response to the request gets."""
    auth: Auth | None
    """The authenticated caller, or `None` if the endpoint is unprotected."""
    principal: PrincipalId | None
    """The principal of the caller, which identifies a user or a client. `None` without authentication."""
    caller: Caller
    """The caller whose limits the request counts towards."""
    check_scopes: CheckScopes | None = None
    """Function that checks the caller's scopes, if the endpoint is protected."""

    def peer(self, session_id: str | None = None) -> Peer:
        """Return the client that sent the request, as a `Peer`. ``session_id`` is the id of its connection or
        session."""
        headers, user = Headers.of_lower_case(self.head.headers), self.response.client.user
        return Peer(
            session_id, headers, self.principal, self.auth, self.caller, check_scopes=self.check_scopes, user=user
        )

    def fail(self) -> None:
        """Log the current exception, a bug in this package, which must affect only this request. Respond with status
        500, unless a response was already started."""
        logger.exception("an HTTP request failed")
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        self.response.answer(error(status, INTERNAL_ERROR, "Internal error", self.extra))


def refuses_scopes(running: Running, gate: Gate, message: Message | Batch, posted: HttpRequest) -> bool:
    """Refuse the request and return true, if the caller lacks an OAuth scope that ``message`` needs.

    This happens early, because the HTTP status can't be chosen later.
    """
    needed = frozenset[str]()
    if isinstance(message, Request | Notification):
        needed = scopes_of(running, message.method, message.params, posted.auth)
    elif isinstance(message, Batch):  # check all scopes at once, so that the client prompts its user only once
        requests = [member for member in message.members if isinstance(member, Request | Notification)]
        needed = needed.union(*(scopes_of(running, each.method, each.params, posted.auth) for each in requests))
    if not needed or posted.auth is None or (refusal := gate.missing(posted.auth, needed)) is None:
        return False
    fault, extra = insufficient_scope(refusal, needed), lines_of(refusal) + posted.extra
    request_id = message.id if isinstance(message, Request) else None
    posted.response.answer(error(refusal.status, fault.code, fault.message, extra, request_id, fault.data))
    return True


class PostExchange(PartExchange):
    """A POST request (``posted``) and its response, from admission until the response is complete.

    If the reply is the first line to be sent, the response is JSON. Otherwise it is a stream of events (`open_stream`).

    A cancelled request gets no reply. Its stream ends without a message (ruling 1). If no stream was opened, the answer
    is an empty stream, or status 503 if the server is shutting down.
    """

    __slots__ = ("_refusal", "_was_silent", "accepts", "extra", "is_over", "is_stream", "request", "response")

    def __init__(
        self,
        connection: Exchange,
        posted: HttpRequest,
        request: InboundRequest | None,
        high_water: int,
        session_id: str | None = None,
    ) -> None:
        super().__init__(connection, Outbox(high_water), posted.peer(session_id))
        self.outbox.call_writer(self.open_stream)
        self.request = request
        """The JSON-RPC request in this POST, or `None` for a batch and for other messages."""
        self.response = posted.response
        self.extra = posted.extra
        self.accepts = posted.head.accepts
        """The only media type that the client accepts, `JSON` or `STREAM`. `None` if it accepts both."""
        self.is_stream = False
        """Whether the response is a stream of events."""
        self.is_over = False
        """Whether the reply was sent, or will never be sent."""
        self._was_silent = False
        self._refusal: Refusal | None = None
        """The refusal of the request, if its caller lacks a scope."""
        if self.accepts is not None and self.accepts == JSON:
            self.send_no_stream()

    def send_no_stream(self) -> None:
        """From now on, discard all messages except the reply, because the client accepts only JSON."""
        self.outbox.close()

    @abstractmethod
    def leave(self) -> None:
        """Release the resources of the request, because its response is complete.

        Called once, before the last bytes of the response are sent.
        """

    @abstractmethod
    def open_stream(self) -> None:
        """Turn the response into an event stream, which sends the messages in the outbox."""

    @abstractmethod
    def end_stream(self) -> None:
        """End the event stream after sending the last message in the outbox."""

    def comment(self) -> None:
        """Send a keep-alive comment on the event stream, if nothing was sent since the last call of this method."""

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment, if nothing was sent since the last call of this method.

        If the response isn't a stream yet, make it a stream. Call this twice within the longest allowed silence.
        """
        if self.is_stream:
            self.comment()
        elif self._was_silent:
            self.commit()
        self._was_silent = True

    def commit(self) -> None:
        """Turn the response into an event stream, unless it is already a stream, is already complete, or must be
        JSON."""
        if not (self.is_stream or self.is_over or self.accepts == JSON):
            self.open_stream()

    # Replies

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        if self.is_over:
            return
        if self.is_stream:
            if line is not None:
                self.outbox.put(line, owner)
            self.close()
            self.end_stream()
            return
        if line is None:
            self.end_unanswered()
            return
        code = None if self.request is None or self.request.error is None else self.request.error.code
        if code is None:
            self.answer(HTTPStatus.OK, line)
        elif self._refusal is not None and code == INVALID_REQUEST:
            self.answer(self._refusal.status, line, lines_of(self._refusal))
        else:
            status = self.status_of(code)
            self.answer(status, line, RETRY_AFTER if status is HTTPStatus.SERVICE_UNAVAILABLE else b"")

    def end_unanswered(self) -> None:
        """End the response without any message, because the request gets no JSON-RPC reply.

        If the response is a stream, it has no event id, so that the client doesn't try to resume it.
        """
        self.close()
        if self.accepts == JSON:
            self.response.answer(empty(HTTPStatus.NO_CONTENT, self.extra))
        else:
            self.response.answer(Answer(HTTPStatus.OK, STREAM_HEADERS + self.extra, b""))

    def check_scopes(self, needed: frozenset[str]) -> None:
        """Raise `CodedError` if the caller lacks one of the ``needed`` scopes.

        The response then gets the HTTP status for that error.
        """
        try:
            super().check_scopes(needed)
        except InsufficientScope as error:
            self._refusal = error.refusal
            raise

    def status_of(self, code: int) -> HTTPStatus:
        """Return the HTTP status for a JSON reply in which a handler reports an error with this ``code``.

        A handler's errors are ordinary replies: if a handler passes on error -32601 from another server, this server's
        method isn't missing. 2026-07-28 basic, Per-request protocol fields: a missing capability is 400 wherever it is
        found.
        """
        return HTTPStatus.BAD_REQUEST if code == MISSING_REQUIRED_CLIENT_CAPABILITY else HTTPStatus.OK

    def close(self) -> None:
        """Mark the request as complete, and release its resources. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self.leave()

    def reply_at_once(self, line: bytes | None) -> None:
        request = self.request
        code = None if line is None or request is None or request.error is None else request.error.code
        if line is None or request is None or code is None:
            self.reply(line)
        elif code == TOO_BUSY:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, line, RETRY_AFTER)
        elif code == METHOD_NOT_FOUND and not request.revision.handshake:
            self.refuse(code, line)  # the server itself lacks this method, so use an error status
        else:
            self.reply(line)

    def refuse(self, code: int, line: bytes) -> None:
        self.answer(status_of_refusal(code), line)

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        """Send ``line`` as the complete response to the POST. ``more`` contains additional headers.

        The line is sent as JSON, or as the only event of a stream if the client accepts only streams.
        """
        if not self.is_over:
            self.is_over = True
            self.leave()
        if self.accepts is not None and self.accepts == STREAM and status == HTTPStatus.OK:
            self.response.stream(status, STREAM_HEADERS + self.extra + more, FinishedStream(events(line)))
        else:
            self.response.answer(Answer(status, JSON_HEADERS + self.extra + more, line))

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        if self.is_over or request is not self.request:
            return
        if cause is CancelCause.SHUTDOWN and not self.is_stream:
            self.close()
            self.response.answer(unavailable("the server is shutting down", self.extra), close=True)
        else:
            self.reply(None)


class FinishedStream:
    """A response body that sends ``events``, all of which are already known: see `ResponseBody`."""

    def __init__(self, events: bytes) -> None:
        self._events = events

    async def next_chunk(self) -> bytes:
        """Return all events in the first call, and empty bytes afterwards."""
        await trio.lowlevel.checkpoint()
        events, self._events = self._events, b""
        return events


class FedConnection:
    """An MCP connection of ``peer`` to ``running`` (the running server). The client sends its messages in POST
    requests.

    Messages that don't belong to a request go to ``outbox``. Without an outbox they are dropped, because 2026-07-28
    allows them only in streams of ``subscriptions/listen``.
    """

    def __init__(
        self, running: Running, peer: Peer, outbox: Outbox | None = None, state: ConnectionState | None = None
    ) -> None:
        outbox = outbox or dropping_outbox(running.limits.high_water)
        self.served = connection_to(running, outbox, peer, state)
        self.connection: Connection = self.served.connection
        self.state = self.connection.state
        self.exchange: Exchange = self.connection.exchange
        self.ended = trio.Event()
        """Event that is set when the last request has ended. From then on `Exchange.ending` is set as well."""
        self._early: list[tuple[Event, bytes, Exchange]] = []
        self._is_started = False
        self._end_early: Callable[[], None] | None = None
        self.feed: Callable[[Event, bytes, Exchange], None] = partial(_queue_event, self._early)
        """Function that processes an event from a body that belongs to an exchange: see `Connection.process_event`.
        Events that arrive before the connection has started are queued."""

    async def run(self) -> None:
        """Serve the connection until it ends. See `Connection.run`."""
        try:
            await self.served.run(task_status=self)
        finally:
            self.exchange.ending.set()
            self.ended.set()

    def started(self, value: None = None) -> None:
        """Process the messages that arrived before the connection started."""
        self._is_started = True
        self.feed = self.connection.process_event
        for event in self._early:
            self.feed(*event)
        self._early.clear()
        if self._end_early is not None:
            self._end_early()

    def shut_down(self, reason: str, *, drain_timeout: float | None = None, hurry: bool = False) -> None:
        """Close the connection as soon as all its requests have ended.

        Requests that arrived before the connection was started are still processed. See `Connection.shut_down`.
        """
        end = partial(self.connection.shut_down, reason, drain_timeout=drain_timeout, hurry=hurry)
        if self._is_started:
            end()
        else:
            self._end_early = end


def _queue_event(early: list[tuple[Event, bytes, Exchange]], event: Event, body: bytes, exchange: Exchange) -> None:
    early.append((event, body, exchange))
