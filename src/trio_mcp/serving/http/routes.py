"""Routes: additional paths beside the endpoint of `serve_http`, each served by your function or ASGI application.

A function takes a `RouteRequest` and returns the body (text, bytes, or a JSON value) or a `RouteResponse` with a status
and headers. An ASGI application can stream. Each request runs in a task, which is cancelled when its client
disconnects.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import attrs
import trio

from ...classes import frozen
from ...jsonrpc.codec import encode_value
from ...runtime.limits import Limits
from ...transports.http.application import Answer, RequestHead, ResponseHandle
from .asgi_requests import Receive, Scope, Send

logger = logging.getLogger("trio_mcp")

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
"""Patterns of valid header names and values: RFC 9110 sections 5.1 and 5.5."""
_WRITTEN_BY_US: Final = frozenset(("connection", "content-length", "date", "transfer-encoding"))


def _lines(headers: Any) -> bytes:
    """Encode ``headers`` as HTTP header lines, except headers that the HTTP connection itself writes."""
    lines = ""
    for name, value in headers:
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(f"invalid HTTP header: {name!r}: {value!r}")
        if name.lower() not in _WRITTEN_BY_US:
            lines += f"{name}: {value}\r\n"
    return lines.encode("latin-1")


@frozen
class RouteRequest:
    """An HTTP request to one of your routes. The function of the route gets it as its argument."""

    method: str
    """HTTP method in upper case."""
    path: str
    """URL path as received, without decoding."""
    query: str
    """The query string after the ``?``, as received."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Header values, keyed by name in lower case. The values of a repeated header are joined with commas."""
    body: bytes = attrs.field(repr=False)
    """The whole body of the request, with at most `Limits.max_message_bytes` bytes."""


@frozen
class RouteResponse:
    """An HTTP response that the function of a route returns. Raises `ValueError` if a header is invalid."""

    body: object = b""
    """The body: text, bytes, or a JSON value."""
    status: int = 200
    """HTTP status code."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """Additional headers of the response."""

    def __attrs_post_init__(self) -> None:
        _lines(self.headers.items())

    def _encoded(self) -> Answer:
        """Encode the response for the HTTP connection. Raises `NotSerializable` if the body can't be encoded as
        JSON."""
        match self.body:
            case bytes():
                kind, body = b"Content-Type: application/octet-stream\r\n", self.body
            case str():
                kind, body = b"Content-Type: text/plain; charset=utf-8\r\n", self.body.encode()
            case _:
                kind, body = b"Content-Type: application/json\r\n", encode_value(self.body)
        lines = _lines(self.headers.items())
        if any(name.lower() == "content-type" for name in self.headers) or not body:
            kind = b""
        return Answer(self.status, kind + lines, body)


_FAILED: Final = RouteResponse("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)._encoded()

ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Type of an ASGI application."""
Route: TypeAlias = Callable[[RouteRequest], Awaitable[object]] | ASGIApp
"""A route: an async function that takes a `RouteRequest`, or an ASGI application that needs no lifespan."""
RouteRun: TypeAlias = Callable[[RequestHead, bytes, ResponseHandle], None]
"""Function that starts a task, which serves one request to a route."""


class Routes:
    """The HTTP ``routes`` that the user has added to a server, keyed by path.

    A path with a trailing slash includes all paths below it, and the longest matching path is used. Requests run in
    ``nursery``, until at most `Limits.drain_timeout` seconds after shutdown begins.
    """

    def __init__(self, routes: Mapping[str, Route], nursery: trio.Nursery, limits: Limits) -> None:
        self._nursery = nursery
        self._drain_timeout = limits.drain_timeout
        self._running = 0
        self._emptied = trio.lowlevel.ParkingLot()
        self._runs: dict[str, RouteRun] = {
            path: partial(self._start, _serving(path, route))
            for path, route in sorted(routes.items(), key=lambda item: -len(item[0]))
        }

    def find(self, path: str) -> RouteRun | None:
        """Return the function that begins to serve a request for ``path``. Return `None` if no route matches the
        path."""
        for route, run in self._runs.items():
            if path == route or (route.endswith("/") and path.startswith(route)):
                return run
        return None

    async def wait_closed(self) -> None:
        """Wait until all requests to routes have ended, but at most `Limits.drain_timeout` seconds."""
        with trio.move_on_after(self._drain_timeout):
            while self._running:
                await self._emptied.park()

    def _start(self, serve: _Serve, head: RequestHead, body: bytes, response: ResponseHandle) -> None:
        self._nursery.start_soon(self._run, serve, head, body, response)
        self._running += 1

    async def _run(self, serve: _Serve, head: RequestHead, body: bytes, response: ResponseHandle) -> None:
        with trio.CancelScope() as scope:
            response.on_gone = partial(scope.cancel, reason="the client is gone")
            try:
                await serve(head, body, response)
            except Exception:
                logger.exception("the route %s failed", head.path[:200])
                response.answer(_FAILED)
            finally:
                self._running -= 1
                self._emptied.unpark_all()


