"""HTTP responses without a JSON-RPC reply: the errors to raise for them, and the time after which to retry.

`refusal` makes the error, with the text of the body. `seconds_until_retry` reads when to retry (RFC 9110 section
10.2.3). Backoff computes the pauses before a client reconnects, for the rest of an event stream for example.
"""

from __future__ import annotations

import html
import re
import time
from codecs import BOM_UTF8
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import trio

from ...concurrency.time_limits import growing_delay
from ...jsonrpc.codec import decode
from ...jsonrpc.errors import METHOD_NOT_FOUND, PeerError
from ...jsonrpc.messages import ErrorResponse, RequestId
from ...runtime.transport import HTTPError
from ...transports.http_client.connection import BadResponse, Reply
from ...transports.http_client.origins import redirect_url

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

SESSION_NOT_FOUND: Final = -32001
_NO_SESSION: Final = re.compile(r"session|not (?:been |yet )?initiali[sz]ed", re.IGNORECASE)
_PASSING: Final = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS))
_MOST_WORDS: Final = 500
_LONGEST_REFUSAL: Final = 1024 * 1024
_TAG: Final = re.compile(r"<(/?)([A-Za-z!][\w-]*+)[^<>]*+>")
"""Matches an HTML tag in one pass. A string without an end isn't a tag."""
_LONG_REFERENCE: Final = re.compile(r"&#[0-9A-Fa-fXx]{12,}+;?")
"""Matches an HTML character reference that is invalid, with so many digits that decoding it would be slow."""
_HIDDEN: Final = frozenset(("script", "style"))
_LOOKED_AT: Final = 16 * 1024
_LOOKED_THROUGH: Final = 4 * 1024
"""How many characters of the text without markup are kept, before references are decoded."""


class StatusPeerError(PeerError):
    """A JSON-RPC error reply that has arrived in an HTTP response with an error ``status``."""

    def __init__(self, code: int, message: str, data: Any = None, status: int = 400) -> None:
        super().__init__(code, message, data)
        self.status = status


def content_type(reply: Reply) -> str:
    """Return the media type of a response, in lower case and without parameters (RFC 9110, section 8.3.1)."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_object(body: bytes) -> bool:
    """Return whether ``body`` looks like a JSON object.

    The Content-Type isn't used, because some servers omit it or get it wrong.
    """
    return body[:_LOOKED_AT].removeprefix(BOM_UTF8).lstrip().startswith(b"{")


def is_good(reply: Reply) -> bool:
    """Return whether the HTTP status is a success (2xx)."""
    return HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES


def is_passing(status: int) -> bool:
    """Return whether the server may accept the request later, although it now refuses it with the HTTP ``status``."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING


def is_about_session(error: HTTPError | StatusPeerError) -> bool:
    """Return whether an error response means that the server doesn't know the client's session.

    This is so for status 404 or 410, for 400 with a matching text, and for the error code of the TypeScript SDK.
    """
    if error.status == HTTPStatus.NOT_FOUND:
        return not (isinstance(error, StatusPeerError) and error.code == METHOD_NOT_FOUND)
    words = str(error)
    names_it = error.status == HTTPStatus.BAD_REQUEST or f"({SESSION_NOT_FOUND})" in words
    return error.status == HTTPStatus.GONE or (names_it and _NO_SESSION.search(words) is not None)


async def refusal(reply: Reply, request_id: RequestId | None) -> HTTPError | StatusPeerError:
    """Return the exception for ``reply``, an HTTP response with an error status.

    The exception contains the JSON-RPC error in the body, if that error is about this request. Otherwise the exception
    contains the text of the body. Raises `ConnectionLost` if the body is incomplete.
    """
    retry_after, place = seconds_until_retry(reply.headers), redirect_url(reply.url, reply.status, reply.headers)
    try:
        body = await reply.read(_LONGEST_REFUSAL)
    except BadResponse as error:
        return HTTPError._refused(reply.status, str(error), retry_after)
    if is_object(body):
        message = decode(body.removeprefix(BOM_UTF8))
        if isinstance(message, ErrorResponse):
            if message.id is not None and message.id == request_id:
                return StatusPeerError(message.code, message.message, message.data, reply.status)
            words = f"{message.message[:_MOST_WORDS]} ({message.code})"
            return HTTPError._refused(reply.status, words, retry_after, place)
    return HTTPError._refused(reply.status, body_text(body), retry_after, place)


