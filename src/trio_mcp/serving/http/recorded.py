"""RecordedEndpoint: an `HttpEndpoint` that records its messages. `HttpRecordings` makes one recording per session, and
one for all messages without a session. Headers aren't recorded, because they may contain tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import trio

from ...concurrency.contexts import contextmanager
from ...recording.recorder import RecordedRequests, Recorder
from ...runtime.peer import Auth
from ...transports.http.application import Answer, ResponseBody, ResponseHandle
from ...transports.sse import EventReader, EventTooLong
from .endpoint import MODERN, HttpEndpoint

if TYPE_CHECKING:
    from ...recording.entries import ExchangeReference, Recording
    from ...runtime.limits import Load
    from ...runtime.transport import Tracer, Tracing
    from ...server.servable import Running
    from ...state.requests import InboundRequest, OutboundRequest
    from ...transports.http.application import RequestHead
    from .responses import EndpointSettings

_SESSION_ID: Final = b"mcp-session-id: "


class HttpRecordings:
    """The recordings of one HTTP endpoint, which ``recorder`` writes.

    As a `Tracing`, this object also observes the endpoint's requests.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tracing: Tracing | None = None
        self._sessions: dict[str, Recording] = {}
        self._sessionless: Recording | None = None
        self._ended: Recording | None = None
        """The recording of the session that ended last. The thread may not have written its last lines yet."""
        self._posts = 0
        """Number of exchanges without a session so far."""
        self.opening: RecordedExchange | None = None
        self.response_of: Callable[[InboundRequest], ResponseHandle | None] = lambda _: None

    def observe(self, running: Running, response_of: Callable[[InboundRequest], ResponseHandle | None]) -> None:
        """From now on, observe all requests of ``running``, the running server. The server's own `Tracing` object
        continues to observe these requests.

        ``response_of`` returns the response to a request without a session.
        """
        self.response_of = response_of
        self.tracing, running.host.tracing = running.host.tracing, self

    @contextmanager
    def serving(self, exchange: RecordedExchange) -> Generator[None]:
        """While inside the ``with`` block, record the session that the HTTP request ``exchange`` opens, if it opens a
        session.

        This doesn't apply if ``exchange`` names an existing session.
        """
        self.opening = exchange if exchange.may_open else None
        try:
            yield
        finally:
            self.opening = None

    def of_session(self, session_id: str) -> ExchangeReference | None:
        """Return the recording for the messages of an existing session, and start the recording if necessary."""
        found = self._sessions.get(session_id)
        if found is None and (found := self.recorder._start("server", "tcp")) is not None:
            self._sessions[session_id] = found
        return None if found is None else (found, 0)

    def known_session(self, session_id: str) -> ExchangeReference | None:
        """Return the recording of a session. Return `None` if none of the session's messages have been recorded."""
        found = self._sessions.get(session_id)
        return None if found is None else (found, 0)

    def next_sessionless(self) -> ExchangeReference | None:
        """Return the recording that contains all requests without a session, and the number of the next request in this
        recording."""
        if self._sessionless is None:
            self._sessionless = self.recorder._start("server", "tcp")
        self._posts += 1
        return None if self._sessionless is None else (self._sessionless, self._posts)

    def session_ended(self, recording: Recording) -> None:
        """Finish the recording of a session, because the session has ended."""
        recording.finish()
        self._ended = recording
        for session_id, found in tuple(self._sessions.items()):
            if found is recording:
                del self._sessions[session_id]

    async def aclose(self) -> None:
        """Finish all recordings, and wait up to two seconds until they are written. Cancellation doesn't skip the
        wait."""
        if self._sessionless is not None:
            self._sessionless.finish()
        for recording in tuple(self._sessions.values()):
            self.session_ended(recording)
        # The recorder's thread finishes recordings in the order in which they end, so wait only for the last one.
        last = self._ended or self._sessionless
        if last is not None:
            await self.recorder._written(last)

    # Observing

    def _watch_load(self, load: Load) -> None:
        """Do nothing, because the load of the server isn't recorded. See `Tracing._watch_load`."""

    def _tracer_of(self, network: str | None) -> Tracer:
        """Return a tracer that records the requests of the session that is being opened.

        If no session is being opened, it records the requests without a session.
        """
        return _SessionRequests(self)._tracer_of(network)


class _SessionRequests(RecordedRequests):
    """Records the requests of the session that is being opened.

    If no session is being opened, it records the requests without a session.
    """

    def __init__(self, recordings: HttpRecordings) -> None:
        super().__init__(self._find, recordings.tracing)
        self._recordings = recordings
        self._opening = recordings.opening

    def _find(self, request: InboundRequest | OutboundRequest) -> ExchangeReference | None:
        if self._opening is not None:
            return self._opening.place
        found = self._recordings.response_of(request)  # type: ignore[arg-type] # no outbound requests without a session
        return found.exchange.place if isinstance(found, RecordedResponse) else None

    def close(self, role: str, revision: str | None) -> None:
        """End the recording of the session: see `Tracer.close`."""
        super().close(role, revision)
        if self._opening is not None and self._opening.place is not None:
            self._recordings.session_ended(self._opening.place[0])


