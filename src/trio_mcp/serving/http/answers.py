"""Answers that are decided before any handler: refusals, as text or as JSON-RPC errors, and their headers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from ...jsonrpc.codec import frame_error
from ...jsonrpc.errors import INVALID_REQUEST, METHOD_NOT_FOUND, TOO_BUSY
from ...jsonrpc.messages import ErrorResponse, RequestId
from ...runtime.replies import error_line
from ...transports.http.application import Answer

if TYPE_CHECKING:
    from ...auth.resource_server.refusals import Refusal

JSON_HEADERS: Final = b"Content-Type: application/json\r\n"
_TEXT_HEADERS: Final = b"Content-Type: text/plain; charset=utf-8\r\n"
RETRY_AFTER: Final = b"Retry-After: 5\r\n"
"""The header of a refusal that may soon be another answer."""


def text(status: HTTPStatus, reason: str, extra: bytes = b"") -> Answer:
    """Return an answer for people."""
    return Answer(status, _TEXT_HEADERS + extra, reason.encode())


def empty(status: HTTPStatus, extra: bytes = b"") -> Answer:
    """Return an answer without a body."""
    return Answer(status, extra, b"")


def error(
    status: HTTPStatus, code: int, message: str, extra: bytes, request_id: RequestId | None = None, data: Any = None
) -> Answer:
    """Return a JSON-RPC error reply under ``request_id``, `None` where the id could not be read."""
    line = error_line(ErrorResponse(request_id, code, message, data))
    return Answer(status, JSON_HEADERS + extra, line[:-1])


def invalid(status: HTTPStatus, reason: str, extra: bytes, request_id: RequestId | None = None) -> Answer:
    """Return an answer to an HTTP request that makes no sense to the endpoint."""
    return Answer(status, JSON_HEADERS + extra, frame_error(request_id, INVALID_REQUEST, f"Invalid request: {reason}"))


def busy(reason: str, extra: bytes, request_id: RequestId | None = None) -> Answer:
    """Return an answer to a request that is one too many."""
    return error(HTTPStatus.SERVICE_UNAVAILABLE, TOO_BUSY, reason, RETRY_AFTER + extra, request_id)


def unavailable(reason: str, extra: bytes) -> Answer:
    """Return an answer for people to a request that comes at the wrong time."""
    return text(HTTPStatus.SERVICE_UNAVAILABLE, reason, RETRY_AFTER + extra)


def refused(refusal: Refusal, extra: bytes) -> Answer:
    """Return the answer to a request whose caller is not known, or not admitted."""
    return text(refusal.status, refusal.reason, lines_of(refusal) + extra)


def lines_of(refusal: Refusal) -> bytes:
    """Return the headers that go with ``refusal``."""
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in refusal.headers)


def status_of_refusal(code: int) -> HTTPStatus:
    """Return the status for an error with which the endpoint itself refuses a modern request (2026-07-28 streamable
    HTTP, Server Validation)."""
    return HTTPStatus.NOT_FOUND if code == METHOD_NOT_FOUND else HTTPStatus.BAD_REQUEST


def status_of_legacy_refusal(code: int) -> HTTPStatus:
    """Return the status for an error with which the endpoint itself refuses a legacy request. Clients take 404 for the
    end of their session (2025-11-25 transports, Session Management), so a missing method is a reply like others."""
    return HTTPStatus.OK if code == METHOD_NOT_FOUND else HTTPStatus.BAD_REQUEST
