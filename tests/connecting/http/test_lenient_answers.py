"""Nonconforming HTTP, JSON or JSON-RPC answers that can still be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.connecting.http.scripted import Answer, Got, initialized, legacy, serving, text

from trio_mcp import HTTPError, PeerError, open_http
from trio_mcp.jsonrpc.errors import UnreadableAnswer

BOM = b"\xef\xbb\xbf"
TYPES = [None, "text/plain", "text/html; charset=utf-8", "application/json-rpc", "application/octet-stream"]


@pytest.mark.parametrize("kind", [*TYPES, "application/json"])
@pytest.mark.parametrize("before", [b"", BOM, b"\r\n ", BOM + b"\n"])
async def test_client_reads_json_with_another_content_type_or_a_byte_order_mark(
    kind: str | None, before: bytes
) -> None:
    more = {} if kind is None else {"content_type": kind}

    async def then(got: Got, answer: Answer) -> None:
        await answer.whole(200, before + json.dumps(text(got)).encode(), **more)

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "initialize":
            await answer.whole(200, before + json.dumps(initialized(got)).encode(), mcp_session_id="s-1", **more)
        else:
            await legacy(then)(got, answer)

    async with serving(handler) as server, open_http(server.url) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.named("tools/call")[0].headers["mcp-session-id"] == "s-1"


@pytest.mark.parametrize("kind", TYPES)
async def test_client_completely_reads_a_long_json_response_with_another_content_type(kind: str | None) -> None:
    async def then(got: Got, answer: Answer) -> None:
        body = json.dumps(text(got, "x" * 200_000)).encode()
        await answer.whole(200, body, **({} if kind is None else {"content_type": kind}))

    async with serving(legacy(then)) as server, open_http(server.url) as client:
        assert len((await client.call_tool("any")).text) == 200_000


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("kind", ["application/json", None])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ({"code": "E1", "message": "no luck"}, r"E1: no luck \(-32603\)"),
        ({"code": -32000.0, "message": "no luck"}, r"no luck \(-32000\)"),
        ("no luck", r"no luck \(-32603\)"),
        ({"detail": "no luck"}, r"no luck.* \(-32603\)"),
    ],
)
async def test_exception_contains_the_message_of_a_nonstandard_error_object(
    status: int, kind: str | None, failure: Any, words: str
) -> None:
    async def then(got: Got, answer: Answer) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": got.message["id"], "error": failure}).encode()
        await answer.whole(status, BOM + body, **({} if kind is None else {"content_type": kind}))

    async with serving(legacy(then)) as server, open_http(server.url) as client:
        with pytest.raises(PeerError, match=words):
            await client.call_tool("any")


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize("body", [{"detail": "no luck"}, {"error": "no luck"}, {"message": "no luck", "ok": False}])
async def test_exception_contains_the_message_of_a_json_error_body_that_is_not_json_rpc(
    status: int, body: object
) -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(body, status)

    async with serving(legacy(then)) as server, open_http(server.url) as client:
        with pytest.raises((HTTPError, UnreadableAnswer), match="no luck"):
            await client.call_tool("any")
