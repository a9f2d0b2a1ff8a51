"""Bytes go out at once or by and by, in their order."""

from __future__ import annotations

import trio
from tests.transports.http.clients import TEXT, App, Pieces, serving, socket_pair
from tests.transports.vanishing import needs_filters, vanish
from trio.testing import memory_stream_pair

from trio_mcp.transports.http.application import Answer, HttpBounds
from trio_mcp.transports.http.responses import OutgoingBytes, answer_bytes


async def test_http_response_that_fits_the_socket_buffer_is_sent_without_a_writer_task() -> None:
    ours, theirs = await socket_pair()
    outgoing = OutgoingBytes(ours)
    assert outgoing.put(b"now")
    assert not outgoing.is_waiting
    assert await theirs.receive_some() == b"now"
    await ours.aclose()
    await theirs.aclose()


async def test_queued_bytes_of_http_responses_are_sent_in_order() -> None:
    ours, theirs = memory_stream_pair()
    outgoing = OutgoingBytes(ours)
    assert not outgoing.put(b"first ")
    assert not outgoing.put(b"second")
    assert outgoing.is_waiting
    await outgoing.write_all()
    assert not outgoing.is_waiting
    assert await theirs.receive_some() == b"first second"


async def test_response_body_queued_separately_is_sent_after_its_headers_and_before_the_next_response() -> None:
    ours, theirs = await socket_pair()
    outgoing = OutgoingBytes(ours)
    assert not outgoing.put(b"head ", b"body ")
    assert await theirs.receive_some() == b"head "
    assert outgoing.is_waiting
    assert not outgoing.put(b"next ", b"body ")
    assert not outgoing.put(b"last")
    await outgoing.write_all()
    assert not outgoing.is_waiting
    got = b""
    while not got.endswith(b"last"):
        got += await theirs.receive_some()
    assert got == b"body next body last"
    await ours.aclose()
    await theirs.aclose()


def test_response_body_over_64_kib_is_sent_separately_without_copying() -> None:
    for size in (0, 1, 65_536):
        head, body = answer_bytes(Answer(200, b"X: y\r\n", b"x" * size), close=False, has_body=True)
        assert head.endswith(b"X: y\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        assert body == b""
    answer = Answer(200, b"X: y\r\n", b"x" * 65_537)
    head, body = answer_bytes(answer, close=True, has_body=True)
    assert head.endswith(b"Content-Length: 65537\r\nConnection: close\r\n\r\n")
    assert body is answer.body
    assert answer_bytes(answer, close=True, has_body=False) == (head, b"")


async def test_bytes_of_an_http_response_queued_during_a_write_are_sent_after_the_earlier_bytes() -> None:
    ours, theirs = await socket_pair()
    outgoing = OutgoingBytes(ours)
    outgoing.put(b"x" * 10_000_000)
    got = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.write_all)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not outgoing.put(b"second")
        while not got.endswith(b"second"):
            got = got[-10:] + await theirs.receive_some(65536)
    await ours.aclose()
    await theirs.aclose()


async def test_response_stream_is_written_chunked_after_its_headers() -> None:
    ours, theirs = memory_stream_pair()
    outgoing, pieces = OutgoingBytes(ours), Pieces()
    outgoing.put_stream(b"head ", pieces, chunked=True)
    assert outgoing.is_streaming
    pieces.put(b"piece", b"")
    await outgoing.write_all()
    assert not outgoing.is_streaming
    assert await theirs.receive_some() == b"head 5\r\npiece\r\n0\r\n\r\n"


async def test_large_part_of_a_response_stream_is_sent_as_a_single_http_chunk() -> None:
    ours, theirs = memory_stream_pair()
    outgoing, pieces = OutgoingBytes(ours), Pieces()
    outgoing.put_stream(b"", pieces, chunked=True)
    pieces.put(b"x" * 65_536, b"y" * 65_537, b"")
    await outgoing.write_all()
    await ours.aclose()
    got = b"".join([piece async for piece in theirs])
    assert got == b"10000\r\n%b\r\n10001\r\n%b\r\n0\r\n\r\n" % (b"x" * 65_536, b"y" * 65_537)


async def test_write_timeout_counts_only_time_in_which_the_client_reads_nothing() -> None:
    ours, theirs = await socket_pair()
    outgoing = OutgoingBytes(ours)
    assert outgoing.stalled(1.0) == 0
    outgoing.put(b"x" * 50_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.write_all)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [outgoing.stalled(now) for now in (5.0, 7.0, 9.0)] == [0, 2, 4]
        nursery.cancel_scope.cancel()
    assert outgoing.stalled(100.0) == 0
    await ours.aclose()
    await theirs.aclose()


@needs_filters
async def test_write_timeout_of_a_stream_counts_time_in_which_the_client_acknowledges_nothing() -> None:
    ours, theirs = await socket_pair()
    outgoing, pieces = OutgoingBytes(ours), Pieces()
    outgoing.put_stream(b"head ", pieces, chunked=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.write_all)
        pieces.put(b": a comment\n\n")
        got = b""
        while b"comment" not in got:
            got += await theirs.receive_some()
        await theirs.send_all(b"whatever")  # which carries the acknowledgement
        await ours.receive_some()
        assert [outgoing.stalled(now) for now in (1.0, 50.0)] == [0, 0]
        vanish(theirs)
        for now, since in ((60.0, 0), (70.0, 10), (80.0, 20)):
            pieces.put(b": a comment\n\n")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert outgoing.stalled(now) == since
        nursery.cancel_scope.cancel()
    await ours.aclose()
    await theirs.aclose()


@needs_filters
async def test_response_stream_ends_if_the_client_does_not_acknowledge_sse_comments_in_time() -> None:
    pair = await socket_pair()
    pieces = Pieces()
    app = App(lambda exchange: exchange.response.stream(200, TEXT, pieces))
    async with serving(app, HttpBounds(write_timeout=30), pair) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        await client.send(b"\r\n")  # which carries the acknowledgement
        await client.settle()
        vanish(pair[1])
        pieces.put(b": a comment\n\n")
        await client.settle()
        client.tick(1, 20)
        pieces.put(b": another\n\n")
        await client.settle()
        client.tick(30)
        assert not app.requests[0].gone
        client.tick(31)
        await client.settle()
        assert client.ended.is_set()
        assert app.requests[0].gone == 1
