"""What changes on one replica reaches the clients of all."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.fleet import Fleet, Member, fleet
from tests.serving.http.raw import Connection, events_in, modern
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Server
from trio_mcp.fleet.change_replicator import EVERYTHING, ChangeReplicator
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.task_store import HINTS_LOST, HintQueue, StoreDown, Uncertain

LISTS = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


def add_things(server: Server, _: Fleet, __: int) -> None:
    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.resource("a:1")
    async def one() -> str:
        return "one"

    @server.resource("a:2")
    async def two() -> str:
        return "two"


class Listener:
    """A client with a stream of changes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def at(cls, member: Member, **asked: Any) -> Listener:
        connection = await member.endpoint.connect()
        headers, body = modern("subscriptions/listen", {"notifications": asked or LISTS})
        await connection.send("POST", {**headers}, body)
        assert (await connection.head()).status == 200
        assert (await connection.event()).data["method"] == "notifications/subscriptions/acknowledged"
        return cls(connection)

    async def next(self) -> str:
        """Wait for the next change, and return its name."""
        return named((await self._connection.event()).data)

    async def told(self) -> list[str]:
        """Return what has come, when nothing more comes."""
        found = list[str]()
        await trio.sleep(1)
        with trio.move_on_after(0.1):
            while more := await self._connection.more():
                self._connection.received += more
        for event in events_in(self._connection.received):
            found.append(named(event.data))
        self._connection.received = b""
        return found


def named(message: dict[str, Any]) -> str:
    params = message["params"]
    return params["uri"] if "uri" in params else message["method"].split("/")[1]


async def test_clients_of_all_replicas_are_notified_once_of_a_list_change(autojump_clock: MockClock) -> None:
    async with fleet(add_things, 3) as members:
        listeners = [await Listener.at(member) for member in members]
        members[0].server._observers.list_changed("notifications/tools/list_changed")
        assert await listeners[0].next() == "tools"
        assert trio.current_time() == 0  # those here need no log
        for listener in listeners[1:]:
            assert await listener.next() == "tools"
        assert trio.current_time() == pytest.approx(0.01, abs=0.001)
        assert [await listener.told() for listener in listeners] == [[], [], []]


async def test_resource_update_at_one_replica_reaches_only_subscribed_clients_of_a_second_replica(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_things) as (one, two):
        asks = await Listener.at(two, resourceSubscriptions=["a:1"])
        others = await Listener.at(two)
        one.server.resource_updated("a:1")
        one.server.resource_updated("a:2")
        assert await asks.told() == ["a:1"]
        assert await others.told() == []


async def test_repeated_resource_updates_are_recorded_once_in_the_change_log(autojump_clock: MockClock) -> None:
    async with fleet(add_things) as (one, two):
        listener = await Listener.at(two, resourceSubscriptions=["a:1", "a:2"])
        for _ in range(100):
            one.server.resource_updated("a:1")
            one.server.resource_updated("a:2")
        assert sorted(await listener.told()) == ["a:1", "a:2"]
        assert one.ways.uses["changes.record"] == 1
        assert not two.ways.uses["changes.record"]


async def test_list_change_of_a_mounted_server_is_recorded_once(autojump_clock: MockClock) -> None:
    inner = [Server("inner"), Server("inner")]

    def add(server: Server, members: Fleet, number: int) -> None:
        add_things(server, members, number)
        server.mount(inner[number], prefix="in")

    async with fleet(add) as (one, two):
        here, there = await Listener.at(one), await Listener.at(two)

        @inner[0].tool
        async def late() -> str:
            return "late"

        assert await here.told() == await there.told() == ["tools"]
        assert one.ways.uses["changes.record"] == 1


async def test_clients_are_notified_after_a_storage_outage_of_changes_made_during_the_outage(
    autojump_clock: MockClock,
) -> None:
    async with fleet(add_things) as (one, two):
        here, there = await Listener.at(one), await Listener.at(two)
        one.ways.are_cut = True
        one.server._observers.list_changed("notifications/tools/list_changed")
        assert await here.told() == ["tools"]
        await trio.sleep(60)
        assert await there.told() == []
        one.server._observers.list_changed("notifications/resources/list_changed")
        one.ways.are_cut = False
        await trio.sleep(5)
        assert sorted(await there.told()) == ["resources", "tools"]


async def test_idle_replica_reads_the_change_log_every_five_seconds(autojump_clock: MockClock) -> None:
    async with fleet(add_things) as (one, _):
        before = one.ways.uses["changes.read_since"]
        await trio.sleep(100)
        assert 19 <= one.ways.uses["changes.read_since"] - before <= 21
        assert not one.ways.uses["changes.record"]


async def test_clients_are_notified_of_the_last_change_before_a_replica_shuts_down(autojump_clock: MockClock) -> None:
    async with fleet(add_things) as (one, two):
        listener = await Listener.at(two)
        one.server._observers.list_changed("notifications/tools/list_changed")
        one.scope.cancel(reason="the replica ends at once")
        assert await listener.told() == ["tools"]


@attrs.define(eq=False)
class Told:
    """An observer."""

    found: list[str] = attrs.field(factory=list[str])

    def list_changed(self, method: str) -> None:
        self.found.append(method.split("/")[1])

    def resource_updated(self, uri: str) -> None:
        self.found.append(uri)

    def everything_changed(self) -> None:
        self.found.append(EVERYTHING)


