"""The transport HTTP+SSE of 2024-11-05: the fallback for servers that refuse a POST to their URL."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, initialized, result, serving, text

from trio_mcp import ConnectionLost, HTTPError, Limits, ProtocolViolation, open_http
from trio_mcp.auth import Bearer
from trio_mcp.connecting.http import opening, posted_request
from trio_mcp.types import ElicitResult

MESSAGES = "/messages?session=1"
QUESTION = {
    "jsonrpc": "2.0",
    "id": "q-1",
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}


class Old:
    """A server that speaks HTTP+SSE only. ``refusal`` answers POSTs to its URL."""

    def __init__(self, refusal: int = 405, endpoint: str = MESSAGES, first: str = ": hello\r\n\r\n") -> None:
        self.refusal = refusal
        self.endpoint = endpoint
        self.first = first
        self.stream: Answer | None = None
        self.over = trio.Event()

    async def __call__(self, got: Got, answer: Answer) -> None:
        if got.method == "GET" or (got.target == "/mcp" and self.refusal == 200):
            await answer.open()
            await answer.chunk(f"{self.first}event: endpoint\r\ndata: {self.endpoint}\r\n\r\n".encode())
            if got.method == "GET":
                self.stream = answer
                await self.over.wait()
            await answer.end()
        elif got.target == "/mcp":
            await answer.whole(self.refusal, b"Method Not Allowed")
        else:
            await self.take(got, answer)

    async def take(self, got: Got, answer: Answer) -> None:
        await answer.whole(202, b"Accepted", content_type="text/plain")
        assert self.stream is not None
        for message in self.messages_for(got):
            await self.stream.event(message, event="message")

    def messages_for(self, got: Got) -> list[Any]:
        match got.name:
            case "initialize":
                return [initialized(got)]
            case "tools/list":
                return [result(got, tools=[{"name": "add", "inputSchema": {"type": "object"}}])]
            case "tools/call" if got.message["params"]["name"] == "ask":
                return [QUESTION, text(got)]
            case "tools/call" if got.message["params"]["name"] != "hang":
                return [text(got)]
            case _:
                return []


@pytest.mark.parametrize("refusal", [400, 404, 405, 406, 415, 422, 501, 200])
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_client_uses_the_old_http_and_sse_transport_if_the_server_refuses_post(refusal: int, era: Any) -> None:
    async with serving(Old(refusal)) as server, open_http(server.url, era=era) as client:
        assert [tool.name async for tool in client.list_tools()] == ["add"]
        assert (await client.call_tool("add")).text == "done"
        await server.until("notifications/initialized")
        assert server.names.count("GET") == 1
        assert {got.target for got in server.got if got.name.startswith("tools/")} == {MESSAGES}
        assert "mcp-protocol-version" not in server.named("tools/call")[0].headers


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("/messages/?session_id=ab", "/messages/?session_id=ab"),
        ("?session=2", "/mcp?session=2"),
        ("messages", "/messages"),
        ("{origin}/x?y=1", "/x?y=1"),
        (" /padded ", "/padded"),
    ],
)
async def test_sse_endpoint_is_resolved_relative_to_the_server_url(endpoint: str, target: str) -> None:
    old = Old()
    async with serving(old) as server:
        old.endpoint = endpoint.format(origin=server.url.removesuffix("/mcp"))
        async with open_http(server.url) as client:
            await client.call_tool("add")
        assert server.named("tools/call")[0].target == target


@pytest.mark.parametrize(
    "endpoint",
    ["http://other.example/messages", "//other.example/m", "https://127.0.0.1/m", "ftp://x", "/" + "m" * 5000],
)
async def test_sse_endpoint_at_another_origin_raises_protocol_violation(endpoint: str) -> None:
    async with serving(Old(endpoint=endpoint)) as server:
        with pytest.raises(ProtocolViolation, match="the event 'endpoint'"):
            async with open_http(server.url):
                pass
        assert {got.target for got in server.got} == {"/mcp"}


@pytest.mark.parametrize("first", ["event: ping\ndata: 1\n\n", "event: open\ndata: {}\n\n", "retry: 100\n\n", "\ufeff"])
async def test_client_accepts_an_sse_endpoint_event_after_other_events(first: str) -> None:
    async with serving(Old(first=first)) as server, open_http(server.url) as client:
        assert (await client.call_tool("add")).text == "done"


@pytest.mark.parametrize("way", ["json", "json and stream", "events", "status"])
async def test_client_of_the_http_and_sse_transport_also_accepts_a_reply_in_the_response_to_its_post(way: str) -> None:
    class Eager(Old):
        async def take(self, got: Got, answer: Answer) -> None:
            messages = self.messages_for(got)
            if not messages or way == "status":
                await answer.whole(200, b'{"status": "ok"}')
            elif way == "events":
                await answer.open()
                await answer.event(messages[0])
                await answer.end()
            else:
                await answer.whole(200, json.dumps(messages[0]).encode())
            assert self.stream is not None
            for message in messages if "st" in way else []:
                await self.stream.event(message, event="message")

    async with serving(Eager()) as server, open_http(server.url) as client:
        assert (await client.call_tool("add")).text == "done"
        assert (await client.call_tool("add")).text == "done"


async def test_client_stops_waiting_for_the_response_to_a_post_after_the_reply_arrives_by_sse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(posted_request, "_FAREWELL", 0.01)

    class Silent(Old):
        async def take(self, got: Got, answer: Answer) -> None:
            if got.name != "tools/call":
                await super().take(got, answer)
            elif self.stream is not None:
                await self.stream.event(text(got), event="message")
                await answer.gone()

    async with serving(Silent()) as server, open_http(server.url, limits=Limits(max_in_flight=1)) as client:
        for _ in range(3):
            assert (await client.call_tool("add")).text == "done"


@pytest.mark.parametrize("status", [401, 403])
async def test_client_reports_the_http_status_if_the_sse_stream_is_refused_for_a_missing_token(status: int) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        await answer.whole(405 if got.method == "POST" else status)

    async with serving(handler) as server:
        with pytest.raises(HTTPError, match=str(status)):
            async with open_http(server.url):
                pass


async def test_client_sends_the_authorization_header_with_the_sse_stream_and_posts() -> None:
    async with serving(Old()) as server, open_http(server.url, auth=Bearer("token-1")) as client:
        await client.call_tool("add")
        assert {got.headers.get("authorization") for got in server.got} == {"Bearer token-1"}


async def test_elicitation_over_sse_is_answered_by_post() -> None:
    async with (
        serving(Old()) as server,
        open_http(server.url, elicitation=lambda question: ElicitResult("decline")) as client,
    ):
        await client.call_tool("ask")
        assert (await server.until("reply")).message == {"jsonrpc": "2.0", "id": "q-1", "result": {"action": "decline"}}


async def test_cancelled_call_over_sse_is_cancelled_in_the_server() -> None:
    async with serving(Old()) as server, open_http(server.url) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "hang")
            call = await server.until("tools/call")
            nursery.cancel_scope.cancel()
        assert (await server.until("notifications/cancelled")).message["params"]["requestId"] == call.message["id"]
        assert (await client.call_tool("add")).text == "done"


async def test_refused_post_over_sse_fails_only_its_call() -> None:
    class Refusing(Old):
        async def take(self, got: Got, answer: Answer) -> None:
            if got.name == "tools/call" and got.message["params"]["name"] == "add":
                await answer.whole(503, b"not now")
            else:
                await super().take(got, answer)

    async with serving(Refusing()) as server, open_http(server.url) as client:
        with pytest.raises(HTTPError, match="not now"):
            await client.call_tool("add")
        assert (await client.call_tool("other")).text == "done"


async def test_connection_is_lost_when_the_sse_stream_ends() -> None:
    old = Old()
    async with serving(old) as server, open_http(server.url) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.until, "tools/call")
            nursery.start_soon(_end, old, server)
            with pytest.raises(ConnectionLost, match="closed its event stream"):
                await client.call_tool("hang")
        assert isinstance(client.lost, ConnectionLost)


async def _end(old: Old, server: Any) -> None:
    await server.until("tools/call")
    old.over.set()


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
@pytest.mark.parametrize("get", ["refused", "page", "other event", "empty"])
async def test_client_raises_the_first_http_error_if_the_server_refuses_post_and_sse(era: Any, get: str) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.method == "POST":
            await answer.whole(404, b"no such page")
        elif get == "refused":
            await answer.whole(405)
        elif get == "page":
            await answer.whole(200, b"<p>Hello</p>", content_type="text/html")
        else:
            await answer.open()
            if get == "other event":
                await answer.event({"jsonrpc": "2.0", "method": "x"})
            await answer.end()

    async with serving(handler) as server:
        with pytest.raises(HTTPError, match="no such page"):
            async with open_http(server.url, era=era):
                pass
        assert server.names.count("GET") == (era != "modern")


async def test_client_times_out_if_the_sse_stream_sends_no_endpoint_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_LONGEST_WAIT", 0.05)

    async def handler(got: Got, answer: Answer) -> None:
        if got.method == "POST":
            await answer.whole(405)
        else:
            await answer.open()
            await answer.gone()

    async with serving(handler) as server:
        with pytest.raises(HTTPError, match="405"):
            async with open_http(server.url):
                pass
