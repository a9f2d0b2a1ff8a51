"""CourierSuite: tests that a `Courier` delivers messages to the right replica, and detects dead replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import trio

from ...stores.shared import MAX_MESSAGE_BYTES, Courier, new_replica_id
from ...stores.task_store import HintsLost
from .task_store_records import HOUR, expect_error, interruptions
from .tested_storage import ALL_BYTES, HOSTILE, LENGTHS, PATIENCE, TestedStorage, cancel_one_wait, wait_until

_REPEAT_AFTER = 0.5
"""Seconds after which a message is considered lost, and is sent again."""


class _MessageTests(TestedStorage):
    """Tests of `Courier.send` and `Courier.mailbox`."""

    async def test_message_arrives_unchanged(self) -> None:
        """A message arrives unchanged, whatever bytes it contains and however long it is."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            await deliver_all(one.courier, two.id, mailbox, [b"", b"\0", ALL_BYTES, b"HINTS_LOST", "\u2603".encode()])
            for length in (2**16 - 1, 2**16, 2**16 + 1, 2**20):
                await deliver_all(one.courier, two.id, mailbox, [bytes(length - 1) + b"1"])

    async def test_message_with_another_sender_or_number_is_not_treated_as_a_copy(self) -> None:
        """Two messages with the same sender and the same number are copies of one message. Messages with another sender
        or number are different messages."""
        async with self.open_replica() as one, self.open_replica() as two, self.open_replica() as three:
            messages = [bytes(100_000) + bytes([each]) for each in range(3)]
            async with three.courier.mailbox() as mailbox, trio.open_nursery() as nursery:
                have_arrived = trio.Event()
                for sender, number, message in zip((one, two, two), (1, 1, 2), messages, strict=True):
                    send = partial(sender.courier.send, number=number)
                    nursery.start_soon(_send_until, have_arrived, send, three.id, [message])
                await _read(mailbox, {*messages})
                have_arrived.set()

    async def test_sending_a_message_that_is_too_long_raises_value_error(self) -> None:
        """Sending a message that is too long raises `ValueError`."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            await expect_error(ValueError, one.courier.send(two.id, bytes(MAX_MESSAGE_BYTES + 1)))
            await deliver_all(one.courier, two.id, mailbox, [b"short"])

    async def test_message_is_delivered_only_to_the_replica_it_was_sent_to(self) -> None:
        """A replica gets all messages that were sent to it, also its own, and no messages that were sent to other
        replicas."""
        async with self.open_replica() as one, self.open_replica() as two, self.open_replica() as three:
            replicas = (one, two, three)
            async with (
                one.courier.mailbox() as first,
                two.courier.mailbox() as second,
                three.courier.mailbox() as third,
            ):
                for receiver, mailbox in zip(replicas, (first, second, third), strict=True):
                    messages = [f"from {sender.id} to {receiver.id}".encode() for sender in replicas]
                    for sender, message in zip(replicas, messages, strict=True):
                        seen = await deliver_all(sender.courier, receiver.id, mailbox, [message])
                        assert seen <= {*messages}

    async def test_message_to_an_unknown_replica_is_dropped_without_an_error(self) -> None:
        """Sending a message to an unknown replica raises no error, and no replica receives it.

        Peers supply these names, so any string can occur.
        """
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            for text in (*HOSTILE, new_replica_id(), one.id, two.id.swapcase(), two.id[:-1], f"{two.id}\0"):
                await one.courier.send(text, b"to an unknown replica")
            assert await deliver_all(one.courier, two.id, mailbox, [b"message"]) == {b"message"}

    async def test_message_is_delivered_although_sender_and_receiver_send_no_heartbeats(self) -> None:
        """Messages are delivered even if the sender and the receiver have sent no heartbeat."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            await two.courier.heartbeat(lease_ms=HOUR)
            await two.courier.leave()
            await deliver_all(one.courier, two.id, mailbox, [b"message"])

    async def test_messages_sent_concurrently_by_two_replicas_are_all_delivered(self) -> None:
        """If two replicas concurrently send many messages to a third replica, the third replica gets all messages."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            ours, theirs = [[f"{name} {n}".encode() for n in range(50)] for name in ("ours", "theirs")]
            async with trio.open_nursery() as nursery:
                sent = trio.Event()
                nursery.start_soon(_send_until, sent, two.courier.send, two.id, ours)
                nursery.start_soon(_send_until, sent, one.courier.send, two.id, theirs)
                await _read(mailbox, {*ours, *theirs})
                sent.set()

    async def test_opening_a_second_mailbox_of_a_replica_raises_runtime_error(self) -> None:
        """If a replica has an open mailbox, opening a second one raises `RuntimeError`, and the first one keeps
        working.

        After the first mailbox is closed, the replica can open another mailbox.
        """
        async with self.open_replica() as one, self.open_replica() as two:

            async def open_another() -> None:
                async with two.courier.mailbox():
                    pass

            async with two.courier.mailbox() as mailbox:
                await expect_error(RuntimeError, open_another())
                await deliver_all(one.courier, two.id, mailbox, [b"first"])
            async with two.courier.mailbox() as mailbox:
                await deliver_all(one.courier, two.id, mailbox, [b"second"])

    async def test_unread_mailbox_does_not_block_senders_and_reports_lost_messages(self) -> None:
        """If no task reads a mailbox, senders aren't blocked. If messages are lost, the reader gets `HINTS_LOST` and
        all later messages."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            for number in range(1500):
                await one.courier.send(two.id, str(number).encode())
            with trio.fail_after(PATIENCE):
                while not isinstance(await anext(mailbox), HintsLost):
                    pass
            await deliver_all(one.courier, two.id, mailbox, [b"later"])

    async def test_mailbox_stays_open_after_a_cancelled_wait_for_a_message(self) -> None:
        """After a cancelled wait for a message, the mailbox stays open."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            await cancel_one_wait(mailbox)
            await deliver_all(one.courier, two.id, mailbox, [b"message"])

    async def test_courier_works_after_a_cancelled_send(self) -> None:
        """After a cancelled `send` call, messages can still be sent and received."""
        async with self.open_replica() as one, self.open_replica() as two, two.courier.mailbox() as mailbox:
            for at in interruptions():
                await at.call(one.courier.send, two.id, b"message")
                number = b"%d" % at.step
                assert await deliver_all(one.courier, two.id, mailbox, [number]) <= {b"message", number}


class _LivenessTests(TestedStorage):
    """Tests of `Courier.heartbeat`, `Courier.leave` and `Courier.find_dead`."""

    async def test_replica_is_dead_until_its_first_heartbeat(self) -> None:
        """A replica is dead until it sends its first heartbeat.

        The first heartbeat returns false, because another replica may have found the replica dead.
        """
        async with self.open_replica() as one, self.open_replica() as two:
            assert set(await two.courier.find_dead([one.id, two.id])) == {one.id, two.id}
            assert await one.courier.heartbeat(lease_ms=HOUR) is False
            for each in (one, two):
                assert set(await each.courier.find_dead([one.id, two.id])) == {two.id}

    async def test_heartbeat_extends_the_lease_of_its_replica(self) -> None:
        """A `heartbeat` call starts a new lease for the replica. It returns true if the replica's old lease hasn't
        expired."""
        async with self.open_replica() as one, self.open_replica() as two, self.open_replica() as control:
            for lease in LENGTHS:
                await one.courier.heartbeat(lease_ms=lease)
                if await one.courier.heartbeat(lease_ms=HOUR):
                    await control.courier.heartbeat(lease_ms=lease)
                    await wait_until(partial(is_dead, two.courier, control.id))
                    assert not await is_dead(two.courier, one.id)
                    assert await one.courier.heartbeat(lease_ms=HOUR) is True
                    return
        raise AssertionError("each lease expired before the second heartbeat; the storage is too slow")

    async def test_replica_is_dead_after_its_lease_has_expired(self) -> None:
        """When a replica's lease expires, the replica is dead. The next `heartbeat` call revives it, and returns false
        because the replica was dead before."""
        async with self.open_replica() as one, self.open_replica() as two:
            start = trio.current_time()
            await one.courier.heartbeat(lease_ms=100)
            assert await wait_until(partial(is_dead, two.courier, one.id)) - start > 0.09
            assert await one.courier.heartbeat(lease_ms=HOUR) is False
            assert not await is_dead(two.courier, one.id)
            assert await one.courier.heartbeat(lease_ms=HOUR) is True

    async def test_replica_is_dead_immediately_after_it_calls_leave(self) -> None:
        """After a replica calls `leave`, it is dead at once, even if its lease hasn't expired. After a `heartbeat`
        call, the replica is alive again."""
        async with self.open_replica() as one, self.open_replica() as two:
            await one.courier.heartbeat(lease_ms=HOUR)
            await two.courier.heartbeat(lease_ms=HOUR)
            await one.courier.leave()
            assert set(await two.courier.find_dead([one.id, two.id])) == {one.id}
            await one.courier.leave()
            assert await one.courier.heartbeat(lease_ms=HOUR) is False
            assert await one.courier.heartbeat(lease_ms=HOUR) is True
            assert list(await two.courier.find_dead([one.id, two.id])) == []

    async def test_replica_that_ends_without_calling_leave_is_alive_until_its_lease_expires(self) -> None:
        """If a replica ends without calling `leave`, for example by a crash, it is reported as alive until its lease
        expires."""
        async with self.open_replica() as two:
            async with self.open_replica() as one:
                await one.courier.heartbeat(lease_ms=HOUR)
            assert not await is_dead(two.courier, one.id)

    async def test_find_dead_returns_every_string_that_is_not_the_id_of_a_living_replica(self) -> None:
        """`find_dead` returns each given string that isn't the id of a living replica, even if it gets thousands of
        strings."""
        async with self.open_replica() as one:
            await one.courier.heartbeat(lease_ms=HOUR)
            never = [*HOSTILE, one.id.swapcase(), one.id[:-1], f"{one.id}\0", *(f"never {n}" for n in range(40_000))]
            assert set(await one.courier.find_dead([*never, one.id])) == set(never)
            assert list(await one.courier.find_dead([])) == []

    async def test_cancelled_heartbeat_or_leave_is_atomic(self) -> None:
        """If a `heartbeat` or `leave` call is cancelled, it has no effect."""
        async with self.open_replica() as two:
            for at in interruptions():
                async with self.open_replica() as one:
                    lived = await at.call(partial(one.courier.heartbeat, lease_ms=HOUR))
                    assert await is_dead(two.courier, one.id) == (not lived)
                    await one.courier.heartbeat(lease_ms=HOUR)
                    left = await at.call(one.courier.leave)
                    assert await is_dead(two.courier, one.id) == bool(left)


class CourierSuite(_MessageTests, _LivenessTests):
    """Tests for each guarantee in the docstrings of `Courier`. Every implementation must pass them.

    The tests send a message again if it doesn't arrive. See `SharedStorageSuite`.
    """


async def is_dead(courier: Courier, replica: str) -> bool:
    """Return whether `find_dead` reports the replica as dead."""
    return replica in await courier.find_dead([replica])


async def deliver_all(
    courier: Courier, replica: str, mailbox: AsyncIterator[bytes | HintsLost], messages: Sequence[bytes]
) -> set[bytes]:
    """Send the messages to a replica, repeatedly, until all have arrived. Return all messages that arrived."""
    async with trio.open_nursery() as nursery:
        have_arrived = trio.Event()
        nursery.start_soon(_send_until, have_arrived, courier.send, replica, messages)
        seen = await _read(mailbox, {*messages})
        have_arrived.set()
    return seen


async def _send_until(
    have_arrived: trio.Event, send: Callable[[str, bytes], Awaitable[None]], replica: str, messages: Sequence[bytes]
) -> None:
    while not have_arrived.is_set():
        for message in messages:
            await send(replica, message)
        with trio.move_on_after(_REPEAT_AFTER):
            await have_arrived.wait()


async def _read(mailbox: AsyncIterator[bytes | HintsLost], wanted: set[bytes]) -> set[bytes]:
    seen = set[bytes]()
    with trio.fail_after(PATIENCE):
        while not wanted <= seen:
            message = await anext(mailbox)
            if not isinstance(message, HintsLost):
                seen.add(message)
    return seen
