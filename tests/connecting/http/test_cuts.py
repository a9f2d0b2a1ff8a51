"""Responses truncated at each byte: only their own call fails, at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.connecting.http.scripted import Answer, Got, legacy, modern, serving, text

from trio_mcp import HTTPError, open_http


def as_json(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def as_stream(message: Any) -> bytes:
    log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "ü"}}
    events = b"".join(b"event: message\r\ndata: %b\r\n\r\n" % json.dumps(each).encode() for each in (log, message))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (len(events), events) + b"0\r\n\r\n"


@pytest.mark.parametrize("written", [as_json, as_stream])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_http_response_truncated_at_any_byte_fails_only_the_call_it_belongs_to(era: Any, written: Any) -> None:
    cut_at = 0

    async def then(got: Got, answer: Answer) -> None:
        whole = written(text(got))
        await answer.raw(whole[:cut_at])
        if cut_at < len(whole):
            await answer.cut()

    async with (
        serving(modern(then) if era == "modern" else legacy(then)) as server,
        open_http(server.url, era=era) as client,
    ):
        failures = 0
        while True:
            try:
                result = await client.call_tool("any")
            except HTTPError as error:
                assert error.status in (None, 200)  # noqa: PT017 - most of them raise, and not all
                failures += 1
                cut_at += 1
            else:
                break
        assert result.text == "done"
        assert failures > 150
        assert client.lost is None
        assert server.names.count("tools/call") == failures + 1, "nothing is sent again"


async def test_client_accepts_an_event_stream_that_breaks_after_the_reply() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.raw(as_stream(text(got)).removesuffix(b"0\r\n\r\n"))
        await answer.cut()

    async with serving(modern(then)) as server, open_http(server.url) as client:
        for _ in range(3):
            assert (await client.call_tool("any")).text == "done"
