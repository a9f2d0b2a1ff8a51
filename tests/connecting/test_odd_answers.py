"""Malformed JSON-RPC answers fail their call at once, over every line transport."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.connecting.raw_sockets import WAYS, Lines, served
from tests.interaction.client.raw import RawPeer, RawServer, discovery, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp import ConnectionLost, PeerError, fail_after_silence, fail_after_work, open_stdio
from trio_mcp.client.opening import open_client
from trio_mcp.jsonrpc.errors import UnreadableAnswer

RESULT = '"result":{"content":[]}'
CALL = '"method":"tools/call","params":{"name":"any","arguments":{}}'

ODD = {
    "neither result nor error": '{"jsonrpc":"2.0","id":ID}',
    "neither, and params": '{"jsonrpc":"2.0","id":ID,"params":{}}',
    "neither, and the id as text": '{"jsonrpc":"2.0","id":"ID"}',
    "neither, and the id as a float": '{"jsonrpc":"2.0","id":ID.0}',
    "another member": '{"jsonrpc":"2.0","id":ID,"response":{"content":[]}}',
    "no version and no result": '{"id":ID}',
    "echo with a result": '{"jsonrpc":"2.0","id":ID,' + CALL + "," + RESULT + "}",
    "echo with an error": '{"jsonrpc":"2.0","id":ID,' + CALL + ',"error":{"code":1,"message":"m"}}',
    "echo": '{"jsonrpc":"2.0","id":ID,' + CALL + "}",
    "echo without a version": '{"id":ID,' + CALL + "}",
    "another request of clients": '{"jsonrpc":"2.0","id":ID,"method":"prompts/get","params":{}}',
    "a null method beside the result": '{"jsonrpc":"2.0","id":ID,"method":null,' + RESULT + "}",
    "a method of the server beside the result": '{"jsonrpc":"2.0","id":ID,"method":"roots/list",' + RESULT + "}",
    "a number as the method": '{"jsonrpc":"2.0","id":ID,"method":7}',
    "a null method": '{"jsonrpc":"2.0","id":ID,"method":null}',
    "id as text": '{"jsonrpc":"2.0","id":"ID",' + RESULT + "}",
    "id as a float": '{"jsonrpc":"2.0","id":ID.0,' + RESULT + "}",
    "id in scientific notation": '{"jsonrpc":"2.0","id":IDe0,' + RESULT + "}",
    "error with the id as text": '{"jsonrpc":"2.0","id":"ID","error":{"code":1,"message":"m"}}',
    "id as text, and no version": '{"id":"ID",' + RESULT + "}",
    "echo with a result and the id as text": '{"jsonrpc":"2.0","id":"ID",' + CALL + "," + RESULT + "}",
    "batch of one": '[{"jsonrpc":"2.0","id":ID,' + RESULT + "}]",
    "batch of one error": '[{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"m"}}]',
    "batch with the id as text": '[{"jsonrpc":"2.0","id":"ID",' + RESULT + "}]",
    "batch with something else": '[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":ID,'
    + RESULT
    + "}]",
    "batch of an odd one": '[{"jsonrpc":"2.0","id":ID}]',
    "two answers on a line": '{"jsonrpc":"2.0","id":ID,' + RESULT + '}{"jsonrpc":"2.0","id":999,"result":{}}',
    "the second of two on a line": '{"jsonrpc":"2.0","id":999,"result":{}}{"jsonrpc":"2.0","id":ID,' + RESULT + "}",
    "a notification and the answer": '{"jsonrpc":"2.0","method":"notifications/x"} {"jsonrpc":"2.0","id":ID,'
    + RESULT
    + "}",
    "an odd one behind a notification": '{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":ID}',
    "the answer and text": '{"jsonrpc":"2.0","id":ID,' + RESULT + "} done.",
    "result and error": '{"jsonrpc":"2.0","id":ID,' + RESULT + ',"error":{"code":1,"message":"m"}}',
    "no version": '{"id":ID,' + RESULT + "}",
    "a null version": '{"jsonrpc":null,"id":ID,' + RESULT + "}",
    "another version": '{"jsonrpc":"1.0","id":ID,' + RESULT + "}",
    "a number as the version": '{"jsonrpc":2.0,"id":ID,' + RESULT + "}",
    "a null error": '{"jsonrpc":"2.0","id":ID,"error":null}',
    "an error and a null result without a code": '{"jsonrpc":"2.0","id":ID,"result":null,"error":{}}',
    "a result without an id": '{"jsonrpc":"2.0",' + RESULT + "}",
    "a result under null": '{"jsonrpc":"2.0","id":null,' + RESULT + "}",
    "the beginning of an answer over several lines": '{"jsonrpc": "2.0",',
    "a part of an indented answer": '  "jsonrpc": "2.0",',
    "single quotes": "{'jsonrpc': '2.0', 'id': ID, 'result': {'content': []}}",
    "a list as the id": '{"jsonrpc":"2.0","id":[ID],' + RESULT + "}",
}
ODD_ONES = pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def greeting(era: str) -> dict[str, Any]:
    if era == "modern":
        return discovery()
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}}


async def opened(peer: RawPeer, era: str) -> None:
    await (peer.discovered() if era == "modern" else peer.handshake("2025-11-25"))


@ERAS
@ODD_ONES
async def test_malformed_json_rpc_answer_fails_its_call(autojump_clock: object, odd: str, era: Any) -> None:
    async def script(peer: RawPeer) -> None:
        await opened(peer, era)
        call = await peer.until("tools/call")
        await peer.write(odd.replace("ID", str(call["id"])))
        await peer.text(await peer.until("tools/call"), "next")

    async with scripted(script) as (channel, peer), open_client(channel, era=era) as client:
        with trio.fail_after(1), pytest.raises(UnreadableAnswer, match="tools/call: the answer cannot be read: "):
            await client.call_tool("any")
        assert text_of(await client.call_tool("any")) == "next"
    assert [m for m in peer.wire if "error" in m or m.get("method") == "notifications/cancelled"] == []


@ERAS
@ODD_ONES
async def test_client_cannot_be_opened_if_the_first_response_is_malformed_json_rpc(
    autojump_clock: object, odd: str, era: Any
) -> None:
    async def script(peer: RawPeer) -> None:
        opening = await peer.read()
        own = f'"method":{json.dumps(opening["method"])}'
        await peer.write(odd.replace('"method":"tools/call"', own).replace("ID", str(opening["id"])))

    async with scripted(script) as (channel, _):
        with trio.fail_after(1), pytest.raises(UnreadableAnswer):
            async with open_client(channel, era=era):
                pass


async def test_client_does_not_accept_a_program_that_echoes_its_input_as_a_server(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        while True:
            await peer.write(json.dumps(await peer.read()))

    async with scripted(script) as (channel, _):
        with trio.fail_after(1), pytest.raises(UnreadableAnswer, match=r"initialize: .* it is a request, initialize: "):
            async with open_client(channel):
                pass


@pytest.mark.parametrize("way", [*WAYS, "stdio"])
async def test_error_quotes_an_unreadable_response_over_every_transport(tmp_path: Path, way: str) -> None:
    async def check(client: Any) -> None:
        for odd in ODD.values():
            with pytest.raises(UnreadableAnswer):
                await client.call_tool("any", {"answer": odd})
        with pytest.raises(UnreadableAnswer, match=r"a result or an error: '\{.jsonrpc"):
            await client.call_tool("any", {"answer": ODD["neither result nor error"]})
        assert text_of(await client.call_tool("any", {"answer": '{"jsonrpc":"2.0","id":ID,' + DONE + "}"})) == "done"

    if way == "stdio":
        raw = RawServer(
            tmp_path,
            """
            handshake("2025-11-25")
            while (call := read()) is not None:
                if call.get("method") == "tools/call":
                    write(call["params"]["arguments"]["answer"].replace("ID", str(call["id"])) + chr(10))
            """,
        )
        with trio.fail_after(PATIENCE):
            async with open_stdio(raw.command, era="legacy") as client:
                await check(client)
        return

    async def script(end: Lines) -> None:
        opening = await end.read()
        await end.write(
            json.dumps({"jsonrpc": "2.0", "id": opening["id"], "result": greeting("modern")}).encode() + b"\n"
        )
        while True:
            call = await end.read()
            await end.write(call["params"]["arguments"]["answer"].replace("ID", str(call["id"])).encode() + b"\n")

    async with served(way, script, tmp_path, era="modern") as client:
        await check(client)


DONE = '"result":{"content":[{"type":"text","text":"done"}]}'


@ERAS
async def test_two_replies_on_one_line_fail_both_calls(autojump_clock: object, era: Any) -> None:
    async def script(peer: RawPeer) -> None:
        await opened(peer, era)
        ids = [(await peer.until("tools/call"))["id"] for _ in range(3)]
        await peer.write("".join(f'{{"jsonrpc":"2.0","id":{each},"result":{{"content":[]}}}}' for each in ids[:2]))
        await peer.send({"id": ids[2], "result": {"content": [{"type": "text", "text": "third"}]}})

    ends: list[str] = []

    async def call(client: Any) -> None:
        try:
            ends.append(text_of(await client.call_tool("any")))
        except UnreadableAnswer:
            ends.append("unreadable")

    async with scripted(script) as (channel, _), open_client(channel, era=era) as client:
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call, client)
    assert sorted(ends) == ["third", "unreadable", "unreadable"]


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":"ID","result":{"content":[]}}',
        '{"jsonrpc":"2.0","id":"ID"}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}',
        '{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}',
        '{"jsonrpc":"2.0","id":999}',
        '{"jsonrpc":"2.0","id":"x","result":{}}',
        '[{"jsonrpc":"2.0","id":999,"result":{}}]',
        '{"jsonrpc":"2.0","id":ID,"method":"ping"}',
        '{"jsonrpc":"2.0","id":ID,"method":"vendor/ask"}',
        '{"jsonrpc":"1.0","id":ID,"method":"roots/list"}',
        '{"jsonrpc":"2.0","id":ID,"method":"notifications/progress","params":{}}',
        "{}",
        "text",
    ],
)
async def test_malformed_reply_that_may_belong_to_either_of_two_calls_fails_neither_call(
    autojump_clock: object, line: str
) -> None:
    """With two calls in flight an id of another type may belong to either; the requests are the server's own."""

    async def script(peer: RawPeer) -> None:
        await opened(peer, "legacy")
        calls = [await peer.until("tools/call") for _ in range(2)]
        await peer.write(line.replace("ID", str(calls[0]["id"])))
        for call in calls:
            await peer.text(call)

    texts: list[str] = []

    async def call(client: Any) -> None:
        texts.append(text_of(await client.call_tool("any")))

    async with (
        scripted(script) as (channel, _),
        open_client(channel, era="legacy") as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            nursery.start_soon(call, client)
    assert texts == ["done", "done"]


async def test_json_rpc_error_with_a_null_id_does_not_fail_the_only_running_call(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await opened(peer, "legacy")
        call = await peer.until("tools/call")
        await peer.write('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}')
        await peer.error(call, -7, "the true one")

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        with pytest.raises(PeerError, match="the true one"):
            await client.call_tool("any")


# The error that ends the wait

STRAY = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no \\u001b[2J\\nsuch tool"}}'
QUOTED = r"the last line of the server that belongs to no call: '\{.*no \\+u001b"


async def stray(peer: RawPeer) -> None:
    await opened(peer, "legacy")
    await peer.until("tools/call")
    await peer.write(STRAY)


@pytest.mark.parametrize(
    "limit", [lambda: fail_after_work(5), lambda: fail_after_silence(5, maximum=9)], ids=["work", "silence"]
)
async def test_timeout_block_error_quotes_a_server_line_that_answered_no_call(
    autojump_clock: object, limit: Callable[[], Any]
) -> None:
    async with scripted(stray) as (channel, _), open_client(channel, era="legacy") as client:
        with pytest.raises(trio.TooSlowError, match=QUOTED), limit():
            await client.call_tool("any")
        with pytest.raises(trio.TooSlowError) as caught, limit():
            await client.call_tool("any")
        assert str(caught.value) == "", "it came before this call"


async def test_call_timeout_error_quotes_a_server_line_that_answered_no_call(autojump_clock: object) -> None:
    async with scripted(stray) as (channel, _), open_client(channel, era="legacy", call_timeout=5) as client:
        with pytest.raises(trio.TooSlowError, match=r"no answer within 5 s \(call_timeout\); " + QUOTED):
            await client.call_tool("any")


async def test_lost_connection_error_quotes_a_server_line_that_answered_no_call(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await stray(peer)
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        with pytest.raises(ConnectionLost, match=QUOTED) as caught:
            await client.call_tool("any")
    assert caught.value.reason == str(caught.value)


async def test_connect_timeout_error_quotes_a_server_line_that_answered_no_request(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.until("initialize")
        await peer.write("x" * 10_000 + "\x1b[2J")

    async with scripted(script) as (channel, _):
        with pytest.raises(trio.TooSlowError, match=r"not ready within 9 s .* belongs to no call: 'xxx") as caught:
            async with open_client(channel, era="legacy", connect_timeout=9):
                pass
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


async def test_server_line_quoted_in_an_error_is_short_and_has_no_control_characters(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await opened(peer, "legacy")
        call = await peer.until("tools/call")
        await peer.write(b'{"id":%d,"jsonrpc":"2.0","x":"\xe2\x80\xae\x7f%b"}' % (call["id"], b"y" * 100_000))

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        with pytest.raises(UnreadableAnswer) as caught:
            await client.call_tool("any")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
