"""Messages from the server that are split, too long or malformed."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, RawServer, cancels_in, methods_in, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp import Client, Limits, ProtocolViolation, fail_after_work, open_memory, open_stdio, proxy
from trio_mcp.client.opening import open_client
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.jsonrpc.errors import UnreadableAnswer
from trio_mcp.types import UnreadableMessage


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":1,"result":"\xff"}',
        b"{bad",
        b"Listening on port 8080...",
        b"42",
        b"[]",
        b"{}",
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","method":5}',
        b"[" * 5000,
        b"\x00",
    ],
)
async def test_std_07_invalid_line_is_reported_and_next_line_is_handled(
    autojump_clock: object, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.write(junk)
        await peer.text(call)

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"
        assert client.unreadable_messages == 1
    assert not [message for message in peer.wire if "error" in message], "it is never answered"
    assert [record for record in caplog.records if record.levelno == logging.WARNING]
    assert all(record.levelno <= logging.WARNING for record in caplog.records)


async def test_std_07_client_counts_invalid_lines_of_a_server_process_and_does_not_answer_the_lines(
    tmp_path: Path,
) -> None:
    raw = RawServer(
        tmp_path,
        r"""
        write(b"\xff\xfe\n")
        handshake()
        call = until("tools/call")
        write(b"\xff\xfe\nstray output\n")
        text(call)
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            assert text_of(await client.call_tool("any")) == "done"
            assert client.unreadable_messages == 3
    assert methods_in(raw.wire) == ["initialize", "notifications/initialized", "tools/call"]
    assert len(raw.wire) == 3, "nothing of it was answered"


PRINTS = r"""
opened()
call = until("tools/call")
for number in range(20_000):
    write(b"working on item %d of 20000, and reading nothing meanwhile\n" % number)
text(call)
"""


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_succeeds_although_the_server_prints_20000_lines_that_are_not_json_to_stdout(
    tmp_path: Path, era: Any
) -> None:
    raw = RawServer(tmp_path, PRINTS)
    told: list[UnreadableMessage] = []
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era=era, on_unreadable=told.append) as client:
            assert text_of(await client.call_tool("any")) == "done"
            assert client.unreadable_messages == 20_000
    assert [message.text for message in told[:1]] == ["working on item 0 of 20000, and reading nothing meanwhile"]
    assert "not JSON" in told[0].reason
    assert len(told) == 20_000


async def test_on_unreadable_callback_receives_non_json_output_of_a_server_in_a_client_group(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, r'handshake(); write(b"stray\n"); result(until("ping"), {})')
    told: list[UnreadableMessage] = []
    members = {"chatty": MemberDescription(raw.command, options={"era": "legacy", "on_unreadable": told.append})}
    with trio.fail_after(PATIENCE):
        async with open_group(members) as group:
            client = await group.client("chatty")
            await client.ping()
            assert client.unreadable_messages == 1
    assert [message.text for message in told] == ["stray"]


async def test_on_unreadable_callback_receives_non_json_output_of_a_proxied_server(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, r'opened(); call = until("tools/call"); write(b"stray\n"); text(call)')
    told: list[UnreadableMessage] = []
    behind = proxy(partial(open_stdio, raw.command, on_unreadable=told.append))
    with trio.fail_after(PATIENCE):
        async with open_memory(behind, era="legacy") as client:
            assert text_of(await client.call_tool("any")) == "done"
    assert [message.text for message in told] == ["stray"]
    assert not [message for message in raw.wire if "error" in message]


