"""Errors of requests over HTTP, beside the plain `ConnectionLost` of a connection that breaks."""

from __future__ import annotations

from ...runtime.channel import ConnectionLost


class RequestNotSent(ConnectionLost):
    """The connection failed before the system took any byte of the request, so the server has not seen the request."""


class BadResponse(ConnectionLost):
    """The server's answer is no HTTP response that this client reads: malformed, too long, or encoded."""


class BodyTooLong(BadResponse):
    """The body of an answer is longer than its reader allows."""
