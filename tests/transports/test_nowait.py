"""What can be written at once is, and nothing else; a failure is left to who may wait."""

from __future__ import annotations

import os

import trio
from trio.testing import memory_stream_pair

from trio_mcp.transports.streams import nowait_writer


async def test_nowait_writer_writes_until_the_socket_buffer_is_full() -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        write = nowait_writer(trio.SocketStream(ours))
        assert write(b"first") == 5
        while write(b"x" * 10_000):
            pass
        assert (await theirs.recv(5)) == b"first"


async def test_nowait_writer_returns_0_for_a_closed_socket_or_peer() -> None:
    ours, theirs = trio.socket.socketpair()
    write = nowait_writer(trio.SocketStream(ours))
    theirs.close()
    assert write(b"late") == 0
    ours.close()
    assert write(b"later") == 0


async def test_nowait_writer_supports_a_stapled_stream_of_pipes() -> None:
    read_end, write_end = os.pipe()
    async with trio.StapledStream(trio.lowlevel.FdStream(write_end), trio.lowlevel.FdStream(read_end)) as stream:
        write = nowait_writer(stream)
        assert write(b"line\n") == 5
        assert await stream.receive_some() == b"line\n"
    assert write(b"late") == 0


def test_nowait_writer_returns_0_for_an_unsupported_stream() -> None:
    assert nowait_writer(memory_stream_pair()[0])(b"anything") == 0
