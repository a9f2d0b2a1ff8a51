"""Endpoint routes the HTTP requests of all clients, by the rules of both eras."""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ...concurrency.shared_bytes import HeldBytes
from ...jsonrpc.codec import decode, skipped
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_REQUEST, CodedError
from ...jsonrpc.messages import Batch, Message, Notification, Request, Unreadable
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.revisions import LEGACY_REVISIONS, REVISIONS, Revision
from ...runtime.principal import Auth
from ...server.served import Running, scopes_of
from ...state.events import Refused, RequestReceived
from ...state.per_request_fields import unsupported_version
from ...transports.http.application import Answer, Response
from ...transports.http.heads import RequestHead
from ...transports.http.unserved import UnservedBody
from ..callers import CallersByAddress, Hop, unread_bytes
from ..scopes import lacking, scope_check, warn_of_unchecked_scopes
from .answers import busy, empty, error, invalid, lines_of, status_of_legacy_refusal, unavailable
from .cors import Cors
from .entrance import EndpointSettings, Entrance
from .http_request import HttpRequest
from .modern import ModernSide
from .request_headers import check_param_headers, check_routing_headers, required_fields
from .session import Session
from .session_table import SessionTable

if TYPE_CHECKING:
    from ...auth.resource_server.gate import Gate

__all__ = ["Endpoint"]

logger = logging.getLogger("trio_mcp")

_LEGACY: Final = frozenset(revision.name for revision in LEGACY_REVISIONS)
_BOM: Final = b"\xef\xbb\xbf"
_UNTOLD: Final = REVISIONS["2025-03-26"]
"""The revision of a legacy request without a version header, of which nothing else is known (2025-06-18 transports,
Protocol Version Header)."""


