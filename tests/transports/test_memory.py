from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.transports.lines import memory_transport_pair


async def test_memory_transport_delivers_messages_in_order_without_newlines() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"a\nb\n")
    await ours.send(bytearray(b"c\n"))
    assert [await theirs.receive() for _ in range(3)] == [b"a", b"b", b"c"]


async def test_memory_transport_carries_messages_independently_in_both_directions() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"there\n")
    await theirs.send(b"back\n")
    assert await ours.receive() == b"back"
    assert await theirs.receive() == b"there"


async def test_sender_waits_while_the_memory_transport_is_full(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair(capacity=10)
    await ours.send(b"12345678\n")
    sent: list[str] = []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await ours.send(b"abcdef\n")
            sent.append("more")

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert sent == []
        assert await theirs.receive() == b"12345678"
        await wait_all_tasks_blocked()
        assert sent == ["more"]


async def test_memory_transport_accepts_a_message_larger_than_its_capacity_while_it_is_empty() -> None:
    ours, theirs = memory_transport_pair(capacity=10)
    await ours.send(b"x" * 1000 + b"\n")
    assert await theirs.receive() == b"x" * 1000


async def test_cancelled_send_on_a_memory_transport_sends_nothing(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair(capacity=1)
    await ours.send(b"first\n")
    with trio.move_on_after(1):
        await ours.send(b"cancelled\n")
    assert await theirs.receive() == b"first"
    await ours.send(b"third\n")
    assert await theirs.receive() == b"third"


async def test_cancelled_receive_on_a_memory_transport_loses_no_message(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair()
    with trio.move_on_after(1):
        await theirs.receive()
    await ours.send(b"kept\n")
    assert await theirs.receive() == b"kept"


async def test_messages_sent_before_a_memory_transport_closes_are_received() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"last words\n")
    await ours.aclose()
    assert await theirs.receive() == b"last words"
    with pytest.raises(trio.EndOfChannel):
        await theirs.receive()


async def test_memory_transport_sends_and_receives_without_a_checkpoint_if_possible() -> None:
    ours, theirs = memory_transport_pair()
    assert ours.send_nowait(b"now\n") == 4
    with trio.testing.assert_no_checkpoints():
        assert await theirs.receive() == b"now"


async def test_send_nowait_on_a_memory_transport_wakes_the_task_that_waits_to_receive(
    nursery: trio.Nursery,
) -> None:
    ours, theirs = memory_transport_pair()
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await theirs.receive())

    nursery.start_soon(receive)
    await wait_all_tasks_blocked()
    ours.send_nowait(b"now\n")
    await wait_all_tasks_blocked()
    assert received == [b"now"]


async def test_send_nowait_on_a_full_memory_transport_sends_nothing() -> None:
    ours, theirs = memory_transport_pair(capacity=10)
    assert ours.send_nowait(b"larger than the wire\n") == len(b"larger than the wire\n")
    assert ours.send_nowait(b"waits\n") == 0
    assert await theirs.receive() == b"larger than the wire"
    assert ours.send_nowait(b"waits\n") == 6


@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_send_nowait_on_a_closed_memory_transport_sends_nothing(closer: str) -> None:
    ours, theirs = memory_transport_pair()
    await (ours if closer == "ours" else theirs).aclose()
    assert ours.send_nowait(b"late\n") == 0


@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_memory_transport_send_raises_connection_lost_after_either_side_closed(closer: str) -> None:
    ours, theirs = memory_transport_pair()
    await (ours if closer == "ours" else theirs).aclose()
    with pytest.raises(ConnectionLost):
        await ours.send(b"late\n")


async def test_tasks_that_wait_on_both_sides_of_a_memory_transport_raise_when_it_closes(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair(capacity=1)
    await ours.send(b"fills the wire\n")
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.EndOfChannel):
                await ours.receive()

        async def send() -> None:
            with pytest.raises(ConnectionLost):
                await ours.send(b"waits\n")

        nursery.start_soon(receive)
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        await theirs.aclose()


async def test_closing_a_memory_transport_twice_is_allowed() -> None:
    ours, theirs = memory_transport_pair()
    for channel in (ours, ours, theirs):
        await channel.aclose()
