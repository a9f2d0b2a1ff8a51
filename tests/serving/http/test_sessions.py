"""Sessions of legacy clients over HTTP: how they are opened, found, and ended, and what belongs to each."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.fleet.replicas import SCENES, FleetScene, in_memory
from tests.serving.http.raw import BASE, INITIALIZE, LEGACY, MODERN, message, request_bytes
from tests.serving.http.scenes import (
    SAMPLING,
    MemoryEndpoint,
    Scene,
    call,
    cancel,
    messages_in,
    next_message,
    rest_of,
    text_of,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, ConnectionLost

OLDEST, MIDDLE = "2025-03-26", "2025-06-18"


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return SCENES[request.param]()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(scene.server) as one:
        yield one


async def status_of_ping(endpoint: MemoryEndpoint, session: dict[str, str | None]) -> int:
    return (await endpoint.ask("POST", session, message("ping", request_id="ping"))).status


# The id


async def test_cx_02_cx_05_handler_can_read_its_session_and_the_headers_of_its_post(
    endpoint: MemoryEndpoint,
) -> None:
    session = await endpoint.initialize()
    for name in ("first", "second"):
        answer = await endpoint.ask("POST", {**session, "X-Who": name}, call("who"))
        seen = answer.json["result"]["structuredContent"]
        assert (seen["session"], seen["headers"]["x-who"]) == (session["Mcp-Session-Id"], name)
        assert not seen["stateless"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_htt_04_legacy_request_without_a_session_gets_status_400(endpoint: MemoryEndpoint, method: str) -> None:
    answer = await endpoint.ask(method, {**BASE}, call("echo", text="x") if method == "POST" else None)
    assert answer.status == 400
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("version", [OLDEST, MIDDLE, LEGACY])
async def test_htt_09_negotiated_version_overrides_a_different_supported_version_in_the_header(
    endpoint: MemoryEndpoint, version: str
) -> None:
    session = await endpoint.initialize(version)
    for told in (OLDEST, MIDDLE, LEGACY, "2024-11-05", MODERN):
        headers = {**session, "MCP-Protocol-Version": told}
        assert (await endpoint.ask("POST", headers, message("ping", request_id=1))).status == 200
        batch = await endpoint.ask("POST", headers, [call("echo", 1, text="a")])
        assert batch.status == (200 if version == OLDEST else 400)
    assert await status_of_ping(endpoint, session) == 200
    assert (await endpoint.ask("DELETE", {**session, "MCP-Protocol-Version": OLDEST})).status == 204


# The end


async def test_htt_04_delete_request_ends_its_session_and_cancels_the_calls_of_the_session(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session, other = await endpoint.initialize(), await endpoint.initialize()
    running = await endpoint.post(session, call("wait", name="mine"))
    await endpoint.post(other, call("wait", name="theirs"))
    await scene["mine"].started.wait()
    await scene["theirs"].started.wait()
    deleted = await endpoint.ask("DELETE", session)
    assert (deleted.status, deleted.body) == (204, b"")
    await scene["mine"].ended.wait()
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.DISCONNECT
    assert messages_in(await running.answer()) == []
    assert await status_of_ping(endpoint, session) == 404
    assert (await endpoint.ask("DELETE", session)).status == 404
    assert not scene["theirs"].ended.is_set()
    assert await status_of_ping(endpoint, other) == 200


async def test_htt_04_server_has_no_leftover_trio_tasks_after_a_hundred_deleted_sessions(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    await wait_all_tasks_blocked()
    tasks = trio.lowlevel.current_statistics().tasks_living
    for number in range(100):
        session = await endpoint.initialize()
        running = await endpoint.post(session, call("wait", name=str(number)))
        await scene[str(number)].started.wait()
        assert (await endpoint.ask("DELETE", session)).status == 204
        await running.answer()
        await running.aclose()
        assert scene[str(number)].ended.is_set()
        assert await status_of_ping(endpoint, session) == 404
    await wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_idle_session_ends_after_session_timeout(scene: Scene, autojump_clock: MockClock) -> None:
    async with in_memory(scene.server, session_timeout=30) as endpoint:
        session = await endpoint.initialize()
        for _ in range(3):
            await trio.sleep(28)
            assert await status_of_ping(endpoint, session) == 200  # which is a use of it
        await trio.sleep(32)
        assert await status_of_ping(endpoint, session) == 404


@pytest.mark.parametrize("held_by", ["a call", "its stream"])
async def test_session_with_an_open_response_does_not_time_out(
    scene: Scene, autojump_clock: MockClock, held_by: str
) -> None:
    async with in_memory(scene.server, session_timeout=30) as endpoint:
        session = await endpoint.initialize()
        if held_by == "a call":
            holding = await endpoint.post(session, call("wait", name="long"))
            await scene["long"].started.wait()
        else:
            holding = await endpoint.get(session)
            await holding.head()
        await trio.sleep(90)
        assert await status_of_ping(endpoint, session) == 200
        scene["long"].may_go_on.set()
        await holding.aclose()
        await trio.sleep(32)
        assert await status_of_ping(endpoint, session) == 404


@pytest.mark.parametrize("left_in", ["its call", "its stream", "silence"])
async def test_htt_23_session_of_a_disconnected_client_ends_after_session_timeout(
    scene: Scene, autojump_clock: MockClock, left_in: str
) -> None:
    async with in_memory(scene.server, session_timeout=30, max_sessions=1, stream_interval=5) as endpoint:
        session = await endpoint.initialize(**SAMPLING)
        post = await endpoint.post(session, call("ask", name="asker"))
        await post.head()
        question = await next_message(post)
        if left_in == "its stream":
            listening = await endpoint.get(session)
            await listening.head()
        await trio.sleep(90)  # the client is there, and thinks
        assert not scene["asker"].ended.is_set()
        await post.aclose()
        if left_in == "its stream":
            await trio.sleep(90)
            assert not scene["asker"].ended.is_set()
            await listening.aclose()
        elif left_in == "silence":
            await trio.sleep(20)
            assert await status_of_ping(endpoint, session) == 200
        await trio.sleep(28)
        assert not scene["asker"].ended.is_set()
        await trio.sleep(4)
        assert scene["asker"].ended.is_set()
        assert await status_of_ping(endpoint, session) == 404
        other = await endpoint.initialize()
        result = {"role": "assistant", "content": {"type": "text", "text": "late"}, "model": "m"}
        late = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        assert (await endpoint.ask("POST", session, late)).status == 404
        assert await status_of_ping(endpoint, other) == 200


async def test_htt_23_call_in_a_timed_out_session_is_cancelled_with_cancel_cause_disconnect(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with in_memory(scene.server, session_timeout=30) as endpoint:
        session = await endpoint.initialize()
        post = await endpoint.post(session, call("wait", name="mine"))
        await scene["mine"].started.wait()
        await post.aclose()
        await trio.sleep(32)
        cancellation = scene["mine"].cancellation
        assert cancellation is not None
        assert cancellation.cause is CancelCause.DISCONNECT
        assert cancellation.reason == "the client has not come back for 30 seconds"


# Room


@pytest.mark.parametrize("cleans_up", [False, True])
async def test_htt_23_new_session_can_be_opened_as_soon_as_the_delete_request_is_answered(
    scene: Scene, cleans_up: bool
) -> None:
    may_end = trio.Event()

    @scene.server.tool
    async def stubborn() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await may_end.wait()

    async with in_memory(scene.server, max_sessions=1) as endpoint:
        try:
            for _ in range(10):
                session = await endpoint.initialize()
                if cleans_up:
                    await endpoint.post(session, call("stubborn"))
                    await wait_all_tasks_blocked()
                connection = await endpoint.connect()
                both = request_bytes("DELETE", session) + request_bytes("POST", {**BASE}, INITIALIZE)
                await connection.stream.send_all(both)
                connection.expect("DELETE")
                assert (await connection.answer()).status == 204
                connection.expect()
                opened = await connection.answer()
                assert opened.status == 200
                session = {**BASE, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
                assert (await endpoint.ask("DELETE", session)).status == 204
        finally:
            may_end.set()


async def test_htt_23_rejected_initialize_does_not_count_towards_the_session_limit(scene: Scene) -> None:
    bad = {**INITIALIZE, "params": {"protocolVersion": 1}}
    async with in_memory(scene.server, max_sessions=1) as endpoint:
        connection = await endpoint.connect()
        await connection.stream.send_all(
            request_bytes("POST", {**BASE}, bad) + request_bytes("POST", {**BASE}, INITIALIZE)
        )
        connection.expect()
        assert (await connection.answer()).code == -32602
        connection.expect()
        assert (await connection.answer()).status == 200


async def test_initialize_of_a_disconnected_client_leaves_no_session(scene: Scene, autojump_clock: MockClock) -> None:
    async with in_memory(scene.server, max_sessions=1) as endpoint:
        leaver = await endpoint.post({**BASE}, INITIALIZE)
        await leaver.aclose()
        await wait_all_tasks_blocked()
        if isinstance(scene, FleetScene):
            await trio.sleep(61)  # another replica does not know who has used a session
        await endpoint.initialize()


async def test_second_initialize_in_a_session_gets_status_400_and_changes_nothing(endpoint: MemoryEndpoint) -> None:
    session = await endpoint.initialize(MIDDLE)
    again = await endpoint.ask("POST", session, INITIALIZE)
    assert (again.status, again.code) == (400, -32600)
    assert "mcp-session-id" not in again.headers
    assert (await endpoint.ask("POST", {**session, "MCP-Protocol-Version": MIDDLE}, call("who"))).status == 200


# Messages


@pytest.mark.parametrize("request_id", [None, True, 1.5, [], {}])
async def test_rpc_04_invalid_request_id_gets_status_400_and_runs_nothing(
    scene: Scene, endpoint: MemoryEndpoint, request_id: Any
) -> None:
    session = await endpoint.initialize()
    body = {**call("wait", name="never"), "id": request_id}
    answer = await endpoint.ask("POST", session, body)
    assert (answer.status, answer.code, answer.json["id"]) == (400, -32600, None)
    assert not scene["never"].started.is_set()


async def test_request_ids_integer_1_and_string_1_are_different(scene: Scene, endpoint: MemoryEndpoint) -> None:
    session = await endpoint.initialize()
    posts = {each: await endpoint.post(session, call("wait", each, name=repr(each))) for each in (1, "1")}
    for each in posts:
        await scene[repr(each)].started.wait()
    await endpoint.ask("POST", session, cancel("1"))
    await scene["'1'"].ended.wait()
    assert not scene["1"].ended.is_set()
    scene["1"].may_go_on.set()
    reply = messages_in(await posts[1].answer())[-1]
    assert (reply["id"], text_of(reply)) == (1, "1 is done")


@pytest.mark.parametrize("version", [OLDEST, MIDDLE, LEGACY])
@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "with a stream"])
async def test_can_18_http_response_of_a_cancelled_call_ends_without_a_message(
    scene: Scene, endpoint: MemoryEndpoint, version: str, speaks: bool
) -> None:
    session = await endpoint.initialize(version)
    post = await endpoint.post(session, call("wait", 5, name="mine", speaks=speaks))
    await scene["mine"].started.wait()
    if speaks:
        await post.head()
        assert (await next_message(post))["method"] == "notifications/message"
    assert (await endpoint.ask("POST", session, cancel(5))).status == 202
    await scene["mine"].ended.wait()
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert (cancellation.cause, cancellation.reason) == (CancelCause.PEER, "enough")
    if not speaks:
        head = await post.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert head.headers["content-length"] == "0"  # there is no event to come back for
    assert await rest_of(post) == []
    assert await status_of_ping(endpoint, session) == 200


async def test_cancelled_notification_in_another_session_has_no_effect(scene: Scene, endpoint: MemoryEndpoint) -> None:
    session, other = await endpoint.initialize(), await endpoint.initialize()
    await endpoint.post(session, call("wait", 5, name="mine"))
    await scene["mine"].started.wait()
    assert (await endpoint.ask("POST", other, cancel(5))).status == 202
    await wait_all_tasks_blocked()
    assert not scene["mine"].ended.is_set()


# Batches


@pytest.mark.parametrize("members", ["requests", "notifications", "answers"])
async def test_batch_in_a_later_revision_gets_status_400_and_runs_nothing(
    endpoint: MemoryEndpoint, members: str
) -> None:
    session = await endpoint.initialize(MIDDLE)
    listening = await endpoint.get(session)
    await listening.head()
    batch = {
        "requests": [call("echo", 1, text="a")],
        "notifications": [message("notifications/unknown")],
        "answers": [{"jsonrpc": "2.0", "id": 1, "result": {}}],
    }[members]
    answer = await endpoint.ask("POST", session, batch)
    assert (answer.status, answer.code) == (400, -32600)
    await endpoint.ask("DELETE", session)
    assert await rest_of(listening) == []


# What belongs to a call comes on its own stream


async def test_pr_07_lg_14_ch_19_notifications_of_a_call_are_sent_before_its_result(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    listening = await endpoint.get(session)
    await listening.head()
    posts = [await endpoint.post(session, call("steps", number, name=str(number))) for number in range(3)]
    for number in range(3):
        await scene[str(number)].started.wait()
        scene[str(number)].may_go_on.set()
    for number, post in enumerate(posts):
        *told, reply = messages_in(await post.answer())
        assert [each["params"]["data"] for each in told] == ["one", "two"]
        assert (reply["id"], text_of(reply)) == (number, "three")
    await endpoint.ask("DELETE", session)
    assert await rest_of(listening) == []


async def test_cx_06_custom_notification_of_a_handler_is_sent_on_the_stream_of_its_call(
    endpoint: MemoryEndpoint,
) -> None:
    session = await endpoint.initialize()
    listening = await endpoint.get(session)
    await listening.head()
    for answer in (
        await endpoint.ask("POST", session, call("notify")),
        await endpoint.modern("tools/call", {"name": "notify", "arguments": {}}),
    ):
        told, reply = messages_in(answer)
        assert (told["method"], told["params"]["n"], text_of(reply)) == ("notifications/scene", 1, "notified")
    await endpoint.ask("DELETE", session)
    assert await rest_of(listening) == []


@pytest.mark.parametrize("version", [OLDEST, MIDDLE, LEGACY])
async def test_s2c_07_sampling_request_is_sent_on_the_stream_of_its_call(
    endpoint: MemoryEndpoint, version: str
) -> None:
    session = await endpoint.initialize(version, **SAMPLING)
    post = await endpoint.post(session, call("ask", name="asker"))
    assert (await post.head()).headers["content-type"] == "text/event-stream"
    asked = await next_message(post)
    assert asked["method"] == "sampling/createMessage"
    result = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}
    answered = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
    assert answered.status == 202
    assert [text_of(reply) for reply in await rest_of(post)] == ["m has answered"]


async def test_sampling_answer_posted_to_another_session_is_ignored(scene: Scene, endpoint: MemoryEndpoint) -> None:
    session, other = [await endpoint.initialize(**SAMPLING) for _ in range(2)]
    post = await endpoint.post(session, call("ask", name="asker"))
    await post.head()
    asked = await next_message(post)
    await endpoint.ask("POST", other, {"jsonrpc": "2.0", "id": asked["id"], "result": {}})
    await wait_all_tasks_blocked()
    assert not scene["asker"].ended.is_set()


async def test_s2c_05_open_sampling_request_fails_when_its_session_is_deleted(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    await wait_all_tasks_blocked()
    tasks = trio.lowlevel.current_statistics().tasks_living
    session = await endpoint.initialize(**SAMPLING)
    post = await endpoint.post(session, call("ask", name="asker"))
    await post.head()
    await next_message(post)
    await endpoint.ask("DELETE", session)
    await scene["asker"].ended.wait()
    await rest_of(post)
    await post.aclose()
    await wait_all_tasks_blocked()
    failure = scene["asker"].failure
    assert failure is None or isinstance(failure, ConnectionLost)
    assert trio.lowlevel.current_statistics().tasks_living == tasks


# What belongs to the session


async def test_log_01_log_level_is_kept_per_session(endpoint: MemoryEndpoint) -> None:
    quiet, loud = await endpoint.initialize(), await endpoint.initialize()
    for session, level in ((quiet, "critical"), (loud, "debug")):
        answer = await endpoint.ask("POST", session, message("logging/setLevel", {"level": level}, 1))
        assert answer.json["result"] == {}
    bad = await endpoint.ask("POST", loud, message("logging/setLevel", {"level": "deafening"}, 2))
    assert bad.code == -32602
    told: list[list[str]] = []
    for session in (quiet, loud):
        answer = await endpoint.ask("POST", session, call("levels"))
        told.append([each["params"]["level"] for each in messages_in(answer) if "method" in each])
    assert told == [[], ["debug", "error"]]


async def test_resource_updates_are_sent_only_to_subscribed_sessions(scene: Scene, endpoint: MemoryEndpoint) -> None:
    subscribed, other = await endpoint.initialize(), await endpoint.initialize()
    streams = [await endpoint.get(session) for session in (subscribed, other)]
    for stream in streams:
        await stream.head()
    answer = await endpoint.ask("POST", subscribed, message("resources/subscribe", {"uri": "scene:thing"}, 1))
    assert answer.json["result"] == {}
    scene.server.resource_updated("scene:thing")
    told = await next_message(streams[0])
    assert told["method"] == "notifications/resources/updated"
    await endpoint.ask("POST", subscribed, message("resources/unsubscribe", {"uri": "scene:thing"}, 2))
    scene.server.resource_updated("scene:thing")
    for stream, session in zip(streams, (subscribed, other), strict=True):
        await endpoint.ask("DELETE", session)
        assert await rest_of(stream) == []


async def test_elicitation_complete_notification_is_sent_on_the_stream_of_its_call(endpoint: MemoryEndpoint) -> None:
    session = await endpoint.initialize(elicitation={"url": {}})
    answer = await endpoint.ask("POST", session, call("finish_elicitation"))
    told, reply = messages_in(answer)
    assert (told["method"], told["params"]) == ("notifications/elicitation/complete", {"elicitationId": "elicited"})
    assert text_of(reply) == "true"
