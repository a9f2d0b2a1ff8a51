"""A call returns after the callbacks for its own notifications, and waits for no other callbacks."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, Serve, scripted, text_of
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits
from trio_mcp.client.opening import open_client
from trio_mcp.types import LogParams


async def test_list_changed_callback_can_wait_for_another_trio_task_that_lists_tools(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for _ in range(2):
            listing = await peer.until("tools/list")
            await peer.notify("notifications/tools/list_changed")
            await peer.result(listing, {"tools": []})

    changes, changed = trio.open_memory_channel[str](0)
    listed = 0

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_list_changed=changes.send) as client,
    ):
        with trio.fail_after(1):
            for _ in range(2):  # the change that came while it listed is handed over after that
                assert [tool async for tool in client.list_tools()] == []
                assert await changed.receive() == "tools"
                listed += 1
    assert listed == 2


_CHANGING = {
    "legacy": """
        handshake()
        told = {}
        """,
    "modern": """
        discover = until("server/discover")
        result(discover, {
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
            "capabilities": {"tools": {"listChanged": True}},
        })
        listen = until("subscriptions/listen")
        told = {"_meta": {"io.modelcontextprotocol/subscriptionId": listen["id"]}}
        notify("notifications/subscriptions/acknowledged", {**told, "notifications": {"toolsListChanged": True}})
        """,
}


async def test_list_changed_callback_can_wait_for_a_trio_task_that_lists_tools_of_a_server_process(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw(
        _CHANGING[era]
        + """
        for _ in range(3):
            listing = until("tools/list")
            notify("notifications/tools/list_changed", told)
            result(listing, {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
        """
    )
    changes, changed = trio.open_memory_channel[str](0)
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era, on_list_changed=changes.send) as client:
            for _ in range(3):
                assert [tool async for tool in client.list_tools()] == []
                assert await changed.receive() == "tools"


@pytest.mark.parametrize("kind", ["tools", "resource"])
async def test_slow_list_changed_callback_does_not_delay_calls(autojump_clock: object, kind: str) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for _ in range(3):
            call = await peer.until("tools/call")
            for _ in range(2):
                if kind == "tools":
                    await peer.notify("notifications/tools/list_changed")
                else:
                    await peer.notify("notifications/resources/updated", {"uri": "x:y"})
            await peer.text(call)

    told: list[str] = []

    async def slowly(what: str) -> None:
        await trio.sleep(2)
        told.append(what)

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_list_changed=slowly, on_resource_updated=slowly) as client,
    ):
        began = trio.current_time()
        for _ in range(3):
            await client.call_tool("any")
        assert trio.current_time() == pytest.approx(began)
        await trio.sleep(12.5)
    assert len(told) == 6


async def test_slow_list_changed_callback_does_not_delay_log_callbacks(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.notify("notifications/tools/list_changed")
        await peer.log("row 1")
        await peer.text(call)

    logged: list[Any] = []

    async def for_ever(_: str) -> None:
        await trio.sleep_forever()

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_list_changed=for_ever, on_log=lambda log: logged.append(log.data)) as client,
    ):
        with trio.fail_after(1):
            await client.call_tool("any")
        assert logged == ["row 1"]


async def test_call_does_not_wait_for_callbacks_of_logs_received_before_it_was_sent(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.log("of nobody")
        await peer.text(await peer.until("tools/call"))

    async def slowly(_: LogParams) -> None:
        await trio.sleep(2)

    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly) as client:
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await client.call_tool("any")
        assert trio.current_time() == pytest.approx(began)


async def test_log_callback_can_wait_for_another_trio_task_that_calls_tools(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        outer = await peer.until("tools/call")
        for number in range(3):
            await peer.log(number)
            inner = await peer.until("tools/call")
            await peer.log("of the inner call")
            await peer.text(inner)
        await peer.text(outer)

    logs, logged = trio.open_memory_channel[tuple[Any, trio.Event]](0)
    order: list[Any] = []

    async def on_log(message: LogParams) -> None:
        order.append(message.data)
        if isinstance(message.data, int):
            done = trio.Event()
            await logs.send((message.data, done))
            await done.wait()
            order.append(f"{message.data} is done")

    async def work() -> None:
        async for number, done in logged:
            await client.call_tool(str(number))
            done.set()

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_log=on_log) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(work)
        with trio.fail_after(1):
            await client.call_tool("outer")
        nursery.cancel_scope.cancel()
    assert order == [
        0,
        "0 is done",
        "of the inner call",
        1,
        "1 is done",
        "of the inner call",
        2,
        "2 is done",
        *order[8:],
    ]
    assert order[8:] == ["of the inner call"]


async def test_call_made_while_a_log_callback_runs_waits_for_the_callbacks_of_its_own_logs(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.log("before")
        call = await peer.until("tools/call")
        await peer.log("its own")
        await trio.sleep(3)
        await peer.text(call)

    told: list[Any] = []

    async def slowly(message: LogParams) -> None:
        await trio.sleep(2)
        told.append(message.data)

    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly) as client:
        await wait_all_tasks_blocked()
        await client.call_tool("any")
        assert told == ["before", "its own"]


async def test_log_callback_that_waits_for_a_pending_call_delays_the_call_by_at_most_callback_grace(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        while True:
            call = await peer.until("tools/call")
            await peer.log(call["params"]["name"])
            await peer.text(call, call["params"]["name"])

    ready = trio.Event()

    async def on_log(_: LogParams) -> None:
        await ready.wait()

    limits = Limits(callback_grace=3)
    async with scripted(script) as (channel, _), open_client(channel, on_log=on_log, limits=limits) as client:
        began = trio.current_time()
        assert text_of(await client.call_tool("first")) == "first"
        assert trio.current_time() == pytest.approx(began + 3)
        assert text_of(await client.call_tool("second")) == "second"  # made while it hangs: it may be what that needs
        assert trio.current_time() == pytest.approx(began + 3)
        ready.set()
        await wait_all_tasks_blocked()
        assert text_of(await client.call_tool("third")) == "third"
        assert trio.current_time() == pytest.approx(began + 3)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "3 s" in record.getMessage()
    caplog.clear()


async def test_reply_waits_up_to_callback_grace_for_each_slow_callback(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        for number in range(5):
            await peer.log(number)
        await peer.text(call)

    told: list[Any] = []

    async def slowly(message: LogParams) -> None:
        await trio.sleep(2)
        told.append(message.data)

    limits = Limits(callback_grace=3)
    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly, limits=limits) as client:
        await client.call_tool("any")
        assert told == [0, 1, 2, 3, 4]


async def test_reply_waits_for_slow_log_callback_if_callback_grace_is_infinite(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.log("slow")
        await peer.text(call)

    async def slowly(_: LogParams) -> None:
        await trio.sleep(10_000)

    limits = Limits(callback_grace=math.inf)
    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly, limits=limits) as client:
        began = trio.current_time()
        await client.call_tool("any")
        assert trio.current_time() == pytest.approx(began + 10_000)
