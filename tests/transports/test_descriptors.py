"""Descriptors of every kind: their bytes pass, and the flags they were found with stay."""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp.transports.stdio import DescriptorStream

KINDS = ["pipe", "socket", "pty"]


class Both:
    """Our two descriptors, and the peer's ends of them."""

    def __init__(self, kind: str) -> None:
        match kind:
            case "pipe":
                self.read_fd, self.peer_write = os.pipe()
                self.peer_read, self.write_fd = os.pipe()
            case "socket":
                ours, theirs = socket.socketpair()
                self.read_fd, self.peer_write = ours.detach(), theirs.detach()
                self.write_fd, self.peer_read = os.dup(self.read_fd), os.dup(self.peer_write)
            case "pty":
                self.peer_write, self.read_fd = pty.openpty()
                settings = termios.tcgetattr(self.read_fd)
                settings[1] &= ~termios.OPOST
                settings[3] &= ~(termios.ECHO | termios.ICANON)
                termios.tcsetattr(self.read_fd, termios.TCSANOW, settings)
                self.write_fd, self.peer_read = os.dup(self.read_fd), os.dup(self.peer_write)

    def close_peer(self) -> None:
        for fd in (self.peer_read, self.peer_write):
            with suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        self.close_peer()
        for fd in (self.read_fd, self.write_fd):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    ends = Both(request.param)
    yield ends
    ends.close()


def flags(*fds: int) -> list[int]:
    return [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]


async def test_descriptor_stream_passes_bytes_in_both_directions_and_keeps_descriptor_flags(both: Both) -> None:
    found = flags(both.read_fd, both.write_fd, both.peer_read, both.peer_write)
    stream = DescriptorStream(both.read_fd, both.write_fd)
    os.write(both.peer_write, b"there")
    assert await stream.receive_some() == b"there"
    await stream.send_all(b"back")
    assert os.read(both.peer_read, 100) == b"back"
    assert flags(both.read_fd, both.write_fd, both.peer_read, both.peer_write) == found
    await stream.aclose()
    assert flags(both.read_fd, both.write_fd) == found[:2]


@pytest.mark.parametrize("non_blocking", [False, True])
async def test_task_that_waits_for_input_on_a_descriptor_does_not_block_other_tasks(
    both: Both, non_blocking: bool
) -> None:
    os.set_blocking(both.read_fd, not non_blocking)
    stream = DescriptorStream(both.read_fd, both.write_fd)
    received: list[bytes] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                received.append(bytes(await stream.receive_some()))

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            assert received == []
            os.write(both.peer_write, b"now")
    assert received == [b"now"]
    stream.close()


async def test_cancelled_receive_on_a_descriptor_loses_no_bytes(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await wait_all_tasks_blocked()
            scope.cancel()
    os.write(both.peer_write, b"kept")
    assert await stream.receive_some() == b"kept"
    stream.close()


async def test_descriptor_stream_delivers_a_large_message_completely_to_a_slow_reader(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    message, received = bytes(range(32, 127)) * 3000, bytearray()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, message)
            while len(received) < len(message):
                await trio.lowlevel.wait_readable(both.peer_read)
                received += os.read(both.peer_read, 65536)
    assert received == message
    trio.lowlevel.notify_closing(both.peer_read)
    stream.close()


async def test_descriptor_stream_writes_without_waiting_until_the_pipe_is_full(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    with trio.testing.assert_no_checkpoints():
        assert stream.send_nowait(b"now") == 3
    assert os.read(both.peer_read, 100) == b"now"
    rest, received = bytes(range(32, 127)) * 3000, bytearray()
    message = rest
    while count := stream.send_nowait(rest):
        rest = rest[count:]
    assert 0 < len(rest) < len(message)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, rest)
            while len(received) < len(message):
                await trio.lowlevel.wait_readable(both.peer_read)
                received += os.read(both.peer_read, 65536)
    assert received == message
    trio.lowlevel.notify_closing(both.peer_read)
    stream.close()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
async def test_descriptor_stream_that_writes_without_waiting_returns_0_for_a_closed_peer(kind: str) -> None:
    both = Both(kind)
    stream = DescriptorStream(both.read_fd, both.write_fd)
    both.close_peer()
    assert stream.send_nowait(b"lost") == 0
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"lost")
    stream.close()
    assert stream.send_nowait(b"closed") == 0
    both.close()


