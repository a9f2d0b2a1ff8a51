from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from tests.patience import PATIENCE
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.runtime.transport import UnreadableFrame
from trio_mcp.transports.lines import ByteStream, LineTransport
from trio_mcp.transports.stdio import DescriptorStream


class Chunks:
    """A stream that gives these chunks, and then its end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter([chunk for chunk in chunks if chunk])
        self.sent = bytearray()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return next(self._chunks, b"")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    async def aclose(self) -> None: ...


async def lines_of(chunks: Iterable[bytes], limit: int = 1000) -> list[bytes | str]:
    """The lines, with the place of each that was skipped."""
    channel, lines = LineTransport(Chunks(chunks), limit), list[bytes | str]()
    while True:
        try:
            lines.append(bytes(await channel.receive()))
        except UnreadableFrame as error:
            lines.append(f"skipped: {bytes(error.head[:1])!r}")
        except trio.EndOfChannel:
            return lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\nc\n", [b"a", b"b", b"c"]),
        (b"a\nlast words", [b"a", b"last words"]),
        (b"\n\n  \n\t\n\r\n", []),
        (b"\n\na\n\n", [b"a"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b"\xef\xbb\xbf\nb\n", [b"b"]),
        (b"a\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
        (b"\xff\xfe\na\n", [b"\xff\xfe", b"a"]),
        (b"\xe2\x80\xa8\n", [b"\xe2\x80\xa8"]),
        (b"a\x0bb\x0cc\x1dd\n", [b"a\x0bb\x0cc\x1dd"]),
    ],
)
async def test_line_transport_splits_messages_at_newlines(data: bytes, lines: list[bytes]) -> None:
    assert await lines_of([data]) == lines


async def test_line_transport_keeps_a_carriage_return_before_the_newline() -> None:
    assert [bytes(line).strip() for line in await lines_of([b"{}\r\n[]\r\n"]) if isinstance(line, bytes)] == [
        b"{}",
        b"[]",
    ]


@pytest.mark.parametrize("chunk", [1, 3, 10, 11, 12, 1000])
async def test_line_longer_than_the_limit_is_skipped_and_reported_once(chunk: int) -> None:
    data = b"a" * 10 + b"\n" + b"b" * 11 + b"\n" + b"c" * 500 + b"\nd\n" + b"e" * 20
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    told = ["skipped: b'b'", "skipped: b'c'", "skipped: b'e'"]
    assert await lines_of(chunks, limit=10) == [b"a" * 10, told[0], told[1], b"d", told[2]]


@pytest.mark.parametrize("size", [1, 7, 65536, 1_000_000])
@pytest.mark.parametrize("end", [b"\n", b""])
async def test_error_for_a_skipped_line_contains_at_most_its_start_and_end(size: int, end: bytes) -> None:
    text = b'{"id":1,' + b"x" * 300_000 + b',"jsonrpc":"2.0"}'
    channel = LineTransport(Chunks([(text + end)[at : at + size] for at in range(0, len(text + end), size)]), 100_000)
    with pytest.raises(UnreadableFrame) as caught:
        await channel.receive()
    assert (caught.value.head, caught.value.tail) == (text[:65536], text[-65536:])
    with pytest.raises(trio.EndOfChannel):
        await channel.receive()


@given(
    st.lists(
        st.sampled_from([b"\n", b"\r\n", b"{", b"{}\n", b"a", b"bcdefgh", b"\xc3\xa9", b"\xef\xbb\xbf", b" "]),
        max_size=40,
    ),
    st.data(),
)
@example([b"\xef\xbb\xbf", b"bcdefgh", b"\n"], None)
def test_line_transport_finds_the_same_lines_wherever_the_received_bytes_are_split(
    parts: list[bytes], data: st.DataObject | None
) -> None:
    text = b"".join(parts)
    if data is None:
        cuts = list(range(len(text)))
    else:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    chunks = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    async def compare() -> None:
        for limit in (7, 1000):
            assert await lines_of(chunks, limit) == await lines_of([text], limit)

    trio.run(compare)


async def test_cancelled_receive_on_a_line_transport_loses_no_bytes() -> None:
    ours, theirs = memory_stream_pair()
    channel = LineTransport(ours, 1000)
    await theirs.send_all(b"hal")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.receive)
            await wait_all_tasks_blocked()
            scope.cancel()
    await theirs.send_all(b"f\n")
    assert await channel.receive() == b"half"


async def test_line_transport_buffers_valid_lines_that_arrive_together() -> None:
    channel = LineTransport(Chunks([b"{1}\n", b"{2}\n{3", b"}\n{4}\n{5}\n{", b"6}\n"]), 1000)
    received = list[tuple[bytes, list[bytes]]]()
    for _ in range(3):
        received.append((bytes(await channel.receive()), [bytes(line) for line in channel.buffered]))
    assert received == [(b"{1}", []), (b"{2}", []), (b"{3}", [b"{5}", b"{4}"])]
    assert channel.buffered.pop() == b"{4}"
    assert [await channel.receive() for _ in range(2)] == [b"{5}", b"{6}"]
    with pytest.raises(trio.EndOfChannel):
        await channel.receive()


@pytest.mark.parametrize("odd", [b"", b" ", b"\r", b"z", b"|", b"}", b"{" + b"x" * 20])
@pytest.mark.parametrize("place", range(3))
async def test_line_transport_does_not_buffer_lines_that_arrive_together_with_an_invalid_line(
    odd: bytes, place: int
) -> None:
    lines = [b"{1}", b"{2}", b"{3}"]
    lines.insert(place, odd)
    channel = LineTransport(Chunks([b"{0}\n", *[each + b"\n" for each in (b"\n".join(lines), b"{4}")]]), 20)
    received = list[bytes]()
    while b"{4}" not in received:
        with suppress(UnreadableFrame):
            received.append(bytes(await channel.receive()))
        assert channel.buffered == []
    assert [line for line in received if line != odd] == [b"{0}", b"{1}", b"{2}", b"{3}", b"{4}"]


async def test_line_transport_does_not_buffer_a_line_that_arrives_with_the_rest_of_a_skipped_line() -> None:
    channel = LineTransport(Chunks([b"{0}\n{" + b"x" * 30, b"\n{1}\n{2}\n"]), 20)
    assert await channel.receive() == b"{0}"
    with pytest.raises(UnreadableFrame):
        await channel.receive()
    assert [await channel.receive() for _ in range(2)] == [b"{1}", b"{2}"]


async def test_line_transport_sends_bytes_unchanged() -> None:
    stream = Chunks([])
    await LineTransport(stream, 1000).send(b"{}\n[]\n")
    assert stream.sent == b"{}\n[]\n"


# Without waiting


def pipe() -> tuple[DescriptorStream, int, int]:
    """A stream, and the other ends of its two pipes: where to write, and where to read."""
    (read_fd, peer_write), (peer_read, write_fd) = os.pipe(), os.pipe()
    stream = DescriptorStream(read_fd, write_fd)
    os.close(read_fd)
    os.close(write_fd)
    return stream, peer_write, peer_read


@pytest.fixture(params=["descriptors", "stapled descriptors", "socket"])
def direct(request: pytest.FixtureRequest) -> Iterator[tuple[ByteStream, int, int]]:
    """A stream whose lines can be sent without waiting, and descriptors of its other end, as of `pipe`."""
    if request.param == "descriptors":
        stream, write_fd, read_fd = pipe()
    elif request.param == "stapled descriptors":
        (theirs, write_fd), (read_fd, ours) = os.pipe(), os.pipe()
        stream = trio.StapledStream(trio.lowlevel.FdStream(ours), trio.lowlevel.FdStream(theirs))
    else:
        here, there = socket.socketpair()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(here))
        write_fd = there.detach()
        read_fd = os.dup(write_fd)
    yield stream, write_fd, read_fd
    for fd in (write_fd, read_fd):
        with suppress(OSError):
            os.close(fd)


async def test_send_nowait_of_a_line_transport_sends_a_line_without_a_checkpoint(
    direct: tuple[ByteStream, int, int],
) -> None:
    stream, _, read_fd = direct
    channel = LineTransport(stream, 1000)
    with trio.testing.assert_no_checkpoints():
        assert channel.send_nowait(b"{}\n") == 3
    assert os.read(read_fd, 100) == b"{}\n"
    await channel.aclose()


async def test_send_nowait_of_a_line_transport_sends_the_part_of_a_line_that_fits_into_the_pipe(
    direct: tuple[ByteStream, int, int],
) -> None:
    stream, _, read_fd = direct
    channel, line = LineTransport(stream, 1000), bytes(range(32, 127)) * 20_000 + b"\n"
    sent = channel.send_nowait(line)
    assert 0 < sent < len(line)
    received = bytearray()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.send, line[sent:])
            while len(received) < len(line):
                await trio.lowlevel.wait_readable(read_fd)
                received += os.read(read_fd, 65536)
    assert received == line
    trio.lowlevel.notify_closing(read_fd)
    await channel.aclose()


async def test_send_nowait_on_a_broken_line_transport_sends_nothing_and_send_raises_connection_lost(
    direct: tuple[ByteStream, int, int],
) -> None:
    stream, write_fd, read_fd = direct
    channel = LineTransport(stream, 1000)
    os.close(write_fd)
    os.close(read_fd)
    assert channel.send_nowait(b"{}\n") == 0
    with pytest.raises(ConnectionLost):
        await channel.send(b"{}\n")
    await channel.aclose()
    assert channel.send_nowait(b"{}\n") == 0
    with pytest.raises(ConnectionLost):
        await channel.send(b"{}\n")


async def test_send_nowait_of_a_line_transport_on_an_unsupported_stream_sends_nothing() -> None:
    stream = Chunks([])
    assert LineTransport(stream, 1000).send_nowait(b"{}\n") == 0
    assert not stream.sent


async def test_line_transport_sends_at_most_four_lines_between_checkpoints() -> None:
    stream, write_fd, read_fd = pipe()
    channel = LineTransport(stream, 1000)
    assert [channel.send_nowait(b"{}\n") for _ in range(6)] == [3, 3, 3, 3, 0, 0]
    await channel.send(b"{}\n")
    assert [channel.send_nowait(b"{}\n") for _ in range(6)] == [3, 3, 3, 3, 0, 0]
    os.write(write_fd, b"{}\n")
    await channel.receive()
    assert [channel.send_nowait(b"{}\n") for _ in range(6)] == [3, 3, 3, 3, 0, 0]
    await channel.aclose()
    os.close(write_fd)
    os.close(read_fd)


async def test_send_nowait_of_a_line_transport_sends_nothing_while_received_lines_are_unread() -> None:
    stream, write_fd, read_fd = pipe()
    channel = LineTransport(stream, 1000)
    os.write(write_fd, b"{}\n{}\n")
    await channel.receive()
    assert channel.send_nowait(b"{}\n") == 0
    await channel.receive()
    assert channel.send_nowait(b"{}\n") == 0
    os.write(write_fd, b"{}\n{")
    await channel.receive()
    assert channel.send_nowait(b"{}\n") == 3
    await channel.aclose()
    os.close(write_fd)
    os.close(read_fd)


# The end


async def test_broken_stream_raises_connection_lost_in_send_and_receive() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    channel = LineTransport(ours, 1000)
    with pytest.raises(ConnectionLost, match="stopped reading"):
        await channel.send(b"{}\n")
    await channel.aclose()
    with pytest.raises(ConnectionLost):
        await channel.receive()


async def test_line_transport_raises_end_of_channel_at_each_receive_call_after_end_of_file() -> None:
    channel = LineTransport(Chunks([b"a\n"]), 1000)
    assert await channel.receive() == b"a"
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await channel.receive()
