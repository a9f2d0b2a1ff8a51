"""FaultyChannel: faults change messages, and it still behaves as a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.runtime.transport import Transport
from trio_mcp.testing import (
    Cut,
    Delay,
    Disconnect,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    FaultyChannel,
    Garble,
    memory_transport_pair,
)
from trio_mcp.transports.lines import LineTransport

Direction = Literal["sent", "received"]


def at(number: int, fault: Fault, direction: Direction = "sent") -> FaultPlan:
    """A plan with one fault."""
    return lambda passage: fault if (passage.number, passage.direction) == (number, direction) else None


async def through(direction: Direction, fault: Fault, *messages: bytes) -> list[bytes]:
    """What arrives of ``messages`` when ``fault`` befalls the second one."""
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, at(1, fault, direction))
    sender, receiver = (faulty, theirs) if direction == "sent" else (theirs, faulty)
    arrived: list[bytes] = []
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            try:
                while True:
                    arrived.append(bytes(await receiver.receive()))
            except (trio.EndOfChannel, ConnectionLost):
                arrived.append(b"END")

        nursery.start_soon(receive)
        try:
            for message in messages:
                await sender.send(message + b"\n")
        except ConnectionLost:
            assert isinstance(fault, Cut | Disconnect)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    return arrived


@pytest.mark.parametrize("direction", ["sent", "received"])
@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (Delay(5), [b"one", b"second", b"three"]),
        (Drop(), [b"one", b"three"]),
        (Duplicate(), [b"one", b"second", b"second", b"three"]),
        (Garble(0.5), [b"one", b"sec", b"three"]),
        (Garble(0), [b"one", b"s", b"three"]),
        (Garble(1), [b"one", b"secon", b"three"]),
        (Cut(0.5), [b"one", b"sec", b"END"]),
        (Disconnect(), [b"one", b"END"]),
    ],
)
async def test_fault_injected_into_a_message_does_not_change_other_messages(
    autojump_clock: MockClock, direction: Direction, fault: Fault, arrives: list[bytes]
) -> None:
    assert await through(direction, fault, b"one", b"second", b"three") == arrives


async def test_messages_sent_in_one_write_can_have_separate_faults() -> None:
    ours, theirs = memory_transport_pair()
    await FaultyChannel(ours, at(1, Drop())).send(b"a\nb\nc\n")
    assert [await theirs.receive(), await theirs.receive()] == [b"a", b"c"]


@pytest.mark.parametrize("direction", ["sent", "received"])
async def test_delay_fault_delays_its_message_by_the_given_seconds(
    autojump_clock: MockClock, direction: Direction
) -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, at(0, Delay(5), direction))
    sender, receiver = (faulty, theirs) if direction == "sent" else (theirs, faulty)
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.send, b"slow\n")
        await receiver.receive()
    assert trio.current_time() - started == pytest.approx(5)


async def test_cancelled_receive_on_a_faulty_channel_loses_no_delayed_message(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, at(0, Delay(5), "received"))
    await theirs.send(b"held\nnext\n")
    for _ in range(4):
        with trio.move_on_after(1) as scope:
            await faulty.receive()
        assert scope.cancelled_caught
    assert [await faulty.receive(), await faulty.receive()] == [b"held", b"next"]
    assert trio.current_time() == pytest.approx(5)


async def test_cancelled_receive_on_a_faulty_channel_loses_no_duplicated_message() -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, at(0, Duplicate(), "received"))
    await theirs.send(b"twice\n")
    assert await faulty.receive() == b"twice"
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await faulty.receive() == b"twice"


@pytest.mark.parametrize("fault", [Cut(0.5), Disconnect()])
async def test_disconnect_fault_ends_both_directions_permanently(fault: Fault) -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, at(1, fault))
    await theirs.send(b"waiting\n")
    for _ in range(3):
        with pytest.raises(ConnectionLost, match=f"{type(fault).__name__} at message 1 sent"):
            await faulty.send(b"one\ntwo\n")
        with pytest.raises(ConnectionLost):
            await faulty.receive()
    await theirs.receive()
    with pytest.raises(ConnectionLost):
        await theirs.send(b"anybody there?\n")


def over_memory() -> tuple[Transport, Transport]:
    return memory_transport_pair(capacity=1)


def over_a_stream() -> tuple[Transport, Transport]:
    ours, theirs = memory_stream_pair()
    return LineTransport(ours, 1000), LineTransport(theirs, 1000)


@pytest.mark.parametrize("pair", [over_memory, over_a_stream])
async def test_disconnect_fault_while_sending_wakes_the_receiver(
    autojump_clock: MockClock, pair: Callable[[], tuple[Transport, Transport]]
) -> None:
    ours, _ = pair()
    faulty = FaultyChannel(ours, at(0, Disconnect()))
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(ConnectionLost, match="Disconnect at message 0 sent"):
                await faulty.receive()

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        with pytest.raises(ConnectionLost):
            await faulty.send(b"last words\n")


async def test_disconnect_fault_while_receiving_wakes_the_sender(autojump_clock: MockClock) -> None:
    ours, theirs = memory_transport_pair(capacity=1)
    faulty = FaultyChannel(ours, at(0, Disconnect(), "received"))
    await faulty.send(b"fills the wire\n")
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            with pytest.raises(ConnectionLost, match="Disconnect at message 0 received"):
                await faulty.send(b"waits for room\n")

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        await theirs.send(b"the end\n")
        with pytest.raises(ConnectionLost):
            await faulty.receive()


async def test_faulty_channel_ends_when_the_wrapped_channel_ends() -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, lambda _: None)
    await theirs.aclose()
    with pytest.raises(trio.EndOfChannel):
        await faulty.receive()
    with pytest.raises(ConnectionLost, match="closed"):
        await faulty.send(b"late\n")


async def test_faulty_channel_can_be_closed_twice_and_closes_the_wrapped_channel() -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, lambda _: None)
    await faulty.aclose()
    await faulty.aclose()
    with pytest.raises(trio.EndOfChannel):
        await theirs.receive()


async def test_faulty_channel_records_its_injected_faults() -> None:
    ours, theirs = memory_transport_pair()
    faulty = FaultyChannel(ours, lambda passage: Drop() if passage.message == b"b" else None)
    await faulty.send(b"a\nb\n")
    await theirs.send(b"b\nc\n")
    await faulty.receive()
    told = [(passage.direction, passage.number, passage.message, fault) for passage, fault in faulty.injected]
    assert told == [("sent", 1, b"b", Drop()), ("received", 0, b"b", Drop())]
