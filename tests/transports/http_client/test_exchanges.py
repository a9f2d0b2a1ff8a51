"""One request, one answer, over a connection of its own while it lasts; leaving early closes exactly that one."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import trio
from tests.transports.http_client.scripted import OK, Visitor, answering, scripted
from trio.testing import Sequencer

from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.connection import RequestNotSent


async def test_request_contains_the_given_headers_and_the_host_and_user_agent() -> None:
    seen: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        seen.append(await visitor.request())
        await visitor.send(OK)

    async with (
        scripted(script) as server,
        HttpClient(server.url) as client,
        client.request("POST", "/mcp?a=b", [(b"Mcp-Method", b"tools/call")], b"{}") as reply,
    ):
        assert reply.status == 200
        assert reply.headers == {"content-type": "text/plain", "content-length": "5"}
        assert await reply.read(100) == b"hello"
    assert seen == [
        b"POST /mcp?a=b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept-Encoding: identity\r\n"
        b"User-Agent: trio-mcp/%s\r\n"
        b"Mcp-Method: tools/call\r\nContent-Length: 2\r\n\r\n{}" % (server.port, version("trio-mcp").encode())
    ]


async def test_http_client_uses_one_connection_for_consecutive_requests() -> None:
    async with scripted(answering(OK)) as server, HttpClient(server.url) as client:
        for _ in range(3):
            async with client.request("POST", "/", body=b"x") as reply:
                assert await reply.read(100) == b"hello"
        assert len(server.visitors) == 1


async def test_http_client_uses_separate_connections_for_concurrent_requests() -> None:
    async with (
        scripted(answering(OK)) as server,
        HttpClient(server.url) as client,
        client.request("GET", "/"),
        client.request("GET", "/"),
    ):
        assert len(server.visitors) == 2


async def test_http_client_reuses_a_connection_even_if_an_empty_response_body_was_not_read() -> None:
    accepted = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    async with scripted(answering(accepted, OK)) as server, HttpClient(server.url) as client:
        async with client.request("POST", "/", body=b"x") as reply:
            assert reply.status == 202
        async with client.request("POST", "/", body=b"x") as reply:
            pass
        assert len(server.visitors) == 1


async def test_response_that_is_closed_before_its_end_closes_only_its_own_connection() -> None:
    closed = trio.Event()

    async def script(visitor: Visitor) -> None:
        while await visitor.request():
            await visitor.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            if visitor.number == 1:
                await visitor.gone()
                closed.set()
            else:
                await closed.wait()
                await visitor.send(b"0\r\n\r\n")

    async with scripted(script) as server, HttpClient(server.url) as client:
        async with client.request("GET", "/") as kept:
            assert await kept.receive_some() == b"hello"
            async with client.request("GET", "/") as left:
                assert await left.receive_some() == b"hello"
            await closed.wait()
            assert await kept.receive_some() == b""
        async with client.request("GET", "/"):
            assert len(server.visitors) == 2, "the first connection was kept"


async def test_http_request_cancelled_before_the_response_closes_its_connection_immediately() -> None:
    steps = Sequencer()

    async def script(visitor: Visitor) -> None:
        async with steps(0):
            await visitor.request()
        await visitor.gone()
        async with steps(2):
            pass

    async with scripted(script) as server, HttpClient(server.url) as client:
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                async with client.request("POST", "/", body=b"x"):
                    raise AssertionError("nobody answers")

            nursery.start_soon(call)
            async with steps(1):
                nursery.cancel_scope.cancel()
        async with steps(3):
            pass


async def test_http_request_in_a_cancelled_scope_sends_nothing() -> None:
    async with scripted(answering(OK)) as server, HttpClient(server.url) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with client.request("POST", "/", body=b"x"):
                raise AssertionError("it was cancelled before")
        assert not server.visitors


async def test_request_on_a_closed_http_client_raises_request_not_sent() -> None:
    async with scripted(answering(OK)) as server:
        async with HttpClient(server.url) as client:
            pass
        with pytest.raises(RequestNotSent, match="closed"):
            async with client.request("GET", "/"):
                pass


@pytest.mark.parametrize(("given", "sent"), [("mine/1 (\u00e9)", [b"User-Agent: mine/1 (\xe9)"]), ("", [])])
async def test_user_agent_can_be_changed_or_omitted(given: str, sent: list[bytes]) -> None:
    seen = list[bytes]()

    async def script(visitor: Visitor) -> None:
        seen.append(await visitor.request())
        await visitor.send(OK)

    async with (
        scripted(script) as server,
        HttpClient(server.url, user_agent=given) as client,
        client.request("GET", "/"),
    ):
        pass
    assert [line for line in seen[0].split(b"\r\n") if line.startswith(b"User-Agent")] == sent
