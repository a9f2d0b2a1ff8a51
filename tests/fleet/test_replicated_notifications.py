"""What a server tells of its extensions reaches the clients of all its replicas: each once, in order, sealed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.fleet import Fleet, fleet
from tests.serving.http.raw import modern
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Server
from trio_mcp.fleet.fleet import FleetStorage
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.protocol.methods import Method
from trio_mcp.server.sharing import SharedStorage
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import HintQueue
from trio_mcp.types import Extension


@attrs.frozen
class Grown:
    size: int
    text: str = ""


search = Extension("com.example/search")
grown = search.notification("notifications/com.example/search/grown", Grown)
of_request = search.notification("notifications/com.example/search/of", Grown, of_request=True)


@attrs.define
class Member:
    server: Server
    told: list[Any]


class Client:
    """A client of one replica, which notes what it is told."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    def list_changed(self, method: str) -> None:
        self._told.append(method)

    def resource_updated(self, uri: str) -> None:
        self._told.append(uri)

    def everything_changed(self) -> None:
        self._told.append("everything")

    def send_extension_notification(self, row: Method, params: Any) -> None:
        assert row is grown
        self._told.append(params)


@asynccontextmanager
async def running(shared: SharedStorage, *secrets: bytes | None) -> AsyncGenerator[list[Member]]:
    """Replicas of one server, with these secrets."""
    async with AsyncExitStack() as stack:
        members = list[Member]()
        for secret in secrets:
            options: dict[str, Any] = {} if secret is None else {"secrets": [secret]}
            member = Member(Server("s", extensions=[search], **options), [])
            member.server._observers.add(Client(member.told))
            await stack.enter_async_context(member.server._running(shared=shared))
            members.append(member)
        yield members


async def test_extension_notifications_reach_clients_of_all_replicas_once_in_order(autojump_clock: MockClock) -> None:
    async with running(MemoryStorage(), None, None, None) as members:
        for size in range(20):
            members[0].server.notify(grown, Grown(size))
        members[0].server.notify(grown, Grown(19))  # in the same words
        assert members[0].told == [*(Grown(size) for size in range(20)), Grown(19)]
        await trio.sleep(20)  # the log is looked at, too
        assert [member.told for member in members] == [members[0].told] * 3
        members[2].server.notify(grown, Grown(50))
        await trio.sleep(20)
        assert [member.told[21:] for member in members] == [[Grown(50)]] * 3


async def test_notifications_sent_from_a_thread_reach_all_replicas_once_in_order(
    autojump_clock: MockClock,
) -> None:
    async with running(MemoryStorage(), None, None) as members:

        def notify() -> None:
            for size in range(20):
                members[0].server.notify(grown, Grown(size))
                members[0].server.resource_updated(f"note://{size}")

        await trio.to_thread.run_sync(notify)
        await trio.sleep(20)
        for member in members:
            sizes = [each.size for each in member.told if isinstance(each, Grown)]
            assert sizes == list(range(20))
            assert {each for each in member.told if isinstance(each, str)} == {f"note://{size}" for size in range(20)}


class Uncertain(FleetStorage):
    """A storage that does not say whether a change was noted, the first time, and whose hints may be lost."""

    def __init__(self, *, has_hints: bool) -> None:
        self._shared = MemoryStorage()
        self._has_hints = has_hints

    @asynccontextmanager
    async def join(self, name: str, secrets: Any = ()) -> AsyncGenerator[Replica]:
        async with self._shared.join(name, secrets) as replica:
            yield attrs.evolve(replica, changes=UncertainLog(replica.changes, self._has_hints))


class UncertainLog:
    def __init__(self, log: Any, has_hints: bool) -> None:
        self._log = log
        self._has_hints = has_hints
        self._fails = True
        self.read_since = log.read_since

    async def record(self, changed: Any) -> None:
        await self._log.record(changed)
        if self._fails:
            self._fails = False
            raise OSError("nobody knows whether that was noted")

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[Any]:
        async with self._log.watch() as hints:
            yield hints if self._has_hints else HintQueue[Any]()


@pytest.mark.parametrize("has_hints", [True, False])
async def test_clients_are_notified_once_of_a_change_that_was_recorded_with_an_uncertain_outcome(
    has_hints: bool, autojump_clock: MockClock
) -> None:
    async with running(Uncertain(has_hints=has_hints), None, None) as members:
        members[0].server.notify(grown, Grown(1))
        await trio.sleep(20)
        assert [member.told for member in members] == [[Grown(1)], [Grown(1)]]


async def test_oversized_notification_reaches_only_clients_of_the_replica_that_sends_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(MemoryStorage(), None, None) as (one, two):
        one.server.notify(grown, Grown(1, "a" * 2900))
        one.server.notify(grown, Grown(2, "a" * 3100))
        await trio.sleep(1)
        assert [told.size for told in one.told] == [1, 2]
        assert [told.size for told in two.told] == [1]
    words = f"a notification {grown.name} is only sent to the clients of this replica: it is too long"
    assert caplog.messages == [words]


async def test_at_most_a_thousand_notifications_are_queued_for_other_replicas(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(MemoryStorage(), None, None) as (one, two):
        for size in range(1002):
            one.server.notify(grown, Grown(size))
        await trio.sleep(1)
        assert [told.size for told in one.told] == list(range(1002))
        assert [told.size for told in two.told] == list(range(1000))
    assert len(caplog.messages) == 2
    assert caplog.messages[0].endswith("too many wait")


async def test_extension_notifications_before_and_after_an_everything_changed_call_are_both_delivered(
    autojump_clock: MockClock,
) -> None:
    async with running(MemoryStorage(), None, None) as (one, two):
        one.server.notify(grown, Grown(1))
        one.server.everything_changed()
        one.server.notify(grown, Grown(2))
        await trio.sleep(1)
        assert two.told == ["everything", Grown(1), Grown(2)]


async def test_replica_cannot_decrypt_notifications_of_a_replica_with_different_secrets(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    async with running(storage, b"a" * 32, b"b" * 32) as (one, two), storage.join("s") as reader:
        place = (await reader.changes.read_since(None)).cursor
        one.server.notify(grown, Grown(7, "secretly"))
        await trio.sleep(1)
        assert two.told == []
        (thing,) = (await reader.changes.read_since(place)).changed
        assert thing.startswith("told:")
        assert "secretly" not in thing
        for bad in ("told:", "told:é", "told:AAAA"):
            await reader.changes.record([bad])
        await trio.sleep(1)
    assert one.told == [Grown(7, "secretly")]
    assert all("cannot read a notification" in each for each in caplog.messages)
    assert len(caplog.messages) == 1 + 2 * 3


async def test_extension_notification_reaches_a_listen_stream_at_another_replica(autojump_clock: MockClock) -> None:
    def extended(server: Server, _: Fleet, __: int) -> None: ...

    declared = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {search.name: {}}}}
    async with fleet(extended, make=lambda _: Server("s", extensions=[search])) as (one, two):
        connection = await two.endpoint.connect()
        asked = {"notifications": {search.name: True}, "_meta": declared}
        headers, body = modern("subscriptions/listen", asked)
        await connection.send("POST", {**headers}, body)
        await connection.head()
        assert (await connection.event()).data["params"]["notifications"] == {search.name: True}
        one.server.notify(grown, Grown(3))
        told = (await connection.event()).data
        assert told["method"] == grown.name
        assert told["params"].items() >= {"size": 3}.items()
        await wait_all_tasks_blocked()
