"""States of tasks on streams of ``subscriptions/listen`` through a proxy."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.proxying.test_messages import LEGACY, MODERN, between
from tests.proxying.test_tasks_extension import CLIENT, CREATED, OURS, TASK, THEIRS
from tests.proxying.test_tasks_of_others import before, client_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.protocol.revisions import LATEST_MODERN
from trio_mcp.proxying.listening import TaskStates
from trio_mcp.state.events import NotificationReceived
from trio_mcp.testing import MissingMessage, ScriptedServer, open_scripted_client

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LISTEN, ACKNOWLEDGED, STATE = (
    "subscriptions/listen",
    "notifications/subscriptions/acknowledged",
    "notifications/tasks",
)


def state(task_id: str, request_id: Any, **more: Any) -> dict[str, Any]:
    return {**TASK, "taskId": task_id, **more, "_meta": {"com.example/x": 1, SUBSCRIPTION: request_id}}


async def acknowledge(server: ScriptedServer, asked: Any, task_ids: list[str]) -> Any:
    """Wait for a stream, agree to tell of these tasks, and return the request."""
    request = await server.expect_request(LISTEN, {"notifications": asked, "_meta": ...})
    params = {"notifications": {"taskIds": task_ids}, "_meta": {SUBSCRIPTION: request["id"]}}
    await server.notify(ACKNOWLEDGED, params)
    return request


async def test_proxy_forwards_task_status_notifications_only_for_subscribed_tasks(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        listening = await acknowledge(server, {"taskIds": ["t-1", "t-2"]}, ["t-1"])
        assert listening["params"]["_meta"][CLIENT] == OURS
        for task_id in ("t-1", "t-3"):
            await server.notify(STATE, state(task_id, listening["id"], status="completed", result={"content": []}))

    async with between(behind, MODERN, OURS) as client:
        asked = {"notifications": {"taskIds": ["t-1", "t-2", "t-1"]}}
        listening = await client.request(LISTEN, asked, id="mine")
        told = await client.expect({"method": ACKNOWLEDGED, "params": ...})
        assert told["params"]["notifications"] == {"taskIds": ["t-1"]}
        told = await client.expect({"method": STATE, "params": ...})
        assert told["params"] == state("t-1", listening, status="completed", result={"content": []})
        await client.expect_silence(1)


async def test_listen_request_for_tasks_without_the_extension_gets_a_missing_capability_error(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)

    async with between(behind, MODERN) as client:
        error = await client.expect_error(await client.request(LISTEN, {"notifications": {"taskIds": ["t"]}}), -32021)
        assert error["data"] == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


@pytest.mark.parametrize("back", [LEGACY, MODERN])
async def test_proxy_acknowledges_no_task_subscription_if_the_server_lacks_the_tasks_extension(
    autojump_clock: MockClock, back: str
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(back, {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}})
        if back == MODERN:
            request = await server.expect_request(LISTEN, {"notifications": {}, "_meta": ...})
            await server.notify(ACKNOWLEDGED, {"notifications": {}, "_meta": {SUBSCRIPTION: request["id"]}})

    async with before(script, back, shares=True) as way, open_scripted_client(way, MODERN, OURS) as client:
        await client.request(LISTEN, {"notifications": {"taskIds": ["t"]}})
        told = await client.expect({"method": ACKNOWLEDGED, "params": ...})
        assert told["params"]["notifications"] == {}


@pytest.mark.parametrize("shares", [False, True])
async def test_principal_cannot_listen_to_tasks_of_another_principal(autojump_clock: MockClock, shares: bool) -> None:
    asked: list[Any] = []

    async def script(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        try:
            while True:
                message = await server.receive()
                if message["method"] == "tools/call":
                    await server.answer(message, CREATED)
                elif message["method"] == LISTEN:
                    asked.append(message["params"]["notifications"])
                    await server.notify(ACKNOWLEDGED, {"notifications": {}, "_meta": {SUBSCRIPTION: message["id"]}})
        except MissingMessage:
            return

    async with before(script, MODERN, shares=shares) as way:
        for name in ("ann", "bob"):
            async with client_of(way, name, MODERN) as client:
                if name == "ann":
                    await client.expect_result(await client.call_tool("t"))
                await client.request(LISTEN, {"notifications": {"taskIds": ["t-1"]}})
                await client.expect({"method": ACKNOWLEDGED, "params": ...})
    assert asked == [{"taskIds": ["t-1"]}, {}]


class Reader:
    """A client that reads when it is told to: what the states of tasks see of a stream."""

    def __init__(self) -> None:
        self.reads = trio.Event()
        self.told: list[dict[str, Any]] = []

    async def room(self) -> None:
        await self.reads.wait()

    def notify_task(self, params: dict[str, Any]) -> None:
        self.told.append(params)


def told(task_id: str, number: int) -> NotificationReceived:
    return NotificationReceived(LATEST_MODERN._methods[STATE], {"taskId": task_id, "number": number}, LATEST_MODERN)


async def test_slow_listen_stream_through_a_proxy_gets_only_the_latest_status_of_each_task(
    autojump_clock: MockClock,
) -> None:
    states, reader = TaskStates(["a", "b"], 1000), Reader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(states.send, reader)
        for number in range(100):
            states.put(told("a", number), 100)
            states.put(told("b", number), 100)
            states.put(told("c", number), 100)
        await wait_all_tasks_blocked()
        assert reader.told == []
        reader.reads.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert reader.told == [{"taskId": "a", "number": 99}, {"taskId": "b", "number": 99}]
    assert not states.overflowed.is_set()


async def test_proxy_ends_a_listen_stream_whose_pending_task_states_exceed_the_limit(autojump_clock: MockClock) -> None:
    states, reader = TaskStates(["a", "b", "c"], 250), Reader()
    for task_id in ("a", "b", "c"):
        assert not states.overflowed.is_set()
        states.put(told(task_id, 0), 100)
    assert states.overflowed.is_set()
    states.send_rest(reader)  # type: ignore[arg-type] - it is all that is used
    assert [each["taskId"] for each in reader.told] == ["b", "c"]
