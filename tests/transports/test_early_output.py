"""The output of a child before the connection is open."""

from __future__ import annotations

import sys

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import memory_stream_one_way_pair

from trio_mcp import Command
from trio_mcp.transports.process import EarlyOutput

ANSWER = b'{"jsonrpc": "2.0", "id": 1, "result": {}}\n'
REQUEST = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"Ready. " + ANSWER], [b"Ready. ", ANSWER]),
        ([b"Ready", b"> ", ANSWER], [b"Ready >  ", ANSWER]),
        ([b"one\ntwo> " + ANSWER + ANSWER], [b"one", b"two> ", ANSWER, ANSWER]),
        ([b"\xef\xbb\xbf" + ANSWER], [b"\xef\xbb\xbf", ANSWER]),
        ([b'> {"result": {}, "jsonrpc": "2.0", "id": 1}\r\n'], [b"> ", b'{"result": {}, "jsonrpc": "2.0", "id": 1}\r']),
        ([ANSWER[:9], ANSWER[9:30], ANSWER[30:]], [ANSWER]),
        ([b"log: " + REQUEST], [b"log: " + REQUEST]),
        ([b"log: {1} " + ANSWER], [b"log: {1} " + ANSWER]),
        ([b"[" + ANSWER[:-1] + b"]\n"], [b"[" + ANSWER[:-1] + b"]"]),
    ],
)
async def test_text_that_a_server_prints_before_its_first_response_is_separated_from_the_response(
    chunks: list[bytes], lines: list[bytes]
) -> None:
    send, receive = memory_stream_one_way_pair()
    heard: list[str] = []
    stream, found = EarlyOutput(receive, heard.append), b""
    for chunk in chunks:
        await send.send_all(chunk)
        found += await stream.receive_some()
    assert found.split(b"\n") == [*(line.removesuffix(b"\n") for line in lines), b""]
    assert "".join(heard) == b"".join(chunks).decode(errors="replace")


BANNER = """
import json, sys
print("Server is ready. ", end="", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        info = {"serverInfo": {"name": "a", "version": "1"}, "protocolVersion": "2025-11-25", "capabilities": {}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": info}), flush=True)
"""


async def test_client_connects_to_a_server_that_prints_a_banner_before_its_first_response() -> None:
    with trio.fail_after(PATIENCE):
        async with Command([sys.executable, "-c", BANNER]).open(era="legacy") as client:
            assert client.server_info is not None
            assert client.server_info.name == "a"
