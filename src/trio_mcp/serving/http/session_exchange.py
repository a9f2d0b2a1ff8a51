"""ClientSession: the base class of legacy sessions, in which one client sends its messages in POST requests.
`SessionExchange` is one such POST and its response."""

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
    """An event stream to which a disconnected client can reconnect, to receive the events that it missed.

    The stream sends the lines of one outbox.
    """

    @property
    def is_open(self) -> bool:
        """Whether a response is currently sending the stream."""
        ...

    def attach(self, response: ResponseHandle, extra: bytes, *, retry: float | None = None) -> object:
        """Send the event stream as the body of ``response``, with the additional headers ``extra``.

        If the response ends early, the client should reconnect after ``retry`` seconds.
        """
        ...

    def detach(self) -> None:
        """Store the stream's queued messages for later, because no response sends the stream now."""
        ...

    def close_response(self, retry: float) -> bool:
        """End the response that sends the event stream. The stream itself continues.

        The client reconnects to the stream after ``retry`` seconds.

        Return false, and do nothing, if no response is open, or the client has no event id with which it could resume.
        """
        ...

    def finish(self, keep_until: float) -> None:
        """End the stream after its last message. Its events are kept until about the time ``keep_until``."""
        ...

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on the stream, if nothing was sent since the last call."""
        ...


class _StandaloneChannel:
    """The `ClientChannel` for messages that don't belong to a request. These messages are put into ``outbox``.

    The channel has only a weak reference to the session.
    """

    def __init__(self, session: ClientSession, outbox: Outbox) -> None:
        self._session = ref(session)
        self.outbox = outbox

    @property
    def is_open(self) -> bool:
        session = self._session()
        return session is not None and session.is_listened_to


class ClientSession(ABC):
    """The session of one client of a legacy protocol revision. The client sends its messages in POST requests.

    ``peer`` opened the session, or was the first to use it in this process. ``state`` applies the rules of the protocol
    to messages; by default the connection has its own state. ``on_end`` is called with the session when it ends, before
    its client is notified. Requests may still be cleaning up then.
    """

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
        """The part of the caller's limits that this session may use. The requests of the session count towards this
        part."""
        self._limits = limits
        self._on_end = on_end
        self.retry_interval = retry_interval
        """Seconds after which the client should reconnect when a stream breaks."""
        self.posts: dict[SessionExchange, None] = {}
        """The POSTs of the session whose responses aren't complete yet."""
        self._outbox = Outbox(limits.high_water)
        """Lines that don't belong to a request, for the stream that the client opens with GET."""
        self._connection = FedConnection(running, peer, self._outbox, state)
        self.exchange = self._connection.exchange
        """The exchange that contains the requests of all POSTs of the session."""
        self.high_water = limits.high_water
        # Set a time limit for the client's answers to server-to-client requests.
        # The server doesn't notice if a client's answer gets lost, for example because a proxy rejects its POST.
        self._connection.connection.outbound.answer_timeout = limits.answer_timeout
        self.client_channel: ClientChannel = _StandaloneChannel(self, self._outbox)
        """The channel for lines that don't belong to a request."""
        self._is_draining = False
        self.is_confirmed = False
        """Whether the client has used the session since it was opened."""
        self.used_at = trio.current_time()
        """Time at which the client was last active, with the precision of the calls of `expire`."""

    @abstractmethod
    async def run(self) -> None:
        """Serve the client until the session ends."""

    # The end

    def close(self, reason: str) -> None:
        """End the session and cancel its requests, because the client has left."""
        self._on_end(self)
        self._connection.connection.lose(ConnectionLost(reason))

    def shut_down(self, reason: str, *, drain_timeout: float | None = None, hurry: bool = False) -> None:
        """End the session when its requests have ended: see `Connection.shut_down`."""
        self._is_draining = True
        self._connection.shut_down(reason, drain_timeout=drain_timeout, hurry=hurry)

    @abstractmethod
    def expire(self, now: float) -> None:
        """End the session and its streams if they have been idle for too long. Call this about once a second."""

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on each response of the session that was silent since the last call."""
        for post in tuple(self.posts):
            post.send_keep_alive()

    async def ended(self) -> None:
        """Wait until the last request of the session has ended."""
        await self._connection.ended.wait()

    @property
    def is_over(self) -> bool:
        """Whether the session accepts no more requests.

        During a graceful shutdown, it still accepts answers to server-to-client requests.
        """
        connection = self._connection
        return connection.exchange.ending.is_set() and not (self._is_draining and connection.connection.lost is None)

    @property
    @abstractmethod
    def is_listened_to(self) -> bool:
        """Whether the client has an open response on which the server can send its own requests and notifications."""

    @abstractmethod
    def get(self, asked: HttpRequest) -> None:
        """Respond to a GET request. If the request has an event id, resume the stream of that event.

        Without an event id, send the stream of messages that don't belong to a request.
        """

    @abstractmethod
    def delete(self, asked: HttpRequest) -> None:
        """Respond to a DELETE request, and end the session."""

    # Messages

    def post(self, message: Message | Batch, posted: HttpRequest, *, opens: bool = False) -> None:
        """Process a POST request that contains a message or a batch of messages."""
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
        """Respond with status 202 to a POST whose message gets no reply."""
        posted.response.answer(empty(HTTPStatus.ACCEPTED, posted.extra))

    @abstractmethod
    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        """Return a new exchange object for a POST request of this session."""

    def fail_question(self, message: Unreadable, body: bytes) -> None:
        """End a server-to-client request with an error, because the client's reply, ``message``, can't be read. Do
        nothing if ``message`` can't be a reply."""
        self.used_at = trio.current_time()
        if message.is_answer or (message.may_be_answer and self._connection.state.outbound):
            self._connection.feed(self._connection.state.receive(message), body, self._connection.exchange)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """Start a timer for the response to a POST, and return the timer. After `Limits.priming_delay`, the timer calls
        ``ring``, which turns the response into an SSE stream."""
        return self._connection.connection.host.alarms.set(trio.current_time() + self._limits.priming_delay, ring)

    # Streams

    @abstractmethod
    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> ResumableStream:
        """Return a resumable stream for the response to the POST request ``exchange``."""

    def finish(self, stream: ResumableStream) -> None:
        """End ``stream`` after its last message. Its events are kept for `Limits.replay_timeout`, in case the client
        reconnects."""
        stream.finish(trio.current_time() + self._limits.replay_timeout)

    @property
    def _polls(self) -> bool:
        revision = self._connection.state.revision
        return revision is not None and revision.polling

    def send_late_lines(self, outbox: Outbox) -> None:
        """From now on, send the messages in ``outbox`` on the stream that the client opens with GET.

        A cancelled handler may still cancel its server-to-client request when the response to its own request is
        already complete.
        """

        # To avoid a reference cycle with the outbox, the callback must not refer to the outbox or the session.
        late, free = ref(outbox), self._outbox

        def pass_on() -> None:
            outbox = late()
            while outbox is not None and (lines := outbox.take_nowait()):
                free.put(bytes(lines))

        outbox.call_writer(pass_on)


def _expects_reply(message: Message | Batch) -> bool:
    return isinstance(message, Batch) and any(isinstance(each, Request | Unreadable) for each in message.members)


class SessionExchange(PostExchange):
    """One POST request of ``session``, together with its response.

    If the client disconnects, the request isn't cancelled (2025-11-25 transports, Sending Messages to the Server): its
    messages are stored, and the client may reconnect to receive them.
    """

    __slots__ = ("_alarm", "_session", "_stream")

    may_prime: ClassVar[bool] = True
    """Whether the client knows the session id, so that it can resume a stream after a priming event."""

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
        assert self._stream is not None, "open_stream was called before"
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
        self.commit()  # turns the response into an event stream, unless the response must be JSON
        return self._stream is not None and self._stream.close_response(retry)


class LocalInitializeExchange(SessionExchange):
    """The POST request that opens a session with ``initialize``, and its response.

    If opening fails, or the client doesn't receive the session id, the session ends at once.
    """

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
