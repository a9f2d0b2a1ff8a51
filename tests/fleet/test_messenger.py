"""Letters are read once, whatever their courier does, and their senders learn what became of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.fleet.messenger import LEASE_SECONDS, MessageRefused, Messenger, ReplicaDead, ReplicaMessage
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.shared import Courier, Replica
from trio_mcp.stores.task_store import StoreDown


class BadCourier:
    """Loses, doubles, delays and so reorders letters, as ``seed`` says. Calls fail while ``fails`` is true."""

    def __init__(self, courier: Courier, nursery: trio.Nursery, seed: int) -> None:
        self._courier = courier
        self._nursery = nursery
        self._chance = random.Random(seed)
        self.loses = 0.0
        self.doubles = 0.0
        self.delay = 0.0
        self.fails = False
        self.posted = 0
        self.asked_for_dead = 0

    def _check(self) -> None:
        if self.fails:
            raise StoreDown("the courier is ill")

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        self._check()
        self.posted += 1
        for _ in range(2 if self._chance.random() < self.doubles else 1):
            if self._chance.random() >= self.loses:
                self._nursery.start_soon(self._bring, replica, content, self._chance.random() * self.delay)

    async def _bring(self, replica: str, letter: bytes, delay: float) -> None:
        await trio.sleep(delay)
        await self._courier.send(replica, letter)

    def mailbox(self) -> Any:
        return self._courier.mailbox()

    async def heartbeat(self, *, lease_ms: int) -> bool:
        self._check()
        return await self._courier.heartbeat(lease_ms=lease_ms)

    async def leave(self) -> None:
        self._check()
        await self._courier.leave()

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        self._check()
        self.asked_for_dead += 1
        return await self._courier.find_dead(replicas)


@attrs.define(eq=False)
class Party:
    """One replica with its letters. ``read`` has the contents of the letters of the kind ``talk`` that were read."""

    replica: Replica
    courier: BadCourier
    letters: Messenger
    scope: trio.CancelScope
    read: list[bytes] = attrs.field(factory=list[bytes])

    @property
    def id(self) -> str:
        return self.replica.id

    def reader(self, letter: ReplicaMessage) -> None:
        self.read.append(letter.content)
        letter.ack(b"read " + letter.content)

    async def tell(self, other: Party, content: bytes = b"hello", *, patience: float = 1) -> bytes:
        return await self.letters.send(other.id, "talk", content, patience=patience)


@asynccontextmanager
async def parties(count: int = 2, seed: int = 0) -> AsyncGenerator[list[Party]]:
    storage = MemoryStorage()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        found = list[Party]()
        for number in range(count):
            replica = await stack.enter_async_context(storage.join("server"))
            courier = BadCourier(replica.courier, nursery, 10 * seed + number)
            replica = attrs.evolve(replica, courier=courier)
            party = Party(replica, courier, Messenger(replica), trio.CancelScope())
            party.letters.register("talk", party.reader)

            async def run(task_status: trio.TaskStatus[None], party: Party = party) -> None:
                with party.scope:
                    await party.letters.run(task_status=task_status)

            await nursery.start(run)
            found.append(party)
        yield found
        nursery.cancel_scope.cancel(reason="the test is over")


def nothing_waits(*of: Party) -> bool:
    return not any(party.letters._replies or party.letters._ack_queue for party in of)


async def test_message_between_replicas_is_received_and_acknowledged(autojump_clock: MockClock):
    async with parties() as (one, two):
        assert await one.tell(two) == b"read hello"
        assert two.read == [b"hello"]
        assert one.courier.posted == two.courier.posted == 1
        assert one.courier.asked_for_dead == 0  # no second round trip for a letter that arrives
        assert trio.current_time() == 0
        assert nothing_waits(one, two)


@pytest.mark.parametrize("seed", range(20))
async def test_each_message_between_replicas_is_handled_once_despite_loss_duplicates_and_delays(
    seed: int, autojump_clock: MockClock
):
    receipts = dict[bytes, bytes]()

    async def tell(one: Party, two: Party, content: bytes) -> None:
        await trio.sleep(random.Random(content).random())
        receipts[content] = await one.tell(two, content)

    async with parties(3, seed) as found:
        for party in found:
            party.courier.loses, party.courier.doubles, party.courier.delay = 0.4, 0.3, 3.0
        async with trio.open_nursery() as nursery:
            for number in range(60):
                one, two = found[number % 3], found[(number + 1) % 3]
                nursery.start_soon(tell, one, two, b"%d" % number)
        await trio.sleep(5)  # for late copies
        read = Counter(content for party in found for content in party.read)
        assert read == {b"%d" % number: 1 for number in range(60)}
        assert receipts == {content: b"read " + content for content in read}
        assert nothing_waits(*found)


@pytest.mark.parametrize("seed", range(5))
async def test_successive_messages_between_two_replicas_are_received_in_order(seed: int, autojump_clock: MockClock):
    async with parties(seed=seed) as (one, two):
        for party in (one, two):
            party.courier.loses, party.courier.doubles, party.courier.delay = 0.3, 0.5, 2.0
        contents = [b"%d" % number for number in range(20)]
        for content in contents:
            await one.tell(two, content)
        assert two.read == contents


async def test_unacknowledged_message_between_replicas_is_sent_again_with_doubling_delays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    async with parties() as (one, two):
        times = list[float]()

        async def lose(replica: str, letter: bytes, *, number: int | None = None) -> None:
            times.append(trio.current_time())

        monkeypatch.setattr(one.courier, "send", lose)
        with trio.move_on_after(10):
            await one.tell(two)
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert all(pause <= min(0.25 * 2**number, 1) for number, pause in enumerate(pauses))


async def test_sender_of_a_message_between_replicas_waits_until_a_slow_receiver_acknowledges_the_message(
    autojump_clock: MockClock,
):
    async with parties() as (one, two), trio.open_nursery() as nursery:
        kept = list[ReplicaMessage]()
        two.letters.register("talk", kept.append)
        done = trio.Event()

        async def tell() -> None:
            assert await one.tell(two) == b"at last"
            done.set()

        nursery.start_soon(tell)
        await trio.sleep(60)
        assert len(kept) == 1  # though it came again and again
        assert one.courier.posted > 10
        kept[0].ack(b"at last")
        kept[0].refuse("the first word counts")
        await done.wait()


async def test_message_between_replicas_is_refused_if_the_receiver_does_not_know_its_kind(autojump_clock: MockClock):
    async with parties() as (one, two):
        with pytest.raises(MessageRefused, match="no messages of the kind later-version"):
            await one.letters.send(two.id, "later-version", b"", patience=1)
        two.letters.register("talk", lambda letter: letter.refuse("not today"))
        with pytest.raises(MessageRefused, match="not today"):
            await one.tell(two)
        assert nothing_waits(one, two)


async def test_message_between_replicas_whose_handler_raises_is_refused_and_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
):
    def fail(_: ReplicaMessage) -> None:
        raise KeyError("broken")

    async with parties() as (one, two):
        two.letters.register("broken", fail)
        with pytest.raises(MessageRefused, match="could not be handled"):
            await one.letters.send(two.id, "broken", b"", patience=1)
        assert "could not handle a message" in caplog.text
        assert await one.tell(two) == b"read hello"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"\x94\xa4talk",
        b"\x93\xa4talk\xa1x\x01",
        b"\x94\xa1\xff\xa1x\x01\xc4\x00",  # a kind that is no UTF-8
        b"\x91" * 100_000,
        msgspec.msgpack.encode(["talk", "x" * 101, 1, b""]),  # a receipt would go there
        msgspec.msgpack.encode(["t" * 101, "x", 1, b""]),
        msgspec.msgpack.encode(["talk", "x", 2.5, b""]),
    ],
)
async def test_malformed_message_between_replicas_is_dropped_and_logged(
    text: bytes, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
):
    async with parties() as (one, two):
        await one.courier.send(two.id, text)
        assert await one.tell(two) == b"read hello"
        assert "dropped an invalid message" in caplog.text


async def test_duplicate_message_acknowledgement_is_ignored(autojump_clock: MockClock):
    async with parties() as (one, two):
        one.courier.doubles = two.courier.doubles = 1.0
        await one.tell(two)
        await wait_all_tasks_blocked()
        assert await one.tell(two, b"again") == b"read again"
        assert two.read == [b"hello", b"again"]


async def test_replica_is_considered_dead_only_after_its_lease(autojump_clock: MockClock):
    async with parties() as (one, two):
        two.courier.fails = True  # as if it were gone: no receipt, no sign of life
        last_sign = trio.current_time()
        with pytest.raises(ReplicaDead, match=two.id):
            await one.tell(two)
        assert LEASE_SECONDS <= trio.current_time() - last_sign < LEASE_SECONDS + 1.5
        assert nothing_waits(one)


async def test_replica_with_slow_acknowledgements_is_not_considered_dead(autojump_clock: MockClock):
    async with parties() as (one, two), trio.open_nursery() as nursery:
        two.courier.loses = 1.0
        nursery.start_soon(one.tell, two)
        await trio.sleep(10 * LEASE_SECONDS)
        assert two.read == [b"hello"]
        two.courier.loses = 0.0


async def test_gracefully_stopped_replica_is_immediately_considered_dead(autojump_clock: MockClock):
    async with parties() as (one, two):
        await trio.sleep(LEASE_SECONDS)
        two.scope.cancel(reason="the replica ends")
        await wait_all_tasks_blocked()
        with pytest.raises(ReplicaDead):
            await one.tell(two)
        assert trio.current_time() < LEASE_SECONDS + 1
        with pytest.raises(ReplicaDead):
            await one.letters.send("never was", "talk", b"", patience=1)


async def test_replica_that_stops_while_it_sends_a_heartbeat_is_considered_dead(autojump_clock: MockClock):
    async with parties() as (one, two):
        live, begun = two.courier.heartbeat, trio.Event()

        async def slow(*, lease_ms: int) -> bool:
            begun.set()
            with trio.move_on_after(5, shield=True):  # a call that was sent is waited for
                await trio.sleep(0.5)
            return await live(lease_ms=lease_ms)

        two.courier.heartbeat = slow  # type: ignore[method-assign]
        await begun.wait()
        two.scope.cancel(reason="the replica ends")
        await trio.sleep(1)
        assert await one.courier.find_dead([two.id])


async def test_replica_that_cannot_send_heartbeats_during_a_storage_outage_is_not_considered_dead(
    autojump_clock: MockClock,
):
    async with parties() as (one, two), trio.open_nursery() as nursery:
        one.courier.fails = two.courier.fails = True
        await trio.sleep(2 * LEASE_SECONDS)
        one.courier.fails = False
        receipts = list[bytes]()

        async def tell() -> None:
            receipts.append(await one.tell(two))

        nursery.start_soon(tell)
        await trio.sleep(1)  # the other one finds later that the storage works
        assert await one.courier.find_dead([two.id])
        two.courier.fails = False
        await trio.sleep(3)
        assert receipts == [b"read hello"]


async def test_replicas_are_not_considered_dead_after_the_storage_lost_its_data(autojump_clock: MockClock):
    async with parties() as (one, two), trio.open_nursery() as nursery:
        await trio.sleep(LEASE_SECONDS)
        two.courier.loses = 1.0
        receipts = list[bytes]()

        async def tell() -> None:
            receipts.append(await one.tell(two))

        await one.courier.leave()
        await two.courier.leave()
        nursery.start_soon(tell)
        await trio.sleep(2)
        two.courier.loses = 0.0
        await trio.sleep(3)
        assert receipts == [b"read hello"]


async def test_sender_of_a_message_between_replicas_retries_storage_failures_until_its_patience_ends(
    autojump_clock: MockClock,
):
    async with parties() as (one, two), trio.open_nursery() as nursery:
        one.courier.fails = True
        nursery.start_soon(one.tell, two)
        await trio.sleep(0.9)
        one.courier.fails = False
        await trio.sleep(1)
        assert two.read == [b"hello"]
        one.courier.fails = True
        began = trio.current_time()
        with pytest.raises(StoreDown):
            await one.tell(two, patience=3)
        assert 3 <= trio.current_time() - began <= 4.5
        with pytest.raises(StoreDown):
            await one.tell(two, patience=0)
        assert nothing_waits(one, two)
        one.courier.fails = False


async def test_message_is_delivered_if_its_acknowledgement_arrives_although_sending_raised_an_error(
    autojump_clock: MockClock,
):
    """A post whose answer is lost has happened, perhaps, and the receipt proves it."""
    async with parties() as (one, two):
        post = one.courier.send

        async def post_and_fail(replica: str, letter: bytes, **_: int) -> None:
            await post(replica, letter)
            await trio.sleep(0.1)
            raise StoreDown("no answer")

        one.courier.send = post_and_fail  # type: ignore[method-assign]
        assert await one.tell(two, patience=0) == b"read hello"


async def test_cancelled_send_to_another_replica_leaves_no_pending_message(autojump_clock: MockClock):
    async with parties() as (one, two):
        two.courier.loses = 1.0
        with trio.move_on_after(3) as scope:
            await one.tell(two)
        assert scope.cancelled_caught
        assert nothing_waits(one, two)
        two.courier.loses = 0.0
        assert await one.tell(two, b"next") == b"read next"


async def test_replica_is_not_considered_dead_after_outages_shorter_than_its_lease(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
):
    async with parties() as (one, two):
        await trio.sleep(10 * LEASE_SECONDS)
        assert not await one.courier.find_dead([two.id])
        two.courier.fails = True
        await trio.sleep(LEASE_SECONDS - 2)
        two.courier.fails = False
        await trio.sleep(2)
        assert not await one.courier.find_dead([two.id])
        assert "no heartbeat" not in caplog.text
        two.courier.fails = True
        await trio.sleep(LEASE_SECONDS + 1)
        assert await one.courier.find_dead([two.id])
        two.courier.fails = False
        await trio.sleep(2)
        assert not await one.courier.find_dead([two.id])
        assert "sent no heartbeat" in caplog.text


async def test_replica_messenger_waits_at_start_for_a_storage_that_fails(autojump_clock: MockClock):
    async with MemoryStorage().join("server") as replica, trio.open_nursery() as nursery:
        courier = BadCourier(replica.courier, nursery, 0)
        letters, courier.fails = Messenger(attrs.evolve(replica, courier=courier)), True

        async def mend() -> None:
            await trio.sleep(60)
            courier.fails = False

        nursery.start_soon(mend)
        await nursery.start(letters.run)
        assert trio.current_time() >= 60
        assert await courier.find_dead([replica.id]) == set()
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_replica_messenger_does_not_wait_at_shutdown_for_a_storage_that_fails(autojump_clock: MockClock):
    async with parties() as (one, two):
        two.courier.fails = True
        two.scope.cancel(reason="the replica ends")
        await wait_all_tasks_blocked()
        assert trio.current_time() == 0
        assert not await one.courier.find_dead([two.id])  # its lease has to run out


async def test_replica_remembers_which_messages_it_acknowledged_only_up_to_a_limit(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("trio_mcp.fleet.messenger._KNOWN_MESSAGES_LIMIT", 20)
    async with parties() as (one, two):
        for number in range(100):
            await one.tell(two, b"%d" % number)
        assert len(two.read) == 100
        assert len(two.letters._acks) == 20


async def test_replica_queues_unsent_acknowledgements_only_up_to_a_limit(autojump_clock: MockClock):
    async with parties() as (one, two):
        free = trio.Event()
        post = two.courier.send

        async def stuck(replica: str, letter: bytes, **_: int) -> None:
            await free.wait()
            await post(replica, letter)

        two.courier.send = stuck  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            for number in range(1500):
                nursery.start_soon(one.tell, two, b"%d" % number)
            await trio.sleep(0.1)
            assert 990 < len(two.letters._ack_queue) <= 1000
            free.set()
        assert len(two.read) == 1500  # those without room came when the letters had come again
