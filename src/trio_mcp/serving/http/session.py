"""HttpSession: the session of one legacy client, with the streams and events that this process stores for the client.

`SessionTable` has the sessions of an endpoint, identified by the id in their headers (2025-11-25 transports, Session
Management). `FleetSessions` is the interface to sessions that all replicas share. `HttpFleet` opens these.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import trio

from ...classes import evolve
from ...concurrency.fair_share import Caller, SharedBytes
from ...jsonrpc.messages import Batch, Message, Notification, Request, Unreadable
from ...runtime.limits import Limits
from ...runtime.outbox import Outbox
from ...runtime.peer import Peer, PrincipalId
from ...server.servable import Running
from ...server.server import RunningServer
from ...server.sharing import Fleet
from ...transports.sse import STREAM_HEADERS, BadCursor, ReplayLog, identified_events
from ..callers import token_expiry
from .exchanges import FinishedStream, HttpRequest
from .responses import busy, empty, invalid
from .session_delivery import EarlyCancels, SessionStream
from .session_exchange import ClientSession, LocalInitializeExchange, SessionExchange

if TYPE_CHECKING:
    from ...state.requests import InboundRequest


class HttpSession(ClientSession):
    """The session of a client of a legacy protocol revision: its connection, its streams, and the events stored in case
    the client reconnects.

    It is one of the sessions of ``table``.
    """

    def __init__(self, table: SessionTable, session_id: str, peer: Peer, caller: Caller) -> None:
        super().__init__(table.running, session_id, peer, caller, table.retry_interval, table._remove)
        limits = table.running.limits
        self._log = ReplayLog(limits.max_replay_bytes / 4, limits.max_replay_bytes, table.replayed.held_for(caller))
        self._streams: dict[str, SessionStream] = {}
        """Unfinished streams of the session, keyed by name."""
        self._outbox.call_writer(self._open_standalone_stream)
        self._standalone_stream: SessionStream | None = None
        """The stream that the client opens with GET. `None` until the client opens it, or until the server has
        something to send on it."""
        self._early_cancels = EarlyCancels()

    async def run(self) -> None:
        """Serve the client until the session ends."""
        try:
            await self._connection.run()
        finally:
            for stream in tuple(self._streams.values()):
                stream.finish(0)
            if self._standalone_stream is None:
                self._outbox.close()
            self._standalone_stream = None
            self._log.close()

    # The end

    @property
    def is_listened_to(self) -> bool:
        """Whether the client has an open response on which the server can send its own requests and notifications."""
        return self._standalone_stream is not None and self._standalone_stream.is_open

    def expire(self, now: float) -> None:
        """Remove expired streams, and end responses whose token has expired.

        End the session if it has been idle for `Limits.session_timeout` seconds, without a POST or an open response.
        Queued messages don't keep a session alive.
        """
        self._log.drop_finished(now)
        for stream in tuple(self._streams.values()):
            stream.expire(now)
        if self._is_reached:
            self.used_at = now
        elif now - self.used_at >= self._limits.session_timeout:
            self.close(f"the client has not come back for {self._limits.session_timeout:g} seconds")

    @property
    def _is_reached(self) -> bool:
        """Whether the server can reach the client: whether any response of this session is open."""
        return any(stream.is_open for stream in self._streams.values()) or any(post.is_open for post in self.posts)

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on each stream of the session that was silent since the last call.

        See `PostExchange.send_keep_alive`.
        """
        super().send_keep_alive()
        if self._standalone_stream is not None:
            self._standalone_stream.send_keep_alive()

    def delete(self, asked: HttpRequest) -> None:
        """Respond to a DELETE request, and end the session."""
        self.close("the client has ended the session")
        asked.response.answer(empty(HTTPStatus.NO_CONTENT, asked.extra))

    # Messages

    def post(self, message: Message | Batch, posted: HttpRequest, *, opens: bool = False) -> None:
        """Process the message, or the batch of messages, in a POST.

        A request whose cancellation has arrived earlier is cancelled at once.
        """
        super().post(message, posted, opens=opens)
        for each in message.members if type(message) is Batch else (message,):
            if type(each) is Request:
                cancel = self._early_cancels.request_arrived(each.id, trio.current_time())
                if cancel is not None:
                    connection = self._connection
                    connection.feed(connection.state.receive(cancel), b"", connection.exchange)
            elif type(each) is Notification and each.method == "notifications/cancelled":
                self._early_cancels.cancel_arrived(each, trio.current_time())

    # Streams

    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        return (LocalInitializeExchange if opens else SessionExchange)(self, posted, request)

    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> SessionStream:
        """Return a resumable stream for the response to the POST request ``exchange``."""
        return self._open_stream(exchange.outbox, primes=primes)

    def _open_stream(self, outbox: Outbox, *, primes: bool) -> SessionStream:
        stream = SessionStream(self._log, outbox, self._on_stream_finished, primes=primes)
        self._streams[stream.name] = stream
        return stream

    def _open_standalone_stream(self) -> SessionStream:
        self._standalone_stream = self._open_stream(self._outbox, primes=self._polls)
        self._standalone_stream.detach()
        return self._standalone_stream

    def _on_stream_finished(self, stream: SessionStream) -> None:
        del self._streams[stream.name]
        if stream.outbox is self._outbox:  # the session has ended
            stream.outbox.close()
        else:
            self.send_late_lines(stream.outbox)

    def get(self, asked: HttpRequest) -> None:
        """Respond to a GET request with a stream of events, which may resume an earlier stream.

        If the request has a cursor, the stream that the cursor names continues from there. Otherwise the client gets
        the messages that don't belong to a request, if no response has sent them and they are still kept. If some are
        not kept any more, the client is notified that everything may have changed. If another response has the stream,
        that response ends.
        """
        response, extra, until = asked.response, asked.extra, token_expiry(asked.auth)
        cursor = asked.head.headers.get("last-event-id")
        self.used_at = trio.current_time()
        self.is_confirmed = True
        polls = self._polls
        if cursor is None:
            listening = self._standalone_stream or self._open_standalone_stream()
            if listening.attach(response, extra, retry=self.retry_interval if polls else None, until=until):
                self._connection.served.everything_changed()
            return
        try:
            replay = self._log.after(cursor)
        except BadCursor as error:
            # Respond with an error: after an empty stream, the client would believe that it has missed nothing.
            response.answer(invalid(HTTPStatus.BAD_REQUEST, str(error), extra))
            return
        stream = self._streams.get(replay.stream)
        if stream is None and not replay.events:
            # The request of this stream was cancelled, and gets no reply.
            # After an empty stream, the client would reconnect forever.
            # Status 204 keeps the client from reconnecting (WHATWG HTML, section 9.2.3).
            response.answer(empty(HTTPStatus.NO_CONTENT, extra))
        elif stream is None:
            response.stream(HTTPStatus.OK, STREAM_HEADERS + extra, FinishedStream(identified_events(replay.events)))
        else:
            stream.attach(response, extra, replay, retry=self.retry_interval if polls else None, until=until)