async def test_descriptor_stream_reads_end_of_file_if_the_peer_closed(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    os.write(both.peer_write, b"last")
    assert await stream.receive_some() == b"last"
    both.close_peer()
    with trio.fail_after(PATIENCE):
        assert await stream.receive_some() == b""
    stream.close()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
async def test_sending_to_a_closed_pipe_or_socket_raises_broken_resource_error(kind: str) -> None:
    both = Both(kind)
    stream = DescriptorStream(both.read_fd, both.write_fd)
    both.close_peer()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x" * 100_000)
    stream.close()
    both.close()


async def test_descriptor_stream_can_read_and_write_a_regular_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"x" * 200_000)
    with source.open("rb") as reading, target.open("wb") as writing:
        stream = DescriptorStream(reading.fileno(), writing.fileno())
        received = bytearray()
        while data := await stream.receive_some():
            received += data
        await stream.send_all(received)
        assert stream.send_nowait(b"at once") == 7
        stream.close()
    assert target.read_bytes() == b"x" * 200_000 + b"at once"


async def test_descriptor_stream_on_dev_null_reads_as_empty_and_accepts_all_writes() -> None:
    with open(os.devnull, "r+b", buffering=0) as null:  # noqa: ASYNC230 - it never blocks
        stream = DescriptorStream(null.fileno(), null.fileno())
        assert await stream.receive_some() == b""
        await stream.send_all(b"x" * 100_000)
        stream.close()


async def test_descriptor_stream_yields_to_other_tasks_while_it_reads_a_regular_file(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"x" * 100)
    ran: list[str] = []
    with source.open("rb") as reading:
        stream = DescriptorStream(reading.fileno(), reading.fileno())
        async with trio.open_nursery() as nursery:

            async def other() -> None:
                ran.append("other")

            nursery.start_soon(other)
            for _ in range(3):
                await stream.receive_some(10)
            assert ran == ["other"]
        stream.close()


@pytest.mark.parametrize("missing", ["read", "write"])
async def test_descriptor_stream_on_a_closed_descriptor_raises_os_error(missing: str) -> None:
    both = Both("pipe")
    os.close(both.read_fd if missing == "read" else both.write_fd)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        DescriptorStream(both.read_fd, both.write_fd)
    assert sorted(os.listdir("/proc/self/fd")) == before
    both.close()


async def test_descriptor_stream_can_be_closed_twice_and_keeps_the_original_descriptors_open(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    stream.close()
    await stream.aclose()
    os.fstat(both.read_fd)
    os.fstat(both.write_fd)
    for use in (stream.receive_some, lambda: stream.send_all(b"x")):
        with pytest.raises(trio.ClosedResourceError):
            await use()


async def test_task_that_waits_to_receive_raises_when_the_descriptor_stream_closes(both: Both) -> None:
    stream = DescriptorStream(both.read_fd, both.write_fd)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await stream.receive_some()

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            stream.close()


@pytest.mark.parametrize("kind", ["pipe", "pty"])
async def test_descriptor_stream_reads_and_writes_terminals_and_pipes_if_proc_is_not_mounted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(path)
        return real_open(path, *args, **options)

    both = Both(kind)
    found = flags(both.read_fd, both.write_fd)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        stream = DescriptorStream(both.read_fd, both.write_fd)
    message, received = b"y" * 300_000, bytearray()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, message)
            while len(received) < len(message):
                await trio.lowlevel.wait_readable(both.peer_read)
                received += os.read(both.peer_read, 65536)
        os.write(both.peer_write, b"there")
        assert await stream.receive_some() == b"there"
        assert stream.send_nowait(b"now") == (0 if kind == "pipe" else 3)
    assert received == message
    assert flags(both.read_fd, both.write_fd) == found
    trio.lowlevel.notify_closing(both.peer_read)
    stream.close()
    both.close()
