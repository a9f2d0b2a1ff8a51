"""Streams that tell of tasks: `subscriptions/listen` with `taskIds`."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import MODERN, MemoryPeer, connected_twice
from tests.server.extension import EXTENSION, KNOWS, about, knowing, slow_server, state_of, task_of
from tests.server.listening import ACKNOWLEDGED, SUBSCRIPTION_ID, noted, subscription_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, RequestContext, Server, TaskSettings
from trio_mcp.runtime.peer import Peer
from trio_mcp.server.connection import ServerConnection
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import StoredTask
from trio_mcp.testing.stores.task_store_records import change
from trio_mcp.transports.lines import memory_transport_pair

TASKS = "notifications/tasks"


async def listen(peer: MemoryPeer, *task_ids: Any, id: Any = 1, **more: Any) -> dict[str, Any]:
    """Open a stream, and return the acknowledged part of what is asked."""
    notifications = {"taskIds": list(task_ids), **more}
    await peer.send(peer.message("subscriptions/listen", {"notifications": notifications}, id=id))
    acknowledged = await peer.notification(ACKNOWLEDGED)
    assert acknowledged["_meta"][SUBSCRIPTION_ID] == id
    return acknowledged["notifications"]


async def told(peer: MemoryPeer) -> dict[str, Any]:
    """What is told of a task next."""
    return await peer.notification(TASKS)


async def test_listen_acknowledges_only_known_task_ids(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "work", {"seconds": 5})
        assert await listen(peer, "unknown", task, task) == {"taskIds": [task]}
        assert await listen(peer, "unknown", id=2) == {}


async def test_listen_does_not_acknowledge_a_task_of_another_principal(autojump_clock: MockClock) -> None:
    async with connected_twice(slow_server(), principals=("ann", "bob")) as (ann, bob):
        for peer in (ann, bob):
            await peer.open(MODERN, KNOWS)
        task = await task_of(ann, "work", {"seconds": 5})
        assert await listen(bob, task) == {}
        await trio.sleep(10)
        assert await bob.everything(1) == []


async def test_listen_stream_sends_each_task_state_in_the_form_of_a_tasks_get_result(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 1})
        await wait_all_tasks_blocked()
        await listen(peer, task)
        states: list[dict[str, Any]] = []
        for status in ("input_required", "working", "completed"):
            state = await told(peer)
            assert state["status"] == status
            assert state.pop("_meta") == {SUBSCRIPTION_ID: 1}
            states.append(state)
            if status == "input_required":
                (key,) = state["inputRequests"]
                answer = {"action": "accept", "content": {"name": "Ann"}}
                await peer.send(
                    peer.message("tasks/update", {"taskId": task, "inputResponses": {key: answer}}, id="update")
                )
        read = await about(peer, "tasks/get", task)
        assert states[-1] == {name: value for name, value in read.items() if name not in ("resultType", "_meta")}


async def test_listen_request_for_a_finished_task_sends_its_final_state_immediately(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "work")
        await state_of(peer, task)
        await listen(peer, task)
        assert (await told(peer))["status"] == "completed"


async def test_slow_listener_of_a_task_receives_only_the_latest_states(autojump_clock: MockClock) -> None:
    server = Server("chatty", limits=Limits(high_water=256, progress_interval=0.01))
    go = trio.Event()

    @server.tool(task="required")
    async def chat(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        await go.wait()
        for number in range(1000):
            ctx.task.status(f"step {number}")
            await trio.sleep(0.02)
        return "x" * 1000

    ours, theirs = memory_transport_pair(64)
    async with server._running() as running, trio.open_nursery() as nursery:
        await nursery.start(ServerConnection(running, theirs, Peer()).run)
        peer = MemoryPeer(ours)
        await peer.open(MODERN, KNOWS)
        task = await task_of(peer, "chat")
        await listen(peer, task)
        assert (await told(peer))["status"] == "working"
        go.set()
        await trio.sleep(100)
        states = [message["params"] for message in await peer.everything(1)]
        nursery.cancel_scope.cancel()
    assert states[-1]["status"] == "completed"
    assert len(states) < 20


async def test_listen_with_task_ids_is_rejected_without_the_tasks_extension(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(), {}) as peer:
        for task_ids in (["t"], []):
            reply = await peer.request("subscriptions/listen", {"notifications": {"taskIds": task_ids}})
            assert reply["error"]["code"] == -32021
            assert reply["error"]["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


async def test_server_without_task_tools_acknowledges_no_task_ids_in_listen(autojump_clock: MockClock) -> None:
    async with knowing(noted()) as peer:
        assert await listen(peer, "t", toolsListChanged=True) == {"toolsListChanged": True}


async def test_listen_does_not_acknowledge_tasks_beyond_the_subscription_limit(autojump_clock: MockClock) -> None:
    server = slow_server()
    server.limits = Limits(max_subscriptions=3)
    async with knowing(server) as peer:
        tasks = [await task_of(peer, "work", {"seconds": 5}) for _ in range(4)]
        assert await listen(peer, *tasks[:2]) == {"taskIds": tasks[:2]}
        assert await listen(peer, *tasks[2:], id=2) == {"taskIds": tasks[2:3]}


async def test_listen_stream_sends_task_states_together_with_list_changes(
    autojump_clock: MockClock,
) -> None:
    server = slow_server()
    async with knowing(server) as peer:
        task = await task_of(peer, "work", {"seconds": 5})
        await listen(peer, task, toolsListChanged=True)
        server.remove_tool("greet")
        await peer.notification("notifications/tools/list_changed")
        await peer.cancel(1)
        await trio.sleep(10)
        assert [m for m in await peer.everything(1) if subscription_of(m) == 1 and m["method"] != TASKS] == []


async def test_cancelled_listen_stream_sends_no_more_task_states(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "work", {"seconds": 5})
        await listen(peer, task)
        await told(peer)
        await peer.cancel(1)
        assert await peer.everything(20) == []


async def test_server_that_ends_a_listen_stream_with_tasks_sends_a_result(autojump_clock: MockClock) -> None:
    server = slow_server()
    ours, theirs = memory_transport_pair()
    async with server._running() as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs, Peer())
        await nursery.start(connection.run)
        peer = MemoryPeer(ours)
        await peer.open(MODERN, KNOWS)
        task = await task_of(peer, "work", {"seconds": 5})
        await listen(peer, task)
        connection.connection.exchange.ending.set()
        assert (await peer.reply(1))["result"]["_meta"][SUBSCRIPTION_ID] == 1
        nursery.cancel_scope.cancel()


async def test_listen_stream_sends_states_of_a_task_on_another_server_with_the_same_store(
    autojump_clock: MockClock,
) -> None:
    store = MemoryTaskStore()
    async with knowing(slow_server(store=store)) as here, knowing(slow_server(store=store)) as there:
        task = await task_of(here, "work", {"seconds": 5})
        await listen(there, task)
        assert (await told(there))["status"] == "working"
        assert (await told(there))["status"] == "completed"


class MoodyStore(MemoryTaskStore):
    """A store that cannot read now and then."""

    broken = False

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        if self.broken:
            raise OSError("no disk")
        return await super().read(scope, task_id)


async def test_listen_stream_sends_task_states_later_if_the_store_fails_temporarily(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MoodyStore()
    async with knowing(slow_server(store=store)) as peer:
        task = await task_of(peer, "ask", {"names": 1})
        await wait_all_tasks_blocked()
        await listen(peer, task)
        assert (await told(peer))["status"] == "input_required"
        (record,) = await store.page("", None, 10)
        await change(store, record, message="new")
        store.broken = True
        await trio.sleep(3)
        store.broken = False
        assert (await told(peer))["statusMessage"] == "new"
    assert caplog.text.count("the task store cannot be read") == 1
    assert "the task store works again" in caplog.text


class DeafStore(MemoryTaskStore):
    """A store that gives no hints."""

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str]]:
        send, receive = trio.open_memory_channel[str](0)
        async with send, receive:
            yield receive


async def test_listen_stream_sends_a_task_state_at_the_next_poll_without_store_notifications(
    autojump_clock: MockClock,
) -> None:
    store = DeafStore()
    async with knowing(slow_server(store=store)) as here, knowing(slow_server(store=store)) as there:
        task = await task_of(here, "work", {"seconds": 5})
        await listen(there, task)
        assert (await told(there))["status"] == "working"
        assert (await told(there))["status"] == "completed"


async def test_listen_stream_reports_a_task_as_failed_if_the_task_ttl_expires_before_any_result(
    autojump_clock: MockClock,
) -> None:
    server = Server("s", tasks=TaskSettings())

    @server.tool
    async def hand_on(ctx: RequestContext) -> str:
        assert ctx.caller_tasks is not None
        return (await ctx.caller_tasks.create_task(ttl=60)).id

    @server.tool(task="optional")
    async def work() -> None: ...

    async with knowing(server) as peer:
        task = await peer.text("hand_on")
        await listen(peer, task)
        assert (await told(peer))["status"] == "working"
        assert (await told(peer))["status"] == "failed"


async def test_task_is_not_polled_after_its_last_listen_stream_ended(autojump_clock: MockClock) -> None:
    store = CountingStore()
    async with knowing(slow_server(store=store)) as peer:
        ended, running = await task_of(peer, "work"), await task_of(peer, "work", {"seconds": 200})
        await wait_all_tasks_blocked()
        await listen(peer, ended, running)
        await trio.sleep(10)
        store.marked_ids.clear()
        await trio.sleep(20)
        assert store.marked_ids == {running}
        gone = await task_of(peer, "work")
        await listen(peer, gone, id=2)
        await peer.cancel(2)
        store.read_ids.clear()
        store.marked_ids.clear()
        await trio.sleep(20)
        assert store.marked_ids == {running}, "that one runs here"
        assert store.read_ids == []


class CountingStore(MemoryTaskStore):
    """A store that notes the tasks that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_ids: list[str] = []
        self.marked_ids: set[str] = set()

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        self.read_ids.append(task_id)
        return await super().read(scope, task_id)

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        self.marked_ids.update(task_ids)
        return await super().marks(task_ids)


