"""The protected resource metadata (RFC 9728), by which clients find out where to get tokens. Everybody may read it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from ...transports.http.application import Answer
from .answers import JSON_HEADERS, empty, text

_ANY_PAGE: Final = b"Access-Control-Allow-Origin: *\r\n"
_KEPT: Final = b"Cache-Control: public, max-age=3600\r\n"
_METHODS: Final = b"GET, HEAD, OPTIONS"
_PREFLIGHT: Final = (
    b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: *\r\nAccess-Control-Max-Age: 7200\r\n"
) % _METHODS


def resource_metadata(document: bytes, method: str) -> Answer:
    """Return the answer to a request by ``method`` for ``document``, for any page: a client in a browser reads the
    metadata before anything else is known of the client."""
    if method in ("GET", "HEAD"):
        return Answer(HTTPStatus.OK, JSON_HEADERS + _KEPT + _ANY_PAGE, document)
    if method == "OPTIONS":
        return empty(HTTPStatus.NO_CONTENT, _ANY_PAGE + _PREFLIGHT)
    allow = b"Allow: %b\r\n" % _METHODS
    return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", _ANY_PAGE + allow)
