"""Bytes from the server: split, long, broken."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest
import trio
from tests.interaction.client.raw import RawPeer, RawServer, scripted, text_of
from tests.patience import PATIENCE

from trio_mcp import Limits, ProtocolViolation, open_stdio
from trio_mcp.client.opening import open_client


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
async def test_std_07_a_line_that_is_no_message_is_reported_and_the_next_is_handled(
    autojump_clock: object, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.write(junk)
        await peer.text(call)

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        assert text_of(await client.call_tool("any")) == "done"
    told = [message for message in peer.wire if "error" in message and message.get("id") is None]
    noted = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert told or noted
    assert all(record.levelno <= logging.WARNING for record in caplog.records)


async def test_std_07_over_a_real_pipe(tmp_path: Path) -> None:
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
    assert {message["error"]["code"] for message in raw.wire if "error" in message} == {-32700}


async def test_a_modern_client_writes_no_reply_whatever_comes_over_a_real_pipe(tmp_path: Path) -> None:
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


async def test_bytes_may_come_one_at_a_time_with_crlf_blank_lines_and_a_bom(tmp_path: Path) -> None:
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


async def test_the_last_line_counts_without_its_newline(tmp_path: Path) -> None:
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


async def test_std_08_messages_of_10_mib_both_ways(tmp_path: Path) -> None:
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


async def test_std_08_a_line_beyond_the_limit_is_skipped_without_being_kept(tmp_path: Path) -> None:
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
    assert grown < 20 * 1024  # KiB
    [refusal] = [message for message in raw.wire if "error" in message]
    assert (refusal["id"], refusal["error"]["code"]) == (None, -32600)


async def test_a_reply_beyond_the_limit_fails_its_call(tmp_path: Path) -> None:
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
            with pytest.raises(ProtocolViolation, match="cannot be read: a message has at most 1048576 bytes"):
                await client.call_tool("any")
            assert text_of(await client.call_tool("any")) == "done"
    assert not [message for message in raw.wire if "error" in message]
