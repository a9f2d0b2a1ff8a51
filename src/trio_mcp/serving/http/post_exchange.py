"""PostExchange is the exchange of one POST, an `HttpRequest` that an endpoint has admitted. Its first line decides on
the form of the answer: JSON, or a stream. A `PostedConnection` is a connection whose messages come in POSTs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs
import trio

from ...concurrency.fair_share import Caller
from ...jsonrpc.errors import INVALID_REQUEST, METHOD_NOT_FOUND, TOO_BUSY
from ...runtime.cancellation import CancelCause
from ...runtime.connection import Connection
from ...runtime.exchange import Exchange, PartExchange
from ...runtime.outbox import Outbox, Owner
from ...runtime.peer import Auth, CheckScopes, Headers, Peer, PrincipalId
from ...runtime.transport import Transport
from ...server.served import Running, connection_to
from ...state.connection import ConnectionState
from ...state.events import Event
from ...transports.http.application import Answer, Response
from ...transports.http.requests import RequestHead
from ..callers import LacksScopes
from .answers import JSON_HEADERS, RETRY_AFTER, json_status, lines_of, status_of_refusal, unavailable

if TYPE_CHECKING:
    from ...auth.resource_server.refusals import Refusal
    from ...state.requests import InboundRequest


@attrs.define(eq=False)
class HttpRequest:
    """A request, and the way back."""

    head: RequestHead
    body: bytes = attrs.field(repr=False)
    response: Response
    extra: bytes
    """Headers of any answer."""
    auth: Auth | None
    """The caller; `None` where the endpoint is not protected."""
    principal: PrincipalId | None
    """The name of the caller."""
    caller: Caller
    """The party whose share of the bounds the request takes."""
    check_scopes: CheckScopes | None = None
    """The check of what the caller may do, where the endpoint is protected."""

    def peer(self, session_id: str | None = None) -> Peer:
        """Return the caller as handlers see callers."""
        headers = Headers.of_lower_case(self.head.headers)
        return Peer(session_id, headers, self.principal, self.auth, self.caller, check_scopes=self.check_scopes)


class PostExchange(PartExchange):
    """The exchange of ``posted``, a part of ``connection`` that ends with its reply: a single JSON answer when the
    reply is the first line, else a stream of events (`open_stream`).

    A request that is cancelled gets no reply. Its stream ends without a message (DESIGN ruling 1), and where no stream
    was opened, an empty one is; where the server ends, status 503.
    """

    __slots__ = ("_refusal", "_was_silent", "extra", "is_over", "is_stream", "request", "response")

    def __init__(
        self, connection: Exchange, posted: HttpRequest, high_water: int, session_id: str | None = None
    ) -> None:
        super().__init__(connection, Outbox(high_water), posted.peer(session_id))
        self.outbox.call_writer(self.open_stream)
        self.request: InboundRequest | None = None
        """The request of this POST; `None` for a batch, and before a request is read."""
        self.response = posted.response
        self.extra = posted.extra
        self.is_stream = False
        """True once the answer is a stream."""
        self.is_over = False
        """True once the reply was given, or none comes any more."""
        self._was_silent = False
        self._refusal: Refusal | None = None
        """The refusal of the request, where its caller lacks a scope."""

    def take_up(self, request: InboundRequest) -> None:
        """Note the request of this POST."""
        self.request = request

    @abstractmethod
    def leave(self) -> None:
        """Note that the exchange is over. Called once, before the end is in the answer."""

    @abstractmethod
    def open_stream(self) -> None:
        """Make the answer a stream, which the lines in the outbox go to."""

    @abstractmethod
    def end_stream(self) -> None:
        """End the stream behind the last line in the outbox."""

    def comment(self) -> None:
        """Send a comment on the stream, where nothing was sent for a while."""

    def break_silence(self) -> None:
        """Make a request that was silent since the last call a stream, or send a comment there. To be called twice in
        the longest time of silence."""
        if self.is_stream:
            self.comment()
        elif self._was_silent:
            self.commit()
        self._was_silent = True

    def commit(self) -> None:
        """Make the answer a stream, unless it is one or was given."""
        if not (self.is_stream or self.is_over):
            self.open_stream()

    # Replies

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        if self.is_over:
            return
        if line is None:
            self.commit()
        elif not self.is_stream:
            code = None if self.request is None or self.request.error is None else self.request.error.code
            if self._refusal is not None and code == INVALID_REQUEST:
                self.answer(self._refusal.status, line, lines_of(self._refusal))
            else:
                self.answer(self.status_of(code), line)
            return
        else:
            self.outbox.put(line, owner)
        self.end()
        self.end_stream()

    def check_scopes(self, needed: frozenset[str]) -> None:
        """Raise `CodedError` for a caller who lacks a scope; the answer has a status of its own then."""
        try:
            super().check_scopes(needed)
        except LacksScopes as error:
            self._refusal = error.refusal
            raise

    def status_of(self, code: int | None) -> HTTPStatus:
        """Return the status for a reply in JSON: see `json_status`."""
        return json_status(code)

    def end(self) -> None:
        """End the exchange, unless it is over: nothing more comes."""
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
            self.refuse(code, line)  # the server, as it is, has no such method
        else:
            self.reply(line)

    def refuse(self, code: int, line: bytes) -> None:
        self.answer(status_of_refusal(code), line)

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        """Give the whole answer: the JSON text ``line``, with ``more`` headers."""
        self.end()
        self.response.answer(Answer(status, JSON_HEADERS + self.extra + more, line[:-1]))

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        if self.is_over or request is not self.request:
            return
        if cause is CancelCause.SHUTDOWN and not self.is_stream:
            self.end()
            self.response.answer(unavailable("the server is shutting down", self.extra), close=True)
        else:
            self.reply(None)


class PostedConnection:
    """A connection to ``running``. What no request asked for goes to ``transport``, by which no message comes.
    ``state`` rules on the messages; a connection's own state by default."""

    def __init__(
        self, running: Running, transport: Transport, peer: Peer, state: ConnectionState | None = None
    ) -> None:
        self._connection = connection_to(running, transport, peer, state)
        self.duplex: Connection = self._connection.duplex
        self.state = self.duplex.state
        self.exchange: Exchange = self.duplex.exchange
        self.ended = trio.Event()
        """Event set when the last request is over."""
        self._early: list[Callable[[], None]] | None = []
        """Events from before the start of the connection; `None` from then on."""

    async def run(self) -> None:
        """Serve until the connection ends. See `Connection.run`."""
        try:
            await self._connection.run(task_status=self)
        finally:
            self._early = None
            self.ended.set()

    def started(self, value: None = None) -> None:
        """Carry out the events from before the start."""
        early, self._early = self._early or [], None
        for each in early:
            each()

    @property
    def is_over(self) -> bool:
        """True once the connection is over, or takes no requests any more although the server goes on."""
        return self.ended.is_set() or self.duplex.is_ending

    def take(self, event: Event, body: bytes, exchange: Exchange) -> None:
        """Carry out ``event``, which ``body`` brought by ``exchange``. Synchronous."""
        if self._early is None:
            self.duplex.take(event, body, exchange)
        else:
            self._early.append(partial(self.duplex.take, event, body, exchange))

    def everything_changed(self) -> None:
        """Tell the client that everything may have changed: see `ServedConnection.everything_changed`."""
        self._connection.everything_changed()