_ID_BYTES: Final = 16
"""Number of random bytes in a session id. With 128 bits, ids can't be guessed. They are written as visible ASCII
characters."""


S = TypeVar("S", bound=ClientSession)


class LocalSessions(Generic[S]):
    """The sessions that this process serves. Each session runs in a trio task in ``nursery``, until the session's last
    request has ended."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._sessions: dict[str, S] = {}
        self._ended: set[ClientSession] = set()
        """Sessions that have ended, but whose requests are still cleaning up. These sessions don't count towards the
        limit of sessions, because their requests still count."""

    def _add(self, session: S) -> None:
        self._sessions[session.id] = session
        self._nursery.start_soon(self._run, session)

    def _remove(self, session: ClientSession) -> bool:
        """Remove ``session``, which has ended. Return false if the session was already removed."""
        if self._sessions.get(session.id) is not session:
            return False
        del self._sessions[session.id]
        self._ended.add(session)
        return True

    async def _run(self, session: S) -> None:
        try:
            await session.run()
        finally:
            self._remove(session)
            self._ended.discard(session)

    def expire(self, now: float) -> None:
        """End idle sessions, and streams and responses that have expired. Call this about once a second."""
        for session in tuple(self._sessions.values()):
            session.expire(now)

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on each stream of all sessions that was silent since the last call."""
        for session in tuple(self._sessions.values()):
            session.send_keep_alive()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each session when its requests have ended."""
        for session in (*self._sessions.values(), *self._ended):
            session.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until the last session has ended."""
        for session in (*self._sessions.values(), *self._ended):
            await session.ended()


