"""SessionExchange is the exchange of one POST of a legacy session."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from ...runtime.exchange import Exchange, LastingWay
from ...runtime.outbox import Outbox
from .answers import status_of_legacy_refusal
from .http_request import HttpRequest
from .post_exchange import PostExchange
from .session_stream import SessionStream

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarm
    from ...state.requests import InboundRequest


class SessionOfPosts(Protocol):
    """A session, as its POSTs see it: a `Session`."""

    id: str
    retry_interval: float

    @property
    def lasting(self) -> LastingWay:
        """The way for lines that belong to no request."""
        ...

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """Return the alarm for a request that is to be a stream before long."""
        ...

    def open_stream(self, outbox: Outbox, *, primes: bool) -> SessionStream:
        """Return a stream for the lines in ``outbox``."""
        ...

    def finish(self, stream: SessionStream) -> None:
        """End a stream. Its events are kept for a while."""
        ...

    def send_late_lines(self, outbox: Outbox) -> None:
        """Have lines that are put into ``outbox`` from now on sent with the lines that belong to no request."""
        ...

    def left(self, post: SessionExchange) -> None:
        """Forget a POST that was answered."""
        ...

    def end(self, reason: str) -> None:
        """End the session."""
        ...


class SessionExchange(PostExchange):
    """The exchange of a POST of ``session``. The client's going away is no cancel (2025-11-25 transports, Sending
    Messages to the Server): the lines are kept, and the client may come back for them."""

    __slots__ = ("_alarm", "_session", "_stream")

    def __init__(self, session: SessionOfPosts, connection: Exchange, posted: HttpRequest, high_water: int) -> None:
        super().__init__(connection, posted, high_water, session.id)
        self._session = session
        self._stream: SessionStream | None = None
        self._alarm: Alarm | None = None

    @property
    def lasting(self) -> LastingWay:
        return self._session.lasting

    @property
    def is_open(self) -> bool:
        return not self.response.is_gone if self._stream is None else self._stream.is_open

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
            self._stream.attach(self.response, self.extra, retry=self._session.retry_interval if polls else None)

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


class OpeningExchange(SessionExchange):
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
