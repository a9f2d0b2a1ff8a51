"""What an HTTP answer that brings no reply means for the request: the error, and its words."""

from __future__ import annotations

import html
import re
from http import HTTPStatus
from typing import Any, Final

from ...jsonrpc.codec import decode
from ...jsonrpc.errors import PeerError
from ...jsonrpc.messages import ErrorResponse, RequestId
from ...runtime.http_error import HTTPError
from ...transports.http_client.errors import BadResponse
from ...transports.http_client.reply import Reply
from .retry_after import seconds_until_retry

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"

_PASSING: Final = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS))
_MOST_WORDS: Final = 500
_LONGEST_REFUSAL: Final = 1024 * 1024
_TAG: Final = re.compile(r"<(/?)([A-Za-z!][\w-]*+)[^<>]*+>")
"""A tag, read once: text without an end is no tag."""
_LONG_REFERENCE: Final = re.compile(r"&#[0-9A-Fa-fXx]{12,}+;?")
"""A reference to a character that does not exist, with too many digits to be read in a short time."""
_HIDDEN: Final = frozenset(("script", "style"))
_LOOKED_AT: Final = 16 * 1024
_LOOKED_THROUGH: Final = 4 * 1024
"""Characters without markup: as many as the words need, with references in them."""


class StatusPeerError(PeerError):
    """An error reply that came with an HTTP ``status`` of failure."""

    def __init__(self, code: int, message: str, data: Any = None, status: int = 400) -> None:
        super().__init__(code, message, data)
        self.status = status


def content_type(reply: Reply) -> str:
    """Return the media type of the body, in lower case, without parameters (RFC 9110, section 8.3.1)."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_good(reply: Reply) -> bool:
    """Return whether the status says that the request was accepted."""
    return HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES


def is_passing(status: int) -> bool:
    """Return whether a refusal with ``status`` says nothing of the same request at another time."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING


async def refusal(reply: Reply, request_id: RequestId | None) -> HTTPError | StatusPeerError:
    """Return the error for ``reply``, whose status says that a request failed: the error reply in its body, where that
    is one to this request, else the words of the body. Raises `ConnectionLost` when the body is cut."""
    retry_after = seconds_until_retry(reply.headers)
    try:
        body = await reply.read(_LONGEST_REFUSAL)
    except BadResponse as error:
        return HTTPError.refused(reply.status, str(error), retry_after)
    if content_type(reply) == JSON:
        message = decode(body)
        if isinstance(message, ErrorResponse):
            if message.id is not None and message.id == request_id:
                return StatusPeerError(message.code, message.message, message.data, reply.status)
            return HTTPError.refused(reply.status, f"{message.message[:_MOST_WORDS]} ({message.code})", retry_after)
    return HTTPError.refused(reply.status, words_of(body), retry_after)


def words_of(body: bytes) -> str:
    """Return the words of ``body`` on one line of 500 characters at most: the text of an HTML page without its
    markup."""
    text = body[:_LOOKED_AT].decode("utf-8", "replace")
    words = " ".join("".join(each if each.isprintable() else " " for each in _without_markup(text)).split())
    return words if len(words) <= _MOST_WORDS else f"{words[: _MOST_WORDS - 1]}…"


def _without_markup(text: str) -> str:
    """Return the texts between the tags in ``text``, each text once: titles are repeated as headings."""
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
