"""StatelessEndpoint: serves requests without a session, which are all modern requests and, with ``stateless=True``, all
legacy requests. Headers of modern requests repeat values of the body, so that gateways can route by headers. The
endpoint compares these headers with the body (2026-07-28 streamable HTTP, Server Validation)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import trio

from ...jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, TOO_BUSY, CodedError
from ...jsonrpc.messages import Batch, Message, Notification, Request
from ...protocol.errors import HEADER_MISMATCH
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.param_headers import NAMED_BY, ParamHeader, check, decoded
from ...protocol.revisions import LATEST_MODERN, REVISIONS, Revision
from ...runtime.cancellation import CancelCause
from ...runtime.exchange import Exchange, PartExchange
from ...runtime.outbox import Owner
from ...runtime.peer import ANY_CLIENT
from ...runtime.requests.scope import RequestScope
from ...server.servable import Running, param_headers_of
from ...state.events import Event, Refused, RequestReceived
from ...state.requests import InboundRequest, unsupported_version
from ...state.stateless import StatelessState
from ...transports.http.application import RequestHead, ResponseHandle
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, events
from ..callers import token_expiry
from .exchanges import FedConnection, HttpRequest, PostExchange, refuses_scopes
from .responses import busy, empty, error, status_of_refusal, unavailable

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Gate

_UNTOLD: Final = REVISIONS["2025-03-26"]
"""The protocol revision of a stateless legacy request without a version header (2025-06-18 transports, Protocol Version
Header)."""
_GONE: Final = "the client closed the response"


def _drop() -> None:
    """Ignore messages that a handler sends after its response is complete."""


class StatelessExchange(PostExchange):
    """A POST request that doesn't belong to a session, and the response to it.

    If the client disconnects, the request is cancelled (2026-07-28 streamable HTTP, Cancellation). ``open_streams``
    contains all exchanges that haven't ended.
    """

    __slots__ = ("_has_sent", "_head", "_header_error", "_open_streams", "_requests", "_until")

    has_headers: ClassVar[bool] = True

    def __init__(
        self,
        connection: Exchange,
        posted: HttpRequest,
        request: InboundRequest | None,
        high_water: int,
        open_streams: dict[StatelessExchange, None],
    ) -> None:
        super().__init__(connection, posted, request, high_water)
        self._head = posted.head
        self._header_error: tuple[int, HTTPStatus] | None = None
        """Code and status of an error that the endpoint itself has found, not a handler. `None` if there is no such
        error."""
        self._open_streams = open_streams
        self._has_sent = True
        self._requests: tuple[InboundRequest, ...] = ()
        """The accepted requests of the exchange: one, or several for a batch."""
        self._until = math.inf
        """Time at which a stream of changes ends, because the client's token expires."""
        open_streams[self] = None
        posted.response.on_gone = self._on_disconnect

    def _on_disconnect(self) -> None:
        self.close()
        self.outbox.close()
        self._end_all(_GONE)

    def _end_all(self, reason: str) -> None:
        for request in self._requests:
            held = self.find(request)
            if held is not None:
                held.abort(CancelCause.DISCONNECT, reason)

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        self._connection.hold(request, held)
        self._requests = (*self._requests, request)
        if request.method.streams:
            self._until = token_expiry(self.peer.auth)
        if self.response.is_gone:  # the client disconnected before the request was admitted, so cancel the request
            held.abort(CancelCause.DISCONNECT, _GONE)

    def check_headers(self, request: InboundRequest, table: Iterable[ParamHeader]) -> None:
        fault = param_mismatch(table, request, self._head)
        if fault is not None:
            self._header_error = HEADER_MISMATCH, HTTPStatus.BAD_REQUEST
            raise fault

    def unavailable(self, reason: str) -> CodedError:
        self._header_error = TOO_BUSY, HTTPStatus.SERVICE_UNAVAILABLE
        return super().unavailable(reason)

    def method_not_found(self, request: InboundRequest) -> CodedError:
        if not request.revision.handshake:
            self._header_error = METHOD_NOT_FOUND, HTTPStatus.NOT_FOUND
        return super().method_not_found(request)

    def status_of(self, code: int) -> HTTPStatus:
        # 2026-07-28 streamable HTTP, Server Validation: the status MUST be 400, or 404 for an unknown method.
        # Only this class sets `_header_error`: a handler's own error with the same code gets its usual status.
        if self._header_error is not None and self._header_error[0] == code:
            return self._header_error[1]
        return super().status_of(code)

    def leave(self) -> None:
        del self._open_streams[self]
        if not self.is_stream:
            # The response is complete, so the outbox (the message queue) must no longer turn it into an SSE stream.
            # With `_drop` as the callback, the outbox and the exchange don't form a reference cycle.
            self.outbox.call_writer(_drop)

    def expire(self, now: float) -> None:
        """End the stream of ``subscriptions/listen`` if the client's token has expired at the time ``now``.

        The request gets no reply, so that the client reconnects.
        """
        if now >= self._until:
            self._end_all("the client's token has expired")

    # The stream

    def open_stream(self) -> None:
        self.is_stream = True
        self.outbox.call_writer(None)
        self.response.stream(200, STREAM_HEADERS + self.extra, self)

    def end_stream(self) -> None:
        self.outbox.nudge()

    async def next_chunk(self) -> bytes:
        """Return the next events as bytes, or a keep-alive comment if no event occurs for some time.

        See `ResponseBody.next_chunk`.
        """
        if self.is_over and not self.outbox.size:
            return b""
        lines = await self.outbox.take()
        if lines:
            self._has_sent = True
            return events(lines)
        return b"" if self.is_over else KEEP_ALIVE

    def comment(self) -> None:
        if self._has_sent:
            self._has_sent = False
        else:
            self.outbox.nudge()


