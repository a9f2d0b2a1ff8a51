"""Functions and ASGI applications beside the endpoint."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route as StarletteRoute
from tests.patience import PATIENCE
from tests.serving.http.memory_listener import ListenedEndpoint, listening
from tests.serving.http.raw import Answer, Connection
from tests.serving.http.scenes import Scene
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, RouteRequest, RouteResponse, serve_http


async def ask(
    endpoint: ListenedEndpoint, path: str, method: str = "GET", body: bytes | None = None, **headers: str | None
) -> Answer:
    connection = await endpoint.connect()
    await connection.send(method, {"Host": "127.0.0.1", **headers}, body, path)
    return await connection.answer()


async def echo(request: RouteRequest) -> Any:
    return [request.method, request.path, request.query, request.headers["x-one"], request.body.decode()]


async def test_route_function_receives_the_request_and_can_return_json() -> None:
    async with listening(Scene().server, routes={"/echo": echo}) as endpoint:
        answer = await ask(endpoint, "/echo?a=%20b", "PUT", b"body", **{"X-One": "1"})
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json == ["PUT", "/echo", "a=%20b", "1", "body"]


@pytest.mark.parametrize(
    ("value", "status", "kind", "body"),
    [
        ("text", 200, "text/plain; charset=utf-8", b"text"),
        (b"\xff", 200, "application/octet-stream", b"\xff"),
        ({"a": 1}, 200, "application/json", b'{"a":1}'),
        (RouteResponse("<p>", 418, {"Content-Type": "text/html"}), 418, "text/html", b"<p>"),
        (RouteResponse(status=204), 204, None, b""),
    ],
)
async def test_value_returned_by_a_route_function_is_sent_as_the_response(
    value: Any, status: int, kind: str | None, body: bytes
) -> None:
    async def page(_: RouteRequest) -> Any:
        return value

    async with listening(Scene().server, routes={"/page": page}) as endpoint:
        answer = await ask(endpoint, "/page")
        assert (answer.status, answer.headers.get("content-type"), answer.body) == (status, kind, body)
        assert (await ask(endpoint, "/page", "HEAD")).body == b""


async def test_routes_are_protected_by_host_and_origin_checks() -> None:
    async with listening(Scene().server, routes={"/echo": echo}) as endpoint:
        assert (await ask(endpoint, "/echo", Host="evil.example")).status == 403
        assert (await ask(endpoint, "/echo", Origin="https://evil.example")).status == 403
        assert (await ask(endpoint, "/echo/more")).status == 404


async def test_route_body_beyond_the_message_size_limit_gets_status_413() -> None:
    async with listening(Scene(Limits(max_message_bytes=10_000)).server, routes={"/echo": echo}) as endpoint:
        session = await endpoint.initialize()
        body = b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 20_000 + b'"}'
        answer = await ask(endpoint, "/echo", "POST", body, **{"Mcp-Session-Id": session["Mcp-Session-Id"]})
        assert answer.status == 413


async def test_exception_in_a_route_function_is_logged_and_hidden_from_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: RouteRequest) -> Any:
        raise RuntimeError("secret")

    async def unsendable(_: RouteRequest) -> Any:
        return object()

    async with listening(Scene().server, routes={"/fail": fail, "/unsendable": unsendable}) as endpoint:
        with caplog.at_level(logging.ERROR):
            for path in ("/fail", "/unsendable"):
                answer = await ask(endpoint, path)
                assert (answer.status, answer.body) == (500, b"internal error")
    assert caplog.text.count("failed") == 2


async def test_client_that_disconnects_cancels_the_route_function(autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def wait(_: RouteRequest) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with listening(Scene().server, routes={"/wait": wait}) as endpoint:
        connection = await endpoint.connect()
        await connection.send("GET", {"Host": "127.0.0.1"}, path="/wait")
        await wait_all_tasks_blocked()
        await connection.stream.aclose()
        with trio.fail_after(PATIENCE):
            await ended.wait()


async def test_shutdown_waits_for_a_route_function_up_to_drain_timeout(autojump_clock: MockClock) -> None:
    async def slow(request: RouteRequest) -> str:
        await trio.sleep(float(request.query))
        return "done"

    for seconds, status in ((1, 200), (50, None)):
        async with listening(Scene(Limits(drain_timeout=2)).server, routes={"/slow": slow}) as endpoint:
            connection = await endpoint.connect()
            await connection.send("GET", {"Host": "127.0.0.1"}, path=f"/slow?{seconds}")
            await wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGTERM)
            with trio.fail_after(4):
                if status is not None:
                    assert (await connection.answer()).status == status
                await endpoint.over.wait()


# ASGI


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.url.path} {request.query_params['q']} {(await request.body()).decode()}")


class Numbers:
    """Streams pieces as the test lets it."""

    def __init__(self) -> None:
        self.steps, self.go = trio.open_memory_channel[bool](0)[::-1]
        self.cancelled = trio.Event()

    async def pieces(self) -> AsyncGenerator[bytes]:
        try:
            for number in range(3):
                if not await self.steps.receive():
                    raise RuntimeError("broken off")
                yield b"%d\n" % number
        except trio.Cancelled:
            self.cancelled.set()
            raise

    async def answer(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self.pieces())


def app_of(numbers: Numbers) -> Starlette:
    return Starlette(
        routes=[StarletteRoute("/hello", hello, methods=["GET", "POST"]), StarletteRoute("/numbers", numbers.answer)]
    )


async def test_asgi_application_can_be_mounted_as_a_route() -> None:
    async with listening(Scene().server, routes={"/app/": app_of(Numbers())}) as endpoint:
        answer = await ask(endpoint, "/app/hello?q=1", "POST", b"body")
        assert (answer.status, answer.body) == (200, b"/app/hello 1 body")
        assert (await ask(endpoint, "/app/nothing")).status == 404
        assert (await ask(endpoint, "/hello")).body == b"no endpoint at this path"


async def open_numbers(endpoint: ListenedEndpoint, numbers: Numbers) -> Connection:
    connection = await endpoint.connect()
    await connection.send("GET", {"Host": "127.0.0.1"}, path="/app/numbers")
    with trio.fail_after(PATIENCE):
        await numbers.go.send(True)
    assert (await connection.head()).status == 200
    assert await connection.more() == b"0\n"
    return connection


async def test_asgi_application_mounted_as_a_route_can_stream() -> None:
    numbers = Numbers()
    async with listening(Scene().server, routes={"/app/": app_of(numbers)}) as endpoint:
        connection = await open_numbers(endpoint, numbers)
        await numbers.go.send(True)
        assert await connection.more() == b"1\n"
        await numbers.go.send(True)
        assert [await connection.more(), await connection.more()] == [b"2\n", b""]


async def test_client_gets_an_incomplete_response_if_an_asgi_application_on_a_route_aborts_its_stream() -> None:
    numbers = Numbers()
    async with listening(Scene().server, routes={"/app/": app_of(numbers)}) as endpoint:
        connection = await open_numbers(endpoint, numbers)
        await numbers.go.send(False)
        with pytest.raises(Exception, match="peer closed connection"):
            await connection.more()


async def test_client_that_disconnects_cancels_the_asgi_application_on_a_route() -> None:
    numbers = Numbers()
    async with listening(Scene().server, routes={"/app/": app_of(numbers)}) as endpoint:
        connection = await open_numbers(endpoint, numbers)
        await connection.stream.aclose()
        with trio.fail_after(PATIENCE):
            await numbers.cancelled.wait()


# Mistakes


@pytest.mark.parametrize(
    ("path", "route", "error"),
    [
        *((path, echo, ValueError) for path in ("/mcp", "/mcp/", "/healthz", "no-slash", "/a?b")),
        ("/x", lambda: None, TypeError),
        ("/x", None, TypeError),
    ],
)
async def test_invalid_route_raises_at_start(path: str, route: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"route|path"):
        await serve_http(Scene().server, routes={path: route}, health=True)


def test_invalid_response_headers_of_a_route_raise_at_creation() -> None:
    for name, value in (("X-One", "a\r\nX-Two: b"), ("X One", "a"), ("X-One", "\u20ac")):
        with pytest.raises(ValueError, match="invalid HTTP header"):
            RouteResponse("", 200, {name: value})
