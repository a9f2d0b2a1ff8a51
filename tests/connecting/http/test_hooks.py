"""Hooks of the HTTP client: a function for each request and response, and one that dials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import (
    Address,
    BadTarget,
    ConnectionLost,
    HTTPError,
    Limits,
    RequestContext,
    Server,
    open_http,
    open_websocket,
    serve_http,
    serve_websocket,
)
from trio_mcp.auth import Bearer, Principal, Protected
from trio_mcp.connecting.targets import open_messages
from trio_mcp.types import HTTPRequest, HTTPResponse

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[int]:
    server = Server("shop")

    @server.tool
    async def trace(ctx: RequestContext) -> str:
        assert ctx.headers is not None
        return ctx.headers.get("x-trace", "none")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0, **options))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@ERAS
async def test_on_request_hook_sees_each_request_and_can_add_a_header(era: Any) -> None:
    requests, responses = list[HTTPRequest](), list[HTTPResponse]()

    async def add(request: HTTPRequest) -> None:
        await trio.lowlevel.checkpoint()
        request.headers["x-trace"] = str(len(requests))
        requests.append(request)

    async with (
        served() as port,
        open_http(f"http://127.0.0.1:{port}/mcp", era=era, on_request=add, on_response=responses.append) as client,
    ):
        text = (await client.call_tool("trace")).text
        sent = requests[int(text)]
        (answered,) = (response for response in responses if response.request is sent)
        assert (sent.method, sent.url) == ("POST", f"http://127.0.0.1:{port}/mcp")
        assert sent.headers["x-trace"] == text
        assert (answered.status, answered.headers["content-type"].partition(";")[0]) in [
            (200, "application/json"),
            (200, "text/event-stream"),
        ]
        assert 0 < answered.seconds < 60
        assert "x-trace" not in repr(sent)


@ERAS
async def test_on_request_hook_replaces_a_user_header_in_upper_or_lower_case(era: Any) -> None:
    def change(request: HTTPRequest) -> None:
        request.headers["x-trace"] = "hook"

    async with (
        served() as port,
        open_http(f"http://127.0.0.1:{port}/mcp", era=era, headers={"X-Trace": "given"}, on_request=change) as client,
    ):
        assert (await client.call_tool("trace")).text == "hook"


@pytest.mark.parametrize("name", ["Accept", "mcp-protocol-version", "Host", "Content-Length", "bad name", "User-Agent"])
async def test_on_request_hook_cannot_set_or_remove_protocol_headers(name: str) -> None:
    def change(request: HTTPRequest) -> None:
        request.headers[name] = "x"

    async with served() as port:
        with pytest.raises(ConnectionLost, match="on_request raised ValueError: "):
            async with open_http(f"http://127.0.0.1:{port}/mcp", on_request=change):
                pass
        with pytest.raises(ConnectionLost, match=r"on_request raised ValueError: the header .* is reserved"):
            async with open_http(f"http://127.0.0.1:{port}/mcp", on_request=lambda request: request.headers.clear()):
                pass


@ERAS
@pytest.mark.parametrize("hook", ["on_request", "on_response"])
async def test_exception_in_an_http_hook_fails_only_its_call(era: Any, hook: str) -> None:
    fails = False

    async def fail(_: object) -> None:
        if fails:
            raise KeyError("lost")

    async with served() as port, open_http(f"http://127.0.0.1:{port}/mcp", era=era, **{hook: fail}) as client:
        fails = True
        with pytest.raises(HTTPError, match=f"{hook} raised KeyError: 'lost'"):
            await client.call_tool("trace")
        fails = False
        assert (await client.call_tool("trace")).text == "none"


async def test_on_response_hook_sees_both_responses_if_a_request_is_repeated_with_a_token() -> None:
    async def verify(token: str) -> Principal | None:
        return Principal(subject="me", scopes=frozenset({"a"})) if token == "good" else None

    statuses = list[int]()

    def noted(response: HTTPResponse) -> None:
        statuses.append(response.status)

    resource = "http://127.0.0.1/mcp"
    auth = Protected(resource=resource, authorization_servers=["https://issuer.example"], verifier=verify)
    async with served(auth=auth) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with open_http(url, auth=Bearer("good"), on_response=noted) as client:
            assert (await client.call_tool("trace")).text == "none"
    assert set(statuses) <= {200, 202, 204, 401, 405}


async def test_http_client_opens_its_connections_with_the_dial_function() -> None:
    dialed = list[tuple[str, int]]()
    async with served(allowed_hosts="*") as port:

        async def dial(host: str, at: int) -> trio.SocketStream:
            dialed.append((host, at))
            return await trio.open_tcp_stream("127.0.0.1", port)

        async with open_http("http://mcp.example:81/mcp", dial=dial) as client:
            assert (await client.call_tool("trace")).text == "none"
        async with Address("http://mcp.example:81/mcp", dial=dial).open() as client:
            assert (await client.call_tool("trace")).text == "none"
    assert set(dialed) == {("mcp.example", 81)}


async def test_websocket_client_opens_its_connection_with_the_dial_function() -> None:
    dialed = list[tuple[str, int]]()
    async with trio.open_nursery() as nursery:
        serve = partial(serve_websocket, Server("shop"), port=0, allowed_hosts="*")
        listeners = await nursery.start(serve)

        async def dial(host: str, at: int) -> trio.SocketStream:
            dialed.append((host, at))
            return await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])

        async with open_websocket("ws://mcp.example:81/mcp", dial=dial) as client:
            await client.ping()
        async with Address("ws://mcp.example/mcp", dial=dial).open() as client:
            await client.ping()
        nursery.cancel_scope.cancel()
    assert dialed == [("mcp.example", 81), ("mcp.example", 80)]


@pytest.mark.parametrize("answer", [OSError("no tunnel"), ValueError("no tunnel"), None])
async def test_websocket_client_raises_connection_lost_if_its_dial_function_fails(answer: Any) -> None:
    async def dial(host: str, port: int) -> Any:
        if answer is not None:
            raise answer

    with pytest.raises(ConnectionLost, match=r"no tunnel|dial must return a trio\.SocketStream"):
        async with open_websocket("ws://mcp.example/mcp", dial=dial):
            pass


async def test_http_client_raises_connection_error_if_its_dial_function_fails() -> None:
    async def dial(host: str, port: int) -> trio.SocketStream:
        raise OSError("no tunnel")

    with pytest.raises((ConnectionLost, HTTPError), match=r"no connection to mcp\.example:80: no tunnel"):
        async with open_http("http://mcp.example/mcp", dial=dial):
            pass


@pytest.mark.parametrize(
    ("url", "options"),
    [("http://mcp.example/mcp", {"http_proxy": "http://127.0.0.1:1"}), ("http+unix://%2Frun%2Fs.sock/mcp", {})],
)
async def test_dial_option_combined_with_a_proxy_or_unix_socket_raises_bad_target(
    url: str, options: dict[str, Any]
) -> None:
    async def dial(host: str, port: int) -> trio.SocketStream:
        raise AssertionError

    with pytest.raises(BadTarget, match="dial= can't be used with"):
        async with open_http(url, dial=dial, limits=Limits(), **options):
            pass


@pytest.mark.parametrize("answer", [trio.BrokenResourceError(), ValueError("no tunnel"), None])
async def test_failing_dial_function_fails_only_the_call_that_needs_a_new_connection(answer: Any) -> None:
    fails = False

    async def dial(_: str, at: int) -> Any:
        if isinstance(answer, Exception) and fails:
            raise answer
        return None if fails else await trio.open_tcp_stream("127.0.0.1", at)

    async with served() as port, open_http(f"http://127.0.0.1:{port}/mcp", era="modern", dial=dial) as client:
        fails = True
        async with trio.open_nursery() as nursery:  # one at least needs a connection of its own
            failures = list[HTTPError]()

            async def call() -> None:
                try:
                    await client.call_tool("trace")
                except HTTPError as error:
                    failures.append(error)

            for _ in range(5):
                nursery.start_soon(call)
        assert failures
        assert all("dial" in str(error) for error in failures)
        fails = False
        assert (await client.call_tool("trace")).text == "none"


@pytest.mark.parametrize("name", ["Authorization", "DPoP"])
async def test_on_request_hook_cannot_send_a_token_over_remote_plain_http(name: str) -> None:
    def add(request: HTTPRequest) -> None:
        request.headers[name] = "Bearer secret"

    sent = list[bytes]()

    async def dial(host: str, port: int) -> trio.SocketStream:
        sent.append(host.encode())
        raise OSError("nothing may be sent")

    with pytest.raises(ConnectionLost, match="on_request raised ValueError: "):
        async with open_http("http://mcp.example/mcp", on_request=add, dial=dial):
            pass
    assert not sent


@pytest.mark.parametrize(
    ("url", "hook"),
    [
        *product(["ws://127.0.0.1:1", "tcp://127.0.0.1:1", "unix:///run/s.sock"], ["on_request", "on_response"]),
        *product(["tcp://127.0.0.1:1", "unix:///run/s.sock", "http+unix://%2Frun%2Fs.sock/mcp"], ["dial"]),
    ],
)
def test_request_response_or_dial_hook_for_an_unsupported_url_scheme_raises_bad_target(url: str, hook: str) -> None:
    with pytest.raises(BadTarget, match=r"(on_request= and on_response= need|dial= needs) an HTTP"):
        Address(url, **{hook: print})  # type: ignore[arg-type]


async def test_http_transport_opened_without_a_client_uses_the_dial_function_of_the_address() -> None:
    dialed = trio.Event()

    async def dial(_: str, __: int) -> trio.SocketStream:
        dialed.set()
        raise OSError("no tunnel")

    with trio.fail_after(PATIENCE):
        async with open_messages(Address("http://mcp.example/mcp", dial=dial), "2026-07-28") as transport:
            await transport.send(b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}\n')
            await dialed.wait()