def body_text(body: bytes) -> str:
    """Return the text of a response ``body`` as one line of at most 500 characters, without HTML markup."""
    text = body[:_LOOKED_AT].decode("utf-8", "replace")
    words = " ".join("".join(each if each.isprintable() else " " for each in _without_markup(text)).split())
    return words if len(words) <= _MOST_WORDS else f"{words[: _MOST_WORDS - 1]}…"


def _without_markup(text: str) -> str:
    """Return the text between the HTML tags in ``text``. Repeated texts are left out, because headings often repeat the
    title."""
    parts: list[str] = []
    hidden, at = "", 0
    for tag in _TAG.finditer(text):
        if not hidden:
            parts.append(text[at : tag.start()].strip())
        name = tag[2].lower()
        if hidden == name and tag[1]:
            hidden = ""
        elif not hidden and not tag[1] and name in _HIDDEN:
            hidden = name
        at = tag.end()
    if not hidden:
        parts.append(text[at:].strip())
    words = _LONG_REFERENCE.sub("\N{REPLACEMENT CHARACTER}", " ".join(dict.fromkeys(parts)))
    return html.unescape(" ".join(words.split())[:_LOOKED_THROUGH])


_PATIENCE: Final = 5
"""How many times in a row the client uses the server's own retry delay although the stream brought no message."""
_SHORTEST_DELAY: Final = 0.1
"""The minimum number of seconds that a client waits before it reconnects, whatever delay the server requests."""
_LONGEST_AFTER_REFUSAL: Final = 300.0
_LIVED: Final = 10.0
"""If a stream without a message lasted for this many seconds, the count of failures in a row starts again at 0."""


class Backoff:
    """Computes how long to wait before each attempt to reconnect. The pauses grow with the number of failures in a
    row."""

    def __init__(self) -> None:
        self.failures = 0
        self._least = 0.0
        """The minimum number of seconds for the next pause."""

    async def pause(self, retry: int | None) -> None:
        """Wait until it is time to reconnect.

        That is after ``retry`` milliseconds if the server has demanded that (2025-11-25 transports: MUST respect), at
        least a tenth of a second, else after a growing delay. If the client has reconnected in vain repeatedly, the
        delay grows even if the server demands a short one.
        """
        self.failures += 1
        least, self._least = self._least, 0.0
        await trio.sleep(max(self._delay(retry), least))

    def _delay(self, retry: int | None) -> float:
        if retry is None:
            return self._growing(self.failures)
        asked = max(retry / 1000, _SHORTEST_DELAY)
        if self.failures > _PATIENCE:
            asked = max(asked, self._growing(self.failures - _PATIENCE))
        return asked

    def _growing(self, attempt: int) -> float:
        return growing_delay(attempt)

    def record_refusal(self, headers: Mapping[str, str]) -> None:
        """Let the next pause be as long as the header ``Retry-After`` of a refusal requires, up to five minutes."""
        self._least = min(seconds_until_retry(headers) or 0.0, _LONGEST_AFTER_REFUSAL)

    def record_end(self, began: float, *, has_brought: bool) -> None:
        """Record the end of a stream. ``began`` is the time at which the stream began, on trio's clock.

        If the stream brought a message or lasted long, reset the count of failures. An event without data isn't a
        message.
        """
        if has_brought or trio.current_time() - began >= _LIVED:
            self.reset()

    def reset(self) -> None:
        """Set the number of failures in a row to 0."""
        self.failures = 0


_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_LONGEST_DATE: Final = 40


def seconds_until_retry(headers: Mapping[str, str]) -> float | None:
    """Return the number of seconds to wait according to the header ``Retry-After``.

    Return `None` if the header is missing or invalid.

    A date is compared with the response's ``Date`` header, if present, so that the clocks of both machines may differ.
    """
    value = headers.get("retry-after")
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    then = _time_of(value)
    if then is None:
        return None
    now = _time_of(headers.get("date", ""))
    return max(then - (time.time() if now is None else now), 0.0)


def _time_of(date: str) -> float | None:
    from datetime import UTC
    from email.utils import parsedate_to_datetime  # imported late, because the import takes 10 ms

    if len(date) > _LONGEST_DATE:
        return None
    try:
        parsed = parsedate_to_datetime(date)
        # RFC 9110 section 5.6.7: a date in the format of asctime has no time zone, and is in GMT.
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
