"""HttpSession is one legacy client of an endpoint, with the streams and events that this process keeps for it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from ...concurrency.fair_share import Caller, SharedBytes
from ...runtime.outbox import Outbox
from ...runtime.peer import Peer
from ...server.servable import Running
from ...transports.http.replay_log import BadCursor, ReplayLog
from ...transports.sse import STREAM_HEADERS, identified_events
from ..callers import token_expiry
from .exchanges import FinishedStream, HttpRequest
from .responses import empty, invalid
from .session_exchange import ClientSession, LocalInitializeExchange, SessionExchange
from .session_stream import SessionStream

if TYPE_CHECKING:
    from ...state.requests import InboundRequest


class HttpSession(ClientSession):
    """One legacy client: its connection, its streams, and their log. ``replayed`` counts the bytes in the logs of all
    sessions."""

    def __init__(
        self,
        running: Running,
        session_id: str,
        peer: Peer,
        caller: Caller,
        replayed: SharedBytes,
        retry_interval: float,
        on_end: Callable[[ClientSession], None],
    ) -> None:
        super().__init__(running, session_id, peer, caller, retry_interval, on_end)
        limits = running.limits
        self._log = ReplayLog(limits.max_replay_bytes / 4, limits.max_replay_bytes, replayed.held_for(caller))
        self._streams: dict[str, SessionStream] = {}
        """Streams that are not finished, by name."""
        self._outbox.call_writer(self._open_standalone_stream)
        self._standalone_stream: SessionStream | None = None
        """The stream that the client asks for with GET; `None` until the client does, or there is something to send."""

    async def run(self) -> None:
        """Serve until the session ends."""
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
        """True while a response takes the lines that belong to no request."""
        return self._standalone_stream is not None and self._standalone_stream.is_open

    def expire(self, now: float) -> None:
        """Forget streams whose time is over, end responses whose token has ended, and end the session when its client
        has neither posted nor had a response open for too long, whatever waits for the client there."""
        self._log.drop_finished(now)
        for stream in tuple(self._streams.values()):
            stream.expire(now)
        if self._is_reached:
            self.used_at = now
        elif now - self.used_at >= self._limits.session_timeout:
            self.close(f"the client has not come back for {self._limits.session_timeout:g} seconds")

    @property
    def _is_reached(self) -> bool:
        """True while the client has a response open."""
        return any(stream.is_open for stream in self._streams.values()) or any(post.is_open for post in self.posts)

    def send_keep_alive(self) -> None:
        """Have streams that were silent send comments: see `PostExchange.send_keep_alive`."""
        for post in tuple(self.posts):
            post.send_keep_alive()
        if self._standalone_stream is not None:
            self._standalone_stream.send_keep_alive()

    def delete(self, asked: HttpRequest) -> None:
        """Answer a DELETE: end the session."""
        self.close("the client has ended the session")
        asked.response.answer(empty(HTTPStatus.NO_CONTENT, asked.extra))

    # Streams

    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        kind = LocalInitializeExchange if opens else SessionExchange
        return kind(self, self._connection.exchange, posted, request, self._limits.high_water)

    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> SessionStream:
        """Return a stream for the lines of ``exchange``."""
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
        if stream.outbox is self._outbox:  # the session is over
            stream.outbox.close()
        else:
            self.send_late_lines(stream.outbox)

    def get(self, asked: HttpRequest) -> None:
        """Answer a GET: with the stream that the cursor names, from there on, or with the stream of messages that
        belong to no request, as far as no response took them and they are kept. Where some are kept no longer, the
        client is told that everything may have changed. A response that has the stream already ends."""
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
            # An empty stream would let the client believe that nothing was missed.
            response.answer(invalid(HTTPStatus.BAD_REQUEST, str(error), extra))
            return
        stream = self._streams.get(replay.stream)
        if stream is None and not replay.events:
            # The stream of a cancelled request, which has no reply. To an empty stream a client would come back for
            # ever; 204 says that there is nothing to come back for (WHATWG HTML, section 9.2.3).
            response.answer(empty(HTTPStatus.NO_CONTENT, extra))
        elif stream is None:
            response.stream(HTTPStatus.OK, STREAM_HEADERS + extra, FinishedStream(identified_events(replay.events)))
        else:
            stream.attach(response, extra, replay, retry=self.retry_interval if polls else None, until=until)
