"""A wire sends all, counts what the system took, and closes without a word, whoever waits."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.transports.http_client.connection import ClientSocket


def wired() -> tuple[ClientSocket, trio.SocketStream]:
    """The two ends of a connection."""
    ours, theirs = trio.socket.socketpair()
    return ClientSocket(trio.SocketStream(ours)), trio.SocketStream(theirs)


async def test_bytes_that_exceed_the_socket_buffer_are_sent_when_the_peer_reads() -> None:
    wire, other = wired()
    data, received = bytes(range(256)) * 8000, bytearray()

    async def receive() -> None:
        while chunk := await other.receive_some(65536):
            received.extend(chunk)

    async with other, trio.open_nursery() as nursery:

        async def send() -> None:
            await wire.send_all(data)
            await wire.aclose()

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert 0 < wire.bytes_sent < len(data)
        nursery.start_soon(receive)
    assert wire.bytes_sent == len(data)
    assert received == data


async def test_client_socket_receives_at_most_the_given_number_of_bytes() -> None:
    wire, other = wired()
    await other.send_all(b"hello")
    assert wire.is_readable()
    assert await wire.receive_some(3) == b"hel"
    assert await wire.receive_some() == b"lo"
    assert not wire.is_readable()
    await other.aclose()
    assert wire.is_readable()
    assert await wire.receive_some() == b""
    wire.close()


@pytest.mark.parametrize("task", ["receive_some", "send_all", "wait_send_all_might_not_block"])
async def test_tasks_that_wait_on_a_client_socket_raise_when_it_closes(task: str) -> None:
    wire, other = wired()

    async def wait() -> None:
        with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
            await (wire.send_all(b"x" * 10_000_000) if task == "send_all" else getattr(wire, task)())

    async with other:
        if task.startswith("wait"):
            with trio.move_on_after(0):
                await wire.send_all(b"x" * 10_000_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            wire.close()
            wire.close()


async def test_sending_to_a_closed_peer_raises_broken_resource_error() -> None:
    wire, other = wired()
    await other.aclose()
    with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
        await wire.send_all(b"x")
    assert wire.bytes_sent == 0
    wire.close()
    with pytest.raises(trio.BrokenResourceError):
        await wire.send_all(b"x")