class Endpoint:
    """The application behind every HTTP connection (`HttpApplication`): one endpoint of ``running``. Its tasks run in
    ``nursery``. ``free_connections`` tells how many more there may be, where connections are ours."""

    def __init__(
        self,
        running: Running,
        settings: EndpointSettings,
        nursery: trio.Nursery,
        free_connections: Callable[[], int] | None = None,
    ) -> None:
        self._running = running
        self._free_connections = free_connections
        self._gate = settings.gate
        warn_of_unchecked_scopes(running, settings.gate)
        self._limits = running.limits
        self.callers = CallersByAddress(running.callers, settings.proxies)
        """Finds the other ends of connections."""
        self._stateless = running.stateless
        self._cors = Cors(settings.checks)
        self.look = Entrance(settings, self._cors, stateless=running.stateless).look
        """The checks by the head: see `HttpApplication.look`."""
        self._modern = ModernSide(running, nursery)
        self._sessions = SessionTable(running, nursery, settings.retry_interval)
        self.unread = unread_bytes(self._limits)
        """Bytes of requests, and of messages over WebSocket, that wait for their rest."""
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
        """End idle sessions, and streams whose token has ended. To be called about every second."""
        self._modern.look_at_clock(now)
        self._sessions.look_at_clock(now)

    def break_silence(self) -> None:
        """Have streams that were silent send comments. To be called twice in `Limits.stream_interval`."""
        self._modern.break_silence()
        self._sessions.break_silence()

    # Requests

    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the answer to a fault of HTTP: see `HttpApplication.refusal`."""
        extra = self._cors.headers(head.headers.get("origin") if head is not None else None)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            return busy(f"Too busy: {reason}", extra)
        return invalid(status, reason, extra)

    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a count for bytes that are read but not served: see `HttpApplication.hold`."""
        assert isinstance(client, Hop), "whoever serves a connection knows its other end"
        principal = None if caller is None else cast("Auth", caller).principal.id
        return self.unread.held_for(client.caller(principal, None if head is None else head.headers))

    def who(self, head: RequestHead | None, caller: object, client: object) -> tuple[str | None, str | None]:
        """Return the address and the principal of a request, for an access log: see `Who`."""
        assert isinstance(client, Hop), "whoever serves a connection knows its other end"
        address = client.caller(None, None if head is None else head.headers).address
        return address, caller.principal.id.subject if isinstance(caller, Auth) else None

    def unserved(self, body: UnservedBody) -> None:
        """Fail the question that ``body`` was to answer: see `HttpApplication.unserved`."""
        session_id = body.head.headers.get("mcp-session-id")
        if session_id is None or body.head.method != "POST":
            return
        caller = cast("Auth | None", body.caller)
        session = self._sessions.find(session_id, None if caller is None else caller.principal.id)
        if session is not None:
            # Where the end has not come, nothing at the end of the beginning is a member of the message.
            message = skipped(body.beginning, body.end or b"\n", body.reason)
            # What is too long is more often an answer than not; a slow beginning tells nothing.
            if message.is_answer or body.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                session.fail_question(message, body.beginning)

    def serve(self, head: RequestHead, body: bytes, response: Response, caller: object | None) -> None:
        """Take a request: see `HttpApplication.serve`."""
        assert caller is None or isinstance(caller, Auth), "the entrance admits no others"
        body = body.removeprefix(_BOM)
        origin = head.headers.get("origin")
        extra = b"" if origin is None else self._cors.headers(origin)  # most clients are no pages
        principal = check = None
        if caller is not None and self._gate is not None:
            principal, check = caller.principal.id, scope_check(self._gate, caller)
        hop: Hop = response.client
        party = hop.here if principal is None and not hop.is_proxy else hop.caller(principal, head.headers)
        request = HttpRequest(head, body, response, extra, caller, principal, party, check)
        try:
            if head.method == "POST":
                self._post(request)
            elif head.method == "GET":
                self._get(request)
            else:
                self._delete(request)
        except Exception:  # a defect, which concerns this request alone
            logger.exception("an HTTP request failed")
            response.answer(error(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR, "Internal error", extra))

    def _post(self, request: HttpRequest) -> None:
        message = decode(request.body, max_batch=self._limits.max_batch)
        if isinstance(message, Unreadable):
            reply = message.reply
            code, words = (INVALID_REQUEST, message.reason) if reply is None else (reply.code, reply.message)
            session = self._session_of(request)
            if isinstance(session, Session):
                session.fail_question(message, request.body)
            request_id = None if reply is None else reply.id
            request.response.answer(error(HTTPStatus.BAD_REQUEST, code, words, request.extra, request_id))
        elif request.response.client.is_proxy and self._lacks_connection(request, message):
            pass
        elif self._is_modern(message, request.head):
            self._post_modern(message, request)
        else:
            self._post_legacy(message, request)

    def _lacks_connection(self, request: HttpRequest, message: Message | Batch | None = None) -> bool:
        """Return whether the caller behind a trusted proxy has its share of the connections already, so that this one
        must not be taken by a request that may last. The answer is given then."""
        hop: Hop = request.response.client
        if self._free_connections is None or not (message is None or isinstance(message, Request | Batch)):
            return False
        if hop.use(request.caller, self._free_connections()):
            return False
        request_id = message.id if isinstance(message, Request) else None
        request.response.answer(busy("Too busy: too many connections; try again later", request.extra, request_id))
        return True

    def _is_modern(self, message: Message | Batch, head: RequestHead) -> bool:
        """Return whether the message belongs to the modern era: by its own fields, else by its version header, unless
        the message names a session, whose revision rules."""
        if isinstance(message, Request | Notification):
            meta = _meta_of(message)
            if PROTOCOL_VERSION in meta or CLIENT_CAPABILITIES in meta:
                return True
        version = head.headers.get("mcp-protocol-version")
        if version is None or version in _LEGACY:
            return False
        return version not in REVISIONS or self._stateless or "mcp-session-id" not in head.headers

    # The modern era

    def _post_modern(self, message: Message | Batch, request: HttpRequest) -> None:
        head, response, extra = request.head, request.response, request.extra
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
            if self._gate is not None and self._lacks_scopes(self._gate, message, request):
                return
            event = state.receive(message)
            if isinstance(event, RequestReceived):
                fault = check_param_headers(self._running, event.request, head)
            if fault is None:
                self._modern.take(event, request)
                return
            if isinstance(event, RequestReceived):
                state.finish(event.request)
        assert isinstance(message, Request), "other messages have no such fields"
        response.answer(error(HTTPStatus.BAD_REQUEST, fault.code, fault.message, extra, message.id))

    # Legacy revisions

    def _post_legacy(self, message: Message | Batch, request: HttpRequest) -> None:
        if self._stateless:
            self._post_stateless(message, request)
        elif (
            isinstance(message, Request)
            and message.method == "initialize"
            and "mcp-session-id" not in request.head.headers
        ):
            if self._is_ending:
                request.response.answer(unavailable("the server is shutting down", request.extra), close=True)
            else:
                self._sessions.open(message, request)
        else:
            session = self._session_of(request)
            if isinstance(session, Answer):
                request.response.answer(session)
            elif self._gate is None or not self._lacks_scopes(self._gate, message, request):
                session.post(message, request)

    def _post_stateless(self, message: Message | Batch, request: HttpRequest) -> None:
        head, response, extra = request.head, request.response, request.extra
        if not isinstance(message, Request | Batch):
            response.answer(empty(HTTPStatus.ACCEPTED, extra))
            return
        if self._gate is not None and self._lacks_scopes(self._gate, message, request):
            return
        version = head.headers.get("mcp-protocol-version")
        revision: Revision = _UNTOLD if version is None else REVISIONS[version]
        event = self._modern.state.receive_legacy(message, revision)
        if isinstance(event, Refused):
            reply = event.reply
            status = status_of_legacy_refusal(reply.code)
            response.answer(error(status, reply.code, reply.message, extra, reply.id, reply.data))
        else:
            self._modern.take(event, request)

    # Scopes

    def _lacks_scopes(self, gate: Gate, message: Message | Batch, request: HttpRequest) -> bool:
        """Return whether the caller lacks a scope for what ``message`` asks. The answer is given then: the last moment
        at which the answer can have a status of its own."""
        needed = frozenset[str]()
        if isinstance(message, Request):
            needed = scopes_of(self._running, message.method, message.params)
        elif isinstance(message, Batch):  # all at once: the client asks its user once
            requests = [member for member in message.members if isinstance(member, Request)]
            needed = needed.union(*(scopes_of(self._running, each.method, each.params) for each in requests))
        if not needed or request.auth is None or (refusal := gate.missing(request.auth, needed)) is None:
            return False
        fault, extra = lacking(refusal, needed), lines_of(refusal) + request.extra
        request_id = message.id if isinstance(message, Request) else None
        request.response.answer(error(refusal.status, fault.code, fault.message, extra, request_id, fault.data))
        return True

    def _get(self, request: HttpRequest) -> None:
        session = self._session_of(request)
        if isinstance(session, Answer):
            request.response.answer(session)
        elif not (request.response.client.is_proxy and self._lacks_connection(request)):
            session.get(request)

    def _delete(self, request: HttpRequest) -> None:
        session = self._session_of(request)
        if isinstance(session, Answer):
            request.response.answer(session)
        else:
            session.end("the client has ended the session")
            request.response.answer(empty(HTTPStatus.NO_CONTENT, request.extra))

    def _session_of(self, request: HttpRequest) -> Session | Answer:
        """Return the session that a request names, or the refusal of a request that names none, or does not fit."""
        head, extra = request.head, request.extra
        session_id = head.headers.get("mcp-session-id")
        if session_id is None:
            return invalid(
                HTTPStatus.BAD_REQUEST, "the Mcp-Session-Id header is missing, or send initialize first", extra
            )
        session = self._sessions.find(session_id, request.principal)
        if session is None and self._is_ending:
            return unavailable("the server is shutting down", extra)
        if session is None:
            # 2025-11-25 transports, Session Management: MUST be 404, and the client opens a new session.
            reason = "there is no such session in this process: it has ended, or another one has it; send initialize"
            return invalid(HTTPStatus.NOT_FOUND, reason, extra)
        version = head.headers.get("mcp-protocol-version")
        if version is not None and version not in REVISIONS:
            # 2025-11-25 transports, Protocol Version Header: MUST be 400, by every method. Another one that we speak is
            # served, since the handshake has settled the revision.
            return invalid(HTTPStatus.BAD_REQUEST, "the MCP-Protocol-Version is not supported", extra)
        return session


def _meta_of(message: Request | Notification) -> dict[str, Any]:
    params = message.params
    if not isinstance(params, dict):
        return {}
    meta = cast("dict[str, Any]", params).get("_meta")
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
