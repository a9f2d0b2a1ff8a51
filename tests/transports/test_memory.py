from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.transports.lines import memory_transport_pair


async def test_messages_arrive_whole_in_order_and_without_their_newlines() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"a\nb\n")
    await ours.send(bytearray(b"c\n"))
    assert [await theirs.receive() for _ in range(3)] == [b"a", b"b", b"c"]


async def test_the_two_directions_are_independent() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"there\n")
    await theirs.send(b"back\n")
    assert await ours.receive() == b"back"
    assert await theirs.receive() == b"there"


async def test_a_full_wire_makes_the_sender_wait_until_the_other_end_reads(autojump_clock: object) -> None:
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


async def test_a_message_larger_than_the_wire_passes_when_the_wire_is_empty() -> None:
    ours, theirs = memory_transport_pair(capacity=10)
    await ours.send(b"x" * 1000 + b"\n")
    assert await theirs.receive() == b"x" * 1000


async def test_a_cancelled_send_has_sent_nothing(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair(capacity=1)
    await ours.send(b"first\n")
    with trio.move_on_after(1):
        await ours.send(b"cancelled\n")
    assert await theirs.receive() == b"first"
    await ours.send(b"third\n")
    assert await theirs.receive() == b"third"


async def test_a_cancelled_receive_loses_nothing(autojump_clock: object) -> None:
    ours, theirs = memory_transport_pair()
    with trio.move_on_after(1):
        await theirs.receive()
    await ours.send(b"kept\n")
    assert await theirs.receive() == b"kept"


async def test_what_was_sent_before_the_close_is_still_received() -> None:
    ours, theirs = memory_transport_pair()
    await ours.send(b"last words\n")
    await ours.aclose()
    assert await theirs.receive() == b"last words"
    with pytest.raises(trio.EndOfChannel):
        await theirs.receive()


async def test_a_message_that_need_not_wait_is_sent_without_a_checkpoint() -> None:
    ours, theirs = memory_transport_pair()
    assert ours.send_nowait(b"now\n") == 4
    with trio.testing.assert_no_checkpoints():
        assert await theirs.receive() == b"now"


async def test_a_message_sent_without_waiting_wakes_the_other_end(nursery: trio.Nursery) -> None:
    ours, theirs = memory_transport_pair()
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await theirs.receive())

    nursery.start_soon(receive)
    await wait_all_tasks_blocked()
    ours.send_nowait(b"now\n")
    await wait_all_tasks_blocked()
    assert received == [b"now"]


async def test_of_a_message_that_would_wait_nothing_is_sent() -> None:
    ours, theirs = memory_transport_pair(capacity=10)
    assert ours.send_nowait(b"larger than the wire\n") == len(b"larger than the wire\n")
    assert ours.send_nowait(b"waits\n") == 0
    assert await theirs.receive() == b"larger than the wire"
    assert ours.send_nowait(b"waits\n") == 6


@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_after_the_close_nothing_is_sent_without_waiting_and_nothing_is_raised(closer: str) -> None:
    ours, theirs = memory_transport_pair()
    await (ours if closer == "ours" else theirs).aclose()
    assert ours.send_nowait(b"late\n") == 0


@pytest.mark.parametrize("closer", ["ours", "theirs"])
async def test_nobody_can_send_after_either_end_was_closed(closer: str) -> None:
    ours, theirs = memory_transport_pair()
    await (ours if closer == "ours" else theirs).aclose()
    with pytest.raises(ConnectionLost):
        await ours.send(b"late\n")


async def test_closing_wakes_who_waits_on_either_side(autojump_clock: object) -> None:
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


async def test_closing_twice_is_fine() -> None:
    ours, theirs = memory_transport_pair()
    for channel in (ours, ours, theirs):
        await channel.aclose()
