"""Leaving a call that became a task: exactly one ``tasks/cancel``, at whichever moment."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
import trio
from tests.client.rounds import FORM
from tests.client.scripted_tasks import TaskPeer, asks, core, created, state, with_core_tasks, with_tasks
from tests.interaction.client.raw import RawPeer, cancels_in, scripted
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Client, ConnectionLost
from trio_mcp.client.opening import open_client
from trio_mcp.types import LogParams


async def left_when(client: Client, event: Awaitable[object]) -> None:
    """Call a tool, and leave the call at the ``event``."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "any")
        await event
        nursery.cancel_scope.cancel()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("open_one", [with_tasks, with_core_tasks])
async def test_call_cancelled_between_two_polls_cancels_its_task(autojump_clock: object, open_one: Any) -> None:
    async with open_one(core if open_one is with_core_tasks else state) as (client, peer):

        async def between_looks() -> None:
            await peer.got("tasks/get", 3)
            await trio.sleep(0.5)

        await left_when(client, between_looks())
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]
        assert not cancels_in(peer.wire)


@pytest.mark.parametrize("open_one", [with_tasks, with_core_tasks])
async def test_call_cancelled_during_a_poll_cancels_its_task(autojump_clock: object, open_one: Any) -> None:
    async with open_one(lambda: None) as (client, peer):
        await left_when(client, peer.got("tasks/get"))
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]
        [look] = [message["id"] for message in peer.wire if message.get("method") == "tasks/get"]
        assert cancels_in(peer.wire) == [look]


async def test_call_cancelled_during_an_elicitation_cancels_its_task(autojump_clock: object) -> None:
    asked = trio.Event()

    async def wait(_: Any) -> Any:
        asked.set()
        await trio.sleep_forever()

    async with with_tasks(lambda: asks(who=FORM), elicitation=wait) as (client, peer):
        await left_when(client, asked.wait())
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_call_cancelled_during_tasks_result_cancels_its_task(autojump_clock: object) -> None:
    async with with_core_tasks(lambda: core("input_required")) as (client, peer):
        await wait_all_tasks_blocked()
        peer.outcome = None
        await left_when(client, peer.got("tasks/result"))
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]
        fetches = [message["id"] for message in peer.wire if message.get("method") == "tasks/result"]
        assert set(fetches) <= set(cancels_in(peer.wire))  # which ends the wait, and not the task


@pytest.mark.parametrize(("open_one", "made"), [(with_tasks, created()), (with_core_tasks, {"task": core()})])
async def test_call_cancelled_while_a_log_callback_delays_the_task_response_cancels_the_task(
    autojump_clock: object, open_one: Any, made: Any
) -> None:
    class Logging(TaskPeer):
        async def say(self, message: dict[str, Any], said: Any) -> None:
            if said == made:
                await self.log("a call returns when the callback is done with this")
            await super().say(message, said)

    logged = trio.Event()

    async def on_log(_: LogParams) -> None:
        logged.set()
        await trio.sleep(3)

    async with open_one(lambda: None, kind=Logging, on_log=on_log) as (client, peer):
        await left_when(client, logged.wait())
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]
        assert not peer.sent("tasks/get")
        assert not cancels_in(peer.wire)


@pytest.mark.parametrize("open_one", [with_tasks, with_core_tasks])
async def test_call_cancelled_before_the_server_returns_a_task_cancels_only_the_request(
    autojump_clock: object, open_one: Any
) -> None:
    async with open_one(lambda: None) as (client, peer):
        await wait_all_tasks_blocked()
        peer.made = None
        await left_when(client, peer.got("tools/call"))
        assert not peer.sent("tasks/cancel")
        assert len(cancels_in(peer.wire)) == 1


async def test_cancelled_scope_around_the_client_cancels_the_tasks_of_its_calls(autojump_clock: object) -> None:
    async def play(peer: RawPeer) -> None:
        assert isinstance(peer, TaskPeer)
        peer.look = lambda: None
        await peer.discovered()
        await peer.play()

    async with scripted(play, TaskPeer) as (channel, peer):
        assert isinstance(peer, TaskPeer)
        with trio.CancelScope() as everything:
            async with open_client(channel) as client, trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await peer.got("tasks/get")
                everything.cancel()
    assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


@pytest.mark.parametrize("open_one", [with_tasks, with_core_tasks])
async def test_client_that_closes_cancels_the_tasks_of_running_calls(autojump_clock: object, open_one: Any) -> None:
    async def call() -> None:
        with pytest.raises(ConnectionLost):
            await client.call_tool("any")

    async with trio.open_nursery() as nursery:
        look = core if open_one is with_core_tasks else state
        async with open_one(look) as (client, peer):
            nursery.start_soon(call)
            await peer.got("tasks/get")
    assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


@pytest.mark.parametrize("open_one", [with_tasks, with_core_tasks])
async def test_task_started_by_the_client_continues_if_the_wait_for_it_is_cancelled(
    autojump_clock: object, open_one: Any
) -> None:
    async with open_one(core if open_one is with_core_tasks else state) as (client, peer):
        task = await client.start_task("any")
        with trio.move_on_after(10):
            await task.result()
    assert peer.times
    assert not peer.sent("tasks/cancel")


async def test_start_task_call_that_is_cancelled_after_the_server_created_the_task_cancels_the_task(
    autojump_clock: object,
) -> None:
    class Logging(TaskPeer):
        async def say(self, message: dict[str, Any], said: Any) -> None:
            await self.log("a call returns when the callback is done with this")
            await super().say(message, said)

    async def on_log(_: LogParams) -> None:
        await trio.sleep(3)

    async with with_tasks(lambda: None, kind=Logging, on_log=on_log) as (client, peer):
        with trio.move_on_after(1):
            await client.start_task("any")
        await wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_tasks_cancel_request_of_a_cancelled_call_contains_version_and_capabilities_in_meta(
    autojump_clock: object,
) -> None:
    async with with_tasks(state) as (client, peer):
        await left_when(client, peer.got("tasks/get"))
        [meta] = [each["params"]["_meta"] for each in peer.wire if each.get("method") == "tasks/cancel"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert "io.modelcontextprotocol/tasks" in meta["io.modelcontextprotocol/clientCapabilities"]["extensions"]
