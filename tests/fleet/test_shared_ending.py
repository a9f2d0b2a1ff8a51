"""A replica ends in time, whatever comes while it ends: views of sessions that are made late end, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.fleet.replicas import SCENES, FleetEndpoint, FleetScene, in_memory, replicated
from tests.fleet.test_shared_resuming import stepping
from tests.serving.http.raw import BASE, INITIALIZE, message
from tests.serving.http.scenes import MemoryEndpoint, Scene, call, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause

DRAIN = 5.0
PING = message("ping", request_id=1)
VERSION = "MCP-Protocol-Version"


@attrs.define(eq=False)
class Ending:
    """A replica that reads the facts of a session, for a request that it has accepted, when its end begins."""

    scene: FleetScene
    endpoint: FleetEndpoint
    session: dict[str, str | None]
    may_read: trio.Event = attrs.field(factory=trio.Event)
    over: trio.Event = attrs.field(factory=trio.Event)
    over_at: float = -1.0

    @property
    def replica(self) -> MemoryEndpoint:
        return self.endpoint.replicas[1]

    def hold(self, *calls: str) -> None:
        """Have the replica wait for the storage until `may_read`."""
        self.endpoint.memory.links[1].held |= dict.fromkeys(calls, self.may_read)

    def begin(self) -> None:
        self.replica.front.shut_down("the server ends", hurry=False)
        self.endpoint.nursery.start_soon(self._wait)

    async def _wait(self) -> None:
        begun = trio.current_time()
        await self.replica.front.wait_closed()
        self.over_at = trio.current_time() - begun
        self.over.set()

    @property
    def views(self) -> Any:
        return self.endpoint.views[1]


@asynccontextmanager
async def ending() -> AsyncGenerator[Ending]:
    scene = FleetScene(replicas=2)
    async with replicated(scene.server, drain_timeout=DRAIN) as endpoint:
        session = await endpoint.initialize()
        await trio.sleep(62)  # no replica has a view
        assert [len(views) for views in endpoint.views] == [0, 0]
        yield Ending(scene, endpoint, session)


async def test_call_is_answered_even_if_its_session_is_loaded_during_shutdown(autojump_clock: MockClock) -> None:
    async with ending() as replica:
        replica.hold("sessions.read")
        posts = [await replica.replica.post(replica.session, call("echo", n, text=f"{n}")) for n in range(3)]
        await wait_all_tasks_blocked()
        replica.begin()
        await trio.sleep(1)
        assert not replica.over.is_set()
        replica.may_read.set()
        answers = [await post.answer() for post in posts]
        assert text_of(answers[0].json) == "0"
        assert [each.status for each in answers[1:]] == [200, 200]
        await replica.over.wait()
        assert replica.over_at < 3
        assert not replica.views


@pytest.mark.parametrize("read_after", [1.0, 4.0])
async def test_drain_timeout_applies_to_a_session_loaded_during_shutdown(
    read_after: float, autojump_clock: MockClock
) -> None:
    """With handlers that don't end by themselves, in the view and elsewhere."""
    async with ending() as replica:
        other = await replica.endpoint.initialize()
        early = await replica.replica.post(other, call("wait", name="early"))
        await replica.scene["early"].started.wait()
        replica.hold("sessions.read")
        late = await replica.replica.post(replica.session, call("wait", name="late"))
        await wait_all_tasks_blocked()
        replica.begin()
        await trio.sleep(read_after)
        replica.may_read.set()
        await replica.scene["late"].started.wait()
        await replica.over.wait()
        assert DRAIN <= replica.over_at < DRAIN + 3
        for name, post in (("early", early), ("late", late)):
            cancellation = replica.scene[name].cancellation
            assert cancellation is not None
            assert cancellation.cause is CancelCause.SHUTDOWN
            await post.aclose()
        assert not replica.views