class SessionTable(LocalSessions[HttpSession]):
    """The sessions of clients of legacy protocol revisions at the endpoint of one server, ``running``.

    Their tasks run in ``nursery``. ``retry_interval`` is the number of seconds after which clients reconnect to a
    broken stream.
    """

    def __init__(self, running: Running, nursery: trio.Nursery, retry_interval: float) -> None:
        super().__init__(nursery)
        self.running = running
        self._limits: Limits = running.limits
        self.retry_interval = retry_interval
        self._counts: dict[Caller, dict[ClientSession, None]] = {}
        """The sessions of each caller, oldest first."""
        self.replayed = SharedBytes(running.limits.max_server_replay_bytes)
        """Counter for the bytes of events that all sessions keep for clients that reconnect."""

    def find(self, session_id: str, principal: PrincipalId | None) -> HttpSession | None:
        """Return the session with this id. Return `None` if ``principal`` has no such session.

        See 2025-11-25 security best practices, Session Hijacking.
        """
        session = self._sessions.get(session_id)
        return session if session is not None and session.principal == principal and not session.is_over else None

    def open(self, message: Request, posted: HttpRequest) -> None:
        """Respond to ``initialize``, and open a session unless the caller has reached its limit of sessions."""
        caller = posted.caller
        if not (self._has_room(caller) or self._make_room(caller)):
            posted.response.answer(busy("Too busy: too many sessions; try again later", posted.extra, message.id))
            return
        session_id = secrets.token_urlsafe(_ID_BYTES)
        part = caller.connection()
        peer = evolve(posted.peer(session_id), caller=part)
        session = HttpSession(self, session_id, peer, part)
        self._counts.setdefault(caller, {})[session] = None
        self._add(session)
        session.post(message, posted, opens=True)

    def _has_room(self, caller: Caller) -> bool:
        free = self._limits.max_sessions - len(self._sessions)
        return caller.may_take(lambda party: len(self._counts.get(party, ())), free)

    def _make_room(self, caller: Caller) -> bool:
        """End one session, so that ``caller`` can open another one. Return whether a session was ended.

        A caller that has reached its limit gives up its own oldest session that its client has never used. For a caller
        without sessions, the session that was idle longest ends, among those of the caller with the most sessions. If
        no caller has two sessions, the oldest unused session ends. Otherwise a client that keeps opening sessions could
        lock out all others.
        """
        held = self._counts.get(caller)
        if held is None:
            held = max(self._counts.values(), key=len)
            if len(held) > 1:
                idlest = min(
                    (session for session in held if not session.is_over), key=attrgetter("used_at"), default=None
                )
                return self._close_session(idlest)
            held = dict.fromkeys(self._sessions.values())
        return self._close_session(next((each for each in held if not (each.is_confirmed or each.is_over)), None))

    def _close_session(self, session: ClientSession | None) -> bool:
        if session is None:
            return False
        session.close("the session was idle for longer than others, and its place is needed for another client")
        return True

    def _remove(self, session: ClientSession) -> bool:
        """Remove ``session``, which has ended, and don't count it for its caller any more. Return false if the session
        was already removed."""
        if not super()._remove(session):
            return False
        whole = session.caller.whole
        held = self._counts[whole]
        del held[session]
        if not held:
            del self._counts[whole]
        return True


class FleetSessions(LocalSessions[S], ABC):
    """The sessions of a server with several replicas, for clients of legacy protocol revisions. All replicas share the
    sessions.

    Clients name their session in a header (2025-11-25 transports, Session Management).
    """

    @abstractmethod
    def find(self, session_id: str, principal: PrincipalId | None) -> ClientSession | None:
        """Return the session with this id, if this replica has it in memory and it belongs to ``principal``.

        See 2025-11-25 security best practices, Session Hijacking.

        Otherwise return `None`: then call `look_up`.
        """

    @abstractmethod
    def look_up(self, session_id: str, posted: HttpRequest, on_found: Callable[[ClientSession | None], None]) -> None:
        """Read the session with this id from the storage that the replicas share.

        Then call ``on_found`` with the session, or with `None` if ``principal`` has no such session. If the storage is
        unavailable, refuse the HTTP request ``posted``.
        """

    @abstractmethod
    def fail_question(self, session_id: str, principal: PrincipalId | None, message: Unreadable) -> None:
        """End a server-to-client request with an error, because the client's reply, ``message``, can't be read. Any
        replica may have sent the request.

        Does nothing if ``message`` names no request, or the session doesn't belong to ``principal``.
        """

    @abstractmethod
    def open(self, message: Request, posted: HttpRequest) -> None:
        """Respond to ``initialize``, and open a session unless the caller has reached its limit of sessions."""


class HttpFleet(Fleet):
    """Connects a server's replicas. They share the sessions of HTTP clients of legacy protocol revisions."""

    @abstractmethod
    def open_sessions(self, running: RunningServer, nursery: trio.Nursery, retry_interval: float) -> FleetSessions[Any]:
        """Return the shared sessions for an endpoint of ``running``, the running server.

        Their tasks run in ``nursery``. ``retry_interval`` is the number of seconds after which clients reconnect to a
        broken stream.
        """
