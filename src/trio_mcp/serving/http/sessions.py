"""Sessions: the legacy clients of an endpoint, each known by the id in its headers (2025-11-25 transports, Session
Management)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from ...jsonrpc.messages import Batch, Message, Request, Unreadable
from ...runtime.channel import ConnectionLost, MessageChannel
from ...runtime.exchange import Exchange
from ...runtime.limits import Limits
from ...runtime.outbox import Outbox
from ...runtime.peer import Headers, Peer
from ...server.served import Running
from ...state.events import Refused, RequestReceived
from ...transports.event_stream.replay_log import BadCursor, ReplayLog
from ...transports.event_stream.writing import STREAM_HEADERS, identified_events
from ...transports.http.application import Answer, Response
from ...transports.http.heads import RequestHead
from .answers import busy, empty, invalid, status_of_legacy_refusal
from .post_exchange import PostExchange
from .posted_connection import PostedConnection
from .session_stream import SessionStream

if TYPE_CHECKING:
    from ...concurrency.alarms import Alarm
    from ...state.requests import InboundRequest

__all__ = ["Session", "Sessions"]

_ID_BYTES: Final = 16
"""128 bits, which nobody guesses; as visible ASCII."""
_RETRY: Final = 1.0
"""Seconds after which clients come back when a response breaks."""


class SessionExchange(PostExchange):
    """The exchange of a POST of ``session``. The client's going away is no cancel (2025-11-25 transports, Sending
    Messages to the Server): the lines are kept, and the client may come back for them."""

    __slots__ = ("_alarm", "_session", "_stream")

    def __init__(
        self, session: Session, connection: Exchange, peer: Peer, response: Response, extra: bytes, high_water: int
    ) -> None:
        super().__init__(connection, peer, response, extra, high_water)
        self._session = session
        self._stream: SessionStream | None = None
        self._alarm: Alarm | None = None

    def take_up(self, request: InboundRequest) -> None:
        super().take_up(request)
        if request.revision.polling:
            self._alarm = self._session.alarm(self.commit)

    def open_stream(self) -> None:
        self.is_stream = True
        self._stop_alarm()
        polls = self.request is not None and self.request.revision.polling
        self._stream = self._session.open_stream(self.outbox, primes=polls)
        if self.response.is_gone:
            self._stream.keep()
        else:
            self._stream.attach(self.response, self.extra, retry=_RETRY if polls else None)

    def end_stream(self) -> None:
        assert self._stream is not None, "it was opened before"
        self._session.finish(self._stream)

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        super().answer(status, line, more)
        self._session.send_late_lines(self.outbox)

    def leave(self) -> None:
        self._stop_alarm()
        self._session.left(self)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None

    def comment(self) -> None:
        if self._stream is not None:
            self._stream.break_silence()

    def refuse(self, code: int, line: bytes) -> None:
        self.answer(status_of_legacy_refusal(code), line)

    def close_stream(self, retry: float) -> bool:
        if self.request is None or not self.request.revision.polling:
            return False
        self.commit()
        return self._stream is not None and self._stream.close_response(retry)


class _OpeningExchange(SessionExchange):
    """The exchange of the POST that opens the session. A session whose opening fails, or whose client does not learn
    the id of, ends at once."""

    __slots__ = ()

    def take_up(self, request: InboundRequest) -> None:
        PostExchange.take_up(self, request)  # to a stream of a session whose id it does not know, no client comes back

    def open_stream(self) -> None:
        self._tell_id()
        super().open_stream()

    def _tell_id(self) -> None:
        self.extra += b"Mcp-Session-Id: %b\r\n" % self._session.id.encode()

    def answer(self, status: HTTPStatus, line: bytes, more: bytes = b"") -> None:
        opens = status == HTTPStatus.OK and not self.response.is_gone and not self._failed
        if opens:
            self._tell_id()
        super().answer(status, line, more)
        if not opens:
            self._session.end("the session was not opened")

    def end_stream(self) -> None:
        super().end_stream()
        if self._failed or self.response.is_gone:
            self._session.end("the session was not opened")

    @property
    def _failed(self) -> bool:
        return self.request is None or self.request.error is not None


class _SessionChannel(MessageChannel):
    """The way of the messages that belong to no request: to ``outbox``, for the stream that the client asks for with
    GET."""

    network = "tcp"

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def receive(self) -> bytes:
        """Wait for ever: messages come by POST."""
        return await trio.sleep_forever()

    async def send(self, messages: bytes | bytearray) -> None:
        """Send the messages: see `MessageChannel.send`."""
        await self._outbox.room()
        self._outbox.put(bytes(messages))

    async def aclose(self) -> None:
        """Do nothing more than a checkpoint: the session ends its streams."""
        await trio.lowlevel.checkpoint()


class Session:
    """One legacy client: its connection, whose messages come in POSTs, its streams, and their log. ``peer`` opened the
    session."""

    def __init__(self, running: Running, session_id: str, peer: Peer) -> None:
        limits = running.limits
        self.id = session_id
        self.principal = peer.principal
        self._limits = limits
        self._log = ReplayLog(limits.max_replay_bytes / 4, limits.max_replay_bytes)
        self._streams: dict[str, SessionStream] = {}
        """Streams that are not finished, by name."""
        self._posts: dict[SessionExchange, None] = {}
        outbox = Outbox(limits.high_water)
        outbox.call_writer(self._listen)
        self._connection = PostedConnection(running, _SessionChannel(outbox), peer)
        self._outbox = outbox
        self._listening: SessionStream | None = None
        """The stream that the client asks for with GET; `None` until the client does, or there is something to send."""
        self._is_draining = False
        self.is_confirmed = False
        """True once the client has used its session."""
        self._used = trio.current_time()

    async def run(self) -> None:
        """Serve until the session ends."""
        try:
            await self._connection.run()
        finally:
            for stream in tuple(self._streams.values()):
                stream.finish(0)

    # The end

    def end(self, reason: str) -> None:
        """End the session: its client is gone, and so are its requests."""
        self._connection.duplex.lose(ConnectionLost(reason))

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End when the requests are done: see `DuplexChannel.shut_down`."""
        self._is_draining = True
        self._connection.duplex.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until the last request is over."""
        await self._connection.ended.wait()

    @property
    def is_over(self) -> bool:
        """True when the session takes no more messages. While our side shuts down, the answers to questions come."""
        connection = self._connection
        return connection.is_over and not (self._is_draining and connection.duplex.lost is None)

    def look_at_clock(self, now: float) -> None:
        """Forget streams whose time is over, and end when the client has let the session idle for too long."""
        self._log.forget_finished(now)
        is_open = self._listening is not None and self._listening.is_open
        if self._connection.state.inbound or is_open or self._posts:
            self._used = now
        elif now - self._used >= self._limits.session_timeout:
            self.end(f"the session was idle for {self._limits.session_timeout:g} seconds")

    def break_silence(self) -> None:
        """Have streams that were silent send comments: see `PostExchange.break_silence`."""
        for post in tuple(self._posts):
            post.break_silence()
        if self._listening is not None:
            self._listening.break_silence()

    # Messages

    def fits(self, version: str | None) -> bool:
        """Return whether a request with this version header may belong to the session: the handshake has settled the
        revision (2025-11-25 transports, Protocol Version Header)."""
        revision = self._connection.state.revision
        return version is None or revision is None or version == revision.name

    def post(
        self, message: Message | Batch | Unreadable, body: bytes, head: RequestHead, response: Response, extra: bytes,
        *, opens: bool = False,
    ) -> None:  # fmt: skip
        """Take a message, or a batch, and answer with ``response``."""
        self._used = trio.current_time()
        self.is_confirmed = self.is_confirmed or not opens
        connection = self._connection
        event = connection.state.receive(message)
        if not (_asks(message) or type(event) is Refused):
            connection.take(event, body, connection.exchange)
            response.answer(empty(HTTPStatus.ACCEPTED, extra))
            return
        peer = Peer(self.id, Headers.of_lower_case(head.headers), self.principal)
        kind = _OpeningExchange if opens else SessionExchange
        exchange = kind(self, connection.exchange, peer, response, extra, self._limits.high_water)
        self._posts[exchange] = None
        if type(event) is RequestReceived:
            exchange.take_up(event.request)
        connection.take(event, body, exchange)

    def answer_unreadable(self, message: Unreadable, body: bytes) -> None:
        """Fail the request of ours that ``message`` was meant to answer."""
        self._connection.take(self._connection.state.receive(message), body, self._connection.exchange)

    def left(self, post: SessionExchange) -> None:
        """Forget a POST that was answered."""
        self._posts.pop(post, None)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """Return the alarm for a request that is to be a stream before long."""
        return self._connection.duplex.host.alarms.set(trio.current_time() + self._limits.priming_delay, ring)

    # Streams

    def open_stream(self, outbox: Outbox, *, primes: bool) -> SessionStream:
        """Return a stream for the lines in ``outbox``."""
        stream = SessionStream(self._log, outbox, self._kept, primes=primes)
        self._streams[stream.name] = stream
        return stream

    def finish(self, stream: SessionStream) -> None:
        """End a stream. Its events are kept for a while."""
        stream.finish(trio.current_time() + self._limits.replay_timeout)

    @property
    def _polls(self) -> bool:
        revision = self._connection.state.revision
        return revision is not None and revision.polling

    def _listen(self) -> SessionStream:
        self._listening = self.open_stream(self._outbox, primes=self._polls)
        self._listening.keep()
        return self._listening

    def _kept(self, stream: SessionStream) -> None:
        del self._streams[stream.name]
        self.send_late_lines(stream.outbox)

    def send_late_lines(self, outbox: Outbox) -> None:
        """Have lines that are put into ``outbox`` from now on sent with what belongs to no request: a handler that was
        cancelled takes back what it has asked when the stream of its request is over."""

        def pass_on() -> None:
            while lines := outbox.take_nowait():
                self._connection.exchange.outbox.put(bytes(lines))

        outbox.call_writer(pass_on)

    def get(self, cursor: str | None, response: Response, extra: bytes) -> None:
        """Answer a GET: with the stream that ``cursor`` names, from there on, or with the stream of messages that
        belong to no request. A response that has the stream already ends."""
        self._used = trio.current_time()
        self.is_confirmed = True
        polls = self._polls
        if cursor is None:
            listening = self._listening or self._listen()
            listening.attach(response, extra, retry=_RETRY if polls else None)
            return
        try:
            replay = self._log.after(cursor)
        except BadCursor as error:
            # An empty stream would let the client believe that nothing was missed.
            response.answer(invalid(HTTPStatus.BAD_REQUEST, str(error), extra))
            return
        stream = self._streams.get(replay.stream)
        if stream is None:
            text = identified_events(replay.events)
            response.answer(Answer(HTTPStatus.OK, STREAM_HEADERS + extra, text))
        else:
            stream.attach(response, extra, replay, retry=_RETRY if polls else None)


def _asks(message: Message | Batch | Unreadable) -> bool:
    if isinstance(message, Batch):
        return any(isinstance(member, Request | Unreadable) for member in message.members)
    return isinstance(message, Request)


class Sessions:
    """The sessions of an endpoint of ``running``, whose tasks run in ``nursery``."""

    def __init__(self, running: Running, nursery: trio.Nursery) -> None:
        self._running = running
        self._nursery = nursery
        self._limits: Limits = running.limits
        self._sessions: dict[str, Session] = {}

    def find(self, session_id: str, principal: str | None) -> Session | None:
        """Return the session with this id. `None`: there is none, for this principal (2025-11-25 security best
        practices, Session Hijacking)."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.principal == principal and not session.is_over else None

    def open(self, message: Request, body: bytes, head: RequestHead, response: Response, extra: bytes) -> None:
        """Answer ``initialize``, and open a session."""
        if len(self._sessions) >= self._limits.max_sessions and not self._make_room():
            response.answer(busy("Too busy: too many sessions; try again later", extra, message.id))
            return
        session_id = secrets.token_urlsafe(_ID_BYTES)
        session = Session(self._running, session_id, Peer(session_id, Headers.of_lower_case(head.headers)))
        self._sessions[session_id] = session
        self._nursery.start_soon(self._run, session)
        session.post(message, body, head, response, extra, opens=True)

    def _make_room(self) -> bool:
        """End the oldest session that its client has not used, and return whether there was one. Otherwise who opens
        sessions again and again would shut out everybody else."""
        for session in self._sessions.values():
            if not (session.is_confirmed or session.is_over):
                session.end("the session was not used, and another client wants its place")
                return True
        return False

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            del self._sessions[session.id]

    def look_at_clock(self, now: float) -> None:
        """End idle sessions: see `Session.look_at_clock`."""
        for session in tuple(self._sessions.values()):
            session.look_at_clock(now)

    def break_silence(self) -> None:
        """Have streams that were silent send comments."""
        for session in tuple(self._sessions.values()):
            session.break_silence()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each session when its requests are done."""
        for session in tuple(self._sessions.values()):
            session.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until all sessions have ended."""
        for session in tuple(self._sessions.values()):
            await session.ended()
