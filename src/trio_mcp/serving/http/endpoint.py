"""HttpEndpoint: checks the HTTP requests of all clients, and routes them by the rules of modern and legacy revisions. A
single task checks all timeouts of an endpoint, so that requests need no timers of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ...auth.resource_server.refusals import Refusal
from ...concurrency.fair_share import HeldBytes
from ...jsonrpc.codec import decode, skipped
from ...jsonrpc.errors import INVALID_REQUEST
from ...jsonrpc.messages import Batch, Message, Notification, Request, Unreadable
from ...jsonrpc.sizes import HEAVIEST, weight_of
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.methods import ROWS
from ...protocol.revisions import LEGACY_REVISIONS, REVISIONS
from ...runtime.limits import Limits
from ...runtime.peer import Auth, PrincipalId
from ...runtime.requests.admission import leaves_memory
from ...server.servable import Running
from ...server.server import RunningServer
from ...transports.http.application import (
    Admitted,
    Answer,
    HeadDecision,
    HttpApplication,
    RequestHead,
    ResponseHandle,
    UnservedBody,
)
from ..callers import CallersByAddress, RemoteEnd, scope_check, share_proofs, unread_bytes, warn_of_unchecked_scopes
from .exchanges import HttpRequest, refuses_scopes
from .responses import (
    HEALTH,
    JSON_AND_STREAM,
    STREAM,
    Cors,
    EndpointSettings,
    accepted_types,
    busy,
    error,
    health,
    invalid,
    refused,
    resource_metadata,
    text,
    unavailable,
)
from .session import SessionTable
from .session_exchange import ClientSession
from .stateless import StatelessEndpoint

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate
    from .routes import RouteRun, Routes
    from .session import FleetSessions

_ANYBODY: Final = Admitted()
_MAX_ACCEPTED: Final = 100
_STREAMING: Final = frozenset(row.name for row in ROWS if row.streams)
"""MCP methods whose response is always a stream."""
_LEGACY: Final = frozenset(revision.name for revision in LEGACY_REVISIONS)
MODERN: Final = REVISIONS.keys() - _LEGACY
_BOM: Final = b"\xef\xbb\xbf"
_WORTH_WEIGHING: Final = 64 * 1024
"""Minimum length of a body whose memory use is estimated before it is decoded. A shorter body becomes at most 3 MB of
objects, which are freed at once if the request is refused."""
_LOOKED_AT: Final = 4096
"""Number of bytes at each end of an undecoded body in which the message's id is searched."""
_TOO_HEAVY: Final = "the requests in progress take too much memory; try again later"


