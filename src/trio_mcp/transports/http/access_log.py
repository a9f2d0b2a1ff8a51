"""LoggedConnection: writes an access log, with one line per response."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from ...diagnostics.log import access_log
from .application import Answer, HttpApplication, HttpBounds, RequestHead, ResponseBody
from .connection import HttpConnection
from .responses import HttpResponse

_CLIENT_LEFT: Final = 499
"""The status in the log for a client that disconnected before its response. nginx logs the same status."""
_LONGEST: Final = 200
"""Maximum number of characters of a field in the access log."""

Who: TypeAlias = "Callable[[RequestHead | None, object, object], tuple[str | None, str | None]]"
"""Function that returns the network address and the principal of the sender of a request, if known. The arguments are
the head, the caller that the application has admitted, and the peer of the connection."""


class LoggedConnection(HttpConnection):
    """An HTTP connection that writes an access log: one line for each response.

    The line is logged to ``trio_mcp.access`` at level info, when the last byte of the response is written or the client
    has disconnected.

    ``who`` returns the sender of a request.
    """

    __slots__ = ("_begun", "_sent", "_status", "_who")

    def __init__(
        self, stream: trio.abc.Stream, application: HttpApplication, bounds: HttpBounds, client: object, who: Who
    ) -> None:
        super().__init__(stream, application, bounds, client)
        self._who = who
        self._begun = trio.current_time()
        """Time at which the bytes arrived that the server processed last."""
        self._status = _CLIENT_LEFT
        """The HTTP status of the current response."""
        self._sent = _SentBytes()

    def _advance(self) -> None:
        self._begun = trio.current_time()
        super()._advance()

    def respond(self, response: HttpResponse, answer: Answer, *, close: bool) -> None:
        """Send ``answer``, a complete response, and then write a log line for it. See `ResponseWriter.respond`."""
        self._status, self._sent = answer.status, _SentBytes(len(answer.body))
        super().respond(response, answer, close=close)

    def respond_with(self, response: HttpResponse, status: int, headers: bytes, source: ResponseBody) -> None:
        """Start to send a streamed response, and write a log line when it ends. See `ResponseWriter.respond_with`."""
        self._status, self._sent = status, _SentBytes()
        super().respond_with(response, status, headers, _CountedBody(source, self._sent))

    def _finish(self) -> None:
        self._log(left=False)
        super()._finish()

    def _gone(self) -> None:
        self._log(left=True)
        super()._gone()

    def _log(self, *, left: bool) -> None:
        response = self._response
        if response is None or not access_log.isEnabledFor(logging.INFO):
            return
        head, duration = response.head, trio.current_time() - self._begun
        address, caller = self._who(head, response.caller, self.client)
        method, path = ("-", "-") if head is None else (head.method, head.path)
        extra = {
            "client": address,
            "caller": caller,
            "method": method,
            "path": path,
            "status": self._status,
            "size": self._sent.size,
            "duration": duration,
            "left": left,
        }
        access_log.info(
            '%s %s "%s %s" %d %d %.3f s%s',
            *(_word(address), _word(caller), _word(method), _word(path), self._status, self._sent.size, duration),
            ", left early" if left else "",
            extra=extra,
        )
        self._status, self._sent = _CLIENT_LEFT, _SentBytes()


class _SentBytes:
    """Counts the bytes of a response body that were sent so far."""

    __slots__ = ("size",)

    def __init__(self, size: int = 0) -> None:
        self.size = size


class _CountedBody:
    """A response body that returns the chunks of ``source``, and counts their bytes."""

    __slots__ = ("_count", "_source")

    def __init__(self, source: ResponseBody, count: _SentBytes) -> None:
        self._source = source
        self._count = count

    async def next_chunk(self) -> bytes | bytearray:
        """Wait for the next bytes, and return them: see `ResponseBody.next_chunk`."""
        data = await self._source.next_chunk()
        self._count.size += len(data)
        return data


def _word(text: str | None) -> str:
    """Format ``text`` as one field of a log line, without spaces and quotes."""
    if not text:
        return "-"
    short = text[:_LONGEST]
    return short if short.isprintable() and " " not in short and '"' not in short else ascii(short)
