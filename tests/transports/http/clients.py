"""An application for HTTP connections that notes all that it is given, and a client that writes and reads bytes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import attrs
import h11
import trio
from trio.testing import memory_stream_pair

from trio_mcp.concurrency.fair_share import Caller, HeldBytes, SharedBytes
from trio_mcp.transports.http.application import (
    Admitted,
    Answer,
    HeadDecision,
    HttpBounds,
    RequestHead,
    ResponseHandle,
    UnservedBody,
)
from trio_mcp.transports.http.connection import HttpConnection

TEXT = b"Content-Type: text/plain\r\n"


@attrs.define(eq=False)
class Exchange:
    """A request as the application got it."""

    head: RequestHead
    body: bytes
    response: ResponseHandle
    gone: int = 0
    """How often `ResponseHandle.on_gone` was called."""
    caller: object | None = None


def echo(exchange: Exchange) -> None:
    exchange.response.answer(Answer(200, TEXT, exchange.body or exchange.head.path.encode()))


def later(_: Exchange) -> None:
    """The test answers."""


class App:
    """The application. ``serving`` is what is done with each request; ``admitting`` may refuse by the head."""

    def __init__(
        self,
        serving: Callable[[Exchange], None] = echo,
        admitting: Callable[[RequestHead], HeadDecision] = lambda _: Admitted(),
    ) -> None:
        self.serving = serving
        self.admit = admitting
        self.expects_end = False
        self.requests: list[Exchange] = []
        self.refused: list[tuple[HTTPStatus, str]] = []
        self.read_ahead = SharedBytes(1 << 30)
        self.unserved_bodies: list[UnservedBody] = []

    def serve(self, head: RequestHead, body: bytes, response: ResponseHandle, caller: object | None) -> None:
        exchange = Exchange(head, body, response, caller=caller)
        self.requests.append(exchange)

        def gone() -> None:
            exchange.gone += 1

        response.on_gone = gone
        self.serving(exchange)

    def refusal(self, status: HTTPStatus, reason: str, head: RequestHead | None) -> Answer:
        self.refused.append((status, reason))
        return Answer(status, TEXT, reason.encode())

    def hold(self, head: RequestHead | None, caller: object | None, client: object) -> HeldBytes:
        return self.read_ahead.held_for(Caller())

    def report_unserved(self, body: UnservedBody) -> None:
        self.unserved_bodies.append(body)


class Pieces:
    """A source whose pieces a test gives."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[bytes](math.inf)

    def put(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._send.send_nowait(piece)

    async def next_chunk(self) -> bytes:
        return await self._receive.receive()


@attrs.define(eq=False)
class Client:
    """The other end of a connection."""

    stream: Any
    connection: HttpConnection
    app: App
    ended: trio.Event
    results: list[bytes | None]
    failure: Exception | None = None
    """What `HttpConnection.serve` raised."""

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.stream.send_all(piece)

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked(0.001)

    async def until(self, end: bytes) -> bytes:
        """Read until what came ends with ``end``."""
        got = b""
        while not got.endswith(end):
            data = await self.stream.receive_some(65536)
            assert data, got
            got += data
        return got

    async def rest(self) -> bytes:
        """Read to the end of the connection."""
        got = b""
        while data := await self.stream.receive_some(65536):
            got += data
        return got

    async def only_answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """Read to the end, which is to be one response and no more."""
        return response_in(await self.rest())

    def tick(self, *seconds: float) -> None:
        """Let the connection see these times."""
        for second in seconds:
            self.connection.tick(second)


def response_in(data: bytes, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    """The one response that ``data`` is, by h11."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    client.receive_data(b"")
    body = b""
    head: h11.Response | None = None
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        match event:
            case h11.Response():
                head = event
            case h11.Data():
                body += bytes(event.data)
            case h11.InformationalResponse():
                pass
            case _:
                raise AssertionError(f"{event!r} in {data!r}")
    assert head is not None
    assert not client.trailing_data[0], data
    return head.status_code, dict(head.headers), body


@asynccontextmanager
async def serving(app: App, bounds: HttpBounds | None = None, pair: Any = None) -> AsyncIterator[Client]:
    """A connection over memory, or over ``pair``: the stream of the server and that of the client."""
    ours, theirs = pair or memory_stream_pair()
    connection = HttpConnection(ours, app, bounds or HttpBounds())
    client = Client(theirs, connection, app, trio.Event(), [])

    async def serve() -> None:
        try:
            client.results.append(await connection.serve())
        except Exception as error:
            client.failure = error
        client.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield client
        await theirs.aclose()
        await client.ended.wait()


async def socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """A connection over a real socket: the stream of the server and that of the client."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        client = await trio.open_tcp_stream(*listener.socket.getsockname())
        return await listener.accept(), client