class NotificationExchange(PartExchange):
    """A POST with a notification, outside of any session.

    Its handler counts towards the caller's limits like a request, but sends no reply. The POST gets a response when the
    notification is accepted, or refused because the server is too busy.
    """

    __slots__ = ("_posted", "_request")

    def __init__(self, connection: Exchange, posted: HttpRequest, request: InboundRequest) -> None:
        super().__init__(connection, connection.outbox, posted.peer())
        self._posted: HttpRequest | None = posted
        self._request = request

    def accept(self) -> None:
        """Respond to the POST with status 202, unless it already has a response."""
        posted, self._posted = self._posted, None
        if posted is not None:
            posted.response.answer(empty(HTTPStatus.ACCEPTED, posted.extra))

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        pass

    def reply_at_once(self, line: bytes | None) -> None:
        error, posted = self._request.error, self._posted
        if posted is not None and error is not None and error.code == TOO_BUSY:
            self._posted = None
            posted.response.answer(busy(error.message, posted.extra))


class StatelessEndpoint:
    """Serves requests to ``running`` (the running server) that belong to no session.

    They share one `Connection` object, which represents no particular client. ``gate`` knows the scopes of the callers,
    if the server requires tokens.

    If that connection ends because the server behind a proxy has disconnected, the next request opens another one. The
    connections run in ``nursery``.
    """

    def __init__(self, running: Running, nursery: trio.Nursery, gate: Gate | None) -> None:
        self._running = running
        self._nursery = nursery
        self._gate = gate
        self._limits = running.limits
        self.state = StatelessState(running.vocabulary)
        """Object that applies the rules of the protocol to all requests."""
        self._open_streams: dict[StatelessExchange, None] = {}
        self._connection = self._connect()
        self._is_ending = False

    def _connect(self) -> FedConnection:
        connection = FedConnection(self._running, ANY_CLIENT, state=self.state)
        self._nursery.start_soon(connection.run)
        return connection

    def _connected(self) -> FedConnection:
        if self._connection.exchange.ending.is_set():
            self._connection = self._connect()
        return self._connection

    def post(self, message: Message | Batch, posted: HttpRequest) -> None:
        """Serve a message of a client that uses a modern protocol revision."""
        if isinstance(message, Notification):
            self._post_notification(message, posted, LATEST_MODERN)
            return
        fault = check_headers(message, posted.head) if isinstance(message, Request) else None
        if fault is None:
            if self._gate is not None and refuses_scopes(self._running, self._gate, message, posted):
                return
            event = self.state.receive(message)
            if type(event) is RequestReceived and event.request.method.name == "tools/call":
                # A proxy checks the headers of its requests itself, in `StatelessExchange.check_headers`.
                table = param_headers_of(self._running, event.request.params.get("name"), posted.auth)
                fault = param_mismatch(table, event.request, posted.head) if table else None
            if fault is None:
                self._carry_out(event, posted)
                return
            if type(event) is RequestReceived:
                self.state.finish(event.request)
        assert isinstance(message, Request), "only requests can have these faults"
        posted.response.answer(error(HTTPStatus.BAD_REQUEST, fault.code, fault.message, posted.extra, message.id))

    def _post_notification(self, message: Notification, posted: HttpRequest, revision: Revision) -> None:
        version, method = (posted.head.headers.get(name) for name in ("mcp-protocol-version", "mcp-method"))
        fault = None
        if version is not None and version not in REVISIONS:
            # 2025-11-25 transports and 2026-07-28 streamable HTTP, Protocol Version Header: the status MUST be 400.
            fault = unsupported_version(version)
        elif method is not None:
            wrong = _differs(posted.head, "mcp-method", message.method)
            fault = None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")
        if fault is not None:
            answer = error(HTTPStatus.BAD_REQUEST, fault.code, fault.message, posted.extra, data=fault.data)
            posted.response.answer(answer)
            return
        if self._gate is not None and refuses_scopes(self._running, self._gate, message, posted):
            return
        request = self.state.notification(message, revision, len(posted.body))
        if request is None:
            posted.response.answer(empty(HTTPStatus.ACCEPTED, posted.extra))
        elif self._is_ending:
            posted.response.answer(unavailable("the server is shutting down", posted.extra), close=True)
        else:
            connection = self._connected()
            exchange = NotificationExchange(connection.exchange, posted, request)
            connection.feed(RequestReceived(request), posted.body, exchange)
            exchange.accept()

    def post_legacy(self, message: Message | Batch, posted: HttpRequest) -> None:
        """Serve a message of a client that uses a legacy protocol revision. The server has no sessions
        (``stateless=True``)."""
        version = posted.head.headers.get("mcp-protocol-version")
        revision = _UNTOLD if version is None else REVISIONS[version]
        if isinstance(message, Notification):
            self._post_notification(message, posted, revision)
            return
        if not isinstance(message, Request | Batch):
            posted.response.answer(empty(HTTPStatus.ACCEPTED, posted.extra))
            return
        if self._gate is not None and refuses_scopes(self._running, self._gate, message, posted):
            return
        event = self.state.receive_legacy(message, revision)
        if isinstance(event, Refused):
            reply = event.reply
            status = status_of_refusal(reply.code, legacy=True)
            posted.response.answer(error(status, reply.code, reply.message, posted.extra, reply.id, reply.data))
        else:
            self._carry_out(event, posted)

    def _carry_out(self, event: Event, posted: HttpRequest) -> None:
        """Process the POST request ``posted``. ``event`` has its JSON-RPC request, or the error with which the request
        is refused."""
        request = event.request if type(event) is RequestReceived else None
        if self._is_ending:
            if request is not None:
                self.state.finish(request)
            posted.response.answer(unavailable("the server is shutting down", posted.extra), close=True)
            return
        connection = self._connected()
        exchange = StatelessExchange(connection.exchange, posted, request, self._limits.high_water, self._open_streams)
        connection.feed(event, posted.body, exchange)

    def response_to(self, request: InboundRequest) -> ResponseHandle | None:
        """Return the HTTP response to a request that is in progress. Return `None` for a notification, which has no
        response."""
        held = self._connection.exchange.find(request)
        exchange = None if held is None else held.exchange
        return exchange.response if isinstance(exchange, StatelessExchange) else None

    def expire(self, now: float) -> None:
        """End each stream of ``subscriptions/listen`` whose client's token has expired at the time ``now``."""
        for exchange in tuple(self._open_streams):
            exchange.expire(now)

    def send_keep_alive(self) -> None:
        """Send a keep-alive comment on each stream that was silent since the last call.

        See `PostExchange.send_keep_alive`.
        """
        for exchange in tuple(self._open_streams):
            exchange.send_keep_alive()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Stop accepting requests: see `Connection.shut_down`."""
        self._is_ending = True
        self._connection.connection.shut_down(reason, hurry=hurry)

    async def wait_closed(self) -> None:
        """Wait until all requests of the endpoint have ended."""
        await self._connection.ended.wait()


def check_headers(request: Request, head: RequestHead) -> CodedError | None:
    """Check the headers, and the fields in ``_meta``, of a request of a modern protocol revision. Return the error if
    they are invalid, otherwise `None`.

    A request is invalid without the per-request protocol fields (2026-07-28 basic, Per-request protocol fields: MUST be
    -32602), or if a header that repeats a value of the body differs from that value or occurs twice.
    """
    given = request.params
    params = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    found = params.get("_meta")
    meta = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    for key in (PROTOCOL_VERSION, CLIENT_CAPABILITIES):
        if key not in meta:
            return CodedError(INVALID_PARAMS, f"Invalid params: missing {key} in _meta")
    version = meta[PROTOCOL_VERSION]
    if not isinstance(version, str):
        return CodedError(INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} in _meta must be a string")
    parameter = NAMED_BY.get(request.method)
    name = None if parameter is None else params.get(parameter)
    headers = head.headers
    if (
        not head.repeated
        and headers.get("mcp-protocol-version") == version
        and headers.get("mcp-method") == request.method
        and (not isinstance(name, str) or (headers.get("mcp-name") == name and not name.startswith("=?")))
    ):
        return None
    wrong = _differs(head, "mcp-protocol-version", version) or _differs(head, "mcp-method", request.method)
    if wrong is None and isinstance(name, str):
        # Clients MUST send the task's id in a header, for gateways (extension tasks, Routing Headers).
        # Accept requests without `Mcp-Name`: fastmcp 4.1 omits it, and a missing header doesn't mislead a gateway.
        may_lack = parameter == "taskId" and "mcp-name" not in headers
        wrong = None if may_lack else _differs(head, "mcp-name", name, encoded=True)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")


def _differs(head: RequestHead, name: str, declared: str, *, encoded: bool = False) -> str | None:
    value = head.headers.get(name)
    if value == declared and name not in head.repeated and not (encoded and declared.startswith("=?")):
        return None
    if value is None:
        return f"the {name} header is missing"
    if name in head.repeated:  # ambiguous: one recipient might use the first value, and another the last
        return f"the {name} header occurs more than once"
    if encoded:
        try:
            value = decoded(value)
        except ValueError as error:
            return f"the {name} header: {error}"
    return None if value == declared else f"the {name} header differs from the body"


def param_mismatch(table: Iterable[ParamHeader], request: InboundRequest, head: RequestHead) -> CodedError | None:
    """Return an error if a header in ``table`` differs from the tool argument that it must repeat. Return `None` if all
    headers are correct."""
    if not table:
        return None
    arguments = request.params.get("arguments")
    given = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    wrong = check(head.headers, given, table, head.repeated)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")
