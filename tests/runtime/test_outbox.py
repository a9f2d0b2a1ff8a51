from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp.runtime.outbox import Outbox, Owner


def outbox(high_water: int = 1000) -> Outbox:
    return Outbox(high_water)


async def test_outbox_returns_messages_in_the_order_in_which_they_were_put() -> None:
    box = outbox()
    box.put(b"1\n")
    box.put_sealed(b"2\n", Owner())
    box.put(b"3\n", Owner())
    box.put(b"4\n")
    assert await box.take() == b"1\n2\n3\n4\n"


async def test_urgent_outbox_message_is_written_before_all_other_messages() -> None:
    box = outbox()
    box.put(b"waits\n")
    box.put_first(b"urgent\n")
    assert await box.take() == b"urgent\nwaits\n"


async def test_outbox_returns_whole_messages_up_to_about_the_high_water_mark() -> None:
    box = outbox(high_water=10)
    for number in range(10):
        box.put(b"line %d\n" % number, Owner())
    chunks = []
    while box.size:
        chunks.append(bytes(await box.take()))
    assert b"".join(chunks) == b"".join(b"line %d\n" % number for number in range(10))
    assert all(chunk.endswith(b"\n") and 10 <= len(chunk) < 20 for chunk in chunks)


async def test_outbox_returns_a_message_of_any_size_in_one_piece() -> None:
    box = outbox(high_water=10)
    box.put(b"x" * 5000 + b"\n")
    assert len(await box.take()) == 5001


@pytest.mark.parametrize("put", ["put", "put_now", "put_sealed", "put_first"])
async def test_outbox_returns_a_long_message_without_copying(put: str) -> None:
    line = b"x" * 100_000 + b"\n"
    box = Outbox(1000, lambda _: 1)
    box.put(b"short\n")
    assert await box.take() == b"short\n"
    getattr(box, put)(line)
    box.put(b"short\n")
    assert await box.take() is line
    assert await box.take() == b"short\n"


async def test_outbox_message_over_64_kib_is_written_by_the_writer_task() -> None:
    sent: list[int] = []

    def send(line: bytes) -> int:
        sent.append(len(line))
        return len(line)

    box = Outbox(1000, send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.take)
        await wait_all_tasks_blocked()
        box.put_now(b"x" * 65_536)
        box.put_now(b"x" * 65_537)
    assert sent == [65_536]


async def test_long_message_in_the_outbox_can_be_replaced_and_withdrawn() -> None:
    box, owner, line = outbox(), Owner(), b"x" * 100_000 + b"\n"
    segment = box.put_sealed(b"short\n", owner)
    assert box.replace(segment, line)
    box.put(b"last\n")
    assert box.size == len(line) + 5
    assert box.withdraw(owner)
    assert await box.take() == b"last\n"
    assert box.size == 0


async def test_outbox_writer_waits_until_a_message_is_put() -> None:
    box, taken = outbox(), list[bytes]()
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            taken.append(bytes(await box.take()))

        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        assert taken == []
        box.put(b"now\n")
    assert taken == [b"now\n"]


# Withdrawing


async def test_outbox_method_withdraw_removes_only_the_unwritten_messages_of_the_given_owner() -> None:
    box, owner = outbox(), Owner()
    box.put(b"before\n")
    box.put(b"mine 1\n", owner)
    box.put_sealed(b"mine 2\n", owner)
    box.put(b"after\n")
    assert box.withdraw(owner)
    assert await box.take() == b"before\nafter\n"
    assert box.size == 0


async def test_outbox_messages_that_the_writer_has_taken_cannot_be_withdrawn() -> None:
    box, owner = outbox(), Owner()
    box.put(b"mine\n", owner)
    await box.take()
    assert not box.withdraw(owner)


async def test_outbox_method_withdraw_removes_messages_that_the_writer_has_not_taken() -> None:
    box, owner = outbox(high_water=5), Owner()
    box.put_sealed(b"taken\n", owner)
    box.put_sealed(b"waits\n", owner)
    assert await box.take() == b"taken\n"
    assert box.withdraw(owner)
    assert box.size == 0


async def test_outbox_method_withdraw_returns_false_if_no_message_waits() -> None:
    assert not outbox().withdraw(Owner())


async def test_owner_of_outbox_messages_can_put_messages_again_after_it_withdrew_some() -> None:
    box, owner = outbox(), Owner()
    box.put(b"withdrawn\n", owner)
    box.withdraw(owner)
    box.put(b"new\n", owner)
    assert await box.take() == b"new\n"