class RecordedExchange:
    """An HTTP request with this ``body``. Its messages are recorded.

    ``session_id`` is the session that the request names. Only the response shows whether that session exists, or which
    session the request has opened.
    """

    def __init__(
        self, recordings: HttpRecordings, place: ExchangeReference | None, body: bytes, session_id: str | None
    ) -> None:
        self._recordings = recordings
        self._session_id = session_id
        self._body = body
        self._at = trio.current_time()
        self.place = place
        """The recording, and the number of the exchange in the recording. `None` until the head of the response is
        known."""
        self.may_open = place is None and session_id is None
        """Whether the request doesn't belong to a session yet."""
        if place is not None:
            self._record_body(place)

    def answered(self, status: int, headers: bytes) -> ExchangeReference | None:
        """Return the recording that stores this HTTP request's messages. Each session has its own recording, and only
        the response shows whether the request belongs to a session.

        Call this when the status and the ``headers`` of the response are known.
        """
        if self.place is not None:
            return self.place
        opened = _session_in(headers)
        if opened is not None or (self._session_id is not None and status < HTTPStatus.BAD_REQUEST):
            self.place = self._recordings.of_session(opened or self._session_id or "")
        elif self._session_id is None:
            self.place = self._recordings.next_sessionless()
        if self.place is not None:
            self._record_body(self.place)
        return self.place

    def _record_body(self, place: ExchangeReference) -> None:
        if self._body:
            place[0].frame("in", self._body, self._at, post=place[1])
        self._body = b""


class RecordedResponse(ResponseHandle):
    """Sends a response through ``response``, and records its messages.

    At most ``max_bytes`` of each event are recorded.
    """

    __slots__ = ("_max_bytes", "_response", "exchange")

    def __init__(self, response: ResponseHandle, exchange: RecordedExchange, max_bytes: int) -> None:
        self.client = response.client
        self._response = response
        self._max_bytes = max_bytes
        self.exchange = exchange

    @property
    def is_gone(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] # its own place is not used
        """Whether the client has disconnected, or the response is complete: see `ResponseHandle.is_gone`."""
        return self._response.is_gone

    @property
    def on_gone(self) -> Callable[[], None]:  # pyright: ignore[reportIncompatibleVariableOverride] # likewise
        """Callback for a client that disconnects: see `ResponseHandle.on_gone`."""
        return self._response.on_gone

    @on_gone.setter
    def on_gone(self, call: Callable[[], None]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._response.on_gone = call

    def answer(self, answer: Answer, *, close: bool = False) -> None:
        """Record a complete response, and send it: see `ResponseHandle.answer`."""
        place = self.exchange.answered(answer.status, answer.headers)
        if place is not None and answer.body.startswith((b"{", b"[")):
            place[0].frame("out", answer.body.removesuffix(b"\n"), post=place[1])
        self._response.answer(answer, close=close)

    def stream(self, status: int, headers: bytes, source: ResponseBody) -> None:
        """Send a streamed response, and record its events: see `ResponseHandle.stream`."""
        place = self.exchange.answered(status, headers)
        noted = source if place is None else _RecordedSource(source, place, self._max_bytes)
        self._response.stream(status, headers, noted)


def _session_in(headers: bytes) -> str | None:
    """Return the id of the session that a response with these ``headers`` has opened. Return `None` for other
    responses."""
    for line in headers.split(b"\r\n"):
        if line[: len(_SESSION_ID)].lower() == _SESSION_ID:
            return line[len(_SESSION_ID) :].decode("latin-1")
    return None


class _RecordedSource:
    """A response body that returns the events of ``source``, and records them: see `ResponseBody`."""

    __slots__ = ("_place", "_reader", "_source")

    def __init__(self, source: ResponseBody, place: ExchangeReference, max_bytes: int) -> None:
        self._source = source
        self._place = place
        self._reader: EventReader | None = EventReader(max_bytes)

    async def next_chunk(self) -> bytes | bytearray:
        data = await self._source.next_chunk()
        recording, post = self._place
        try:
            for event in () if self._reader is None else self._reader.feed(data):
                if event.data:
                    recording.frame("out", event.data, post=post)
        except EventTooLong as error:
            recording.event("unreadable", reason=str(error))
            self._reader = None
        return data


class RecordedEndpoint(HttpEndpoint):
    """An HTTP endpoint whose messages are recorded in ``recordings``: see `HttpEndpoint`."""

    def __init__(
        self,
        running: Running,
        settings: EndpointSettings,
        nursery: trio.Nursery,
        free_connections: Callable[[], int] | None = None,
        *,
        recordings: HttpRecordings,
    ) -> None:
        self._recordings = recordings
        recordings.observe(running, lambda request: self._modern.response_to(request))
        super().__init__(running, settings, nursery, free_connections)
        self._max_event = running.limits.max_message_bytes
        self._is_stateless = running.stateless

    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve one HTTP request and record its messages: see `HttpEndpoint.serve`."""
        # Don't record a request to one of the user's routes, which contains no MCP messages.
        if not (caller is None or isinstance(caller, Auth)):
            super().serve(head, body, response, caller)
            return
        recordings, session_id = self._recordings, head.headers.get("mcp-session-id")
        if self._is_stateless or (session_id is None and head.headers.get("mcp-protocol-version") in MODERN):
            session_id, place = None, recordings.next_sessionless()
        else:
            place = None if session_id is None else recordings.known_session(session_id)
        exchange = RecordedExchange(recordings, place, body, session_id)
        with recordings.serving(exchange):
            super().serve(head, body, RecordedResponse(response, exchange, self._max_event), caller)
