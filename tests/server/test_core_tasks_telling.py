"""A task of 2025-11-25 tells its client of its progress, its logs and its status, and says in each message that the
message is the task's."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from trio_mcp import Limits, RequestContext, Server
from trio_mcp.runtime.peer import SOLE_CLIENT
from trio_mcp.server.servable import connection_to
from trio_mcp.testing import ScriptedClient, open_scripted_client
from trio_mcp.transports.lines import memory_transport_pair

LEGACY = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"


class Scene:
    """A server whose tool ``work`` tells something whenever a test lets it."""

    def __init__(self) -> None:
        self.server = server = Server("s", limits=Limits(drain_timeout=0.01))
        self.send, receive = trio.open_memory_channel[str](10)

        @server.tool(task="optional")
        async def work(ctx: RequestContext) -> str:
            async for what in receive:
                match what:
                    case "progress":
                        ctx.progress(1, 2, "half")
                    case "log":
                        await ctx.log.warning("careful", logger="me")
                    case "notify":
                        await ctx.send_notification("acme/event", {"n": 1, "_meta": {"acme": 2}})
                    case "status":
                        assert ctx.task is not None
                        ctx.task.status("on the way")
                    case "fail":
                        raise RuntimeError("no")
                    case _:
                        return what
            return ""


async def create(client: ScriptedClient, **meta: Any) -> str:
    asked = await client.request("tools/call", {"name": "work", "arguments": {}, "task": {}}, meta=meta)
    return (await client.expect_result(asked))["task"]["taskId"]


async def test_progress_of_a_legacy_task_has_the_token_of_the_call_and_related_task_meta(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        task = await create(client, progressToken="mine")
        await scene.send.send("progress")
        told = await client.expect({"method": "notifications/progress", "params": ...})
        assert told["params"] == {
            "progressToken": "mine",
            "progress": 1,
            "total": 2,
            "message": "half",
            "_meta": {RELATED: {"taskId": task}},
        }


async def test_log_message_of_a_legacy_task_has_related_task_meta(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        task = await create(client)
        await scene.send.send("log")
        told = await client.expect({"method": "notifications/message", "params": ...})
        assert told["params"] == {
            "level": "warning",
            "logger": "me",
            "data": "careful",
            "_meta": {RELATED: {"taskId": task}},
        }


async def test_log_level_of_the_client_applies_to_legacy_tasks(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        await client.expect_result(await client.request("logging/setLevel", {"level": "error"}))
        await create(client)
        await scene.send.send("log")
        await client.expect_silence(1)


async def test_custom_notification_of_a_legacy_task_keeps_its_meta_and_gets_related_task_meta(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        task = await create(client)
        await scene.send.send("notify")
        told = await client.expect({"method": "acme/event", "params": ...})
        assert told["params"] == {"n": 1, "_meta": {"acme": 2, RELATED: {"taskId": task}}}


async def test_notifications_of_a_call_without_a_task_have_no_related_task_meta(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        await client.request("tools/call", {"name": "work", "arguments": {}}, meta={"progressToken": 1})
        for what in ("progress", "log", "notify", "end"):
            await scene.send.send(what)
            assert RELATED not in str(await client.receive())


async def test_client_is_notified_if_its_task_completes(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        task = await create(client)
        await scene.send.send("end")
        told = (await client.expect({"method": "notifications/tasks/status", "params": ...}))["params"]
        state = await client.expect_result(await client.request("tasks/get", {"taskId": task}))
    assert told == state
    assert told["status"] == "completed"
    assert "_meta" not in told


async def test_client_is_notified_if_its_task_fails(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        await create(client)
        await scene.send.send("fail")
        told = (await client.expect({"method": "notifications/tasks/status", "params": ...}))["params"]
    assert (told["status"], told["statusMessage"]) == ("failed", "internal error in tool work")


async def test_client_is_notified_if_its_task_is_cancelled(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        task = await create(client)
        cancel = await client.request("tasks/cancel", {"taskId": task})
        messages = [await client.receive(), await client.receive()]
    assert {each.get("id") for each in messages} == {cancel, None}
    assert [each["params"]["status"] for each in messages if "method" in each] == ["cancelled"]


async def test_task_that_only_changes_its_status_message_sends_no_notification(autojump_clock: MockClock) -> None:
    scene = Scene()
    async with open_scripted_client(scene.server, LEGACY) as client:
        await create(client)
        await scene.send.send("status")
        await client.expect_silence(1)


async def test_task_that_logs_does_not_wait_after_its_client_disconnects(autojump_clock: MockClock) -> None:
    server = Server("s", limits=Limits(drain_timeout=0.01))
    gone, done = trio.Event(), trio.Event()

    @server.tool(task="optional")
    async def chatty(ctx: RequestContext) -> str:
        await gone.wait()
        for number in range(2000):
            await ctx.log.error("x" * 1000)
            await ctx.send_notification("acme/event", {"text": "x" * 1000})
            ctx.progress(number)
        done.set()
        return "done"

    async with server._running() as running:
        ours, theirs = memory_transport_pair()
        async with trio.open_nursery() as nursery:
            await nursery.start(connection_to(running, theirs, SOLE_CLIENT).run)
            client = ScriptedClient(ours)
            await client.open(LEGACY)
            await client.request("tools/call", {"name": "chatty", "arguments": {}, "task": {}})
            await client.receive()
            await client.aclose()
        gone.set()
        await done.wait()
