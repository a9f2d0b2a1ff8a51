"""Load balancer cookies: a client stays on the replica of its session, and sends its cookies to no other server."""

from __future__ import annotations

import logging

import attrs
import pytest
from tests.connecting.http.scripted import Answer, Got, Handler, initialized, legacy, modern, serving, text

from trio_mcp import Address, HTTPError, open_http
from trio_mcp.transports.http_client.client import HttpClient


async def call(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


@attrs.define(eq=False)
class WithCookies(Answer):
    replica: str = ""

    async def raw(self, data: bytes) -> None:
        cookies = f"set-cookie: lang=en, de; Path=/\r\nset-cookie: replica={self.replica}; Path=/\r\n"
        await self.stream.send_all(data.replace(b" Said\r\n", b" Said\r\n" + cookies.encode(), 1))


class Balanced:
    """Two replicas, each with sessions of its own, behind a balancer whose cookie names the replica."""

    def __init__(self) -> None:
        self.turn = 0

    async def __call__(self, got: Got, answer: Answer) -> None:
        cookie = got.headers.get("cookie", "")
        replica = cookie.partition("replica=")[2][:1]
        if not replica:
            self.turn += 1
            replica = "ab"[self.turn % 2]
        session = got.headers.get("mcp-session-id", replica)
        if session != replica:
            await answer.whole(404)
            return
        answer.begun = True
        await legacy(call, replica)(got, WithCookies(answer.stream, replica=replica))


async def test_sticky_cookie_keeps_a_client_on_the_replica_of_its_session(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(Balanced()) as server, open_http(server.url) as client:
        for _ in range(4):
            assert (await client.call_tool("any")).text == "done"
        await server.until("GET")
    assert server.names.count("initialize") == 1
    replica = server.named("tools/call")[0].headers["mcp-session-id"]
    assert {got.headers.get("cookie") for got in server.got[1:]} == {f"lang=en, de; replica={replica}"}
    assert "replica=" not in caplog.text


def setting(then: Handler) -> Handler:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "initialize":
            await answer.json(initialized(got), set_cookie="a=b; Path=/")
        else:
            await then(got, answer)

    return handler


async def test_client_with_cookies_disabled_sends_no_cookies() -> None:
    async with serving(setting(legacy(call))) as server:
        async with open_http(server.url, cookies=False) as client:
            await client.call_tool("any")
        async with Address(server.url, cookies=False).open(era="legacy") as client:
            await client.call_tool("any")
        assert [got for got in server.got if "cookie" in got.headers] == []
        async with Address(server.url).open() as client:
            await client.call_tool("any")
        assert server.got[-1].headers["cookie"] == "a=b"


async def test_clients_do_not_share_cookies() -> None:
    async with serving(setting(legacy(call))) as server:
        for _ in range(2):
            async with open_http(server.url) as client:
                await client.call_tool("any")
    assert [got.headers.get("cookie") for got in server.named("initialize")] == [None, None]
    assert [got.headers.get("cookie") for got in server.named("tools/call")] == ["a=b", "a=b"]


async def test_cookie_is_not_sent_to_another_origin_after_a_redirect() -> None:
    async with serving(modern(call)) as other:

        async def handler(got: Got, answer: Answer) -> None:
            if got.target == "/mcp":
                await answer.whole(307, location="/v2", set_cookie="a=b; Path=/")
            else:
                await answer.whole(307, location=other.url)

        async with serving(handler) as server:
            with pytest.raises(HTTPError):
                async with open_http(server.url):
                    pass
        assert [(got.target, got.headers.get("cookie")) for got in server.got] == [("/mcp", None), ("/v2", "a=b")]
        assert other.got == []


async def test_authorization_server_requests_send_no_cookies() -> None:
    """Its client is an `HttpClient` of its own."""

    async def handler(got: Got, answer: Answer) -> None:
        await answer.whole(200, set_cookie="a=b; Path=/")

    async with serving(handler) as server, HttpClient(server.url) as client:
        for _ in range(2):
            async with client.request("GET", "/"):
                pass
    assert all("cookie" not in got.headers for got in server.got)