class OpenLog:
    """A log of which the test has the hints in its hands."""

    def __init__(self) -> None:
        self._memory = MemoryStorage()
        self.hints = HintQueue[Any]()
        self.log: Any = None
        self.failure: OSError | None = None
        self.asked = 0
        self.passes_on = True

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        async with self._memory.join("server") as replica:
            self.log = replica.changes
            yield

    async def record(self, changed: Any) -> None:
        if isinstance(self.failure, Uncertain):  # it has happened
            await self.log.record(changed)
        if self.failure is not None:
            raise self.failure
        await self.log.record(changed)

    async def read_since(self, cursor: str | None) -> Any:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return await self.log.read_since(cursor)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[HintQueue[Any]]:
        async with self.log.watch() as hints, trio.open_nursery() as nursery:

            async def pass_on() -> None:
                async for hint in hints:
                    if self.passes_on:
                        self.hints.put(hint)

            nursery.start_soon(pass_on)
            yield self.hints
            nursery.cancel_scope.cancel(reason="the test is over")


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[Server, Told, OpenLog]]:
    server, told, log = Server("server"), Told(), OpenLog()
    server._observers.add(told)
    async with log.joined(), trio.open_nursery() as nursery:
        await nursery.start(ChangeReplicator(server._observers, log).run)
        yield server, told, log
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_replica_applies_consecutive_change_notifications_without_reading_the_change_log(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, told, log):
        for number in range(10):
            await log.log.record([f"resource:{number}"])
        await wait_all_tasks_blocked()
        assert told.found == [str(number) for number in range(10)]
        assert log.asked == 1


async def test_replica_reads_a_lost_change_notification_from_the_log_when_a_later_notification_arrives(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, told, log):
        log.passes_on = False
        await log.log.record(["tools"])
        await wait_all_tasks_blocked()
        log.passes_on = True
        await log.log.record(["prompts"])
        await wait_all_tasks_blocked()
        assert sorted(told.found) == ["prompts", "tools"]
        assert trio.current_time() == 0


async def test_replica_that_missed_a_change_notification_reads_the_change_within_five_seconds(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, told, log):
        log.passes_on = False
        await log.log.record(["tools"])
        await trio.sleep(5.1)
        assert told.found == ["tools"]


async def test_replica_reads_the_change_log_immediately_after_a_report_of_lost_notifications(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, told, log):
        log.passes_on = False
        await log.log.record(["tools"])
        log.hints.put(HINTS_LOST)
        await wait_all_tasks_blocked()
        assert told.found == ["tools"]


async def test_clients_are_notified_that_everything_may_have_changed_if_the_change_log_lost_its_history(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (_, told, log), MemoryStorage().join("server") as empty:
        log.log = empty.changes
        log.hints.put(HINTS_LOST)
        await wait_all_tasks_blocked()
        assert told.found == [EVERYTHING]


async def test_clients_are_notified_that_everything_may_have_changed_after_too_many_changes_for_the_log(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (server, told, log):
        place = (await log.log.read_since(None)).cursor
        for number in range(10_001):
            server.resource_updated(str(number))
        del told.found[:]
        await trio.sleep(1)
        assert (await log.log.read_since(place)).changed == [EVERYTHING]
        await log.log.record([EVERYTHING])
        await trio.sleep(1)
        assert told.found == [EVERYTHING]


@pytest.mark.parametrize("failure", [StoreDown("away"), Uncertain("perhaps")])
async def test_change_is_recorded_again_after_a_failed_recording_and_notified_at_most_twice(
    failure: OSError, autojump_clock: MockClock
) -> None:
    async with opened() as (server, told, log):
        place = (await log.log.read_since(None)).cursor
        log.failure = failure
        server._observers.list_changed("notifications/tools/list_changed")
        await trio.sleep(0.05)
        log.failure = None
        await trio.sleep(3)
        assert (await log.log.read_since(place)).changed == ["tools"]
        assert told.found[0] == "tools"
        assert len(told.found) <= 2


async def test_replica_notifies_its_clients_of_changes_by_other_replicas_but_of_its_own_changes_only_once(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (server, told, log):
        server._observers.list_changed("notifications/tools/list_changed")
        await trio.sleep(0.5)
        assert told.found == ["tools"]
        await log.log.record(["tools"])
        await wait_all_tasks_blocked()
        assert told.found == ["tools", "tools"]


async def test_replica_that_misses_the_notification_of_its_own_change_still_sees_later_changes(
    autojump_clock: MockClock,
) -> None:
    async with opened() as (server, told, log):
        log.passes_on = False
        server._observers.list_changed("notifications/tools/list_changed")
        await trio.sleep(0.5)
        log.passes_on = True
        for _ in range(3):  # the first one shows that a hint was lost
            del told.found[:]
            await log.log.record(["tools"])
            await wait_all_tasks_blocked()
            assert told.found == ["tools"]
        assert log.asked == 2


async def test_clients_are_notified_that_everything_may_have_changed_if_the_change_log_fails_at_start(
    autojump_clock: MockClock,
) -> None:
    server, told, log = Server("server"), Told(), OpenLog()
    server._observers.add(told)
    log.failure = StoreDown("away")
    async with log.joined(), trio.open_nursery() as nursery:
        await nursery.start(ChangeReplicator(server._observers, log).run)
        await trio.sleep(30)
        log.failure = None
        await trio.sleep(10)
        assert told.found == [EVERYTHING]
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_server_that_joined_a_storage_twice_does_not_repeat_change_notifications_endlessly(
    autojump_clock: MockClock,
) -> None:
    server, told = Server("server"), Told()
    server._observers.add(told)
    async with MemoryStorage().join("server") as replica, trio.open_nursery() as nursery:
        for _ in range(2):
            await nursery.start(ChangeReplicator(server._observers, replica.changes).run)
        server._observers.list_changed("notifications/tools/list_changed")
        await trio.sleep(60)
        assert set(told.found) == {"tools"}
        assert len(told.found) <= 3
        nursery.cancel_scope.cancel(reason="the test is over")
