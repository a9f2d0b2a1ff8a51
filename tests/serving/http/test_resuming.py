"""Streams of legacy sessions that their clients leave, lose, and come back to."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from tests.fleet.replicas import SCENES, in_memory
from tests.serving.http.memory_listener import listening
from tests.serving.http.protection import issued, protected, session_of
from tests.serving.http.raw import LEGACY, Connection, message
from tests.serving.http.scenes import (
    MemoryEndpoint,
    Scene,
    call,
    messages_in,
    next_message,
    rest_of,
    text_of,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, http_app

MIDDLE = "2025-06-18"


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return SCENES[request.param]()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(scene.server) as one:
        yield one


async def broken_off(scene: Scene, endpoint: MemoryEndpoint, session: dict[str, str | None], name: str) -> str:
    """Begin `steps`, break off behind its first message, and return the id of that."""
    post = await endpoint.post(session, call("steps", name, name=name))
    await post.head()
    while (event := await post.event()).data is None:
        pass
    await post.aclose()
    await wait_all_tasks_blocked()
    assert event.id is not None
    return event.id


def told_in(messages: list[dict[str, object]]) -> list[object]:
    """Return what messages say: the data of logs, the text of the reply."""
    return [each["params"]["data"] if "method" in each else text_of(each) for each in messages]  # type: ignore[index]


async def test_htt_01_result_of_a_call_with_a_broken_stream_is_delivered_once_after_the_stream_is_resumed(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    cursor = await broken_off(scene, endpoint, session, "mine")
    scene["mine"].may_go_on.set()
    await wait_all_tasks_blocked()
    answer = await (await endpoint.get(session, cursor)).answer()
    assert told_in(messages_in(answer)) == ["two", "three"]
    last = await (await endpoint.get(session, answer.events[-1].id)).answer()
    assert (last.status, last.body) == (204, b"")  # to an empty stream some clients come back for ever


async def test_resumed_stream_of_a_cancelled_call_ends_without_a_result(scene: Scene, endpoint: MemoryEndpoint) -> None:
    session = await endpoint.initialize()
    cursor = await broken_off(scene, endpoint, session, "mine")
    cancel = message("notifications/cancelled", {"requestId": "mine"})
    assert (await (await endpoint.post(session, cancel)).answer()).status == 202
    answer = await (await endpoint.get(session, cursor)).answer()
    assert (answer.status, answer.body) == (204, b"")


async def test_htt_08_get_with_last_event_id_resumes_only_the_stream_of_that_event(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    cursors = {name: await broken_off(scene, endpoint, session, name) for name in ("a", "b")}
    for name, cursor in cursors.items():
        back = await endpoint.get(session, cursor)
        await back.head()
        scene[name].may_go_on.set()
        told = await rest_of(back)
        assert (told_in(told), told[-1]["id"]) == (["two", "three"], name)


async def test_htt_08_last_event_id_stays_valid_after_two_breaks_without_an_event(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    cursor = await broken_off(scene, endpoint, session, "mine")
    for _ in range(2):
        back = await endpoint.get(session, cursor)
        await back.head()
        await back.aclose()
    scene["mine"].may_go_on.set()
    assert told_in(messages_in(await (await endpoint.get(session, cursor)).answer())) == ["two", "three"]


@pytest.mark.parametrize("cursor", ["unknown", "", "0", "x-1", "%s-99", "%s-01", "%s-+1", "%s-"])
async def test_htt_08_get_with_an_unknown_last_event_id_gets_status_400(
    scene: Scene, endpoint: MemoryEndpoint, cursor: str
) -> None:
    session = await endpoint.initialize()
    good = await broken_off(scene, endpoint, session, "mine")
    bad = cursor.replace("%s", good.rpartition("-")[0])
    assert (await endpoint.ask("GET", {**session, "Last-Event-ID": bad})).status == 400


async def test_htt_08_last_event_id_of_another_session_gets_status_400_and_consumes_no_events(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session, other = await endpoint.initialize(), await endpoint.initialize()
    cursor = await broken_off(scene, endpoint, session, "mine")
    assert (await endpoint.ask("GET", {**other, "Last-Event-ID": cursor})).status == 400
    scene["mine"].may_go_on.set()
    assert told_in(messages_in(await (await endpoint.get(session, cursor)).answer())) == ["two", "three"]


async def test_finished_sse_stream_can_be_resumed_until_replay_timeout(scene: Scene, autojump_clock: MockClock) -> None:
    async with in_memory(scene.server, replay_timeout=30) as endpoint:
        session = await endpoint.initialize()
        cursor = await broken_off(scene, endpoint, session, "mine")
        await trio.sleep(100)  # as long as it is not finished, it is kept
        scene["mine"].may_go_on.set()
        await wait_all_tasks_blocked()
        await trio.sleep(28)
        assert (await endpoint.ask("GET", {**session, "Last-Event-ID": cursor})).status == 200
        await trio.sleep(4)
        assert (await endpoint.ask("GET", {**session, "Last-Event-ID": cursor})).status == 400


@pytest.mark.parametrize("scene", ["one process"], indirect=True)  # replicas: see test_shared_listening.py
@pytest.mark.parametrize("version", [MIDDLE, LEGACY])
async def test_htt_07_each_new_get_stream_immediately_replaces_the_previous_one(
    scene: Scene, endpoint: MemoryEndpoint, version: str
) -> None:
    session = await endpoint.initialize(version)
    running = await endpoint.post(session, call("wait", name="running"))
    await scene["running"].started.wait()
    before: Connection | None = None
    for number in range(25):  # trio runs tasks in any order
        stream = await endpoint.get(session)
        assert (await stream.head()).status == 200
        if before is not None:
            assert await rest_of(before) == []
            await before.aclose()
        uri = f"scene:thing{number}"
        scene.server.resource(uri, name=uri)(trio.lowlevel.checkpoint)
        assert (await next_message(stream))["method"] == "notifications/resources/list_changed"
        before = stream
    scene["running"].may_go_on.set()
    assert text_of(messages_in(await running.answer())[-1]) == "running is done"


async def test_htt_07_get_stream_of_a_dead_connection_is_replaced_by_a_new_get_stream(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    dead = await endpoint.connect(lockstep=True)  # nobody reads there
    await dead.send("GET", session)
    scene.server.remove_tool("echo")
    await wait_all_tasks_blocked()
    alive = await endpoint.get(session)
    assert (await alive.head()).status == 200
    scene.server.remove_tool("levels")
    assert (await next_message(alive))["method"] == "notifications/tools/list_changed"
    await dead.aclose()


async def test_resumed_sse_stream_is_replaced_by_the_next_get_with_the_same_last_event_id(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize(MIDDLE)
    cursor = await broken_off(scene, endpoint, session, "mine")
    before = await endpoint.get(session, cursor)
    await before.head()
    for _ in range(20):
        back = await endpoint.get(session, cursor)
        await back.head()
        assert await rest_of(before) == []
        before = back
    scene["mine"].may_go_on.set()
    assert told_in(await rest_of(before)) == ["two", "three"]


@pytest.mark.parametrize("tool", ["poll", "poll_in_a_thread"])
async def test_handler_can_close_its_stream_so_that_the_client_polls(
    scene: Scene, endpoint: MemoryEndpoint, tool: str
) -> None:
    session = await endpoint.initialize()
    scene["mine"].may_go_on.set()
    first = await (await endpoint.post(session, call(tool, name="mine"))).answer()
    assert messages_in(first) == []
    assert b"retry: 2500\n" in first.body
    second = await (await endpoint.get(session, first.events[-1].id)).answer()
    assert [text_of(each) for each in messages_in(second)] == ["closed True"]


async def test_handler_cannot_close_its_stream_for_polling_in_older_revisions(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize(MIDDLE)
    scene["mine"].may_go_on.set()
    answer = await (await endpoint.post(session, call("poll", name="mine"))).answer()
    assert [text_of(each) for each in messages_in(answer)] == ["closed False"]


async def test_get_with_a_last_event_id_gets_status_400_if_max_replay_bytes_dropped_later_events(
    scene: Scene,
) -> None:
    async with in_memory(scene.server, max_replay_bytes=40_000) as endpoint:
        session = await endpoint.initialize()
        post = await endpoint.connect(lockstep=True)
        await post.send("POST", session, call("flood", name="much", count=200))
        await post.head()
        while (event := await post.event()).data is None:
            pass
        await post.aclose()
        await scene["much"].ended.wait()
        await wait_all_tasks_blocked()
        assert (await endpoint.ask("GET", {**session, "Last-Event-ID": event.id})).status == 400
        assert (await endpoint.ask("POST", session, call("who"))).status == 200


@pytest.mark.parametrize("size", [300_000, 5_000_000])
async def test_htt_21_client_that_polls_can_receive_a_result_of_any_size(
    scene: Scene, endpoint: MemoryEndpoint, size: int
) -> None:
    @scene.server.tool
    async def large(ctx: RequestContext) -> str:
        ctx.close_stream(1)
        await ctx.log.error("away")
        return "x" * size

    session = await endpoint.initialize()
    first = await (await endpoint.post(session, call("large"))).answer()
    await wait_all_tasks_blocked()
    for _ in range(2):  # its connection may break, too
        answer = await (await endpoint.get(session, first.events[-1].id)).answer()
        told, reply = messages_in(answer)
        assert (told["params"]["data"], len(text_of(reply))) == ("away", size)


async def test_htt_21_stored_events_of_all_sessions_of_a_caller_share_one_memory_limit() -> None:
    scene = Scene()

    @scene.server.tool
    async def large(ctx: RequestContext) -> str:
        ctx.close_stream(1)
        return "x" * 30_000

    async def polled(session: dict[str, str | None]) -> int:
        first = await (await endpoint.post(session, call("large"))).answer()
        await wait_all_tasks_blocked()
        return (await (await endpoint.get(session, first.events[-1].id)).answer()).status

    async with in_memory(scene.server, auth=protected(issued()), max_server_replay_bytes=140_000) as endpoint:
        sessions = [await session_of(endpoint, "alice-1") for _ in range(3)]
        assert [await polled(session) for session in sessions] == [200, 400, 400]
        assert await polled(await session_of(endpoint, "bob-1")) == 200
        await endpoint.ask("DELETE", sessions[0])
        assert [await polled(session) for session in sessions[1:]] == [200, 400]


async def test_retry_interval_option_sets_the_sse_retry_field_of_all_streams() -> None:
    scene = Scene()
    async with listening(scene.server, retry_interval=2.5) as endpoint:
        session = await endpoint.initialize()
        post = await endpoint.connect()
        await post.send("POST", session, call("steps", name="mine"))
        stream = await endpoint.connect()
        await stream.send("GET", session)
        for response in (post, stream):
            await response.head()
            assert b"retry: 2500\n" in await response.more()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
async def test_retry_interval_that_is_not_a_valid_number_of_seconds_raises(seconds: float) -> None:
    with pytest.raises(ValueError, match="retry_interval must be a number of seconds"):
        http_app(Scene().server, allowed_origins=[], allowed_hosts=["127.0.0.1"], retry_interval=seconds)


# The stream of the session


@pytest.mark.parametrize("scene", ["one process"], indirect=True)
async def test_htt_20_get_without_last_event_id_receives_undelivered_events_oldest_first(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    await changes(scene, endpoint, session, 5)
    for number in range(5):
        scene.server.resource_updated(f"scene:{number}")
        await wait_all_tasks_blocked()
    stream = await endpoint.get(session)
    await stream.head()
    assert [(await next_message(stream))["params"]["uri"] for _ in range(5)] == [f"scene:{n}" for n in range(5)]
    await endpoint.ask("DELETE", session)
    assert await rest_of(stream) == []


@pytest.mark.parametrize("scene", ["one process"], indirect=True)
async def test_htt_20_get_after_dropped_events_receives_all_change_notifications(
    scene: Scene,
) -> None:
    async with in_memory(scene.server, max_replay_bytes=20_000) as endpoint:
        session = await endpoint.initialize()
        await changes(scene, endpoint, session, 100)
        for number in range(100):
            scene.server.resource_updated(f"scene:{number}")
            await wait_all_tasks_blocked()
        stream = await endpoint.get(session)
        await stream.head()
        await wait_all_tasks_blocked()
        await endpoint.ask("DELETE", session)
        told = await rest_of(stream)
        methods = [each["method"].removeprefix("notifications/") for each in told]
        kept = methods.index("tools/list_changed")
        assert 10 < kept < 20
        updated = [each["params"]["uri"] for each in told if "params" in each]
        assert updated[:kept] == [f"scene:{number}" for number in range(100 - kept, 100)]
        assert methods[kept : kept + 2] == ["tools/list_changed", "resources/list_changed"]
        assert sorted(updated[kept:]) == sorted(f"scene:{number}" for number in range(100))


async def changes(scene: Scene, endpoint: MemoryEndpoint, session: dict[str, str | None], count: int) -> None:
    """Have the client subscribe to resources of which nobody tells it yet."""
    for number in range(count):
        scene.server.resource(f"scene:{number}", name=f"{number}")(trio.lowlevel.checkpoint)
    listening = await endpoint.get(session)  # takes the news of these resources
    await listening.head()
    await next_message(listening)
    for number in range(count):
        params = {"uri": f"scene:{number}"}
        assert (await endpoint.ask("POST", session, message("resources/subscribe", params, 1))).status == 200
    await listening.aclose()
    await wait_all_tasks_blocked()
