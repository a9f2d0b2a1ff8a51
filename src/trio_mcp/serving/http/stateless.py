"""StatelessEndpoint serves the requests that each stand for itself: all of the modern era and, in a server that is run
stateless, all of legacy revisions. Headers of a modern request repeat words of the body, for gateways that route by
headers, and are compared with the body (2026-07-28 streamable HTTP, Server Validation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

import trio

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...jsonrpc.messages import Request
from ...protocol.errors import HEADER_MISMATCH
from ...protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from ...protocol.param_headers import NAMED_BY, ParamHeader, check, decoded
from ...runtime.cancellation import CancelCause
from ...runtime.exchange import Exchange
from ...runtime.peer import EVERYBODY
from ...runtime.requests.scope import RequestScope
from ...runtime.transport import Transport
from ...server.served import Running, param_headers_of
from ...state.events import Event, RequestReceived
from ...state.requests import InboundRequest
from ...state.stateless import StatelessState
from ...transports.http.requests import RequestHead
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, events
from ..callers import end_of_token
from .answers import unavailable
from .post_exchange import HttpRequest, PostedConnection, PostExchange

_GONE: Final = "the client closed the response"


def _drop() -> None:
    """Do nothing for lines that come after the answer."""


class StatelessExchange(PostExchange):
    """The exchange of a request that belongs to no connection. The client's going away is the cancel of the request
    (2026-07-28 streamable HTTP, Cancellation), at any moment. ``open_ones`` has all exchanges that are not over."""

    __slots__ = ("_has_sent", "_head", "_is_mismatch", "_open_ones", "_requests", "_until")

    has_headers: ClassVar[bool] = True

    def __init__(
        self,
        connection: Exchange,
        posted: HttpRequest,
        high_water: int,
        open_ones: dict[StatelessExchange, None],
    ) -> None:
        super().__init__(connection, posted, high_water)
        self._head = posted.head
        self._is_mismatch = False
        self._open_ones = open_ones
        self._has_sent = True
        self._requests: tuple[InboundRequest, ...] = ()
        """The requests that were taken up: more than one in a batch."""
        self._until = math.inf
        """Time at which a stream of changes ends, with the token of its client."""
        open_ones[self] = None
        posted.response.on_gone = self._gone

    def _gone(self) -> None:
        self.end()
        self.outbox.let_go()
        self._end_all(_GONE)

    def _end_all(self, reason: str) -> None:
        for request in self._requests:
            held = self.find(request)
            if held is not None:
                held.end(CancelCause.DISCONNECT, reason)

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        super().hold(request, held)
        self._requests = (*self._requests, request)
        if request.method.streams:
            self._until = end_of_token(self.peer.auth)
        if self.response.is_gone:  # before the request was accepted
            held.end(CancelCause.DISCONNECT, _GONE)

    def check_headers(self, request: InboundRequest, table: Iterable[ParamHeader]) -> None:
        fault = param_mismatch(table, request, self._head)
        if fault is not None:
            self._is_mismatch = True
            raise fault

    def status_of(self, code: int | None) -> HTTPStatus:
        # 2026-07-28 streamable HTTP, Server Validation: MUST be 400. The same error of somebody else is an answer.
        if self._is_mismatch and code == HEADER_MISMATCH:
            return HTTPStatus.BAD_REQUEST
        return super().status_of(code)

    def leave(self) -> None:
        del self._open_ones[self]
        if not self.is_stream:
            # No line starts a stream any more. The outbox would keep the exchange, and each call a cycle of objects.
            self.outbox.call_writer(_drop)

    def look_at_clock(self, now: float) -> None:
        """End a stream of changes whose token has ended: without a reply, so that the client comes back."""
        if now >= self._until:
            self._end_all("the token of the client has ended")

    # The stream

    def open_stream(self) -> None:
        self.is_stream = True
        self.outbox.call_writer(None)
        self.response.stream(200, STREAM_HEADERS + self.extra, self)

    def end_stream(self) -> None:
        self.outbox.nudge()

    async def take(self) -> bytes:
        """Wait for the next events, or a comment. See `Source.take`."""
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


class _Nowhere(Transport):
    """The way of messages that belong to no request. There is none: 2026-07-28 has such messages on the streams of
    ``subscriptions/listen`` alone."""

    network = "tcp"

    async def receive(self) -> bytes:
        """Wait for ever: messages come by POST."""
        return await trio.sleep_forever()

    async def send(self, messages: bytes | bytearray) -> None:
        """Drop the messages."""
        await trio.lowlevel.checkpoint_if_cancelled()

    async def aclose(self) -> None:
        """Do nothing more than a checkpoint."""
        await trio.lowlevel.checkpoint()


class StatelessEndpoint:
    """All requests to ``running`` that belong to no connection of their client, over one connection for everybody.

    When that connection ends, because the server behind a proxy is gone, the next request opens another. The
    connections run in ``nursery``.
    """

    def __init__(self, running: Running, nursery: trio.Nursery) -> None:
        self._running = running
        self._nursery = nursery
        self._limits = running.limits
        self._state = StatelessState()
        self._open_ones: dict[StatelessExchange, None] = {}
        self._connection = self._connect()
        self._is_ending = False

    def _connect(self) -> PostedConnection:
        connection = PostedConnection(self._running, _Nowhere(), EVERYBODY, self._state)
        self._nursery.start_soon(connection.run)
        return connection

    @property
    def state(self) -> StatelessState:
        """The state that rules on all the requests."""
        return self._state

    def take(self, event: Event, posted: HttpRequest) -> None:
        """Carry out ``event``, which ``posted`` has brought: a request, or the refusal of one."""
        connection = self._connection
        if self._is_ending:
            if type(event) is RequestReceived:
                self._state.finish(event.request)
            posted.response.answer(unavailable("the server is shutting down", posted.extra), close=True)
            return
        if connection.is_over:
            connection = self._connection = self._connect()
        exchange = StatelessExchange(connection.exchange, posted, self._limits.high_water, self._open_ones)
        if type(event) is RequestReceived:
            exchange.take_up(event.request)
        connection.take(event, posted.body, exchange)

    def look_at_clock(self, now: float) -> None:
        """End the streams of changes whose tokens have ended."""
        for exchange in tuple(self._open_ones):
            exchange.look_at_clock(now)

    def break_silence(self) -> None:
        """Have all streams send comments that were silent: see `PostExchange.break_silence`."""
        for exchange in tuple(self._open_ones):
            exchange.break_silence()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Take no more requests: see `Connection.shut_down`."""
        self._is_ending = True
        self._connection.duplex.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until all requests are over."""
        await self._connection.ended.wait()


def required_fields(request: Request) -> CodedError | None:
    """Return the error for a request that does not describe itself; `None` when it does (2026-07-28 basic, Per-request
    protocol fields: MUST be -32602)."""
    meta = _object(_object(request.params).get("_meta"))
    for key in (PROTOCOL_VERSION, CLIENT_CAPABILITIES):
        if key not in meta:
            return CodedError(INVALID_PARAMS, f"Invalid params: missing {key} in _meta")
    if not isinstance(meta[PROTOCOL_VERSION], str):
        return CodedError(INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} in _meta is a string")
    return None


def check_routing_headers(request: Request, head: RequestHead) -> CodedError | None:
    """Return the error when a header does not repeat what the body says, or says it twice; `None` when all do."""
    params = _object(request.params)
    wrong = _differs(head, "mcp-protocol-version", params["_meta"][PROTOCOL_VERSION]) or _differs(
        head, "mcp-method", request.method
    )
    if wrong is None and (parameter := NAMED_BY.get(request.method)) is not None:
        name = params.get(parameter)
        # Clients MUST name the task (extension tasks, Routing Headers), for whoever stands between. fastmcp 4.1 does
        # not; nobody asks servers to mind, and nothing is hidden from a gateway where nothing is said.
        may_lack = parameter == "taskId" and "mcp-name" not in head.headers
        if isinstance(name, str) and not may_lack:
            wrong = _differs(head, "mcp-name", name, encoded=True)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")


def _differs(head: RequestHead, name: str, said: str, *, encoded: bool = False) -> str | None:
    value = head.headers.get(name)
    if value == said and name not in head.repeated and not (encoded and said.startswith("=?")):
        return None
    if value is None:
        return f"the {name} header is missing"
    if name in head.repeated:  # readers of the first one and of the last one would differ
        return f"the {name} header is there more than once"
    if encoded:
        try:
            value = decoded(value)
        except ValueError as error:
            return f"the {name} header {error}"
    return None if value == said else f"the {name} header differs from the body"


def check_param_headers(running: Running, request: InboundRequest, head: RequestHead) -> CodedError | None:
    """Return the error when the headers that repeat arguments of a tool differ from them; `None` when they do not, and
    for the tools of a stand-in, which has its requests checked itself (`ModernExchange.check_headers`)."""
    if request.method.name != "tools/call":
        return None
    return param_mismatch(param_headers_of(running, request.params.get("name")), request, head)


def param_mismatch(table: Iterable[ParamHeader], request: InboundRequest, head: RequestHead) -> CodedError | None:
    """Return the error when headers that ``table`` names differ from the arguments; `None` when they do not."""
    if not table:
        return None
    wrong = check(head.headers, _object(request.params.get("arguments")), table, head.repeated)
    return None if wrong is None else CodedError(HEADER_MISMATCH, f"Header mismatch: {wrong}")


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
