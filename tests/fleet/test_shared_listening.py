"""The own stream of a session at several replicas: who listens, and what belongs to no request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.serving.http.protection import issued, protected, session_of
from tests.serving.http.raw import Connection, message
from tests.serving.http.scenes import SAMPLING, call, cancel, next_message, rest_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.fleet.storage.memory import MemoryEventLog, _MemoryChangeLog
from trio_mcp.stores.task_store import StoreDown
from trio_mcp.types import ConnectedClient

Session = dict[str, str | None]


@pytest.fixture
def scene() -> FleetScene:
    return FleetScene()


@pytest.fixture
async def endpoint(scene: FleetScene, autojump_clock: MockClock) -> AsyncGenerator[FleetEndpoint]:
    async with replicated(scene.server) as one:
        yield one


async def listening(endpoint: FleetEndpoint, session: Session, at: int, cursor: str | None = None) -> Connection:
    """Ask a replica for the own stream."""
    connection = await endpoint.replicas[at].get(session, cursor)
    assert (await connection.head()).status == 200
    await wait_all_tasks_blocked()
    return connection


async def subscribed(scene: FleetScene, endpoint: FleetEndpoint, count: int) -> Session:
    """Open a session that is subscribed to ``scene:0`` and so on."""
    for number in range(count):
        scene.server.resource(f"scene:{number}", name=f"{number}")(trio.lowlevel.checkpoint)
    await trio.sleep(1)  # all replicas know
    session = await endpoint.initialize()
    for number in range(count):
        params = {"uri": f"scene:{number}"}
        answer = await endpoint.ask("POST", session, message("resources/subscribe", params, number))
        assert answer.json["result"] == {}
    return session


def updated(told: list[dict[str, Any]]) -> list[str]:
    """Return which resources have changed, and that lists have."""
    return [each["params"]["uri"] if "params" in each else each["method"] for each in told]


async def ended(endpoint: FleetEndpoint, session: Session, connection: Connection) -> list[str]:
    """End the session, and return what came until then."""
    await trio.sleep(1)
    assert (await endpoint.ask("DELETE", session)).status == 204
    return updated(await rest_of(connection))


async def test_client_with_a_get_stream_receives_a_resource_update_of_any_replica_once(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 3)
    stream = await listening(endpoint, session, 1)
    for number, server in enumerate(scene.server.servers):
        server.resource_updated(f"scene:{number}")
        await trio.sleep(0.1)
    assert await ended(endpoint, session, stream) == ["scene:0", "scene:1", "scene:2"]


async def test_resource_unsubscribed_at_another_replica_sends_no_more_update_notifications(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 2)
    stream = await listening(endpoint, session, 1)
    body = message("resources/unsubscribe", {"uri": "scene:0"}, 1)
    assert (await endpoint.replicas[2].ask("POST", session, body)).json["result"] == {}
    await wait_all_tasks_blocked()
    for number in range(2):
        scene.server.servers[0].resource_updated(f"scene:{number}")
    assert await ended(endpoint, session, stream) == ["scene:1"]


async def test_get_stream_opened_at_another_replica_immediately_ends_the_earlier_get_stream(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 1)
    before = await listening(endpoint, session, 0)
    for number in range(1, 20):
        stream = await listening(endpoint, session, number % 3)
        begun = trio.current_time()
        assert await rest_of(before) == []
        assert trio.current_time() == begun
        scene.server.resource_updated("scene:0")
        assert (await next_message(stream))["params"] == {"uri": "scene:0"}
        await trio.sleep(0.1)
        before = stream
    assert await ended(endpoint, session, before) == []


async def test_only_one_of_many_concurrent_get_streams_receives_an_update(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 1)
    streams = [await endpoint.replicas[number % 3].get(session) for number in range(9)]
    await trio.sleep(1)
    scene.server.servers[0].resource_updated("scene:0")
    await trio.sleep(1)
    assert (await endpoint.ask("DELETE", session)).status == 204
    told = [updated(await rest_of(stream)) for stream in streams if (await stream.head()).status == 200]
    assert len(told) == 9
    assert sorted(told) == [[]] * 8 + [["scene:0"]]


async def test_changes_without_an_open_get_stream_are_sent_on_the_get_stream_that_is_opened_next(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 4)
    scene.server.servers[0].resource_updated("scene:0")
    await trio.sleep(1)
    first = await listening(endpoint, session, 1)
    scene.server.servers[0].resource_updated("scene:1")
    await trio.sleep(1)
    await first.aclose()
    await wait_all_tasks_blocked()
    scene.server.servers[2].resource_updated("scene:2")
    await trio.sleep(200)  # the view that had listened is gone
    scene.server.servers[1].resource_updated("scene:3")
    await trio.sleep(1)
    second = await listening(endpoint, session, 2)
    assert sorted(await ended(endpoint, session, second)) == ["scene:2", "scene:3"]


@pytest.mark.parametrize("noted", [[], ["scene:1"]])
async def test_new_get_stream_receives_a_change_that_is_recorded_just_after_the_stream_opens(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock, noted: list[str]
) -> None:
    session = await subscribed(scene, endpoint, 2)
    for uri in noted:
        scene.server.servers[0].resource_updated(uri)
        await trio.sleep(1)
    scene.server.servers[1].resource_updated("scene:0")
    stream = await endpoint.replicas[1].get(session)  # before the change is in the log
    await stream.head()
    assert sorted(await ended(endpoint, session, stream)) == ["scene:0", *noted]


async def test_get_stream_resumed_at_another_replica_neither_misses_nor_repeats_messages(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 20)
    stream = await listening(endpoint, session, 0)
    seen, cursor = list[str](), ""
    for number in range(20):
        scene.server.servers[number % 3].resource_updated(f"scene:{number}")
        event = await stream.event()
        while event.data is None:
            event = await stream.event()
        seen.append(event.data["params"]["uri"])
        assert event.id is not None
        cursor = event.id
        await trio.sleep(1)
        await stream.aclose()
        stream = await listening(endpoint, session, (number + 1) % 3, cursor)
    assert seen == [f"scene:{number}" for number in range(20)]
    assert await ended(endpoint, session, stream) == []


async def test_client_of_a_dead_replica_gets_missed_changes_at_another_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 2)
    await listening(endpoint, session, 0)
    await trio.sleep(1)
    endpoint.kill(0)
    scene.server.servers[1].resource_updated("scene:0")
    await trio.sleep(1)
    stream = await listening(endpoint, session, 1)
    scene.server.servers[2].resource_updated("scene:1")
    assert await ended(endpoint, session, stream) == ["scene:0", "scene:1"]


async def test_cancel_of_a_sampling_request_is_sent_on_the_get_stream_of_another_replica(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    stream = await listening(endpoint, session, 1)
    post = await endpoint.replicas[0].post(session, call("ask", 7, name="asker"))
    await post.head()
    asked = await next_message(post)
    assert (await endpoint.replicas[2].ask("POST", session, cancel(7))).status == 202
    taken_back = await next_message(stream)
    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"] == {"requestId": asked["id"], "reason": "enough"}
    assert await rest_of(post) == []


async def test_roots_request_outside_a_call_waits_for_a_get_stream_and_can_be_answered_at_any_replica(
    autojump_clock: MockClock,
) -> None:
    scene, roots = FleetScene(), list[Any]()

    for server in scene.server.servers:

        @server.on_roots_changed
        async def changed(client: ConnectedClient) -> None:
            roots.extend(await client.list_roots())

    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize(roots={"listChanged": True})
        assert (await endpoint.replicas[0].ask("POST", session, message("notifications/roots/list_changed"))).status
        await trio.sleep(1)
        for at in (1, 2):
            stream = await listening(endpoint, session, at)
            if at == 2:  # told to whoever listens
                body = message("notifications/roots/list_changed")
                assert (await endpoint.replicas[0].ask("POST", session, body)).status == 202
            asked = await next_message(stream)
            assert asked["method"] == "roots/list"
            result = {"roots": [{"uri": f"file:///{at}"}]}
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
            assert (await endpoint.replicas[at].ask("POST", session, answer)).status == 202
            await wait_all_tasks_blocked()
        assert [root.uri for root in roots] == ["file:///1", "file:///2"]


async def test_get_stream_stays_open_during_a_storage_outage_and_sends_changes_afterwards(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 2)
    stream = await listening(endpoint, session, 1)
    for link in endpoint.memory.links:
        link.is_down = True
    scene.server.servers[0].resource_updated("scene:0")
    await trio.sleep(4)
    for link in endpoint.memory.links:
        link.is_down = False
    scene.server.servers[2].resource_updated("scene:1")
    told = await ended_later(endpoint, session, stream)
    assert set(told) == {"scene:0", "scene:1"}


async def ended_later(endpoint: FleetEndpoint, session: Session, connection: Connection) -> list[str]:
    await trio.sleep(10)
    return await ended(endpoint, session, connection)


async def test_get_stream_at_another_replica_has_no_duplicates_after_a_get_request_failed_elsewhere(
    scene: FleetScene, endpoint: FleetEndpoint, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 1)
    busy = await endpoint.replicas[0].post(session, call("wait", "busy", name="busy"))  # so that its view lasts
    scene.server.resource_updated("scene:0")
    await trio.sleep(1)

    async def fail(*_: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise StoreDown("the log of changes is away")

    monkeypatch.setattr(_MemoryChangeLog, "read_since", fail)
    assert (await (await endpoint.replicas[0].get(session)).head()).status == 503
    monkeypatch.undo()
    stream = await listening(endpoint, session, 1)
    assert (await next_message(stream))["params"] == {"uri": "scene:0"}
    scene.server.servers[0].resource_updated("scene:0")
    assert await ended(endpoint, session, stream) == ["scene:0"]
    await busy.aclose()


async def test_replica_waits_between_attempts_to_append_to_a_get_stream_if_the_storage_rejects_the_append(
    scene: FleetScene, endpoint: FleetEndpoint, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    session = await subscribed(scene, endpoint, 1)
    stream = await listening(endpoint, session, 0)
    tries, append, free_at = 0, MemoryEventLog.append, trio.current_time() + 20

    async def lose(*args: Any, **options: Any) -> bool:
        nonlocal tries
        tries += 1
        await trio.lowlevel.checkpoint()
        return (trio.current_time() >= free_at or tries > 1000) and await append(*args, **options)

    monkeypatch.setattr(MemoryEventLog, "append", lose)
    scene.server.servers[0].resource_updated("scene:0")
    assert (await next_message(stream))["params"] == {"uri": "scene:0"}
    assert 5 < tries < 40


async def test_replica_logs_no_error_for_a_get_stream_whose_session_was_ended_at_another_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    session = await endpoint.initialize()
    stream = await listening(endpoint, session, 1)
    endpoint.memory.links[1].loses_hints = True
    assert (await endpoint.replicas[0].ask("DELETE", session)).status == 204
    scene.server.servers[0].resource_updated("scene:0")
    await trio.sleep(1)  # the place of its changes has moved
    await stream.aclose()
    await trio.sleep(1)
    assert caplog.records == []
    assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 404


async def test_event_log_of_an_open_get_stream_does_not_expire_while_idle(
    scene: FleetScene, autojump_clock: MockClock
) -> None:
    async with replicated(scene.server, session_timeout=30, replay_timeout=5) as endpoint:
        session = await subscribed(scene, endpoint, 1)
        stream = await listening(endpoint, session, 0)
        for number in (1, 2):
            await trio.sleep(500)
            scene.server.servers[2].resource_updated("scene:0")
            while (event := await stream.event()).data is None:
                pass
            assert event.id is not None
            assert event.id.endswith(f"-{number}")
        await stream.aclose()
        again = await listening(endpoint, session, 1, event.id)
        assert await ended(endpoint, session, again) == []


async def test_session_with_an_open_get_stream_stays_alive_at_all_replicas(
    scene: FleetScene, autojump_clock: MockClock
) -> None:
    async with replicated(scene.server, session_timeout=30) as endpoint:
        session = await endpoint.initialize()
        stream = await listening(endpoint, session, 0)
        await trio.sleep(200)
        assert (await endpoint.replicas[1].ask("POST", session, call("echo", text="x"))).status == 200
        await stream.aclose()
        await trio.sleep(33)
        assert (await endpoint.replicas[2].ask("POST", session, call("echo", text="x"))).status == 404


async def test_streams_end_when_the_access_token_expires_and_resume_with_a_new_token(
    autojump_clock: MockClock,
) -> None:
    scene, tokens = FleetScene(), issued()
    tokens.issue("alice-3", "alice", "read", lifetime=30)
    async with replicated(scene.server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-3")
        post = await endpoint.replicas[0].post(session, call("wait", 1, name="mine", speaks=True))
        await post.head()
        while (event := await post.event()).data is None:
            pass
        streams = [await listening(endpoint, session, 1, cursor) for cursor in (None, event.id)]
        begun = trio.current_time()
        for stream in streams:
            assert await rest_of(stream) == []
        assert 25 < trio.current_time() - begun < 32
        fresh = {**session, "Authorization": "Bearer alice-2"}
        for cursor in (None, event.id):
            await listening(endpoint, fresh, 2, cursor)
        assert not scene["mine"].ended.is_set()
