"""A connection serves requests in order, keeps on reading meanwhile, and ends in good order."""

from __future__ import annotations

import contextvars

import pytest
import trio
from tests.transports.http.clients import TEXT, App, Exchange, Pieces, echo, later, response_in, serving, socket_pair

from trio_mcp.transports.http.application import Answer

POST = b"POST /mcp HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET /mcp HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(params=["memory", "socket"])
async def pair(request: pytest.FixtureRequest) -> object:
    return await socket_pair() if request.param == "socket" else None


async def test_server_answers_several_requests_on_one_connection(pair: object) -> None:
    async with serving(App(), pair=pair) as client:
        for _ in range(3):
            await client.send(POST)
            status, headers, body = response_in(await client.until(b"hello"))
            assert (status, body) == (200, b"hello")
            assert headers[b"content-length"] == b"5"
            assert headers[b"date"].endswith(b" GMT")
            assert b"connection" not in headers


async def test_pipelined_requests_are_answered_in_order(pair: object) -> None:
    app = App(later)
    async with serving(app, pair=pair) as client:
        await client.send(POST + GET + POST)
        for word in (b"first", b"second", b"third"):
            await client.settle()
            app.requests[-1].response.answer(Answer(200, TEXT, word))
            assert (await client.until(word)).count(b"HTTP/1.1") == 1
        assert [(exchange.head.method, exchange.body) for exchange in app.requests] == [
            ("POST", b"hello"),
            ("GET", b""),
            ("POST", b"hello"),
        ]


async def test_server_yields_to_other_tasks_while_it_answers_many_pipelined_requests() -> None:
    app = App()
    async with serving(app, pair=await socket_pair()) as client:
        await client.send(POST * 100)
        served: set[int] = set()
        while len(app.requests) < 100:
            served.add(len(app.requests))
            await trio.lowlevel.checkpoint()
        assert len(served - {0}) > 2, "they were not served in one go"
        got = b""
        while got.count(b"hello") < 100:
            got += await client.stream.receive_some()


async def test_exception_in_a_pipelined_request_ends_the_connection() -> None:
    app = App(later)
    async with serving(app, pair=await socket_pair()) as client:
        await client.send(POST + POST)
        await client.settle()
        app.serving = broken
        app.requests[0].response.answer(Answer(200, TEXT, b"first"))
        assert (await client.rest()).endswith(b"first")
        await client.ended.wait()
        assert isinstance(client.failure, ZeroDivisionError)


def broken(_: object) -> None:
    raise ZeroDivisionError


async def test_pipelined_request_does_not_inherit_context_variables_of_the_previous_request() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    names: list[str] = []

    def serve(exchange: Exchange) -> None:
        names.append(name.get())
        if len(names) > 1:
            exchange.response.answer(Answer(204))

    async with serving(App(serve), pair=await socket_pair()) as client:
        await client.send(POST + POST)
        await client.settle()

        async def handler() -> None:
            name.set("caller")
            client.app.requests[0].response.answer(Answer(204))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(handler)
        await client.settle()
        assert names == ["nobody", "nobody"]


async def test_streamed_response_is_chunked_and_keeps_the_connection_open(pair: object) -> None:
    pieces = Pieces()
    app = App(lambda exchange: exchange.response.stream(200, TEXT, pieces))
    async with serving(app, pair=pair) as client:
        await client.send(POST)
        head = await client.until(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        pieces.put(b"a", b"b" * 20)
        assert await client.until(b"b\r\n") == b"1\r\na\r\n14\r\n" + b"b" * 20 + b"\r\n"
        pieces.put(b"")
        assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        app.serving = echo
        await client.send(POST)
        await client.until(b"hello")


async def test_application_is_notified_once_if_its_client_disconnects_before_the_response(pair: object) -> None:
    app = App(later)
    async with serving(app, pair=pair) as client:
        await client.send(POST)
        await client.settle()
        assert app.requests[0].gone == 0
        await client.stream.aclose()
        await client.ended.wait()
        assert app.requests[0].gone == 1
        assert app.requests[0].response.is_gone
        app.requests[0].response.answer(Answer(200))


async def test_server_closes_the_connection_after_the_response_if_the_request_has_a_close_header(pair: object) -> None:
    async with serving(App(), pair=pair) as client:
        await client.send(POST.replace(b"Host", b"Connection: Keep-Alive , Close\r\nHost"))
        status, headers, body = await client.only_answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"hello")


async def test_http_connection_returns_the_bytes_of_a_websocket_upgrade_request_unparsed(pair: object) -> None:
    request = GET.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: WebSocket\r\nHost")
    async with serving(App(), pair=pair) as client:
        await client.send(request[:20])
        await client.settle()
        await client.send(request[20:] + b"more")
        await client.ended.wait()
        assert client.results == [request + b"more"]
        await client.connection._stream.send_all(b"still open")  # pyright: ignore[reportPrivateUsage]
        assert await client.stream.receive_some() == b"still open"
        await client.connection._stream.aclose()  # pyright: ignore[reportPrivateUsage]


async def test_malformed_request_gets_status_400_and_closes_the_connection(pair: object) -> None:
    async with serving(App(), pair=pair) as client:
        await client.send(b"\x16\x03\x01")
        status, headers, _ = await client.only_answer()
        assert (status, headers[b"connection"]) == (400, b"close")
        await trio.lowlevel.checkpoint()
