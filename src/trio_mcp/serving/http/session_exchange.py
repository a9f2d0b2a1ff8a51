"""ClientSession is what all kinds of legacy sessions have in common: one client, whose messages come in POSTs.
`SessionExchange` is the exchange of one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Protocol
from weakref import ref

import trio

from ...concurrency.fair_share import Caller
from ...jsonrpc.messages import Batch, Message, Request, Unreadable
from ...runtime.exchange import ClientChannel
from ...runtime.outbox import Outbox
from ...runtime.peer import Peer
from ...runtime.transport import ConnectionLost
from ...server.servable import Running
from ...state.connection import ConnectionState
from ...state.events import Refused, RequestReceived
from ...transports.http.application import ResponseHandle
from .exchanges import FedConnection, HttpRequest, PostExchange
from .responses import empty, status_of_refusal

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarm
    from ...state.requests import InboundRequest


class ResumableStream(Protocol):
    """The lines of one outbox on their way to a client, which may come back for them."""

    @property
    def is_open(self) -> bool:
        """True while a response takes the lines."""
        ...

    def attach(self, response: ResponseHandle, extra: bytes, *, retry: float | None = None) -> object:
        """Send the stream by ``response``, with ``extra`` headers. ``retry``: seconds after which the client shall come
        back when the response ends early."""
        ...

    def detach(self) -> None:
        """Keep the lines, since no response takes them."""
        ...

    def close_response(self, retry: float) -> bool:
        """End the response, but not the stream: the client shall come back after ``retry`` seconds. Return false when
        there is no response, or the client has no id to come back with."""
        ...

    def finish(self, keep_until: float) -> None:
        """End the stream behind the last line. Its events are kept until ``keep_until``, about."""
        ...

    def send_keep_alive(self) -> None:
        """Send a comment, unless something was sent since the last call."""
        ...


class _StandaloneChannel:
    """The way to the client of ``session`` for lines that belong to no request, into ``outbox``: a `ClientChannel`,
    which does not keep the session."""

    def __init__(self, session: ClientSession, outbox: Outbox) -> None:
        self._session = ref(session)
        self.outbox = outbox

    @property
    def is_open(self) -> bool:
        session = self._session()
        return session is not None and session.is_listened_to


class ClientSession(ABC):
    """One legacy client: its connection, whose messages come in POSTs. ``peer`` opened the session, or came to it first
    in this process; ``state`` rules on the messages, a connection's own by default. ``on_end`` is called with the
    session when it ends, before its client learns of that; requests may still clean up then."""

    def __init__(
        self,
        running: Running,
        session_id: str,
        peer: Peer,
        caller: Caller,
        retry_interval: float,
        on_end: Callable[[ClientSession], object],
        state: ConnectionState | None = None,
    ) -> None:
        limits = running.limits
        self.id = session_id
        self.principal = peer.principal
        self.caller = caller
        """The session as a part of the party that opened it. Its requests use the share of this party."""
        self._limits = limits
        self._on_end = on_end
        self.retry_interval = retry_interval
        """Seconds after which the client shall come back when a response breaks."""
        self.posts: dict[SessionExchange, None] = {}
        """The POSTs that are not answered."""
        self._outbox = Outbox(limits.high_water)
        """The lines that belong to no request, for the stream that the client asks for with GET."""
        self._connection = FedConnection(running, peer, self._outbox, state)
        self.exchange = self._connection.exchange
        """The exchange that holds the requests of all POSTs."""
        self.high_water = limits.high_water
        # An answer may be refused by a proxy in front, for example, and its client may tell nobody.
        self._connection.connection.outbound.answer_timeout = limits.answer_timeout
        self.client_channel: ClientChannel = _StandaloneChannel(self, self._outbox)
        """The way for lines that belong to no request."""
        self._is_draining = False
        self.is_confirmed = False
        """True once the client has used its session."""
        self.used_at = trio.current_time()
        """Time at which the client was last seen, as exact as `expire` is called often."""

    @abstractmethod
    async def run(self) -> None:
        """Serve until the session ends."""

    # The end

    def close(self, reason: str) -> None:
        """End the session: its client is gone, and so are its requests."""
        self._on_end(self)
        self._connection.connection.lose(ConnectionLost(reason))

    def shut_down(self, reason: str, *, drain_timeout: float | None = None, hurry: bool = False) -> None:
        """End when the requests are done: see `Connection.shut_down`."""
        self._is_draining = True
        self._connection.shut_down(reason, drain_timeout=drain_timeout, hurry=hurry)

    @abstractmethod
    def expire(self, now: float) -> None:
        """End what nobody has used for too long. To be called about every second."""

    def send_keep_alive(self) -> None:
        """Have responses that were silent send comments."""
        for post in tuple(self.posts):
            post.send_keep_alive()

    async def ended(self) -> None:
        """Wait until the last request is over."""
        await self._connection.ended.wait()

    @property
    def is_over(self) -> bool:
        """True when the session takes no more messages. While our side shuts down, the answers to questions come."""
        connection = self._connection
        return connection.exchange.ending.is_set() and not (self._is_draining and connection.connection.lost is None)

    @property
    @abstractmethod
    def is_listened_to(self) -> bool:
        """True while a response takes the lines that belong to no request."""

    @abstractmethod
    def get(self, asked: HttpRequest) -> None:
        """Answer a GET: with the stream that a cursor names, or the one of messages that belong to no request."""

    @abstractmethod
    def delete(self, asked: HttpRequest) -> None:
        """Answer a DELETE: end the session."""

    # Messages

    def post(self, message: Message | Batch, posted: HttpRequest, *, opens: bool = False) -> None:
        """Take a message, or a batch, that was ``posted``."""
        posted.caller = self.caller
        self.used_at = trio.current_time()
        self.is_confirmed = self.is_confirmed or not opens
        connection = self._connection
        event = connection.state.receive(message)
        if not (type(message) is Request or type(event) is Refused or _expects_reply(message)):
            connection.feed(event, posted.body, connection.exchange)
            self._accept(posted)
            return
        request = event.request if type(event) is RequestReceived else None
        exchange = self._exchange(posted, request, opens=opens)
        self.posts[exchange] = None
        connection.feed(event, posted.body, exchange)

    def _accept(self, posted: HttpRequest) -> None:
        """Confirm a message that gets no reply."""
        posted.response.answer(empty(HTTPStatus.ACCEPTED, posted.extra))

    @abstractmethod
    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        """Return the exchange for what was ``posted``."""

    def fail_question(self, message: Unreadable, body: bytes) -> None:
        """Fail the request of ours that ``message`` was meant to answer, if it was, or may have been."""
        self.used_at = trio.current_time()
        if message.is_answer or (message.may_be_answer and self._connection.state.outbound):
            self._connection.feed(self._connection.state.receive(message), body, self._connection.exchange)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """Return the alarm for a request that is to be a stream before long."""
        return self._connection.connection.host.alarms.set(trio.current_time() + self._limits.priming_delay, ring)

    # Streams

    @abstractmethod
    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> ResumableStream:
        """Return a stream for the lines of ``exchange``."""

    def finish(self, stream: ResumableStream) -> None:
        """End a stream. Its events are kept for a while."""
        stream.finish(trio.current_time() + self._limits.replay_timeout)

    @property
    def _polls(self) -> bool:
        revision = self._connection.state.revision
        return revision is not None and revision.polling

    def send_late_lines(self, outbox: Outbox) -> None:
        """Have lines that are put into ``outbox`` from now on sent with the lines that belong to no request: a handler
        that was cancelled takes back a question when the stream of its request is over."""

        # The outbox keeps what it calls: neither itself nor the session, or the collector would have to find them.
        late, free = ref(outbox), self._outbox

        def pass_on() -> None:
            outbox = late()
            while outbox is not None and (lines := outbox.take_nowait()):
                free.put(bytes(lines))

        outbox.call_writer(pass_on)


def _expects_reply(message: Message | Batch) -> bool:
    return isinstance(message, Batch) and any(isinstance(each, Request | Unreadable) for each in message.members)


class SessionExchange(PostExchange):
    """The exchange of a POST of ``session``. The client's going away is no cancel (2025-11-25 transports, Sending
    Messages to the Server): the lines are kept, and the client may come back for them."""

    __slots__ = ("_alarm", "_session", "_stream")

    may_prime: ClassVar[bool] = True
    """True where the client knows the session, and so can come back to a stream."""

    def __init__(self, session: ClientSession, posted: HttpRequest, request: InboundRequest | None) -> None:
        self._session = session
        self._stream: ResumableStream | None = None
        self._alarm: Alarm | None = None
        super().__init__(session.exchange, posted, request, session.high_water, session.id)
        if self.may_prime and request is not None and request.revision.polling:
            self._alarm = session.alarm(self.commit)

    @property
    def client_channel(self) -> ClientChannel:
        return self._session.client_channel

    @property
    def is_open(self) -> bool:
        return not self.response.is_gone if self._stream is None else self._stream.is_open

    def send_no_stream(self) -> None:
        if self._session.is_listened_to:
            self._session.send_late_lines(self.outbox)
        else:
            super().send_no_stream()

    def open_stream(self) -> None:
        self.is_stream = True
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None
        polls = self.request is not None and self.request.revision.polling
        self._stream = self._session.open_stream(self, primes=polls)
        if self.response.is_gone:
            self._stream.detach()
        else:
            self._stream.attach(self.response, self.extra, retry=self._session.retry_interval if polls else None)

    def end_stream(self) -> None:
        assert self._stream is not None, "it was opened before"
        self._session.finish(self._stream)

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        super().answer(status, line, more)
        self._session.send_late_lines(self.outbox)

    def end_unanswered(self) -> None:
        super().end_unanswered()
        self._session.send_late_lines(self.outbox)

    def leave(self) -> None:
        self._session.posts.pop(self, None)
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None

    def comment(self) -> None:
        if self._stream is not None:
            self._stream.send_keep_alive()

    def refuse(self, code: int, line: bytes) -> None:
        self.answer(status_of_refusal(code, legacy=True), line)

    def close_stream(self, retry: float) -> bool:
        if self.request is None or not self.request.revision.polling:
            return False
        self.commit()  # which does nothing if the answer must be JSON
        return self._stream is not None and self._stream.close_response(retry)


class LocalInitializeExchange(SessionExchange):
    """The exchange of the POST that opens the session. A session whose opening fails, or whose client does not learn
    the id of, ends at once."""

    __slots__ = ()

    may_prime = False

    def open_stream(self) -> None:
        self._send_session_id()
        super().open_stream()

    def _send_session_id(self) -> None:
        self.extra += b"Mcp-Session-Id: %b\r\n" % self._session.id.encode()

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        opens = status == HTTPStatus.OK and not self.response.is_gone and not self._failed
        if opens:
            self._send_session_id()
        super().answer(status, line, more)
        if not opens:
            self._session.close("the session was not opened")

    def end_unanswered(self) -> None:
        super().end_unanswered()
        self._session.close("the session was not opened")

    def end_stream(self) -> None:
        super().end_stream()
        if self._failed or self.response.is_gone:
            self._session.close("the session was not opened")

    @property
    def _failed(self) -> bool:
        return self.request is None or self.request.error is not None
