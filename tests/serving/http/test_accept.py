"""Clients whose Accept header admits only one type, and requests with a Content-Encoding, in each era."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.serving.http.raw_http import Answer, Endpoint, Headers, initialize, modern, open_endpoint
from tests.serving.http.test_ladder import call, listen, watched_server

from trio_mcp import Limits, MemoryStorage, RequestContext, Server

JSON, STREAM = "application/json", "text/event-stream"
SERVED: dict[str, dict[str, Any]] = {
    "modern": {},
    "2025-03-26": {},
    "2025-06-18": {},
    "2025-11-25": {},
    "stateless": {"stateless": True},
    "shared": {"shared": MemoryStorage},
}


@asynccontextmanager
async def serving(era: str, **limits: Any) -> AsyncGenerator[tuple[Endpoint, Server]]:
    server = watched_server().server

    @server.tool
    async def loud(ctx: RequestContext) -> str:
        for step in range(100):
            ctx.progress(step, 100)
            await ctx.log.info(f"step {step}")
            await trio.lowlevel.checkpoint()
        return "done"

    options = {name: value if value is True else value() for name, value in SERVED[era].items()}
    async with open_endpoint(server, Limits(**limits) if limits else None, **options) as endpoint:
        yield endpoint, server


async def opened(endpoint: Endpoint, era: str, accept: str) -> Headers:
    """Return the headers of further requests of a client of this era."""
    if era == "modern":
        return {"Accept": accept}
    revision = "2025-11-25" if era in SERVED and not era.startswith("2") else era
    answer = await endpoint.ask(initialize(revision, elicitation={}), {"Accept": accept})
    assert (answer.status, reply_in(answer)["result"]["protocolVersion"]) == (200, revision)
    headers: dict[str, str | None] = {"Accept": accept, "MCP-Protocol-Version": revision}
    if era != "stateless":
        headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
    told = await endpoint.ask({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    assert told.status == 202
    return headers


def reply_in(answer: Answer) -> Any:
    """The reply, which is the only message of the answer."""
    if answer.headers["content-type"] == JSON:
        return answer.json
    (message,) = answer.messages
    return message


def called(era: str, tool: str, **arguments: Any) -> Any:
    meta = {"progressToken": 1, "io.modelcontextprotocol/logLevel": "debug"}
    if era == "modern":
        return modern("tools/call", {"name": tool, "arguments": arguments}, **meta)
    return call(tool, meta=meta, **arguments)


ONE_TYPE = {
    JSON: [JSON, "application/*", f"{JSON};q=0.5, text/html", f"*/*;q=0.5, {STREAM};q=0"],
    STREAM: [STREAM, "text/*", "TEXT/Event-Stream; charset=utf-8", f"{JSON};q=0.0, */*"],
}


@pytest.mark.parametrize("era", SERVED)
@pytest.mark.parametrize("kind", ONE_TYPE)
async def test_post_with_only_one_media_type_in_its_accept_header_gets_a_response_of_that_type(
    era: str, kind: str
) -> None:
    async with serving(era) as (endpoint, _):
        for accept in ONE_TYPE[kind]:
            headers = await opened(endpoint, era, accept)
            for asked, expected in (
                (called(era, "echo", text="line\n\u2028"), "line\n\u2028"),
                (called(era, "nothing"), None),
            ):
                answer = await endpoint.ask(asked, headers)
                assert (answer.status, answer.headers["content-type"]) == (200, kind)
                reply = reply_in(answer)
                assert "error" in reply if expected is None else reply["result"]["content"][0]["text"] == expected


@pytest.mark.parametrize("era", SERVED)
async def test_server_sends_only_the_result_and_no_notifications_to_a_client_that_accepts_only_json(era: str) -> None:
    async with serving(era, stream_interval=0.01, priming_delay=0, high_water=200) as (endpoint, _):
        headers = await opened(endpoint, era, JSON)
        answer = await endpoint.ask(called(era, "loud"), headers)
        assert (answer.status, answer.headers["content-type"]) == (200, JSON)
        assert reply_in(answer)["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("era", SERVED)
async def test_client_that_accepts_only_event_streams_gets_its_response_as_an_sse_stream(era: str) -> None:
    async with serving(era) as (endpoint, _):
        headers = await opened(endpoint, era, STREAM)
        answer = await endpoint.ask(called(era, "tell"), headers)
        assert [message.get("method") for message in answer.messages] == [
            "notifications/progress",
            "notifications/message",
            None,
        ]


@pytest.mark.parametrize("era", SERVED)
async def test_empty_accept_header_is_treated_as_absent(era: str) -> None:
    async with serving(era) as (endpoint, _):
        for empty in ("", " "):
            headers = await opened(endpoint, era, empty)
            answer = await endpoint.ask(called(era, "echo", text="x"), headers)
            assert (answer.status, reply_in(answer)["result"]["content"][0]["text"]) == (200, "x")
            if "Mcp-Session-Id" in headers:
                wire = await endpoint.wire()
                await wire.send(wire.request(None, headers, method="GET"), "GET")
                assert (await wire.head()).status == 200


@pytest.mark.parametrize("accept", [JSON, STREAM])
async def test_batch_is_answered_in_the_media_type_that_the_client_accepts(accept: str) -> None:
    async with serving("2025-03-26") as (endpoint, _):
        headers = await opened(endpoint, "2025-03-26", accept)
        asked = [call("tell", id=1), call("echo", id=2, text="x")]
        answer = await endpoint.ask(asked, headers)
        assert answer.headers["content-type"] == accept
        replies = answer.json if accept == JSON else answer.messages[-1]
        assert sorted(reply["id"] for reply in replies) == [1, 2]


@pytest.mark.parametrize("era", ["2025-11-25", "shared"])
async def test_elicitation_is_sent_on_the_get_stream_or_fails_if_the_post_accepts_only_json(era: str) -> None:
    async with serving(era) as (endpoint, _):
        headers = await opened(endpoint, era, JSON)
        refused = reply_in(await endpoint.ask(called(era, "ask"), headers))
        assert "Accept header" in json.dumps(refused)
        session = {name: value or "" for name, value in headers.items() if name != "Accept"}
        wire, _ = await listen(endpoint, session)
        asking = await endpoint.wire()
        await asking.send(asking.request(called(era, "ask"), headers))
        question = await wire.events().message()
        assert question["method"] == "elicitation/create"
        given = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert (await endpoint.ask(given, headers)).status == 202
        answer = await asking.answer()
        assert (answer.headers["content-type"], "decline" in answer.body.decode()) == (JSON, True)


@pytest.mark.parametrize("era", ["2025-11-25", "shared"])
async def test_post_that_accepts_only_json_gets_status_204_if_its_request_is_cancelled(era: str) -> None:
    watched = watched_server()
    options = {name: value() for name, value in SERVED[era].items()}
    async with open_endpoint(watched.server, **options) as endpoint:
        headers = await opened(endpoint, era, JSON)
        wire = await endpoint.wire()
        await wire.send(wire.request(called(era, "hang", say_something=True), headers))
        await watched.until_started()
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        assert (await endpoint.ask(cancel, headers)).status == 202
        answer = await wire.answer()
        assert (answer.status, answer.body) == (204, b"")


async def test_listen_request_from_a_client_that_accepts_only_json_gets_status_406() -> None:
    async with serving("modern") as (endpoint, _):
        asked = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        answer = await endpoint.ask(asked, {"Accept": JSON})
        assert (answer.status, answer.code) == (406, -32600)


@pytest.mark.parametrize("accept", [None, JSON, f"{JSON}, {STREAM}"])
async def test_post_with_a_content_encoding_gets_status_415(accept: str | None) -> None:
    body = gzip.compress(json.dumps(modern("tools/list")).encode())
    async with serving("modern") as (endpoint, _):
        for coding in ("identity", "Identity", "", None):
            answer = await endpoint.ask(modern("tools/list"), {"Content-Encoding": coding, "Accept": accept})
            assert answer.status == 200
        for coding in ("gzip", "GZIP", "br", "deflate, gzip", "zstd", "identity, gzip", "x" * 5000):
            answer = await endpoint.ask(body, {"Content-Encoding": coding, "Accept": accept})
            assert (answer.status, answer.code, answer.headers["accept-encoding"]) == (415, -32600, "identity")
            assert coding.lower()[:50] in answer.json["error"]["message"]
            assert len(answer.body) < 300