@pytest.mark.parametrize("seed", range(5))
async def test_listen_stream_ends_with_the_current_state_of_each_task(seed: int, autojump_clock: MockClock) -> None:
    chance = random.Random(seed)
    server = Server("many", limits=Limits(high_water=512, progress_interval=0.01))

    @server.tool(task="required")
    async def follow(steps: list[float], ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        for number, step in enumerate(steps):
            ctx.task.status(f"step {number}")
            await trio.sleep(step)
        return "x" * 100

    ours, theirs = memory_transport_pair(128)
    async with server._running() as running, trio.open_nursery() as nursery:
        await nursery.start(ServerConnection(running, theirs, Peer()).run)
        peer = MemoryPeer(ours)
        await peer.open(MODERN, KNOWS)
        tasks = [
            await task_of(peer, "follow", {"steps": [chance.random() for _ in range(chance.randrange(30))]})
            for _ in range(8)
        ]
        cancelled = chance.sample(tasks, 3)
        await listen(peer, *tasks)
        for task in cancelled:
            await peer.everything(chance.random())
            await about(peer, "tasks/cancel", task)
        await trio.sleep(60)
        await peer.everything(1)
        last = {params["taskId"]: params for params in peer.notifications(TASKS)}
        for task in tasks:
            state = await about(peer, "tasks/get", task)
            assert {**state, "_meta": None, "resultType": None} == {**last[task], "_meta": None, "resultType": None}
        nursery.cancel_scope.cancel()