async def test_exception_in_on_unreadable_callback_does_not_fail_the_call_or_the_next_line(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.write("stray")
        await peer.write("é" * 5000)
        await peer.text(call)

    told: list[str] = []

    def fails(message: UnreadableMessage) -> None:
        told.append(message.text)
        raise OSError("no space left on device")

    async with scripted(script) as (channel, _), open_client(channel, on_unreadable=fails) as client:
        assert text_of(await client.call_tool("any")) == "done"
    assert told == ["stray", "é" * 1000]
    assert "no space left on device" in caplog.text


async def test_async_on_unreadable_callback_raises_value_error(tmp_path: Path) -> None:
    async def asynchronous(message: UnreadableMessage) -> None: ...

    with pytest.raises(ValueError, match="on_unreadable is called synchronously: write it with def"):
        async with open_stdio(RawServer(tmp_path).command, on_unreadable=asynchronous):  # type: ignore[arg-type]
            pass


async def test_legacy_client_answers_a_too_long_request_of_the_server_with_an_error_for_its_id(tmp_path: Path) -> None:
    """It is no junk: somebody waits for its answer."""
    raw = RawServer(
        tmp_path,
        """
        handshake()
        call = until("tools/call")
        request("q", "roots/list", {"_meta": {"x": "x" * 100_000}})
        assert read()["id"] == "q"
        text(call)
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", limits=Limits(max_message_bytes=10_000)) as client:
            assert text_of(await client.call_tool("any")) == "done"
            assert client.unreadable_messages == 0
    assert raw.wire[-1]["error"]["code"] == -32600


@pytest.mark.parametrize("named", ["nowhere", "last"])
async def test_too_long_response_without_a_readable_id_fails_the_only_pending_call(tmp_path: Path, named: str) -> None:
    raw = RawServer(
        tmp_path,
        r"""
        handshake()
        call = until("tools/call")
        last = ["id", "result"] if NAMED == "nowhere" else ["result", "id"]
        members = {"id": b'"id":%d' % call["id"], "result": b'"result":{"content":[]}'}
        write(b'{"x":"' + b"x" * 2**21 + b'","jsonrpc":"2.0",' + b",".join(members[each] for each in last) + b"}\n")
        text(until("tools/call"))
        """.replace("NAMED", repr(named)),
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", limits=Limits(max_message_bytes=2**20)) as client:
            with pytest.raises(UnreadableAnswer, match="the message is longer than 1048576 bytes"):
                await client.call_tool("any")
            assert text_of(await client.call_tool("any")) == "done"


async def test_modern_client_never_replies_to_anything_the_server_writes(tmp_path: Path) -> None:
    """2026-07-28 stdio, Sending Messages: the client MUST NOT write responses."""
    raw = RawServer(
        tmp_path,
        r"""
        discovered(until("server/discover"))
        call = until("tools/call")
        write(b"\xff\xfe\nstray output\n[]\n" + b"x" * 100_000 + b"\n")
        request("1", "ping", [])
        text(call)
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="modern", limits=Limits(max_message_bytes=10_000)) as client:
            assert text_of(await client.call_tool("any")) == "done"
    assert [message["method"] for message in raw.wire] == ["server/discover", "tools/call"]


async def test_client_reads_messages_sent_byte_by_byte_with_crlf_blank_lines_and_bom(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        r"""
        write(b"\xef\xbb\xbf")
        handshake()
        call = until("tools/call")
        answer = {"jsonrpc": "2.0", "id": call["id"], "result": {"content": [{"type": "text", "text": "é\u2028😀"}]}}
        for byte in b"\r\n\n  \n" + json.dumps(answer, ensure_ascii=False).encode() + b"\r\n":
            write(bytes([byte]))
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            assert text_of(await client.call_tool("any")) == "é\u2028😀"


async def test_client_reads_the_last_message_of_a_server_even_without_a_newline(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        handshake()
        call = until("tools/call")
        content = [{"type": "text", "text": "last words"}]
        write(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": {"content": content}}))
        os._exit(0)
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            assert text_of(await client.call_tool("any")) == "last words"


async def test_std_08_messages_of_10_mib_are_sent_and_received(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        handshake()
        call = until("tools/call")
        text(call, call["params"]["arguments"]["text"][::-1])
        """,
    )
    size = 10 * 1024 * 1024
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            answer = text_of(await client.call_tool("reverse", {"text": "a" + "b" * size}))
    assert answer == "b" * size + "a"


async def test_std_08_client_skips_line_beyond_message_limit_without_buffering(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        r"""
        handshake()
        call = until("tools/call")
        chunk = b"x" * (1 << 20)
        for _ in range(1024):
            write(chunk)
        write(b"\n")
        text(call, "after the flood")
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", limits=Limits(max_message_bytes=1 << 20)) as client:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert text_of(await client.call_tool("any")) == "after the flood"
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert client.unreadable_messages == 1
    assert grown < 20 * 1024  # KiB
    assert not [message for message in raw.wire if "error" in message]


async def test_response_larger_than_the_message_limit_fails_its_call(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        handshake()
        text(until("tools/call"), "x" * 3_000_000)
        text(until("tools/call"))
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", limits=Limits(max_message_bytes=1 << 20)) as client:
            with pytest.raises(ProtocolViolation, match="cannot be read: the message is longer than 1048576 bytes"):
                await client.call_tool("any")
            assert text_of(await client.call_tool("any")) == "done"
    assert not [message for message in raw.wire if "error" in message]


TYPESCRIPT = """
opened()
asked = [until("tools/call") for _ in range(2)]
content = [{"type": "text", "text": "x" * 3_000_000}]
write('{"result":' + json.dumps({"content": content}) + ',"jsonrpc":"2.0","id":%d}' % asked[0]["id"] + chr(10))
text(asked[1], "the other")
"""


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_oversized_response_fails_only_its_call_even_if_the_id_is_the_last_field(
    tmp_path: Path, era: Any
) -> None:
    """So does the TypeScript SDK write its replies."""
    raw = RawServer(tmp_path, TYPESCRIPT)
    outcomes: list[str] = []

    async def call(client: Client) -> None:
        try:
            outcomes.append(text_of(await client.call_tool("any")))
        except ProtocolViolation as error:
            outcomes.append(str(error))

    with trio.fail_after(PATIENCE):
        limits = Limits(max_message_bytes=1 << 20)
        async with open_stdio(raw.command, era=era, limits=limits) as client, trio.open_nursery() as nursery:
            nursery.start_soon(call, client)
            nursery.start_soon(call, client)
    assert sorted(outcomes) == [
        "the other",
        "tools/call: the answer cannot be read: the message is longer than 1048576 bytes",
    ]


@pytest.mark.parametrize(
    "lost",
    ['{"result":{"content":[', '{"result":{"content":[' + "[]," * 700_000 + '],"jsonrpc":"2.0"}'],
    ids=["cut", "too long"],
)
async def test_unreadable_response_without_id_fails_the_only_pending_call(tmp_path: Path, lost: str) -> None:
    raw = RawServer(tmp_path, f"""
        handshake()
        call = until("tools/call")
        request("q", "ping"); until_reply = read()
        write({lost[:30]!r} + "[]," * {lost.count("[],")} + {lost[-20:]!r} + chr(10))
        text(until("tools/call"), "next")
        """)  # fmt: skip
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", limits=Limits(max_message_bytes=1 << 20)) as client:
            with pytest.raises(ProtocolViolation, match="tools/call: the answer cannot be read"):
                await client.call_tool("any")
            assert text_of(await client.call_tool("any")) == "next"
            assert client.unreadable_messages == 1
    assert "notifications/cancelled" not in methods_in(raw.wire)


async def test_unreadable_response_without_id_fails_only_the_pending_calls_without_a_timeout(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        calls = [await peer.until("tools/call") for _ in range(4)]
        await peer.write('{"result":{"content":[')
        await trio.sleep(1)
        for call in calls:
            await peer.text(call)

    outcomes: dict[str, str] = {}

    async def call(client: Client, name: str, limit: Callable[[], AbstractContextManager[Any]]) -> None:
        try:
            with limit():
                outcomes[name] = text_of(await client.call_tool(name))
        except ProtocolViolation as error:
            outcomes[name] = str(error)

    async with scripted(script) as (channel, peer), open_client(channel) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call, client, "endless", nullcontext)
        nursery.start_soon(call, client, "scoped", trio.CancelScope)
        nursery.start_soon(call, client, "limited", partial(trio.fail_after, 30))
        nursery.start_soon(call, client, "working", partial(fail_after_work, 30))
    lost = "tools/call: an answer, maybe to this, cannot be read: not JSON: Input data was truncated"
    assert outcomes == {"endless": lost, "scoped": lost, "limited": "done", "working": "done"}
    given_up = {call["id"] for call in peer.wire if call.get("params", {}).get("name") in ("endless", "scoped")}
    assert set(cancels_in(peer.wire)) == given_up, "the server need not go on with them"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"id":%d,"result":{"content":[]}}', 'a reply whose member "jsonrpc" is not "2.0"'),
        (
            '{"jsonrpc":"2.0","id":%d,"result":{"content":[]},"error":{"code":1,"message":""}}',
            "a reply with both a result and an error",
        ),
        (
            '{"jsonrpc":"2.0","id":%d,"result":{"content":[]},"error":"boom"}',
            "a reply with both a result and an error: boom",
        ),
        ('{"jsonrpc":"2.0","id":%d.0,"result":{"content":[]}}', "a result without a usable id"),
        ('{"jsonrpc":"2.0","id":null,"result":{"content":[]}}', "a result without a usable id"),
        ('{"jsonrpc":"2.0","id":true,"result":{"content":[]}}', "a result without a usable id"),
        ('{"jsonrpc":"2.0","result":{"content":[]}}', "a result without a usable id"),
        ('{"jsonrpc":"2.0","id":%d,"error":{}}', "a reply whose error is empty"),
        ('{"jsonrpc":"2.0","id":%d,"error":{"code":"ENOENT","message":""}}', "a reply whose error is empty"),
    ],
)
async def test_response_that_is_json_but_not_json_rpc_fails_the_call_with_its_id(
    autojump_clock: object, reached: str, answer: str, reason: str
) -> None:
    written: list[str] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        written.append(answer.replace("%d", str(call["id"])))
        await peer.write(written[0])
        await peer.text(await peer.until("tools/call"), "next")

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        with trio.fail_after(PATIENCE):
            with pytest.raises(ProtocolViolation) as caught:
                await client.call_tool("any")
            # An answer over HTTP is for this call alone, so the error may show it.
            shown = f": {written[0]!r}" if reached == "http" else ""
            assert str(caught.value) == f"tools/call: the answer cannot be read: {reason}{shown}"
            assert text_of(await client.call_tool("any")) == "next"
    assert cancels_in(peer.wire) == []


@pytest.mark.parametrize("line", ['{"result":5}', '{"jsonrpc":"2.0","id":null,"error":{}}', '{"id":77,"result":5}'])
async def test_unreadable_line_that_cannot_be_a_response_fails_no_call(autojump_clock: object, line: str) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.write(line)
        await peer.text(call)

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"
        assert client.unreadable_messages == 1
