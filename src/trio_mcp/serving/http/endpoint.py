"""Endpoint routes the HTTP requests of all clients, by the rules of both eras."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Final, cast

import attrs
import trio

from ...jsonrpc.codec import decode
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST, CodedError
from ...jsonrpc.messages import Batch, Message, Notification, Request, Unreadable
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.revisions import LEGACY_REVISIONS, REVISIONS, Revision
from ...server.served import Running
from ...state.events import Refused, RequestReceived
from ...state.per_request_fields import unsupported_version
from ...transports.host_checks import HostChecks
from ...transports.http.application import Admission, Answer, Response
from ...transports.http.heads import RequestHead
from .answers import empty, error, invalid, status_of_legacy_refusal, text, unavailable
from .cors import Cors
from .modern import ModernSide
from .request_headers import check_param_headers, check_routing_headers, required_fields
from .session import Session
from .session_table import SessionTable

__all__ = ["Endpoint", "EndpointSettings"]

logger = logging.getLogger("trio_mcp")

_LEGACY: Final = frozenset(revision.name for revision in LEGACY_REVISIONS)
_UNTOLD: Final = REVISIONS["2025-03-26"]
"""The revision of a legacy request without a version header, of which nothing else is known (2025-06-18 transports,
Protocol Version Header)."""
_MOST_KEPT: Final = 100
_NOBODY: Final = Admission()


@attrs.frozen
class EndpointSettings:
    """The place of an endpoint, ``path``, with or without a slash at the end, and who may ask there."""

    path: str
    checks: HostChecks

    def covers(self, path: str) -> bool:
        """Return whether ``path`` is the endpoint. Another spelling is served, never redirected: a redirect loses
        credentials."""
        return path.rstrip("/") == self.path.rstrip("/")


class Endpoint:
    """The application behind every HTTP connection (`HttpApplication`): one endpoint of ``running``. Its tasks run in
    ``nursery``."""

    def __init__(self, running: Running, settings: EndpointSettings, nursery: trio.Nursery) -> None:
        self._running = running
        self._settings = settings
        self._limits = running.limits
        self._stateless = running.stateless
        self._cors = Cors(settings.checks)
        self._modern = ModernSide(running, nursery)
        self._sessions = SessionTable(running, nursery)
        self._methods = b"POST, OPTIONS" if self._stateless else b"POST, GET, DELETE, OPTIONS"
        self._accepted: dict[str, frozenset[str]] = {}
        self._host: str | None = None
        """The Host that was allowed last, which most requests repeat."""
        self._is_ending = False

    # The end

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Take no new requests, and end streams: see `DuplexChannel.shut_down`."""
        self._is_ending = True
        self._modern.shut_down(reason, hurry=hurry)
        self._sessions.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until all accepted requests are over."""
        await self._modern.ended()
        await self._sessions.ended()

    # The clock

    def look_at_clock(self, now: float) -> None:
        """End idle sessions. To be called about every second."""
        self._sessions.look_at_clock(now)

    def break_silence(self) -> None:
        """Have streams that were silent send comments. To be called twice in `Limits.stream_interval`."""
        self._modern.break_silence()
        self._sessions.break_silence()

    # Requests

    def look(self, head: RequestHead) -> Answer | Admission:
        """Refuse a request by its head alone, in this order: see `HttpApplication.look`."""
        headers, checks = head.headers, self._settings.checks
        # 2026-07-28 streamable HTTP, Security & Endpoint: an Origin that is not allowed MUST be 403; a Host that is not
        # ours is a name that somebody has made point here.
        host = headers.get("host", "")
        if host != self._host:
            if not checks.allows_host(host):
                return text(HTTPStatus.FORBIDDEN, "this Host is not allowed here")
            self._host = host
        origin = headers.get("origin")
        if origin is not None and not checks.allows_origin(origin):
            return text(HTTPStatus.FORBIDDEN, "this Origin is not allowed here")
        extra = self._cors.headers(origin)
        if not self._settings.covers(head.path):
            return text(HTTPStatus.NOT_FOUND, "there is nothing here", extra)
        method = head.method
        if method == "OPTIONS":
            return self._cors.preflight(head)
        if method != "POST" and (method not in ("GET", "DELETE") or self._stateless):
            allow = b"Allow: %b\r\n" % self._methods
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", extra + allow)
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # A browser sends other types to any origin without asking first.
            return invalid(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the Content-Type is application/json", extra)
        wanted = {"POST": _BOTH, "GET": _STREAM}.get(method, frozenset[str]())
        if not wanted <= self._accepts(headers.get("accept", "*/*")):
            return invalid(HTTPStatus.NOT_ACCEPTABLE, f"Accept has to admit {' and '.join(sorted(wanted))}", extra)
        return _NOBODY

    def _accepts(self, accept: str) -> frozenset[str]:
        accepted = self._accepted.get(accept)
        if accepted is None:
            accepted = _accepted(accept)
            if len(self._accepted) < _MOST_KEPT:
                self._accepted[accept] = accepted
        return accepted

    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the answer to a fault of HTTP: see `HttpApplication.refusal`."""
        return invalid(status, reason, self._cors.headers(head.headers.get("origin") if head is not None else None))

    def serve(self, head: RequestHead, body: bytes, response: Response, caller: object | None) -> None:
        """Take a request: see `HttpApplication.serve`."""
        extra = self._cors.headers(head.headers.get("origin"))
        try:
            if head.method == "POST":
                self._post(head, body, response, extra)
            elif head.method == "GET":
                self._get(head, response, extra)
            else:
                self._delete(head, response, extra)
        except Exception:  # a defect, which concerns this request alone
            logger.exception("an HTTP request failed")
            response.answer(error(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR, "Internal error", extra))

    def _post(self, head: RequestHead, body: bytes, response: Response, extra: bytes) -> None:
        message = decode(body, max_batch=self._limits.max_batch)
        if isinstance(message, Unreadable):
            reply = message.reply
            code, words = (INVALID_REQUEST, message.reason) if reply is None else (reply.code, reply.message)
            session = self._session_of(head, extra)
            if isinstance(session, Session) and message.is_answer:
                session.answer_unreadable(message, body)
            status = HTTPStatus.BAD_REQUEST
            response.answer(error(status, code, words, extra, None if reply is None else reply.id))
        elif self._is_modern(message, head):
            self._post_modern(message, head, body, response, extra)
        else:
            self._post_legacy(message, head, body, response, extra)

    def _is_modern(self, message: Message | Batch, head: RequestHead) -> bool:
        """Return whether the message belongs to the modern era: by its own fields, else by its version header."""
        if isinstance(message, Request | Notification):
            meta = _meta_of(message)
            if PROTOCOL_VERSION in meta or CLIENT_CAPABILITIES in meta:
                return True
        version = head.headers.get("mcp-protocol-version")
        return version is not None and version not in _LEGACY

    # The modern era

    def _post_modern(
        self, message: Message | Batch, head: RequestHead, body: bytes, response: Response, extra: bytes
    ) -> None:
        if isinstance(message, Notification):
            version = head.headers.get("mcp-protocol-version")
            if version is not None and version not in REVISIONS:
                # 2025-11-25 transports, Protocol Version Header; 2026-07-28 streamable HTTP, the same: MUST be 400.
                fault = unsupported_version(version)
                response.answer(error(HTTPStatus.BAD_REQUEST, fault.code, fault.message, extra, data=fault.data))
            else:
                # No notification of a client has a meaning here, the cancel least of all: ids are the choice of each
                # client.
                response.answer(empty(HTTPStatus.ACCEPTED, extra))
            return
        state = self._modern.state
        fault: CodedError | None = None
        if isinstance(message, Request):
            fault = required_fields(message) or check_routing_headers(message, head)
        if fault is None:
            event = state.receive(message)
            if isinstance(event, RequestReceived):
                fault = check_param_headers(self._running, event.request, head)
            if fault is None:
                self._modern.take(event, body, head, response, extra)
                return
            if isinstance(event, RequestReceived):
                state.finish(event.request)
        assert isinstance(message, Request), "other messages have no such fields"
        response.answer(error(HTTPStatus.BAD_REQUEST, fault.code, fault.message, extra, message.id))

    # Legacy revisions

    def _post_legacy(
        self, message: Message | Batch, head: RequestHead, body: bytes, response: Response, extra: bytes
    ) -> None:
        if self._stateless:
            self._post_stateless(message, head, body, response, extra)
        elif isinstance(message, Request) and message.method == "initialize" and "mcp-session-id" not in head.headers:
            if self._is_ending:
                response.answer(unavailable("the server is shutting down", extra), close=True)
            else:
                self._sessions.open(message, body, head, response, extra)
        else:
            session = self._session_of(head, extra)
            if isinstance(session, Answer):
                response.answer(session)
            else:
                session.post(message, body, head, response, extra)

    def _post_stateless(
        self, message: Message | Batch, head: RequestHead, body: bytes, response: Response, extra: bytes
    ) -> None:
        if not isinstance(message, Request | Batch):
            response.answer(empty(HTTPStatus.ACCEPTED, extra))
            return
        version = head.headers.get("mcp-protocol-version")
        revision: Revision = _UNTOLD if version is None else REVISIONS[version]
        event = self._modern.state.receive_legacy(message, revision)
        if isinstance(event, Refused):
            reply = event.reply
            status = status_of_legacy_refusal(reply.code)
            response.answer(error(status, reply.code, reply.message, extra, reply.id, reply.data))
        else:
            self._modern.take(event, body, head, response, extra)

    def _get(self, head: RequestHead, response: Response, extra: bytes) -> None:
        session = self._session_of(head, extra)
        if isinstance(session, Answer):
            response.answer(session)
        else:
            session.get(head.headers.get("last-event-id"), response, extra)

    def _delete(self, head: RequestHead, response: Response, extra: bytes) -> None:
        session = self._session_of(head, extra)
        if isinstance(session, Answer):
            response.answer(session)
        else:
            session.end("the client has ended the session")
            response.answer(empty(HTTPStatus.NO_CONTENT, extra))

    def _session_of(self, head: RequestHead, extra: bytes) -> Session | Answer:
        """Return the session that a request names, or the refusal of a request that names none, or does not fit."""
        session_id = head.headers.get("mcp-session-id")
        if session_id is None:
            return invalid(
                HTTPStatus.BAD_REQUEST, "the Mcp-Session-Id header is missing, or send initialize first", extra
            )
        session = self._sessions.find(session_id, None)
        if session is None and self._is_ending:
            return unavailable("the server is shutting down", extra)
        if session is None:
            # 2025-11-25 transports, Session Management: MUST be 404, and the client opens a new session.
            reason = "there is no such session in this process: it has ended, or another one has it; send initialize"
            return invalid(HTTPStatus.NOT_FOUND, reason, extra)
        if not session.fits(head.headers.get("mcp-protocol-version")):
            # 2025-11-25 transports, Protocol Version Header: MUST be 400, by every method.
            reason = "the MCP-Protocol-Version is not the one that the session was opened with"
            return invalid(HTTPStatus.BAD_REQUEST, reason, extra)
        return session


_STREAM: Final = frozenset(("text/event-stream",))
_BOTH: Final = frozenset(("application/json", "text/event-stream"))


def _accepted(accept: str) -> frozenset[str]:
    """Return the types of ours that an Accept header admits (RFC 9110 section 12.5.1)."""
    admitted: dict[str, tuple[int, bool]] = {}
    for member in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in member.split(";"))
        good = not any(part.partition("=")[0] == "q" and _is_zero(part.partition("=")[2]) for part in parameters)
        for ours in _BOTH:
            rank = {ours: 3, f"{ours.partition('/')[0]}/*": 2, "*/*": 1}.get(kind, 0)
            if rank > admitted.get(ours, (0, False))[0]:  # the most specific range counts
                admitted[ours] = rank, good
    return frozenset(ours for ours, (_, good) in admitted.items() if good)


def _is_zero(quality: str) -> bool:
    return bool(quality) and not quality.strip("0.")


def _meta_of(message: Request | Notification) -> dict[str, Any]:
    params = message.params
    if not isinstance(params, dict):
        return {}
    meta = cast("dict[str, Any]", params).get("_meta")
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