_Serve: TypeAlias = Callable[[RequestHead, bytes, ResponseHandle], Awaitable[None]]


def check_route(path: str, route: object) -> None:
    """Raise `TypeError` if ``route`` is neither an async function nor an ASGI application."""
    if _parameters(route) not in (1, 3):
        raise TypeError(
            f"the route {path} must be an async function that takes a RouteRequest, or an ASGI application:\n"
            "    async def hello(request: RouteRequest) -> str: ..."
        )


def _serving(path: str, route: Any) -> _Serve:
    if _parameters(route) == 1:
        return partial(_call, route)
    return partial(_call_asgi, route, path.removesuffix("/") if path.endswith("/") else "")


def _parameters(route: Any) -> int:
    """Return the number of required arguments of the function ``route``."""
    if not callable(route):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(route).parameters.values()
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


async def _call(
    function: Callable[[RouteRequest], Awaitable[object]], head: RequestHead, body: bytes, response: ResponseHandle
) -> None:
    query = head.target.partition("?")[2]
    value = await function(RouteRequest(head.method, head.path, query, head.headers, body))
    given = value if isinstance(value, RouteResponse) else RouteResponse(value)
    response.answer(given._encoded())


async def _call_asgi(app: ASGIApp, root: str, head: RequestHead, body: bytes, response: ResponseHandle) -> None:
    exchange = _AsgiExchange(body, response)
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.0" if head.http_1_0 else "1.1",
        "method": head.method,
        "scheme": "http",
        "path": unquote(head.path),
        "raw_path": head.path.encode("latin-1"),
        "query_string": head.target.partition("?")[2].encode("latin-1"),
        "root_path": root,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.headers.items()],
    }
    try:
        await app(scope, exchange.receive, exchange.send)
    finally:
        exchange.close()


class _AsgiExchange:
    """One request to an ASGI application, and its ``response`` (ASGI 3, HTTP Connection Scope).

    This object is also the response's body: see `ResponseBody`.
    """

    def __init__(self, body: bytes, response: ResponseHandle) -> None:
        self._body: bytes | None = body
        self._response = response
        self._start: tuple[int, bytes] | None = None
        self._pieces: trio.MemorySendChannel[bytes] | None = None
        self._received: trio.MemoryReceiveChannel[bytes] | None = None
        self._is_over = False

    async def receive(self) -> dict[str, Any]:
        """Return the whole request body in one ASGI event.

        Any further call waits until the client disconnects and the application is cancelled.
        """
        if self._body is None:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        """Handle one ASGI event that the application sends as a part of its response.

        Raises `RuntimeError` if ASGI doesn't allow the event after the previous events.
        """
        await trio.lowlevel.checkpoint()
        match message["type"], self._start:
            case "http.response.start", None:
                headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
                self._start = message["status"], _lines(headers)
            case "http.response.body", (status, headers) if not self._is_over:
                await self._send_body(status, headers, message.get("body", b""), more=message.get("more_body", False))
            case kind, _:
                raise RuntimeError(f"an ASGI application must not send the event {kind} at this point of its response")

    async def _send_body(self, status: int, headers: bytes, body: bytes, *, more: bool) -> None:
        self._is_over = not more
        if self._pieces is None and not more:
            self._response.answer(Answer(status, headers, body))
            return
        if self._pieces is None:
            self._pieces, self._received = trio.open_memory_channel[bytes](0)
            self._response.stream(status, headers, self)
        if body:
            await self._pieces.send(body)
        if not more:
            self._pieces.close()

    async def next_chunk(self) -> bytes:
        """Wait for the next chunk of the response body: see `ResponseBody.next_chunk`."""
        assert self._received is not None, "a stream has begun"
        try:
            return await self._received.receive()
        except trio.EndOfChannel:
            if self._is_over:
                return b""
            # Break the connection, so that the client notices that the body is incomplete.
            raise trio.BrokenResourceError("the ASGI application returned before its response was complete") from None

    def close(self) -> None:
        """End the response, because the application has returned."""
        if self._pieces is not None:
            self._pieces.close()
        elif not self._is_over:
            self._response.answer(_FAILED)
