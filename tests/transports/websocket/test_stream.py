"""What trio-websocket writes never waits, is written by one task, and nothing follows a close frame."""

from __future__ import annotations

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from trio_mcp.concurrency.fair_share import Caller, SharedBytes
from trio_mcp.transports.websocket.stream import CoalescingStream, close_frame, text_frames

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a connection."""
    near, far = trio.socket.socketpair()
    return trio.SocketStream(near), trio.SocketStream(far)


async def test_queued_websocket_frames_are_sent_in_one_write() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    writes: list[bytes] = []

    async def count(data: bytes) -> None:
        writes.append(bytes(data))

    near.send_all = count  # type: ignore[method-assign]
    stream.put(b"\x81\x01a")
    await stream.send_all(b"\x8a\x00")
    stream.put(b"\x81\x01b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.pump)
        await stream.flushed()
        nursery.cancel_scope.cancel()
    assert writes == [b"\x81\x01a\x8a\x00\x81\x01b"]
    await far.aclose()


async def test_websocket_frame_that_fits_the_socket_buffer_is_sent_without_a_writer_task() -> None:
    near, far = sockets()
    stream = CoalescingStream(near, 1000)
    stream.put(b"\x81\x01a")
    assert stream.is_flushed
    assert await far.receive_some() == b"\x81\x01a"
    await near.aclose()
    await far.aclose()


async def test_websocket_frames_that_exceed_the_socket_buffer_are_sent_later_in_order() -> None:
    near, far = sockets()
    stream = CoalescingStream(near, 1000)
    put = bytearray()
    while stream.is_flushed:
        put += (frame := text_frames(b"%050d\n" % len(put), masked=False))
        stream.put(frame)
    put += (last := text_frames(b"last\n", masked=False))
    stream.put(last)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.pump)
        while len(got) < len(put):
            got += await far.receive_some()
        assert got == put
        await stream.flushed()
        stream.put(b"\x81\x01a")
        assert stream.is_flushed
        assert await far.receive_some() == b"\x81\x01a"
        nursery.cancel_scope.cancel()
    await near.aclose()
    await far.aclose()


async def test_closed_socket_is_detected_by_the_websocket_writer_task() -> None:
    near, far = sockets()
    stream = CoalescingStream(near, 1000)
    await near.aclose()
    stream.put(b"\x81\x01a")
    assert not stream.is_flushed
    await stream.pump()
    with pytest.raises(trio.BrokenResourceError):
        await stream.flushed()
    await far.aclose()


async def test_put_nowait_on_a_websocket_stream_refuses_a_frame_if_the_socket_buffer_is_full() -> None:
    near, far = sockets()
    stream = CoalescingStream(near, 1000)
    frame = bytes(text_frames(b"%050d\n" % 0, masked=False))
    put = 0
    while stream.put_nowait(frame) and stream.is_flushed:
        put += 1
    part = not stream.is_flushed
    assert not stream.put_nowait(frame)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.pump)
        while len(got) < (put + part) * len(frame):
            got += await far.receive_some()
        await stream.flushed()
        assert got == (put + part) * frame
        assert stream.put_nowait(close_frame(1000, "", masked=False))
        assert not stream.put_nowait(frame)
        assert await far.receive_some() == close_frame(1000, "", masked=False)
        nursery.cancel_scope.cancel()
    await near.aclose()
    await far.aclose()


async def test_put_nowait_on_a_websocket_stream_that_is_closed_or_not_on_a_socket_sends_no_frame() -> None:
    memory, _ = memory_stream_pair()
    stream = CoalescingStream(memory, 1000)
    assert not stream.put_nowait(b"\x81\x01a")
    assert stream.is_flushed
    near, far = sockets()
    stream = CoalescingStream(near, 1000)
    await stream.close_now()
    assert not stream.put_nowait(b"\x81\x01a")
    await far.aclose()


async def test_websocket_stream_states_whether_several_frames_arrived_together() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    frame = bytes(text_frames(b"0123456789\n", masked=True))
    for data, together in ((HEAD, False), (frame, False), (2 * frame, True), (frame, False)):
        await far.send_all(data)
        assert await stream.receive_some() == data
        assert stream.came_together == together


async def test_websocket_stream_sends_no_frame_after_a_close_frame() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    close = close_frame(1000, "", masked=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.pump)
        stream.put(close)
        stream.put(text_frames(b"late\n", masked=False))
        await stream.send_all(b"\x8a\x00")
        await stream.flushed()
        assert await far.receive_some() == close
        nursery.cancel_scope.cancel()


async def test_all_tasks_that_wait_to_write_raise_if_the_websocket_peer_closes() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    await far.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.pump)
        stream.put(b"\x81\x01a")
        with pytest.raises(trio.BrokenResourceError):
            await stream.flushed()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"\x8a\x00")


async def test_websocket_frame_received_in_pieces_is_buffered_until_complete() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    frame = bytes(text_frames(b"0123456789\n", masked=True))
    got: list[bytes] = []
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            got.append(bytes(await stream.receive_some()))
            got.append(bytes(await stream.receive_some()))

        nursery.start_soon(read)
        await far.send_all(HEAD)
        await wait_all_tasks_blocked()
        for byte in frame:
            await far.send_all(bytes((byte,)))
            await wait_all_tasks_blocked()
    assert got == [HEAD, frame]


async def test_websocket_handshake_is_handled_immediately_even_if_a_partial_frame_follows() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    first = HEAD + text_frames(b"hello\n", masked=False)[:3]
    with trio.fail_after(PATIENCE):
        await far.send_all(first)
        assert await stream.receive_some() == first


async def test_websocket_frame_checks_begin_after_the_headers_of_the_handshake() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 1000)
    await far.send_all(b"HTTP/1.1 101 Yes\n\n" + b"\x82\x00" + b"\x89\x04\r\n\r\n")
    assert await stream.receive_some() == b""
    assert stream.gauge.violation is not None
    assert stream.gauge.violation[0] == 1003


async def test_invalid_websocket_frame_ends_the_websocket_stream() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 5)
    await far.send_all(HEAD + bytes(text_frames(b"012345\n", masked=True)))
    assert await stream.receive_some() == b""
    assert stream.gauge.violation is not None
    assert stream.ended.is_set()


async def test_body_of_a_refused_websocket_handshake_is_not_checked_as_frames() -> None:
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 5)
    answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\n\x82too much"
    await far.send_all(answer)
    assert await stream.receive_some() == answer
    assert stream.gauge.violation is None


async def test_unread_websocket_messages_count_towards_the_limit_until_they_are_read() -> None:
    caller, shared = Caller(), SharedBytes(400_000)
    near, far = memory_stream_pair()
    stream = CoalescingStream(near, 100_000, unread=shared.held_for(caller))
    await far.send_all(HEAD)
    await stream.receive_some()
    frame = text_frames(b"x" * 90_000 + b"\n", masked=False)
    for _ in range(2):
        await far.send_all(frame)
        await all_that_came(stream, len(frame))
    assert shared.size == 180_000
    stream.consume(90_000)
    stream.consume(90_000)
    assert shared.size == 0
    for _ in range(2):
        await far.send_all(frame)
        await all_that_came(stream, len(frame))
    await far.send_all(frame)
    with trio.fail_after(PATIENCE):
        while await stream.receive_some():
            pass
    assert stream.gauge.violation == (1013, "incomplete messages take too many bytes; try again later")


async def all_that_came(stream: CoalescingStream, count: int) -> None:
    while count:
        count -= len(await stream.receive_some())