class RequestAdmission:
    """Decides whether the endpoint admits a request, before the body of the request is read.

    ``cors`` writes the CORS headers. A ``stateless`` endpoint has no sessions, and so allows neither GET nor DELETE.
    """

    def __init__(self, settings: EndpointSettings, cors: Cors, routes: Routes | None, *, stateless: bool) -> None:
        self._settings = settings
        self._checks = settings.checks
        self._gate = settings.gate
        self._cors = cors
        self._stateless = stateless
        self._methods = b"POST, OPTIONS" if stateless else b"POST, GET, DELETE, OPTIONS"
        self._accepted = set[tuple[str, str | None, str | None]]()
        """Combinations of method, type and Accept header that passed the checks. Most requests repeat one of these."""
        self._host: str | None = None
        """The last Host header that passed the checks. Most requests repeat it."""
        self._routes = routes
        self.expects_end = False
        """Whether the server has received its first signal, so that it will shut down."""

    def admit(self, head: RequestHead) -> HeadDecision:
        """Return the caller of a request, or the response that refuses the request: see `HttpApplication.admit`.

        The caller is an `Auth`, or `None` if the endpoint requires no token.
        """
        headers, checks, gate = head.headers, self._checks, self._gate
        # 2026-07-28 streamable HTTP, Security & Endpoint: if the Origin isn't allowed, the status MUST be 403.
        # A Host that isn't allowed also gets status 403, because it may be a sign of DNS rebinding.
        host = headers.get("host", "")
        if host != self._host:
            if not checks.allows_host(host):
                return self._health(head) or text(HTTPStatus.FORBIDDEN, checks.refused_host(host))
            self._host = host
        if gate is not None and head.path in gate.metadata_paths:
            return resource_metadata(gate.metadata, head.method)
        origin, extra = headers.get("origin"), b""
        if origin is not None:
            if not checks.allows_origin(origin):
                return self._public(head) or text(HTTPStatus.FORBIDDEN, checks.refused_origin(origin))
            extra = self._cors.headers(origin)
        if head.path != self._settings.path and not self._settings.covers(head.path):
            return self._public(head) or self._route(head, extra)
        if head.method == "OPTIONS":
            return self._cors.preflight(head)  # WHATWG Fetch section 4.8: a preflight has no credentials
        if gate is None:
            known = head.method, headers.get("content-type"), headers.get("accept")
            if known in self._accepted and "content-encoding" not in headers:
                return _ANYBODY
            return self._fault(head, extra) or _ANYBODY
        found = gate.known(head)
        return partial(self._ask, gate, head, extra) if found is None else self._decide(found, head, extra)

    def _health(self, head: RequestHead) -> Answer | None:
        """Return the response to a health check. Return `None` for any other request.

        Health checks may have the server's IP address as their Host.
        """
        if not self._settings.health or head.path not in HEALTH:
            return None
        return health(head.path, head.method, is_ready=not self.expects_end)

    def _public(self, head: RequestHead) -> Answer | None:
        """Return the response to a health check, or to a request for a public document. Return `None` for any other
        request.

        Web pages of any origin may read these responses.
        """
        document = self._settings.documents.get(head.path)
        if document is None:
            return self._health(head)
        return document.answer(head.method, head.headers.get("if-none-match", ""))

    def _route(self, head: RequestHead, extra: bytes) -> Answer | Admitted:
        """Admit a request for one of the user's ``routes``. Return an error response if no route has the path."""
        found = None if self._routes is None else self._routes.find(head.path)
        return text(HTTPStatus.NOT_FOUND, "no endpoint at this path", extra) if found is None else Admitted(found)

    async def _ask(self, gate: Gate, head: RequestHead, extra: bytes) -> Answer | Admitted:
        return self._decide(await gate.ask(head), head, extra)

    def _decide(self, found: Auth | Refusal, head: RequestHead, extra: bytes) -> Answer | Admitted:
        if isinstance(found, Refusal):
            return refused(found, extra)
        return self._fault(head, extra) or Admitted(found)

    def _fault(self, head: RequestHead, extra: bytes) -> Answer | None:
        """Return the error response for a request whose head is invalid for the endpoint. Return `None` if the head is
        valid.

        This check doesn't depend on the caller.
        """
        method, headers = head.method, head.headers
        content_type, accept = headers.get("content-type"), headers.get("accept")
        if (method, content_type, accept) in self._accepted and "content-encoding" not in headers:
            return None
        if method != "POST" and (method not in ("GET", "DELETE") or self._stateless):
            allow = b"Allow: %b\r\n" % self._methods
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here", extra + allow)
        if method == "POST" and (content_type or "").partition(";")[0].strip().lower() != "application/json":
            # Refuse other content types, because browsers send some of them to any origin without a preflight.
            return invalid(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the Content-Type must be application/json", extra)
        coding = headers.get("content-encoding", "").lower()
        if method == "POST" and coding not in ("", "identity"):
            # RFC 9110 section 12.5.3: a response with status 415 SHOULD have an Accept-Encoding header.
            reason = f"the Content-Encoding {coding[:50]!r} is not supported: send the body without one"
            return invalid(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason, extra + b"Accept-Encoding: identity\r\n")
        only_stream = method == "GET" or headers.get("mcp-method") in _STREAMING
        wanted = frozenset((STREAM,)) if only_stream else JSON_AND_STREAM
        accepted = accepted_types(accept or "*/*")  # an empty Accept header accepts any type
        if method != "DELETE" and wanted.isdisjoint(accepted):
            reason = f"the Accept header must allow {' or '.join(sorted(wanted))}"
            return invalid(HTTPStatus.NOT_ACCEPTABLE, reason, extra)
        if method == "POST" and len(accepted) == 1:
            (head.accepts,) = accepted
        elif len(self._accepted) < _MAX_ACCEPTED:
            self._accepted.add((method, content_type, accept))
        return None


class HttpEndpoint(RequestAdmission, HttpApplication):
    """Serves the HTTP requests of all clients to one endpoint of ``running``, the running server.

    Its tasks run in ``nursery``. ``free_connections`` returns how many more connections are allowed, if this process
    accepts them itself.
    """

    def __init__(
        self,
        running: Running,
        settings: EndpointSettings,
        nursery: trio.Nursery,
        free_connections: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(
            settings, Cors(settings.checks), _routes_of(settings, nursery, running.limits), stateless=running.stateless
        )
        self._running = running
        self._free_connections = free_connections
        warn_of_unchecked_scopes(running, settings.gate)
        share_proofs(running, settings.gate)
        self._limits = running.limits
        self.callers = CallersByAddress(running.callers, settings.trusted_proxies)
        """The object that identifies the peers of connections."""
        self._modern = StatelessEndpoint(running, nursery, settings.gate)
        self._shared = _fleet_sessions(running, nursery, settings.retry_interval)
        self._sessions = self._shared or SessionTable(running, nursery, settings.retry_interval)
        self.unread = unread_bytes(self._limits)
        """Counter for the bytes of incomplete requests, and of incomplete WebSocket messages."""
        self._is_ending = False

    # The end

    def start_draining(self) -> bool:
        """Let health checks report that the server is shutting down. Return whether there are health checks."""
        self.expects_end = True
        return self._settings.health

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Stop accepting requests, and end the streams. See `Connection.shut_down`."""
        self._is_ending = self.expects_end = True
        self._modern.shut_down(reason, hurry=hurry)
        self._sessions.shut_down(reason, hurry=hurry)

    async def wait_closed(self) -> None:
        """Wait until all accepted requests have ended."""
        await self._modern.wait_closed()
        await self._sessions.ended()
        if self._routes is not None:
            await self._routes.wait_closed()

    # The clock

    def expire(self, now: float) -> None:
        """End idle sessions, and streams whose token has expired. Call this once a second."""
        self._modern.expire(now)
        self._sessions.expire(now)

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on each stream that was silent since the last call.

        Call this twice per `Limits.stream_interval`.
        """
        self._modern.send_keep_alive()
        self._sessions.send_keep_alive()

    # Requests

    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        """Return the response to an invalid HTTP request: see `HttpApplication.refusal`."""
        extra = self._cors.headers(head.headers.get("origin") if head is not None else None)
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            return busy(f"Too busy: {reason}", extra)
        return invalid(status, reason, extra)

    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        """Return a counter for the bytes of the caller's requests that were read, but not served yet: see
        `HttpApplication.hold`."""
        assert isinstance(client, RemoteEnd), "the client of a request must be a RemoteEnd"
        principal = caller.principal.id if isinstance(caller, Auth) else None
        caller = client.caller(principal, None if head is None else head.headers)
        return self.unread.held_for(client.connection(caller))

    def who(self, head: RequestHead | None, caller: object, client: object) -> tuple[str | None, str | None]:
        """Return the IP address and the principal of a request's sender, for the access log: see `Who`."""
        assert isinstance(client, RemoteEnd), "the client of a request must be a RemoteEnd"
        address = client.caller(None, None if head is None else head.headers).address
        return address, caller.principal.id.subject if isinstance(caller, Auth) else None

    def report_unserved(self, body: UnservedBody) -> None:
        """If a refused ``body`` contained the client's reply to a server-to-client request, end that request with an
        error.

        See `HttpApplication.report_unserved`.
        """
        session_id = body.head.headers.get("mcp-session-id")
        caller = body.caller
        if session_id is None or body.head.method != "POST" or not (caller is None or isinstance(caller, Auth)):
            return
        # Without the end of the body, keys of a nested object could be mistaken for keys of the message.
        message = skipped(body.beginning, body.tail or b"\n", body.reason)
        # A body that is too long may be the client's answer to a request of the server, so continue below.
        # A body that arrived too slowly may be any message, so ignore it unless it is surely an answer.
        if not (message.is_answer or body.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            return
        self._fail_question(message, session_id, None if caller is None else caller.principal.id, body.beginning)

    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        """Serve one HTTP request: see `HttpApplication.serve`."""
        if not (caller is None or isinstance(caller, Auth)):
            cast("RouteRun", caller)(head, body, response)
            return
        body = body.removeprefix(_BOM)
        origin = head.headers.get("origin")
        # Skip CORS without an Origin header, because most clients aren't web pages.
        extra = b"" if origin is None else self._cors.headers(origin)
        principal = check = None
        if caller is not None and self._gate is not None:
            principal, check = caller.principal.id, scope_check(self._gate, caller)
        hop: RemoteEnd = response.client
        party = hop.here if principal is None and not hop.is_proxy else hop.caller(principal, head.headers)
        request = HttpRequest(head, body, response, extra, caller, principal, party, check)
        try:
            if head.method == "POST":
                self._post(request)
            elif head.method == "GET":
                self._get(request)
            else:
                self._delete(request)
        except Exception:
            request.fail()

    def _post(self, request: HttpRequest) -> None:
        if len(request.body) >= _WORTH_WEIGHING and self._lacks_memory(request):
            return
        headers, message = request.head.headers, decode(request.body, max_batch=self._limits.max_batch)
        if isinstance(message, Unreadable):
            reply = message.reply
            code, words = (INVALID_REQUEST, message.reason) if reply is None else (reply.code, reply.message)
            self._fail_question(message, headers.get("mcp-session-id"), request.principal, request.body)
            request_id = None if reply is None else reply.id
            request.response.answer(error(HTTPStatus.BAD_REQUEST, code, words, request.extra, request_id))
        elif request.response.client.is_proxy and self._lacks_connection(request, message):
            pass
        else:
            is_plainly_modern = "mcp-session-id" not in headers and headers.get("mcp-protocol-version") in MODERN
            if is_plainly_modern or self._is_modern(message, request.head):
                self._modern.post(message, request)
            else:
                self._post_legacy(message, request)

    def _lacks_memory(self, request: HttpRequest) -> bool:
        """Return whether the decoded body would need more memory than the server's limits leave.

        If so, refuse the request now: decoding the body just to refuse it would take that memory.
        """
        body, load = request.body, self._running.host.load
        leaves = partial(leaves_memory, self._limits, load, request.caller)
        # Estimate the size as late as possible, because the estimate takes as long as decoding.
        if leaves(len(body) * HEAVIEST) or leaves(weight_of(body)):
            return False
        # Admit a client's retry, which has a `requestState`: it frees the memory of the request that waits for it.
        if load.parked and b'"requestState"' in body:
            return False
        unread = skipped(body[:_LOOKED_AT], body[-_LOOKED_AT:], _TOO_HEAVY)
        if unread.is_answer and "mcp-session-id" in request.head.headers:  # admission counts only requests
            return False
        request_id = None if unread.reply is None else unread.reply.id
        request.response.answer(busy(f"Too busy: {_TOO_HEAVY}", request.extra, request_id))
        return True

    def _lacks_connection(self, request: HttpRequest, message: Message | Batch | None = None) -> bool:
        """Refuse the request and return true, if its caller, which uses a trusted proxy, has too many connections.

        The check is for requests that may use the connection for long.
        """
        hop: RemoteEnd = request.response.client
        if self._free_connections is None or not (message is None or isinstance(message, Request | Batch)):
            return False
        if hop.use(request.caller, self._free_connections()):
            return False
        request_id = message.id if isinstance(message, Request) else None
        request.response.answer(busy("Too busy: too many connections; try again later", request.extra, request_id))
        return True

    def _is_modern(self, message: Message | Batch, head: RequestHead) -> bool:
        """Return whether ``message`` uses a modern protocol revision.

        Its ``_meta`` decides. Without it, the version header decides.

        A header with a known version is ignored if the request names a session.
        """
        params = message.params if isinstance(message, Request | Notification) else None
        if isinstance(params, dict):
            meta = cast("dict[str, Any]", params).get("_meta")
            if isinstance(meta, dict) and (PROTOCOL_VERSION in meta or CLIENT_CAPABILITIES in meta):
                return True
        version = head.headers.get("mcp-protocol-version")
        if version is None or version in _LEGACY:
            return False
        return version not in REVISIONS or self._stateless or "mcp-session-id" not in head.headers

    def _post_legacy(self, message: Message | Batch, request: HttpRequest) -> None:
        if self._stateless:
            self._modern.post_legacy(message, request)
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
            self._in_session(request, partial(self._post_in_session, message, request))

    def _post_in_session(self, message: Message | Batch, request: HttpRequest, session: ClientSession) -> None:
        if self._gate is None or not refuses_scopes(self._running, self._gate, message, request):
            session.post(message, request)

    def _get(self, request: HttpRequest) -> None:
        self._in_session(request, partial(self._get_in_session, request))

    def _get_in_session(self, request: HttpRequest, session: ClientSession) -> None:
        # When this replica shuts down, refuse GET requests, so that clients continue their streams on another replica.
        if self._is_ending and self._shared is not None:
            request.response.answer(unavailable("the server is shutting down", request.extra), close=True)
        elif not (request.response.client.is_proxy and self._lacks_connection(request)):
            session.get(request)

    def _delete(self, request: HttpRequest) -> None:
        self._in_session(request, lambda session: session.delete(request))

    def _fail_question(
        self, message: Unreadable, session_id: str | None, principal: PrincipalId | None, body: bytes
    ) -> None:
        """End a server-to-client request with an error, because the client's reply, ``message``, can't be read.

        This requires that the HTTP request named a session of ``principal``.
        """
        session = None if session_id is None else self._sessions.find(session_id, principal)
        if session is not None:
            session.fail_question(message, body)
        elif self._shared is not None and session_id is not None:
            self._shared.fail_question(session_id, principal, message)

    def _in_session(self, request: HttpRequest, use: Callable[[ClientSession], None]) -> None:
        """Call ``use`` with the session that a header of ``request`` names. If the header is missing, refuse the
        request."""
        session_id = request.head.headers.get("mcp-session-id")
        if session_id is None:
            reason = "the Mcp-Session-Id header is missing; send initialize first"
            request.response.answer(invalid(HTTPStatus.BAD_REQUEST, reason, request.extra))
            return
        session = self._sessions.find(session_id, request.principal)
        if session is None and self._shared is not None and not self._is_ending:
            self._shared.look_up(session_id, request, partial(self._use, request, use))
        else:
            self._use(request, use, session)

    def _use(self, request: HttpRequest, use: Callable[[ClientSession], None], session: ClientSession | None) -> None:
        """Call the function ``use`` with ``session``, if the request may use the session.

        Refuse ``request`` if ``session`` is `None`, or if the request's protocol version is unknown.
        """
        version, extra = request.head.headers.get("mcp-protocol-version"), request.extra
        if session is None and self._is_ending:
            request.response.answer(unavailable("the server is shutting down", extra))
        elif session is None:
            # 2025-11-25 transports, Session Management: the status MUST be 404, so that the client opens a new session.
            where = "" if self._shared is not None else " in this process"
            how = "it has ended" if self._shared is not None else "it has ended, or another process has it"
            reason = f"there is no such session{where}: {how}; send initialize"
            request.response.answer(invalid(HTTPStatus.NOT_FOUND, reason, extra))
        elif version is not None and version not in REVISIONS:
            # 2025-11-25 transports, Protocol Version Header: an unsupported version MUST get status 400.
            # Any supported version is accepted, because the handshake has already determined the revision.
            reason = "the MCP-Protocol-Version is not supported"
            request.response.answer(invalid(HTTPStatus.BAD_REQUEST, reason, extra))
        else:
            use(session)


def _fleet_sessions(running: Running, nursery: trio.Nursery, retry_interval: float) -> FleetSessions[Any] | None:
    """Return the sessions that all replicas share for clients of legacy protocol revisions, or `None` if the server has
    no shared storage."""
    if not isinstance(running, RunningServer) or running.fleet is None or running.stateless:
        return None
    from .session import HttpFleet  # imported late, because most servers have no replicas

    assert isinstance(running.fleet, HttpFleet), "a storage must create one: see `FleetStorage`"
    return running.fleet.open_sessions(running, nursery, retry_interval)


def _routes_of(settings: EndpointSettings, nursery: trio.Nursery, limits: Limits) -> Routes | None:
    if not settings.routes:
        return None
    from .routes import Routes  # imported late, because most servers have no routes of their own

    return Routes(settings.routes, nursery, limits)


_LOOK: Final = 1.0
"""Maximum number of seconds between two checks of an endpoint's timeouts."""


async def watch_clock(endpoint: HttpEndpoint, interval: float, tick: Callable[[float], None]) -> None:
    """Until cancelled, call ``tick`` and the time-dependent methods of ``endpoint`` about once a second.

    Comments keep each stream from being silent for longer than ``interval`` seconds.
    """
    pause = min(_LOOK, interval / 2)
    spoken = trio.current_time()
    while True:
        await trio.sleep(pause)
        now = trio.current_time()
        tick(now)
        endpoint.expire(now)
        if now - spoken >= interval / 2:
            spoken = now
            endpoint.send_keep_alive()