async def test_stream_opened_at_the_start_of_shutdown_does_not_delay_the_shutdown(autojump_clock: MockClock) -> None:
    """Neither while the session is read, nor while the stream is taken, nor one of another replica."""
    for held in ("sessions.read", "events.take_over", "sessions.change", "changes.read_since"):
        async with ending() as replica:
            replica.hold(held)
            stream = await replica.replica.get(replica.session)
            await wait_all_tasks_blocked()
            replica.begin()
            await trio.sleep(1)
            replica.may_read.set()
            await replica.over.wait()
            assert replica.over_at < 3, held
            await rest_of(stream)
            assert (await replica.endpoint.replicas[0].ask("POST", replica.session, PING)).status == 200


async def test_stream_resumed_at_the_start_of_shutdown_does_not_delay_the_shutdown(autojump_clock: MockClock) -> None:
    async with ending() as replica:
        post, cursor = await stepping(replica.scene, replica.endpoint.replicas[0], replica.session)
        replica.hold("events.read_after")
        resumed = await replica.replica.get(replica.session, cursor)
        await wait_all_tasks_blocked()
        replica.begin()
        await trio.sleep(1)
        replica.may_read.set()
        await replica.over.wait()
        assert replica.over_at < 3
        await rest_of(resumed)
        await post.aclose()


async def test_shutdown_waits_for_an_unresponsive_storage_only_until_the_drain_timeout(
    autojump_clock: MockClock,
) -> None:
    async with ending() as replica:
        replica.hold("sessions.read")
        post = await replica.replica.post(replica.session, call("echo", text="x"))
        await wait_all_tasks_blocked()
        replica.begin()
        await replica.over.wait()
        assert DRAIN <= replica.over_at < DRAIN + 3
        await post.aclose()


async def test_second_shutdown_signal_stops_waiting_for_the_storage(autojump_clock: MockClock) -> None:
    async with ending() as replica:
        replica.hold("sessions.read")
        post = await replica.replica.post(replica.session, call("echo", text="x"))
        await wait_all_tasks_blocked()
        replica.begin()
        await trio.sleep(1)
        replica.replica.front.shut_down("in a hurry", hurry=True)
        await replica.over.wait()
        assert replica.over_at < 2
        await post.aclose()


@pytest.mark.parametrize("first", [True, False])
async def test_immediate_or_repeated_shutdown_does_not_wait_for_the_shared_storage(
    first: bool, autojump_clock: MockClock
) -> None:
    async with ending() as replica:
        replica.hold("sessions.read")
        post = await replica.replica.post(replica.session, call("echo", text="x"))
        await wait_all_tasks_blocked()
        if first:
            replica.replica.front.shut_down("in a hurry", hurry=True)
            replica.endpoint.nursery.start_soon(replica._wait)
        else:
            replica.begin()
            await trio.sleep(1)
            replica.replica.front.shut_down("again", hurry=False)
        await replica.over.wait()
        assert replica.over_at < 2
        await post.aclose()


async def test_request_for_an_unknown_session_during_shutdown_gets_a_response(autojump_clock: MockClock) -> None:
    async with ending() as replica:
        replica.hold("sessions.read")
        unknown = {**replica.session, "Mcp-Session-Id": "unknown"}
        posts = [
            await replica.replica.post(each, PING) for each in (unknown, {**replica.session, VERSION: "1999-01-01"})
        ]
        await wait_all_tasks_blocked()
        replica.begin()
        await wait_all_tasks_blocked()
        replica.may_read.set()
        assert [(await post.answer()).status for post in posts] == [503, 400]
        await replica.over.wait()
        assert replica.over_at < 3


@pytest.mark.parametrize("kind", SCENES.values(), ids=SCENES)
async def test_initialize_request_that_arrives_just_before_shutdown_is_answered(
    kind: type[Scene], autojump_clock: MockClock
) -> None:
    """The connection of its session has not begun when the end begins."""
    async with in_memory(kind().server) as endpoint:
        served: MemoryEndpoint = endpoint.replicas[0] if isinstance(endpoint, FleetEndpoint) else endpoint
        sessions: Any = served.front._endpoint._sessions
        open_session = sessions.open

        def open_and_end(*args: Any) -> None:
            open_session(*args)
            served.front.shut_down("the server ends", hurry=False)

        sessions.open = open_and_end
        post = await served.post({**BASE}, INITIALIZE)
        assert (await post.answer()).json["result"]["serverInfo"]["name"] == "scene"
        await served.front.wait_closed()
