"""Legacy sessions that any replica serves: their facts, and the messages that find the replica of a call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

import msgspec
import pytest
import trio
from tests.fleet.replicas import FleetEndpoint, FleetScene, replicated
from tests.serving.http.protection import issued, protected, session_of
from tests.serving.http.raw import BASE, INITIALIZE, message
from tests.serving.http.scenes import (
    SAMPLING,
    call,
    cancel,
    messages_in,
    next_message,
    rest_of,
    text_of,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, RequestContext
from trio_mcp.stores.memory import MemorySessionDirectory
from trio_mcp.stores.task_store import HINTS_LOST

OLDEST = "2025-03-26"
ANSWER = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}

Session = dict[str, str | None]

IDS = count(100)
"""Ids for requests: one whose id was used before asks the storage."""


@pytest.fixture
def scene() -> FleetScene:
    return FleetScene()


@pytest.fixture
async def endpoint(scene: FleetScene, autojump_clock: MockClock) -> AsyncGenerator[FleetEndpoint]:
    async with replicated(scene.server) as one:
        yield one


async def asking(endpoint: FleetEndpoint, session: Session, name: str = "asker") -> tuple[Any, dict[str, Any]]:
    """Return a connection on which `ask` was called, and its question."""
    post = await endpoint.post(session, call("ask", name=name))
    await post.head()
    return post, await next_message(post)


def calls(endpoint: FleetEndpoint) -> list[str]:
    """Return what all replicas have asked of the storage for their sessions, since the last call."""
    made = [each for link in endpoint.memory.links for each in link.calls if not each.startswith("changes")]
    for link in endpoint.memory.links:
        link.calls.clear()
    return made


# What is shared


async def test_any_replica_serves_any_request_of_a_legacy_session(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for number in range(6):
        answer = await endpoint.ask("POST", session, call("echo", number, text=str(number)))
        assert (answer.json["id"], text_of(answer.json)) == (number, str(number))


async def test_every_replica_knows_the_client_capabilities_sent_in_initialize(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    @scene.server.tool
    async def client(ctx: RequestContext) -> str:
        return f"{ctx.revision} {ctx.client_supports('sampling')} {ctx.client_supports('roots')}"

    session = await endpoint.initialize(OLDEST, **SAMPLING)
    for _ in range(3):
        answer = await endpoint.ask("POST", session, call("client"))
        assert text_of(answer.json) == f"{OLDEST} True False"


async def test_log_level_set_at_one_replica_applies_to_all_replicas(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for level, logged in (("debug", ["debug", "error"]), ("critical", [])):
        answer = await endpoint.ask("POST", session, message("logging/setLevel", {"level": level}, 1))
        assert answer.json["result"] == {}
        for _ in range(3):
            answer = await endpoint.ask("POST", session, call("levels"))
            assert [each["params"]["level"] for each in messages_in(answer) if "method" in each] == logged


@pytest.mark.parametrize("is_gap", [False, True], ids=["hint", "gap"])
async def test_request_is_served_if_its_session_changes_while_a_replica_first_reads_that_session(
    endpoint: FleetEndpoint, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_gap: bool
) -> None:
    session = await endpoint.initialize()
    sessions = endpoint.memory.kept.sessions
    read, readings = sessions.read, 0

    async def read_while_changed(session_id: str, *, idle_ms: int) -> Any:
        nonlocal readings
        readings += 1
        stored = await read(session_id, idle_ms=idle_ms)
        if readings == 1:
            sessions._hint_queues.notify([HINTS_LOST if is_gap else session_id])
            await wait_all_tasks_blocked()
        return stored

    monkeypatch.setattr(sessions, "read", read_while_changed)
    answer = await endpoint.replicas[2].ask("POST", session, call("echo", text="x"))
    assert (answer.status, text_of(answer.json)) == (200, "x")
    await wait_all_tasks_blocked()
    assert readings == 2  # what was read first may have been old


async def test_initialized_notification_sent_to_one_replica_applies_to_all_replicas(autojump_clock: MockClock) -> None:
    scene = FleetScene(require_initialized=True)
    async with replicated(scene.server) as endpoint:
        opened = await endpoint.ask("POST", {**BASE}, INITIALIZE)
        session: Session = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        for _ in range(3):
            assert (await endpoint.ask("POST", session, call("echo", text="x"))).code == -32002
        for link in endpoint.memory.links:
            link.loses_hints = True
        assert (await endpoint.ask("POST", session, message("notifications/initialized"))).status == 202
        for _ in range(3):
            answer = await endpoint.ask("POST", session, call("echo", text="x"))
            assert text_of(answer.json) == "x"


async def test_replica_notices_session_changes_within_five_seconds_if_notifications_are_lost(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for _ in range(3):
        await endpoint.ask("POST", session, call("levels"))
    for link in endpoint.memory.links:
        link.loses_hints = True
    await endpoint.ask("POST", session, message("logging/setLevel", {"level": "critical"}, 1))
    await trio.sleep(5)
    for _ in range(3):
        assert messages_in(await endpoint.ask("POST", session, call("levels")))[0].keys() >= {"result"}


async def test_concurrent_session_changes_at_different_replicas_all_succeed(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    for number in range(20):
        scene.server.resource(f"scene:{number}", name=f"{number}")(trio.lowlevel.checkpoint)
    session = await endpoint.initialize()

    async def subscribe(number: int) -> None:
        params = {"uri": f"scene:{number}"}
        answer = await endpoint.ask("POST", session, message("resources/subscribe", params, number))
        assert answer.json["result"] == {}

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(subscribe, number)
    await endpoint.ask("POST", session, message("resources/unsubscribe", {"uri": "scene:3"}, "u"))
    stored = await endpoint.memory.kept.sessions.read(session["Mcp-Session-Id"], idle_ms=10_000)
    from trio_mcp.fleet.sessions.state import decode_state

    kept = decode_state(stored.state).subscriptions
    assert sorted(kept) == sorted(f"scene:{number}" for number in range(20) if number != 3)


async def test_sec_session_of_another_principal_gets_status_404_at_every_replica(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server, auth=protected(issued())) as endpoint:
        session = await session_of(endpoint, "alice-1")
        other = {**session, "Authorization": "Bearer bob-1"}
        for number in range(6):
            for method in ("GET", "DELETE"):
                assert (await endpoint.ask(method, other)).status == 404
            assert (await endpoint.ask("POST", other, call("echo", number, text="x"))).status == 404
            answer = await endpoint.ask("POST", session, call("echo", number, text="x"))
            assert text_of(answer.json) == "x"


# Room and time


async def test_max_sessions_limits_the_total_over_all_replicas(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server, max_sessions=3) as endpoint:
        sessions = [await endpoint.initialize() for _ in range(3)]
        refused = await endpoint.ask("POST", {**BASE}, INITIALIZE)
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, -31000, "5")
        assert (await endpoint.ask("DELETE", sessions[1])).status == 204
        await endpoint.initialize()


async def test_new_session_replaces_a_session_that_was_never_used(autojump_clock: MockClock) -> None:
    scene = FleetScene(replicas=1)
    async with replicated(scene.server, max_sessions=1) as endpoint:
        first = await endpoint.ask("POST", {**BASE}, INITIALIZE)
        await endpoint.initialize()
        unused = {**BASE, "Mcp-Session-Id": first.headers["mcp-session-id"]}
        assert (await endpoint.ask("POST", unused, message("ping", request_id=1))).status == 404


async def test_initialize_with_oversized_capabilities_gets_status_400(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    params = {**INITIALIZE["params"], "capabilities": {"experimental": {"x": {"y": "z" * 40_000}}}}
    answer = await endpoint.ask("POST", {**BASE}, {**INITIALIZE, "params": params})
    assert (answer.status, answer.code) == (400, -32600)
    assert not len(endpoint.memory.kept.sessions._sessions)


async def test_resource_subscription_that_exceeds_the_session_size_limit_gets_status_503(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    results = []
    for number in range(40):
        uri = f"scene:{number}:{'x' * 1900}"
        scene.server.resource(uri, name=f"{number}")(trio.lowlevel.checkpoint)
        answer = await endpoint.ask("POST", session, message("resources/subscribe", {"uri": uri}, number))
        results.append(answer.status)
    assert results == [200] * results.count(200) + [503] * results.count(503)
    assert 30 < results.count(200) < 40
    assert (await endpoint.ask("POST", session, message("logging/setLevel", {"level": "debug"}, 1))).status == 200


async def test_unused_cached_session_is_dropped_by_the_replica_and_reloaded_later(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", text="x"))
    assert [len(views) for views in endpoint.views] == [1, 1, 1]
    await trio.sleep(62)
    assert [len(views) for views in endpoint.views] == [0, 0, 0]
    for _ in range(3):
        assert text_of((await endpoint.ask("POST", session, call("echo", text="x"))).json) == "x"


async def test_htt_04_session_deleted_at_one_replica_ends_its_calls_and_streams_at_all_replicas(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    names = ["one", "two", "three"]
    posts = [await endpoint.post(session, call("wait", n, name=name)) for n, name in enumerate(names)]
    for name in names:
        await scene[name].started.wait()
    listening = await endpoint.get(session)
    await listening.head()
    assert (await endpoint.ask("DELETE", session)).status == 204
    for name, post in zip(names, posts, strict=True):
        await scene[name].ended.wait()
        cancellation = scene[name].cancellation
        assert cancellation is not None
        assert cancellation.cause is CancelCause.DISCONNECT
        assert messages_in(await post.answer()) == []
    assert await rest_of(listening) == []
    for _ in range(3):
        assert (await endpoint.ask("DELETE", session)).status == 404


async def test_ended_session_leaves_no_data_in_storage_or_replicas(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    for _ in range(5):
        session = await endpoint.initialize(**SAMPLING)
        post, question = await asking(endpoint, session)
        listening = await endpoint.get(session)
        await listening.head()
        assert (
            await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": question["id"], "result": ANSWER})
        ).status == 202
        *_, last = (await rest_of(post)) or [None]
        assert last is not None
        await endpoint.ask("POST", session, cancel("of nothing"))
        assert (await endpoint.ask("DELETE", session)).status == 204
        await rest_of(listening)
    await wait_all_tasks_blocked()
    kept = endpoint.memory.kept
    assert not len(kept.sessions._sessions)
    assert not len(kept.events._logs)
    for replica in endpoint.replicas:
        sessions = replica.front._endpoint._sessions
        for left in (sessions._sessions, sessions._ended, sessions._services._signals, sessions._readings):
            assert not left


# What it costs


async def test_call_in_a_cached_session_that_is_answered_without_a_stream_makes_no_storage_request(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    calls(endpoint)
    opened = await endpoint.ask("POST", {**BASE}, INITIALIZE)
    assert calls(endpoint) == ["sessions.open"]
    session: Session = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
    assert (await endpoint.ask("POST", session, message("notifications/initialized"))).status == 202
    assert sorted(calls(endpoint)) in (
        ["sessions.change", "sessions.read"],
        ["sessions.change", "sessions.read", "sessions.read"],  # its own hint came in between
    )
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    assert set(calls(endpoint)) <= {"sessions.read"}
    for _ in range(9):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    assert calls(endpoint) == []
    await trio.sleep(5)
    for _ in range(6):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    assert calls(endpoint) == ["sessions.read"] * 3


@pytest.mark.parametrize(("timeout", "every"), [(150, 5), (155, 6), (900, 30), (3000, 30)])
async def test_session_of_a_disconnected_client_is_checked_at_intervals_during_a_call(
    timeout: float, every: int, autojump_clock: MockClock
) -> None:
    """Each thirtieth of its time, and each 30 seconds at most, while a call of it runs; and not once nothing runs."""
    scene = FleetScene(replicas=2)
    async with replicated(scene.server, session_timeout=timeout) as endpoint:
        session = await endpoint.replicas[0].initialize()
        post = await endpoint.replicas[1].post(session, call("wait", name="long"))
        await scene["long"].started.wait()
        await post.aclose()
        begun, looks = trio.current_time(), list[float]()
        sessions = endpoint.memory.kept.sessions
        look = sessions.exists

        async def noted(*args: Any, **options: Any) -> Any:
            looks.append(trio.current_time() - begun)
            return await look(*args, **options)

        sessions.exists = noted
        await trio.sleep(4.5 * every)
        assert looks == [every, 2 * every, 3 * every, 4 * every]
        scene["long"].may_go_on.set()
        await trio.sleep(2 * every)
        assert len(looks) == 4


async def test_streamed_call_makes_one_storage_request_to_open_its_stream_and_at_most_two_to_append(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    calls(endpoint)
    await endpoint.ask("POST", session, call("levels", next(IDS)))
    assert calls(endpoint) in (["events.open", "events.append"], ["events.open", "events.append", "events.append"])


# Answers and cancels


async def test_sampling_request_can_be_answered_through_each_replica(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    for number in range(3):
        post, asked = await asking(endpoint, session)
        for _ in range(number):
            await endpoint.ask("POST", session, message("ping", request_id="p"))
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER}
        assert (await endpoint.ask("POST", session, answer)).status == 202
        assert [text_of(reply) for reply in await rest_of(post)] == ["m has answered"]


async def test_sampling_answers_in_a_batch_reach_the_replicas_that_sent_the_requests(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(OLDEST, **SAMPLING)
    asked = [await asking(endpoint, session, str(number)) for number in range(3)]
    batch = [
        *({"jsonrpc": "2.0", "id": question["id"], "result": ANSWER} for _, question in asked),
        call("echo", "in the batch", text="x"),
    ]
    answer = await endpoint.ask("POST", session, batch)
    assert (answer.status, [each["id"] for each in answer.json]) == (200, ["in the batch"])
    for post, _ in asked:
        assert [text_of(reply) for reply in await rest_of(post)] == ["m has answered"]


async def test_malformed_sampling_answer_fails_the_sampling_request_at_the_replica_that_sent_the_request(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    for _ in range(2):
        post, asked = await asking(endpoint, session)
        bad = b'{"jsonrpc":"2.0","id":"%b","result":{},"error":{}}' % asked["id"].encode()
        assert (await endpoint.ask("POST", session, bad)).status == 400
        [reply] = await rest_of(post)
        assert reply["result"]["isError"]


async def test_oversized_sampling_answer_fails_the_sampling_request_at_the_replica_that_sent_the_request(
    autojump_clock: MockClock,
) -> None:
    scene = FleetScene()
    async with replicated(scene.server, max_message_bytes=100_000) as endpoint:
        session = await endpoint.initialize(**SAMPLING)
        for warm in (False, True):
            post, asked = await asking(endpoint, session)
            for _ in range(3 if warm else 0):
                await endpoint.ask("POST", session, message("ping", request_id="p"))
            owner = endpoint.memory.ids.index(asked["id"].partition(".")[0])
            long = {"jsonrpc": "2.0", "id": asked["id"], "result": {"text": "x" * 200_000}}
            refused = await endpoint.replicas[owner - 1].ask("POST", session, long)
            assert refused.status == 413
            [reply] = await rest_of(post)
            assert reply["result"]["isError"]


async def test_session_state_in_a_newer_format_gets_status_503_and_is_left_unchanged(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    session_id, sessions = session["Mcp-Session-Id"], endpoint.memory.kept.sessions
    stored = await sessions.read(session_id, idle_ms=60_000)
    later = msgspec.msgpack.encode(msgspec.msgpack.decode(stored.state) | {"form": 2})
    assert await sessions.change(session_id, later, expected_mark=stored.mark, mark=b"later", idle_ms=60_000)
    await wait_all_tasks_blocked()
    for _ in range(3):
        assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 503
    assert (await sessions.read(session_id, idle_ms=60_000)).state == later


async def test_client_progress_is_forwarded_to_the_replica_encoded_in_its_progress_token(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    _, asked = await asking(endpoint, session)
    calls(endpoint)
    progress = message("notifications/progress", {"progressToken": asked["id"], "progress": 1})
    assert (await endpoint.ask("POST", session, progress)).status == 202
    assert calls(endpoint).count("courier.send") == 2  # the letter, and its receipt


async def test_sampling_answer_to_a_request_of_a_dead_replica_gets_status_400(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    _, asked = await asking(endpoint, session)
    owner = endpoint.memory.ids.index(asked["id"].partition(".")[0])
    endpoint.kill(owner)
    begun = trio.current_time()
    answer = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER})
    assert answer.status == 400
    assert "the process that ran the request has ended" in answer.json["error"]["message"]
    assert trio.current_time() - begun < 6


async def test_sampling_answer_gets_status_503_if_the_storage_is_unavailable(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", text="x"))
    _, asked = await asking(endpoint, session)
    for link in endpoint.memory.links:
        link.is_down = True
    answer = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER})
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")


async def test_sampling_answer_with_an_unknown_request_id_has_no_effect(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    for made_up in (7, "7", "no.7", f"{endpoint.memory.ids[0]}.99", f"{endpoint.memory.ids[1]}.99", "a.b.c"):
        for _ in range(3):
            answer = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": made_up, "result": {}})
            assert answer.status in (202, 400)
    assert (await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": "12345678.1", "result": {}})).status == 400


@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "with a stream"])
async def test_cancel_sent_to_another_replica_immediately_cancels_the_handler(
    scene: FleetScene, endpoint: FleetEndpoint, speaks: bool, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post = await endpoint.post(session, call("wait", 5, name="mine", speaks=speaks))
    await scene["mine"].started.wait()
    begun = trio.current_time()
    assert (await endpoint.ask("POST", session, cancel(5))).status == 202
    await scene["mine"].ended.wait()
    assert trio.current_time() == begun
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert (cancellation.cause, cancellation.reason) == (CancelCause.PEER, "enough")
    assert [each for each in messages_in(await post.answer()) if "id" in each] == []


async def test_cancel_whose_storage_notification_was_lost_is_applied_when_the_loss_is_reported(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    await endpoint.post(session, call("wait", 5, name="mine"))
    await scene["mine"].started.wait()
    for link in endpoint.memory.links:
        link.loses_hints = True
    assert (await endpoint.ask("POST", session, cancel(5))).status == 202
    await wait_all_tasks_blocked()
    assert not scene["mine"].ended.is_set()
    for link in endpoint.memory.links:
        link.loses_hints = False
    begun = trio.current_time()
    endpoint.memory.lose_hints()
    await scene["mine"].ended.wait()
    assert trio.current_time() == begun


async def test_cancel_is_applied_within_about_a_second_after_a_storage_outage(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    post = await endpoint.replicas[0].post(session, call("wait", 5, name="mine"))
    await scene["mine"].started.wait()
    await trio.sleep(1)  # its stream has begun
    await post.aclose()
    endpoint.memory.links[0].is_down = True
    assert (await endpoint.replicas[1].ask("POST", session, cancel(5))).status == 202
    await trio.sleep(20)
    assert not scene["mine"].ended.is_set()
    endpoint.memory.links[0].is_down = False
    begun = trio.current_time()
    await scene["mine"].ended.wait()
    assert trio.current_time() - begun <= 1.1


async def test_cancel_of_an_ended_request_does_not_affect_a_later_request_with_the_same_id(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for _ in range(3):
        assert (await endpoint.ask("POST", session, cancel(5))).status == 202
    for number in range(6):
        posted = await endpoint.post(session, call("wait", 5, name=str(number)))
        await scene[str(number)].started.wait()
        await endpoint.ask("POST", session, message("logging/setLevel", {"level": ("debug", "info")[number % 2]}, 1))
        await wait_all_tasks_blocked()
        scene[str(number)].may_go_on.set()
        assert text_of(messages_in(await posted.answer())[-1]) == f"{number} is done"


@pytest.mark.parametrize("in_batch", [False, True], ids=["alone", "in a batch"])
async def test_cancel_that_arrives_late_does_not_affect_a_later_request_with_the_same_id(
    scene: FleetScene, endpoint: FleetEndpoint, in_batch: bool, autojump_clock: MockClock
) -> None:
    """It was for the first request, which has ended, and is heard of only when the second one runs."""
    session = await endpoint.initialize(OLDEST)
    one, two, _ = endpoint.replicas
    scene["first"].may_go_on.set()
    assert text_of((await one.ask("POST", session, call("wait", 5, name="first"))).json) == "first is done"
    for link in endpoint.memory.links:
        link.loses_hints = True
    assert (await two.ask("POST", session, cancel(5))).status == 202
    again = call("wait", 5, name="second")
    posted = await one.post(session, [again] if in_batch else again)
    await scene["second"].started.wait()
    endpoint.memory.lose_hints()
    for link in endpoint.memory.links:
        link.loses_hints = False
    endpoint.memory.lose_hints()
    await wait_all_tasks_blocked()
    assert not scene["second"].ended.is_set()
    assert (await two.ask("POST", session, cancel(5))).status == 202
    await scene["second"].ended.wait()
    await posted.aclose()


async def test_reused_request_id_gets_status_503_while_the_storage_is_unavailable(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    one, link = endpoint.replicas[0], endpoint.memory.links[0]
    for request_id in (1, 2):
        assert (await one.ask("POST", session, call("echo", request_id, text="x"))).status == 200
    link.is_down = True
    assert (await one.ask("POST", session, call("echo", 2, text="x"))).status == 503
    link.is_down = False
    await endpoint.memory.kept.sessions.delete(session["Mcp-Session-Id"])
    assert (await one.ask("POST", session, call("echo", 2, text="x"))).status == 404


async def test_cancel_does_not_affect_a_later_request_with_the_same_id_at_the_same_replica(
    scene: FleetScene, endpoint: FleetEndpoint, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """As in one process. Its request may run at another replica."""
    session, change = await endpoint.initialize(), MemorySessionDirectory.change
    one, two, _ = endpoint.replicas
    may_write = trio.Event()

    async def change_late(*args: Any, **options: Any) -> bool:
        await may_write.wait()
        return await change(*args, **options)

    await two.post(session, call("wait", 5, name="elsewhere"))
    await scene["elsewhere"].started.wait()
    assert (await one.ask("POST", session, call("echo", text="x"))).status == 200
    monkeypatch.setattr(MemorySessionDirectory, "change", change_late)
    cancelling = await one.post(session, cancel(5))
    await wait_all_tasks_blocked()
    await one.post(session, call("wait", 5, name="here"))
    await scene["here"].started.wait()
    may_write.set()
    assert (await cancelling.answer()).status == 202
    await scene["elsewhere"].ended.wait()
    await wait_all_tasks_blocked()
    assert not scene["here"].ended.is_set()


async def test_cancel_at_one_replica_is_applied_to_a_request_that_arrives_later_at_another_replica(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    one, two, _ = endpoint.replicas
    assert (await one.ask("POST", session, call("echo", text="x"))).status == 200
    for link in endpoint.memory.links:
        link.loses_hints = True
    assert (await two.ask("POST", session, cancel(5))).status == 202
    await one.post(session, call("wait", 5, name="overtaken"))
    await scene["overtaken"].started.wait()
    for link in endpoint.memory.links:
        link.loses_hints = False
    endpoint.memory.lose_hints()
    await scene["overtaken"].ended.wait()


async def test_stored_session_state_stays_small_after_many_cancels(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for number in range(150):
        body = message("notifications/cancelled", {"requestId": f"{number}" + "x" * 300, "reason": "y" * 10_000})
        assert (await endpoint.ask("POST", session, body)).status == 202
    stored = await endpoint.memory.kept.sessions.read(session["Mcp-Session-Id"], idle_ms=10_000)
    assert len(stored.state) < 16_000


async def test_invalid_cancelled_and_progress_notifications_get_status_202(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for params in ({}, {"requestId": None}, {"requestId": []}, {"requestId": "x" * 5000}, [], None):
        assert (await endpoint.ask("POST", session, message("notifications/cancelled", params))).status == 202
        assert (await endpoint.ask("POST", session, message("notifications/progress", params))).status == 202
    assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 200


# The storage goes away


async def test_request_in_an_uncached_session_gets_status_503_during_a_storage_outage(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session, cold = await endpoint.initialize(), await endpoint.initialize()
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    for link in endpoint.memory.links:
        link.is_down = True
    for _ in range(3):
        assert text_of((await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))).json) == "x"
    level = message("logging/setLevel", {"level": "debug"}, next(IDS))
    for method, body in (("POST", level), ("DELETE", None), ("GET", None), ("POST", cancel("elsewhere"))):
        answer = await endpoint.ask(method, session, body)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5"), method
    await trio.sleep(6)
    for each in (session, cold):
        assert (await endpoint.ask("POST", each, call("echo", next(IDS), text="x"))).status == 503
    assert (await endpoint.ask("POST", {**BASE}, INITIALIZE)).status == 503
    for link in endpoint.memory.links:
        link.is_down = False
    for each in (session, cold):
        for _ in range(3):
            assert text_of((await endpoint.ask("POST", each, call("echo", next(IDS), text="x"))).json) == "x"
        answer = await endpoint.ask("POST", each, call("levels", next(IDS)))
        assert [m["params"]["level"] for m in messages_in(answer) if "method" in m] == ["error"]  # nothing is half done


async def test_request_gets_status_503_if_its_session_change_has_an_uncertain_outcome(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    for _ in range(3):
        await endpoint.ask("POST", session, call("echo", next(IDS), text="x"))
    link = endpoint.memory.links[0]
    body = message("logging/setLevel", {"level": "critical"}, next(IDS))
    link.loses_answers = True
    assert (await endpoint.replicas[0].ask("POST", session, body)).status == 503  # its reading failed, too
    link.loses_answers = False
    for _ in range(3):
        answer = await endpoint.ask("POST", session, call("levels", next(IDS)))
        assert [m for m in messages_in(answer) if "method" in m] == []


async def test_sessions_get_status_404_after_the_storage_lost_its_data(
    endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    session = await endpoint.initialize()
    await endpoint.memory.kept.sessions.delete(session["Mcp-Session-Id"])
    await wait_all_tasks_blocked()
    for _ in range(3):
        assert (await endpoint.ask("POST", session, call("echo", text="x"))).status == 404


async def test_task_can_request_sampling_through_any_replica_after_its_session_was_unloaded(
    scene: FleetScene, endpoint: FleetEndpoint, autojump_clock: MockClock
) -> None:
    @scene.server.tool(task="optional")
    async def job(ctx: RequestContext) -> str:
        return (await ctx.sample("well?", max_tokens=5)).model

    session = await endpoint.initialize(**SAMPLING)
    params = {"name": "job", "arguments": {}, "task": {"ttl": 600_000}}
    created = await endpoint.replicas[0].ask("POST", session, message("tools/call", params, 1))
    task = {"taskId": created.json["result"]["task"]["taskId"]}
    await trio.sleep(100)
    assert endpoint.views[0] == {}
    post = await endpoint.replicas[1].post(session, message("tasks/result", task, 2))
    await post.head()
    asked = await next_message(post)
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": ANSWER}
    assert (await endpoint.replicas[2].ask("POST", session, answer)).status == 202
    assert [text_of(reply) for reply in await rest_of(post)] == ["m"]


async def test_concurrent_cancels_are_written_to_the_storage_together(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, writes, change = FleetScene(), 0, MemorySessionDirectory.change

    async def change_slowly(*args: Any, **options: Any) -> bool:
        nonlocal writes
        writes += 1
        await trio.sleep(0.1)
        return await change(*args, **options)

    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        monkeypatch.setattr(MemorySessionDirectory, "change", change_slowly)

        async def cancel(number: int) -> None:
            answer = await endpoint.ask("POST", session, message("notifications/cancelled", {"requestId": number}))
            assert answer.status == 202

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(cancel, number)
    assert 0 < writes <= 15


async def test_cancel_that_arrives_in_one_batch_with_its_request_is_applied(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize(OLDEST)
        batch = [call("wait", 1, name="left"), cancel(1), call("echo", 2, text="stays")]
        with trio.fail_after(60):
            answer = await endpoint.ask("POST", session, batch)
        assert [text_of(reply) for reply in messages_in(answer)[-1]] == ["stays"]
        assert scene["left"].runs == 0 or scene["left"].ended.is_set()