# Replacing


async def test_replaceable_message_in_the_outbox_is_replaced_in_its_position() -> None:
    box = outbox()
    segment = box.put_sealed(b"old\n")
    box.put(b"after\n")
    assert box.replace(segment, b"newer\n")
    assert box.size == len(b"newer\nafter\n")
    assert await box.take() == b"newer\nafter\n"


async def test_replaceable_outbox_message_that_the_writer_has_taken_is_not_replaced() -> None:
    box = outbox()
    segment = box.put_sealed(b"old\n")
    await box.take()
    assert not box.replace(segment, b"new\n")
    assert box.size == 0


async def test_withdrawn_message_in_the_outbox_is_not_replaced() -> None:
    box, owner = outbox(), Owner()
    segment = box.put_sealed(b"old\n", owner)
    box.withdraw(owner)
    assert not box.replace(segment, b"new\n")
    assert box.size == 0


async def test_later_outbox_messages_are_not_merged_into_a_replaceable_message() -> None:
    box, owner = outbox(), Owner()
    segment = box.put_sealed(b"1\n", owner)
    box.put(b"2\n", owner)
    box.replace(segment, b"one\n")
    assert await box.take() == b"one\n2\n"


# Room


async def test_outbox_producer_below_the_high_water_mark_does_not_wait() -> None:
    box = outbox(high_water=10)
    box.put(b"x" * 9)
    with trio.testing.assert_no_checkpoints():
        await box.room()


async def test_outbox_producers_wait_at_the_high_water_mark_until_the_writer_takes_messages() -> None:
    box, through = outbox(high_water=10), list[int]()
    box.put(b"x" * 10)
    async with trio.open_nursery() as nursery:

        async def produce(number: int) -> None:
            await box.room()
            through.append(number)
            box.put(b"%d\n" % number)

        for number in range(3):
            nursery.start_soon(produce, number)
        await wait_all_tasks_blocked()
        assert through == []
        assert box.statistics() == {"size": 10, "producers": 3}
        await box.take()
    assert sorted(through) == [0, 1, 2]


async def test_outbox_producer_that_puts_no_message_wakes_the_next_waiting_producer() -> None:
    box, through = outbox(high_water=10), list[int]()
    box.put(b"x" * 10)
    async with trio.open_nursery() as nursery:

        async def look(number: int) -> None:
            await box.room()
            through.append(number)

        for number in range(30):
            nursery.start_soon(look, number)
        await wait_all_tasks_blocked()
        await box.take()
    assert len(through) == 30


async def test_task_that_waits_for_outbox_space_continues_when_messages_are_withdrawn() -> None:
    box, owner = outbox(high_water=10), Owner()
    box.put(b"x" * 10, owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.room)
        await wait_all_tasks_blocked()
        box.withdraw(owner)


async def test_outbox_producer_can_choose_a_multiple_of_the_high_water_mark_as_its_limit() -> None:
    box = outbox(high_water=10)
    box.put(b"x" * 39)
    assert box.is_full()
    assert not box.is_full(4)
    await box.room(4)


async def test_outbox_space_for_an_owner_counts_only_the_messages_of_that_owner(autojump_clock: object) -> None:
    box, owner = outbox(high_water=10), Owner()
    box.put(b"x" * 1000)
    await box.room_of(owner, 1)
    box.put(b"y" * 10, owner)
    with trio.move_on_after(1) as scope:
        await box.room_of(owner, 1)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.room_of, owner, 1)
        await wait_all_tasks_blocked()
        await box.take()
        await box.take()


# Flushing


async def test_outbox_method_flushed_waits_until_the_writer_has_sent_the_last_messages() -> None:
    box, steps = outbox(), list[str]()
    sent = trio.Event()
    box.put(b"last words\n")
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            await box.take()
            await sent.wait()
            steps.append("sent")
            await box.take()

        async def flush() -> None:
            await box.flushed()
            steps.append("flushed")
            nursery.cancel_scope.cancel()

        nursery.start_soon(write)
        nursery.start_soon(flush)
        await wait_all_tasks_blocked()
        assert steps == []
        sent.set()
    assert steps == ["sent", "flushed"]


async def test_all_tasks_that_wait_in_the_outbox_method_flushed_continue_when_the_outbox_is_empty() -> None:
    box = outbox()
    box.put(b"1\n")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.flushed)
            nursery.start_soon(box.flushed)
            await wait_all_tasks_blocked()
            assert await box.take() == b"1\n"
            with trio.move_on_after(0):
                await box.take()


