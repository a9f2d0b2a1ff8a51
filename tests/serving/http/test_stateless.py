"""A server over HTTP that keeps nothing: legacy clients without sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.serving.http.raw import BASE, INITIALIZE, LEGACY, message
from tests.serving.http.scenes import MemoryEndpoint, Scene, call, cancel, in_memory, messages_in, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CancelCause

OLDEST, MIDDLE = "2025-03-26", "2025-06-18"
CLIENT: dict[str, str | None] = {**BASE, "MCP-Protocol-Version": LEGACY}


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(scene.server, stateless=True) as one:
        yield one


async def test_st_01_initialize_creates_no_session(endpoint: MemoryEndpoint) -> None:
    answer = await endpoint.ask("POST", {**BASE}, INITIALIZE)
    assert answer.json["result"]["protocolVersion"] == LEGACY
    assert "mcp-session-id" not in answer.headers
    assert (await endpoint.ask("POST", CLIENT, message("notifications/initialized"))).status == 202


async def test_st_01_stateless_request_needs_no_handshake_and_ignores_session_ids(endpoint: MemoryEndpoint) -> None:
    for headers in (CLIENT, {**CLIENT, "Mcp-Session-Id": "of another replica"}):
        answer = await endpoint.ask("POST", headers, call("who"))
        seen = answer.json["result"]["structuredContent"]
        assert (seen["session"], seen["stateless"]) == (None, True)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_st_04_get_and_delete_requests_get_status_405_on_a_stateless_server(
    endpoint: MemoryEndpoint, method: str
) -> None:
    answer = await endpoint.ask(method, CLIENT)
    assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")


async def test_st_02_pr_07_lg_14_stateless_server_sends_progress_and_logs_on_the_response_stream(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    post = await endpoint.post(CLIENT, call("steps", 4, name="mine"))
    await scene["mine"].started.wait()
    scene["mine"].may_go_on.set()
    answer = await post.answer()
    assert all(event.id is None for event in answer.events)  # there is nothing to come back to
    *told, reply = messages_in(answer)
    assert [each["params"]["data"] for each in told] == ["one", "two"]
    assert (reply["id"], text_of(reply)) == (4, "three")


async def test_st_02_stateless_client_that_disconnects_cancels_its_request(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    post = await endpoint.post(CLIENT, call("wait", 1, name="mine"))
    other = await endpoint.post(CLIENT, call("wait", 1, name="other"))
    for name in ("mine", "other"):
        await scene[name].started.wait()
    await post.aclose()
    await scene["mine"].ended.wait()
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.DISCONNECT
    assert not scene["other"].ended.is_set()
    scene["other"].may_go_on.set()
    assert text_of(messages_in(await other.answer())[-1]) == "other is done"


async def test_st_02_stateless_client_that_disconnects_cancels_every_request_of_its_batch(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    names = ["one", "two"]
    batch = [call("wait", number, name=name) for number, name in enumerate(names)]
    post = await endpoint.post({**BASE, "MCP-Protocol-Version": OLDEST}, batch)
    for name in names:
        await scene[name].started.wait()
    await post.aclose()
    for name in names:
        await scene[name].ended.wait()
        cancellation = scene[name].cancellation
        assert cancellation is not None
        assert cancellation.cause is CancelCause.DISCONNECT


@pytest.mark.parametrize("version", [OLDEST, None])
async def test_stateless_batch_is_answered_with_one_array(endpoint: MemoryEndpoint, version: str | None) -> None:
    batch = [call("echo", 1, text="a"), call("echo", "1", text="b"), message("notifications/unknown")]
    answer = await endpoint.ask("POST", {**BASE, "MCP-Protocol-Version": version}, batch)
    assert {reply["id"]: text_of(reply) for reply in answer.json} == {1: "a", "1": "b"}


async def test_stateless_batch_in_a_later_revision_gets_status_400(endpoint: MemoryEndpoint) -> None:
    for batch in ([call("echo", 1, text="a")], [message("notifications/unknown")]):
        answer = await endpoint.ask("POST", {**BASE, "MCP-Protocol-Version": MIDDLE}, batch)
        assert (answer.status, answer.code) == (400, -32600)


async def test_st_03_stateless_cancelled_notification_gets_status_202_and_cancels_nothing(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    await endpoint.post(CLIENT, call("wait", 5, name="mine"))
    await scene["mine"].started.wait()
    accepted = await endpoint.ask("POST", CLIENT, cancel(5))
    assert (accepted.status, accepted.body) == (202, b"")
    await wait_all_tasks_blocked()
    assert not scene["mine"].ended.is_set()


async def test_st_03_sampling_in_a_stateless_handler_raises_no_back_channel(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    answer = await endpoint.ask("POST", CLIENT, call("ask", name="asker"))
    assert "result" in answer.json or "error" in answer.json
    assert scene["asker"].failure is not None
    assert type(scene["asker"].failure).__name__ == "NoBackChannel"


async def test_st_01_log_level_is_not_kept_for_the_next_stateless_request(endpoint: MemoryEndpoint) -> None:
    answer = await endpoint.ask("POST", CLIENT, message("logging/setLevel", {"level": "emergency"}, 1))
    assert answer.json["result"] == {}
    told = messages_in(await endpoint.ask("POST", CLIENT, call("levels")))
    assert [each["params"]["level"] for each in told if "method" in each] == ["error"]


async def test_hundred_stateless_requests_with_the_same_id_are_independent(endpoint: MemoryEndpoint) -> None:
    answers: list[str] = []

    async def ask(number: int) -> None:
        answer = await endpoint.ask("POST", CLIENT, call("echo", 1, text=str(number)))
        assert text_of(answer.json) == str(number)
        answers.append(str(number))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, number)
    assert len(answers) == 100


@pytest.mark.parametrize("body", [{"jsonrpc": "2.0", "id": 1, "result": {}}, message("notifications/x")])
async def test_responses_and_notifications_posted_to_a_stateless_server_get_status_202(
    endpoint: MemoryEndpoint, body: Any
) -> None:
    answer = await endpoint.ask("POST", CLIENT, body)
    assert (answer.status, answer.body) == (202, b"")
