"""Streams of sessions at several replicas, which clients leave, lose, and come back to elsewhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.serving.http.raw import Connection
from tests.serving.http.scenes import MemoryEndpoint, call, cancel, messages_in, next_message, rest_of, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause

REPLICA_LOST = -31003
OLDEST = "2025-03-26"

Session = dict[str, str | None]


@pytest.fixture
def scene() -> FleetScene:
    return FleetScene()


@pytest.fixture
async def endpoint(scene: FleetScene, autojump_clock: MockClock) -> AsyncGenerator[FleetEndpoint]:
    async with replicated(scene.server) as one:
        yield one


async def stepping(
    scene: FleetScene, replica: MemoryEndpoint, session: Session, name: str = "mine"
) -> tuple[Connection, str]:
    """Call `steps` at a replica, and return the connection and the id of the first message."""
    post = await replica.post(session, call("steps", name, name=name))
    await post.head()
    while (event := await post.event()).data is None:
        pass
    assert event.id is not None
    return post, event.id


def told_in(messages: list[dict[str, Any]]) -> list[Any]:
    return [each["params"]["data"] if "method" in each else text_of(each) for each in messages]


# Elsewhere


async def test_response_stream_can_be_resumed_at_another_replica_while_its_call_runs(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    await post.aclose()
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    begun = trio.current_time()
    scene["mine"].may_go_on.set()
    assert told_in(await rest_of(back)) == ["two", "three"]
    assert trio.current_time() == begun  # by hints, not by looking


async def test_stream_resumed_at_another_replica_continues_although_storage_notifications_are_lost(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    endpoint.memory.links[1].loses_hints = True
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    await wait_all_tasks_blocked()
    scene["mine"].may_go_on.set()
    begun = trio.current_time()
    assert told_in(await rest_of(back)) == ["two", "three"]
    assert 0 < trio.current_time() - begun <= 2
    await post.aclose()


async def test_finished_sse_stream_can_be_replayed_repeatedly_at_any_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    scene["mine"].may_go_on.set()
    answer = await endpoint.ask("POST", session, call("steps", name="mine"))
    first = answer.events[0].id
    for replica in endpoint.replicas:
        again = await replica.ask("GET", {**session, "Last-Event-ID": first})
        assert told_in(messages_in(again)) == ["one", "two", "three"]
        assert [event.id for event in again.events] == [event.id for event in answer.events[1:]]


async def test_events_are_stored_before_they_are_sent_to_the_client(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    name, _, number = cursor.rpartition("-")
    found = await endpoint.memory.kept.events.read_after(session["Mcp-Session-Id"], name, 0, retention_ms=60_000)
    assert found.stream.last == int(number)
    endpoint.memory.links[0].is_down = True
    scene["mine"].may_go_on.set()
    with trio.move_on_after(5) as scope:
        await post.event()
    assert scope.cancelled_caught
    endpoint.memory.links[0].is_down = False
    assert told_in(await rest_of(post)) == ["two", "three"]


async def test_http_response_ends_when_its_stream_is_resumed_at_another_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    before, cursor = await stepping(scene, endpoint.replicas[0], session)
    for number in range(1, 7):
        back = await endpoint.replicas[number % 3].get(session, cursor)
        await back.head()
        assert await rest_of(before) == []
        before = back
    scene["mine"].may_go_on.set()
    assert told_in(await rest_of(before)) == ["two", "three"]


async def test_client_that_vanishes_without_disconnecting_does_not_block_its_call_or_the_resumption(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    dead = await endpoint.replicas[0].connect(lockstep=True)  # nobody reads there
    await dead.send("POST", session, call("flood", name="much", count=60))
    await scene["much"].started.wait()
    await wait_all_tasks_blocked()
    assert not scene["much"].ended.is_set()
    kept = endpoint.memory.kept.events._logs.get(session["Mcp-Session-Id"])
    [name] = kept._streams
    back = await endpoint.replicas[1].get(session, f"{name}-0")
    await back.head()
    *logged, reply = await rest_of(back)
    assert [each["params"]["data"]["number"] for each in logged] == list(range(60))
    assert text_of(reply) == "flooded"
    await dead.aclose()


@pytest.mark.parametrize("cursor", ["unknown", "", "0", "x-1", "%s-99", "%s-01", "%s-+1", "%s-", "%s-" + "9" * 30])
async def test_htt_08_unknown_last_event_id_gets_status_400_at_every_replica(
    scene: FleetScene, endpoint: FleetEndpoint, cursor: str, autojump_clock: MockClock
) -> None:
    session, other = await endpoint.initialize(), await endpoint.initialize()
    _, good = await stepping(scene, endpoint.replicas[0], session)
    bad = cursor.replace("%s", good.rpartition("-")[0])
    for replica in endpoint.replicas:
        assert (await replica.ask("GET", {**session, "Last-Event-ID": bad})).status == 400
        assert (await replica.ask("GET", {**other, "Last-Event-ID": good})).status == 400


async def test_long_call_keeps_its_events_for_a_disconnected_client(
    scene: FleetScene, autojump_clock: MockClock
) -> None:
    async with replicated(scene.server, replay_timeout=10) as endpoint:
        session = await endpoint.initialize()
        post, cursor = await stepping(scene, endpoint.replicas[0], session)
        await post.aclose()
        await trio.sleep(300)
        scene["mine"].may_go_on.set()
        await wait_all_tasks_blocked()
        answer = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": cursor})
        assert told_in(messages_in(answer)) == ["two", "three"]
        await trio.sleep(11)
        assert (await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": cursor})).status == 400


async def test_idle_resumed_stream_gets_sse_comments(scene: FleetScene, autojump_clock: MockClock) -> None:
    async with replicated(scene.server, stream_interval=4) as endpoint:
        session = await endpoint.initialize()
        post, cursor = await stepping(scene, endpoint.replicas[0], session)
        await post.aclose()
        back = await endpoint.replicas[1].get(session, cursor)
        await back.head()
        with trio.fail_after(10):
            while b"\n:\n\n" not in b"\n" + back.received:
                back.received += await back.more()


# The death of a replica


async def test_call_of_a_dead_replica_ends_with_an_error_but_its_session_continues(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    _, cursor = await stepping(scene, endpoint.replicas[0], session)
    await stepping(scene, endpoint.replicas[1], session, "other")
    endpoint.kill(0)
    begun = trio.current_time()
    answer = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": cursor})
    assert trio.current_time() - begun < 6.5
    [reply] = messages_in(answer)
    assert (reply["id"], reply["error"]["code"]) == ("mine", REPLICA_LOST)
    assert reply["error"]["message"] == "the process that ran this call has ended; call again"
    again = await endpoint.replicas[2].ask("GET", {**session, "Last-Event-ID": cursor})
    assert again.body.endswith(answer.body.partition(b"id: ")[2])
    assert text_of((await endpoint.ask("POST", session, call("echo", text="x"))).json) == "x"
    assert not scene["other"].ended.is_set()


async def test_each_call_of_a_dead_replica_ends_with_one_error(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    cursors = [(await stepping(scene, endpoint.replicas[0], session, str(n)))[1] for n in range(3)]
    backs = [await endpoint.replicas[1 + n % 2].get(session, cursor) for n, cursor in enumerate(cursors)]
    for back in backs:
        await back.head()
    endpoint.kill(0)
    for number, back in enumerate(backs):
        [reply] = await rest_of(back)
        assert (reply["id"], reply["error"]["code"]) == (str(number), REPLICA_LOST)


async def test_batch_that_a_dead_replica_handled_ends_with_an_error_for_each_request(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(OLDEST)
    batch = [call("steps", "a", name="a"), call("steps", "b", name="b")]
    post = await endpoint.replicas[0].post(session, batch)
    await post.head()
    event = await post.event()
    endpoint.kill(0)
    answer = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": event.id})
    *_, reply = messages_in(answer)
    assert isinstance(reply, list)
    assert sorted(each["id"] for each in reply) == ["a", "b"]


async def test_replica_that_other_replicas_consider_dead_writes_no_more_events_and_cancels_its_call(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post = await endpoint.replicas[0].post(session, call("wait", "mine", name="mine", speaks=True))
    await post.head()
    while (event := await post.event()).data is None:
        pass
    flooding = await endpoint.replicas[0].post(session, call("steps", "steps", name="steps"))
    await flooding.head()
    await scene["steps"].started.wait()
    endpoint.memory.links[0].is_down = True
    answer = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": event.id})
    assert messages_in(answer)[-1]["error"]["code"] == REPLICA_LOST
    endpoint.memory.links[0].is_down = False
    scene["mine"].may_go_on.set()  # its reply comes too late
    await scene["mine"].ended.wait()
    assert await rest_of(post) == []
    again = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": event.id})
    assert [each.get("error", {}).get("code") for each in messages_in(again)] == [REPLICA_LOST]


async def test_handler_sees_cancel_cause_lease_if_another_replica_takes_over_its_stream(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post = await endpoint.replicas[0].connect()
    await post.send("POST", session, call("flood", name="much", count=100_000))
    await post.head()
    await scene["much"].started.wait()
    session_id = session["Mcp-Session-Id"]
    kept = endpoint.memory.kept.events
    [name] = kept._logs.get(session_id)._streams
    await kept.take_over(session_id, name, holder="another", retention_ms=60_000)
    with trio.fail_after(10):
        while await post.more():
            pass
        await scene["much"].ended.wait()
    cancellation = scene["much"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.LEASE
    assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 200


# The end of a replica in good order


async def test_replica_that_shuts_down_finishes_its_calls_and_the_session_continues(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, _ = await stepping(scene, endpoint.replicas[0], session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.stop, 0)
        await wait_all_tasks_blocked()
        scene["mine"].may_go_on.set()
        assert told_in(await rest_of(post)) == ["two", "three"]
    for _ in range(4):
        assert text_of((await endpoint.ask("POST", session, call("echo", text="x"))).json) == "x"


async def test_clients_of_open_streams_are_disconnected_from_a_stopping_replica_immediately(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[1], session)
    await post.aclose()
    listening, following = [await endpoint.replicas[0].get(session, each) for each in (None, cursor)]
    for response in (listening, following):
        assert (await response.head()).status == 200
    running = await endpoint.replicas[0].post(session, call("wait", 1, name="running"))
    await scene["running"].started.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.stop, 0)
        for response in (listening, following):
            assert await rest_of(response) == []
        again = await endpoint.replicas[2].get(session)
        assert (await again.head()).status == 200
        scene["running"].may_go_on.set()
        assert text_of(messages_in(await running.answer())[-1]) == "running is done"
    scene.server.servers[1].remove_tool("echo")
    assert (await next_message(again))["method"] == "notifications/tools/list_changed"


async def test_call_that_takes_longer_than_the_drain_timeout_ends_with_an_error_at_any_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    stays, _ = await stepping(scene, endpoint.replicas[0], session, "stays")
    left, cursor = await stepping(scene, endpoint.replicas[0], session, "left")
    await left.aclose()
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    begun = trio.current_time()
    await endpoint.stop(0)
    for post, name in ((stays, "stays"), (back, "left")):
        [reply] = await rest_of(post)
        assert (reply["id"], reply["error"]["code"]) == (name, REPLICA_LOST)
    assert trio.current_time() - begun < 3
    assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 200


# The storage goes away


async def test_response_stream_waits_ten_seconds_for_the_storage_and_its_call_continues(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    for link in endpoint.memory.links:
        link.is_down = True
    scene["mine"].may_go_on.set()
    begun = trio.current_time()
    assert await rest_of(post) == []
    assert 10 <= trio.current_time() - begun < 12
    await trio.sleep(20)
    for link in endpoint.memory.links:
        link.is_down = False
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    assert told_in(await rest_of(back)) == ["two", "three"]


async def test_resumed_stream_waits_ten_seconds_for_the_storage(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    await post.aclose()
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    await wait_all_tasks_blocked()
    endpoint.memory.links[1].is_down = True
    begun = trio.current_time()
    assert await rest_of(back) == []
    assert 10 <= trio.current_time() - begun < 13


async def test_handler_that_sends_many_events_is_blocked_during_a_storage_outage(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post = await endpoint.replicas[0].post(session, call("flood", name="much", count=300))
    await post.head()
    await post.more()
    endpoint.memory.links[0].is_down = True
    while await post.more():
        pass
    runs = scene["much"].runs
    await trio.sleep(30)
    assert scene["much"].runs == runs < 290
    endpoint.memory.links[0].is_down = False
    await scene["much"].ended.wait()
    assert scene["much"].runs == 299


async def test_call_whose_stream_cannot_be_stored_gets_status_503_and_the_call_is_cancelled(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for number in range(3):
        await endpoint.ask("POST", session, call("echo", number, text="x"))
    for link in endpoint.memory.links:
        link.is_down = True
    begun = trio.current_time()
    answer = await (await endpoint.post(session, call("wait", "mine", name="mine", speaks=True))).answer()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert 10 <= trio.current_time() - begun < 12
    await scene["mine"].ended.wait()


async def test_events_that_were_stored_with_an_uncertain_outcome_are_sent_once(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    endpoint.memory.links[0].loses_answers = True
    scene["mine"].may_go_on.set()
    await trio.sleep(3)
    endpoint.memory.links[0].loses_answers = False
    assert told_in(await rest_of(post)) == ["two", "three"]
    again = await endpoint.replicas[1].ask("GET", {**session, "Last-Event-ID": cursor})
    assert told_in(messages_in(again)) == ["two", "three"]


async def test_sse_stream_ends_if_its_event_log_is_lost_but_the_session_continues(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, _ = await stepping(scene, endpoint.replicas[0], session)
    await endpoint.memory.kept.events.delete(session["Mcp-Session-Id"])
    scene["mine"].may_go_on.set()
    assert await rest_of(post) == []
    assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 200


async def test_response_stream_of_a_cancelled_call_ends_and_a_request_to_resume_it_gets_status_204(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post, cursor = await stepping(scene, endpoint.replicas[0], session)
    await post.aclose()
    back = await endpoint.replicas[1].get(session, cursor)
    await back.head()
    assert (await endpoint.replicas[2].ask("POST", session, cancel("mine"))).status == 202
    assert await rest_of(back) == []
    for replica in endpoint.replicas:
        assert (await replica.ask("GET", {**session, "Last-Event-ID": cursor})).status == 204
