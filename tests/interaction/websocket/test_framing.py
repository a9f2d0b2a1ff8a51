"""Valid and invalid frames, and the message size limit (WSK-02, WSK-03)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import RawPeer, call, connected, masked_frame, port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE
from trio.testing import MockClock
from wsproto.events import Ping, Pong, TextMessage

from trio_mcp import CancelCause, Limits, open_websocket, serve_websocket

served = partial(serving, serve_websocket)
MIB = 1024 * 1024


async def close_code(peer: RawPeer) -> int:
    """With which the server closes."""
    close = await peer.closed()
    assert close is not None, "no close frame"
    return close.code


async def echoes(peer: RawPeer, id: Any = 77) -> bool:
    """Whether calls are answered."""
    await peer.ask(id, "tools/call", {"name": "echo", "arguments": {"text": "here"}})
    return (await peer.reply(id))["result"]["content"][0]["text"] == "here"


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (masked_frame(2, b"{}"), 1003),
        (masked_frame(1, b'{"jsonrpc": "\xff"}'), 1007),
        (masked_frame(1, b"{", fin=False) + masked_frame(2, b"}"), 1003),
        (masked_frame(3, b""), 1002),
        (b"\x81\x02{}", 1002),  # not masked
        (masked_frame(1, b"x" * 70_000), 1009),
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), 1009),  # only announced
        (b"".join([masked_frame(1, b"x" * 30_000, fin=False), *[masked_frame(0, b"x" * 30_000, fin=False)] * 2]), 1009),
        (masked_frame(1, b"", fin=False) + masked_frame(0, b"", fin=False) * 2000, 1009),  # nothing, in many pieces
    ],
)
async def test_invalid_websocket_frame_closes_only_its_connection(frames: bytes, code: int) -> None:
    watched = watched_server()
    async with (
        served(watched.server, port=0, limits=Limits(max_message_bytes=65536)) as listeners,
        connected(port_of(listeners)) as bystander,
        connected(port_of(listeners)) as peer,
    ):
        await bystander.open_legacy()
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        await peer.stream.send_all(frames)
        assert await close_code(peer) == code
        with trio.fail_after(PATIENCE):
            await watched.ended.wait()
        assert await echoes(bystander)
    ((cause, reason),) = watched.causes
    assert cause is CancelCause.DISCONNECT
    assert str(code) in (reason or "")


async def test_websocket_client_gets_the_close_frame_while_it_keeps_sending(mock_clock: MockClock) -> None:
    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.stream.send_all(masked_frame(1, b" " * (17 * MIB)))
        assert await close_code(peer) == 1009


async def test_websocket_text_that_is_not_json_gets_a_parse_error_and_the_connection_stays_open() -> None:
    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        for text in ("", "{", "{}\n{}", "nonsense"):
            await peer.say(text)
            reply = await peer.message()
            assert reply["error"]["code"] == -32700
            assert reply["id"] is None
        assert await echoes(peer)


async def test_websocket_message_in_fragments_is_read_even_with_a_ping_between_them() -> None:
    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        text = (
            call(1, "tools/call", {"name": "echo", "arguments": {"text": "größer"}}).replace(", ", ",\n\r\n ").encode()
        )
        cut = text.index(b"\\u00f6") + 2
        pieces = [masked_frame(1, text[:cut], fin=False), masked_frame(9, b"?"), masked_frame(0, text[cut:])]
        for byte in b"".join(pieces):
            await peer.stream.send_all(bytes((byte,)))
        assert isinstance(await peer.next(), Pong)
        assert (await peer.reply(1))["result"]["content"][0]["text"] == "größer"


async def test_byte_order_mark_at_the_start_of_a_websocket_message_is_skipped() -> None:
    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.say("\ufeff" + call(1, "ping"))
        assert (await peer.reply(1))["result"] == {}


async def test_websocket_messages_of_four_mebibytes_are_received_and_sent() -> None:
    with trio.fail_after(PATIENCE):
        async with (
            served(watched_server().server, port=0) as listeners,
            open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp") as client,
        ):
            text = "x" * (4 * MIB)
            assert (await client.call_tool("echo", {"text": text})).text == text


async def test_websocket_message_limit_counts_bytes_not_characters() -> None:
    limits = Limits(max_message_bytes=65536)
    async with (
        served(watched_server().server, port=0, limits=limits) as listeners,
        connected(port_of(listeners)) as peer,
    ):
        await peer.open_legacy()
        await peer.say(call(1, "tools/call", {"name": "size", "arguments": {"text": "x" * 65_000}}))
        assert (await peer.reply(1))["result"]["structuredContent"] == {"result": 65_000}
        await peer.stream.send_all(masked_frame(1, ("ü" * 33_000).encode()))
        assert await close_code(peer) == 1009


async def test_websocket_pings_and_cancels_are_handled_although_the_request_limit_is_reached() -> None:
    watched = watched_server()
    limits = Limits(max_in_flight=1, max_queued=0)
    async with served(watched.server, port=0, limits=limits) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "tools/call", {"name": "hang"})
        await watched.started.wait()
        await peer.ask(2, "tools/call", {"name": "hang"})
        assert (await peer.reply(2))["error"]["code"] == -31000
        await peer.send(Ping(payload=b"alive?"))
        assert await peer.next() == Pong(payload=b"alive?")
        await peer.notify("notifications/cancelled", {"requestId": 1, "reason": "enough"})
        with trio.fail_after(PATIENCE):
            await watched.ended.wait()
    assert watched.causes == [(CancelCause.PEER, "enough")]


async def test_websocket_cancel_is_handled_while_the_peer_does_not_read() -> None:
    """With pings on the way, too: trio-websocket would wait for its pong to be written before it reads on."""
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask(1, "logging/setLevel", {"level": "debug"})
        await peer.reply(1)
        await peer.ask(2, "tools/call", {"name": "flood", "arguments": {"count": 10_000_000}})
        await watched.started.wait()
        with trio.fail_after(PATIENCE):
            for _ in range(50):
                await trio.sleep(0.002)  # lets the flood fill what there is between the two
                await peer.send(Ping(payload=b"alive?"))
            await peer.notify("notifications/cancelled", {"requestId": 2})
            await watched.ended.wait()
        pongs = 0
        while pongs < 50:
            pongs += isinstance(await peer.next(), Pong)
        assert await echoes(peer)


async def test_concurrent_websocket_messages_are_not_interleaved() -> None:
    watched = watched_server()
    async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as peer:
        await peer.open_legacy()
        await peer.ask("level", "logging/setLevel", {"level": "debug"})
        await peer.reply("level")
        for id in range(1, 9):
            await peer.ask(id, "tools/call", {"name": "flood", "arguments": {"count": 500}})
            await peer.send(Ping(payload=str(id).encode()))
        await peer.notify("notifications/cancelled", {"requestId": 8})
        done, pongs = set[int](), 0
        while done < set(range(1, 8)) or pongs < 8:
            event = await peer.next()
            if isinstance(event, Pong):
                pongs += 1
            else:
                assert isinstance(event, TextMessage)
                if "flooded" in event.data:  # a reply is short enough to come in one piece
                    done.add(json.loads(event.data)["id"])
        assert await echoes(peer)