async def test_outbox_method_flushed_returns_immediately_for_an_unused_outbox() -> None:
    with trio.fail_after(PATIENCE):
        await outbox().flushed()


# Writing at once


class Wire:
    """What was written at once or by the writer. At once it takes ``room`` bytes of a line at most."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.bytes = bytearray()
        self.tried = 0
        self.blocked = False
        self._changed = trio.lowlevel.ParkingLot()

    def send_nowait(self, line: bytes) -> int:
        self.tried += 1
        self.bytes += line[: self.room]
        return min(self.room, len(line))

    async def write(self, box: Outbox) -> None:
        while True:
            chunk = await box.take()
            self.bytes += chunk[:1]
            while self.blocked:
                await self._changed.park()
            self.bytes += chunk[1:]

    def unblock(self) -> None:
        self.blocked = False
        self._changed.unpark_all()


@asynccontextmanager
async def writing(wire: Wire, high_water: int = 1000) -> AsyncGenerator[Outbox]:
    """An outbox whose writer waits for lines."""
    box = Outbox(high_water, wire.send_nowait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.write, box)
        await wait_all_tasks_blocked()
        yield box
        nursery.cancel_scope.cancel()


async def test_outbox_message_is_written_directly_while_the_writer_task_is_idle() -> None:
    wire = Wire()
    async with writing(wire) as box:
        box.put_now(b"reply\n", Owner())
        box.put_now(b"question\n")
        assert wire.bytes == b"reply\nquestion\n"
        assert box.size == 0
        with trio.testing.assert_no_checkpoints():
            await box.flushed()


async def test_urgent_outbox_messages_put_together_are_written_together() -> None:
    wire = Wire()
    async with writing(wire) as box:
        box.put_first(b"cancel 1\n")
        box.put_first(b"cancel 2\n")
        assert wire.bytes == b""
        await box.flushed()
        assert wire.bytes == b"cancel 2\ncancel 1\n"


async def test_outbox_message_written_directly_cannot_be_withdrawn() -> None:
    owner = Owner()
    async with writing(Wire()) as box:
        box.put_now(b"mine\n", owner)
        assert not box.withdraw(owner)


async def test_outbox_message_added_while_other_messages_wait_is_queued_and_can_be_withdrawn() -> None:
    wire, owner = Wire(), Owner()
    async with writing(wire) as box:
        box.put(b"waits\n")
        box.put_now(b"withdrawn\n", owner)
        box.put_now(b"reply\n")
        assert box.withdraw(owner)
        assert wire.tried == 0
        await box.flushed()
        assert wire.bytes == b"waits\nreply\n"


async def test_no_outbox_message_is_written_directly_while_the_writer_task_writes() -> None:
    wire = Wire()
    async with writing(wire) as box:
        wire.blocked = True
        box.put(b"slow\n")
        await wait_all_tasks_blocked()
        assert box.size == 0
        box.put_now(b"reply\n")
        box.put_first(b"cancel\n")
        assert wire.tried == 0
        wire.unblock()
        await box.flushed()
        assert wire.bytes == b"slow\ncancel\nreply\n"


async def test_no_outbox_message_is_written_directly_before_or_after_the_writer_task_runs() -> None:
    wire = Wire()
    box = Outbox(1000, wire.send_nowait)
    box.put_now(b"early\n")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wire.write, box)
            await wait_all_tasks_blocked()
            scope.cancel()
            box.put_now(b"late\n")  # the writer has its turn to end after this
    box.put_now(b"later\n")
    box.put_first(b"latest\n")
    assert wire.tried == 0
    assert wire.bytes == b"early\n"


async def test_outbox_leaves_messages_to_the_writer_task_after_a_call_of_write_nothing_now() -> None:
    wire = Wire()
    async with writing(wire) as box:
        box.write_nothing_now()
        box.put_now(b"reply\n")
        assert box.size == len(b"reply\n")
        await box.flushed()
    assert wire.tried == 0
    assert wire.bytes == b"reply\n"


async def test_closed_outbox_writes_no_message_directly() -> None:
    wire = Wire()
    async with writing(wire) as box:
        box.close()
        box.put_now(b"late\n")
        assert wire.bytes == b""


async def test_outbox_that_closes_drops_the_messages_in_it() -> None:
    box, owner = outbox(), Owner()
    box.put(b"dropped\n", owner)
    box.close()
    assert box.over
    assert not box.withdraw(owner)
    await box.flushed()
    with trio.move_on_after(0) as scope:
        await box.take()
    assert scope.cancelled_caught


async def test_outbox_message_that_cannot_be_written_directly_is_queued() -> None:
    wire, owner = Wire(room=0), Owner()
    async with writing(wire) as box:
        box.put_now(b"withdrawn\n", owner)
        assert box.withdraw(owner)
        box.put_now(b"reply\n", owner)
        await box.flushed()
        assert wire.bytes == b"reply\n"


async def test_rest_of_a_partly_written_outbox_message_is_written_before_urgent_messages() -> None:
    wire = Wire(room=3)
    async with writing(wire) as box:
        box.put_now(b"begun\n")
        box.put(b"next\n")
        box.put_first(b"urgent 1\n")
        box.put_first(b"urgent 2\n")
        box.put_now(b"reply\n")
        assert wire.bytes == b"beg"
        await box.flushed()
        assert wire.bytes == b"begun\nurgent 2\nurgent 1\nnext\nreply\n"
        assert wire.tried == 1


async def test_urgent_outbox_message_is_written_after_the_rest_of_a_partly_written_message() -> None:
    wire = Wire(room=3)
    async with writing(wire) as box:
        box.put_now(b"begun\n")
        wire.blocked = True
        await wait_all_tasks_blocked()
        box.put(b"next\n")
        box.put_first(b"urgent\n")
        wire.unblock()
        await box.flushed()
        assert wire.bytes == b"begun\nurgent\nnext\n"


async def test_rest_of_a_partly_written_outbox_message_cannot_be_withdrawn() -> None:
    wire, owner = Wire(room=3), Owner()
    async with writing(wire) as box:
        box.put_now(b"begun\n", owner)
        box.put(b"waits\n", owner)
        assert box.withdraw(owner)
        assert not box.withdraw(owner)
        await box.flushed()
        assert wire.bytes == b"begun\n"


async def test_unwritten_rest_of_a_message_counts_towards_the_outbox_size_until_the_writer_takes_that_rest() -> None:
    wire = Wire(room=3)
    async with writing(wire, high_water=10) as box:
        box.put_now(b"x" * 12 + b"\n")
        assert box.size == 10
        assert box.is_full()
        await box.room()
        assert box.size == 0


class Interrupted(Wire):
    """Ctrl-C comes when a line has been begun."""

    def send_nowait(self, line: bytes) -> int:
        count = super().send_nowait(line)
        signal.raise_signal(signal.SIGINT)
        return count


def test_keyboard_interrupt_does_not_lose_the_rest_of_a_partly_written_outbox_message() -> None:
    wire, steps = Interrupted(room=3), list[str]()

    async def play() -> None:
        async with writing(wire) as box:
            try:
                box.put_now(b"begun\n")
                steps.append("put")
                await trio.sleep_forever()
            except KeyboardInterrupt:
                steps.append("interrupted")
            await box.flushed()

    trio.run(play)
    assert steps == ["put", "interrupted"]
    assert wire.bytes == b"begun\n"


# All of it


@given(
    st.lists(st.tuples(st.sampled_from(["put", "sealed", "first", "withdraw", "take"]), st.integers(0, 3)), max_size=60)
)
def test_outbox_message_is_either_given_to_the_writer_once_or_withdrawn_in_any_order_of_operations(
    steps: list[tuple[str, int]],
) -> None:
    box, owners = Outbox(20), [Owner() for _ in range(3)]
    waiting: list[tuple[bytes, int]] = []
    taken = bytearray()
    expected = bytearray()
    for number, (step, who) in enumerate(steps):
        line, owner = b"line %d\n" % number, owners[who] if who < 3 else None
        match step:
            case "put":
                box.put(line, owner)
                waiting.append((line, who))
            case "sealed":
                box.put_sealed(line, owner)
                waiting.append((line, who))
            case "first":
                box.put_first(line)
                waiting.insert(0, (line, 3))
            case "withdraw" if owner is not None:
                assert box.withdraw(owner) == any(holder == who for _, holder in waiting)
                waiting = [(kept, holder) for kept, holder in waiting if holder != who]
            case "take" if waiting:
                chunk = box.take_nowait()
                taken += chunk
                while chunk and waiting and len(expected) < len(taken):
                    expected += waiting.pop(0)[0]
            case _:
                pass
        assert box.size == sum(len(kept) for kept, _ in waiting)
        assert taken == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "sealed", "now", "first", "withdraw", "room", "block", "unblock", "turn"]),
            st.integers(0, 12),
        ),
        max_size=60,
    )
)
def test_outbox_messages_written_directly_and_by_the_writer_task_are_complete_and_in_order(
    steps: list[tuple[str, int]],
) -> None:
    async def play() -> None:
        wire, owners = Wire(), [Owner() for _ in range(3)]
        in_order, urgent, withdrawn = list[bytes](), list[bytes](), set[bytes]()
        holders: dict[bytes, Owner | None] = {}
        async with writing(wire, high_water=20) as box:
            for number, (step, count) in enumerate(steps):
                line, owner = b"line %d\n" % number, [*owners, None][count % 4]
                match step:
                    case "put" | "sealed" | "now":
                        {"put": box.put, "sealed": box.put_sealed, "now": box.put_now}[step](line, owner)
                        in_order.append(line)
                        holders[line] = owner
                    case "first":
                        box.put_first(line)
                        urgent.append(line)
                    case "withdraw" if owner is not None:
                        data = b"".join(bytes(segment.data) for segment in owner.segments)
                        mine = set(data.splitlines(keepends=True))
                        assert all(holders[each] is owner for each in mine)
                        assert box.withdraw(owner) == bool(mine)
                        withdrawn |= mine
                    case "room":
                        wire.room = count
                    case "block":
                        wire.blocked = True
                    case "unblock":
                        wire.unblock()
                    case _:
                        await trio.lowlevel.checkpoint()
            wire.unblock()
            await box.flushed()
            assert box.size == 0
        written = bytes(wire.bytes).splitlines(keepends=True)
        assert [line for line in written if line not in urgent] == [line for line in in_order if line not in withdrawn]
        assert sorted(line for line in written if line in urgent) == sorted(urgent)

    trio.run(play)


@pytest.mark.parametrize("size", [1, 10_000])
async def test_consecutive_outbox_messages_of_one_owner_are_joined_up_to_the_high_water_mark(
    size: int,
) -> None:
    box, owner = outbox(high_water=size), Owner()
    for _ in range(10):
        box.put(b"line\n", owner)
    assert len(owner.segments) == (10 if size == 1 else 1)


async def test_outbox_method_nudge_makes_a_waiting_take_call_return_without_messages() -> None:
    outbox, taken = Outbox(100), list[bytes]()

    async def take_twice() -> None:
        taken.append(bytes(await outbox.take()))
        taken.append(bytes(await outbox.take()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_twice)
        await wait_all_tasks_blocked()
        outbox.nudge()
        await wait_all_tasks_blocked()
        assert taken == [b""]
        outbox.put(b"line\n")
    assert taken == [b"", b"line\n"]


async def test_outbox_method_nudge_loses_no_messages() -> None:
    outbox = Outbox(100)
    outbox.put(b"line\n")
    outbox.nudge()
    assert bytes(await outbox.take()) == b"line\n"
    assert bytes(await outbox.take()) == b""


def test_outbox_calls_its_writer_callback_whenever_a_message_begins_a_new_segment() -> None:
    outbox, calls = Outbox(100), list[int]()
    outbox.call_writer(lambda: calls.append(outbox.size))
    outbox.put(b"a\n")
    outbox.put(b"b\n")  # into the same segment, for which the writer was called
    outbox.put_sealed(b"c\n")
    assert calls == [2, 6]
    outbox.call_writer(None)
    outbox.put_sealed(b"d\n")
    assert calls == [2, 6]


async def test_messages_put_into_a_closed_outbox_are_dropped_without_waiting() -> None:
    box, owner = outbox(), Owner()
    box.close()
    for put in (box.put, box.put_now, box.put_sealed):
        for _ in range(box.high_water):
            put(b"late\n", owner)
            await box.room()
    box.put_first(b"late\n")
    assert (box.size, box.take_nowait(), owner.segments) == (0, b"", [])


async def test_closed_outbox_drops_messages_even_if_a_writer_callback_is_set() -> None:
    box, calls = outbox(), list[int]()
    box.close()
    for writer in (lambda: calls.append(box.size), None):
        box.call_writer(writer)
        box.put(b"late\n")
    assert (box.size, calls) == (0, [])


async def test_tasks_that_wait_until_the_outbox_is_flushed_continue_when_the_outbox_closes() -> None:
    box = outbox()
    box.put(b"first\n")
    await box.take()
    box.put(b"second\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.flushed)
        await wait_all_tasks_blocked()
        box.close()
    await box.flushed()
