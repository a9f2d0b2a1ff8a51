"""Notifications from the server: order, callbacks, and malformed ones."""

from __future__ import annotations

import json
import logging
import tracemalloc
from contextlib import nullcontext
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, Serve, methods_in, scripted, text_of
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits, PeerError, Progress
from trio_mcp.client.opening import open_client
from trio_mcp.types import LogParams

TOKENS_OF_NOBODY = ["unknown", 999, "", True, None, 1.5, [], {}]


async def test_log_callbacks_run_in_order_of_arrival_and_finish_before_call_returns(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        for number in range(20):
            await peer.log(number)
        await peer.text(call)
        await peer.log("after the answer")

    told: list[Any] = []

    async def slowly(message: LogParams) -> None:
        await trio.sleep(1)
        told.append(message.data)

    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly) as client:
        await client.call_tool("any")
        assert told == [*range(20)]
        await trio.sleep(10)
        assert told[-1] == "after the answer"


async def test_callbacks_for_list_and_resource_changes_run_one_at_a_time_in_order_of_arrival(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.notify("notifications/resources/updated", {"uri": "x:1"})
        await peer.notify("notifications/tools/list_changed")
        await peer.notify("notifications/resources/updated", {"uri": "x:2"})
        await peer.text(await peer.until("tools/call"))

    told: list[Any] = []

    async def slowly(change: str) -> None:
        told.append(("begin", change))
        await trio.sleep(1)
        told.append(("end", change))

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_resource_updated=slowly, on_list_changed=slowly) as client,
    ):
        await client.call_tool("any")
        await trio.sleep(10)
    assert told == [(step, change) for change in ("x:1", "tools", "x:2") for step in ("begin", "end")]


async def test_log_callbacks_finish_before_call_raises_error(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.log("before the error")
        await peer.error(call, -32603)

    told: list[Any] = []

    async def slowly(message: LogParams) -> None:
        await trio.sleep(1)
        told.append(message.data)

    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly) as client:
        with pytest.raises(Exception, match="-32603"):
            await client.call_tool("any")
        assert told == ["before the error"]


async def test_progress_callbacks_run_in_order_and_finish_before_call_returns(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        for number in range(20):
            await peer.progress(call, number, total=20, message=f"{number} of 20")
        await peer.text(call)
        await peer.progress(call, 99)

    seen: list[Progress] = []

    async def slowly(progress: Progress) -> None:
        await trio.sleep(1)
        seen.append(progress)

    async with scripted(script) as (channel, _), open_client(channel) as client:
        await client.call_tool("any", on_progress=slowly)
    assert seen == [Progress(number, 20, f"{number} of 20") for number in range(20)]


async def test_progress_callback_runs_in_the_task_of_its_call(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.progress(call, 1)
        await peer.text(call)

    tasks: list[trio.lowlevel.Task] = []
    async with scripted(script) as (channel, _), open_client(channel) as client:
        await client.call_tool("any", on_progress=lambda _: tasks.append(trio.lowlevel.current_task()))
    assert tasks == [trio.lowlevel.current_task()]


async def test_call_without_progress_callback_sends_no_progress_token(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        await client.call_tool("any")
    assert "_meta" not in peer.wire[-1]["params"]


@pytest.mark.parametrize("settled_by", ["a later answer", "a later error"])
async def test_s2c_02_list_changed_callback_can_list_tools_while_a_call_is_pending(
    autojump_clock: object, settled_by: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.notify("notifications/tools/list_changed")
        await peer.result(
            await peer.until("tools/list"), {"tools": [{"name": "new", "inputSchema": {"type": "object"}}]}
        )
        await (peer.text(call) if settled_by == "a later answer" else peer.error(call, -1))

    names: list[str] = []

    async def changed(kind: str) -> None:
        assert kind == "tools"
        names.extend([tool.name async for tool in client.list_tools()])

    async with scripted(script) as (channel, _), open_client(channel, on_list_changed=changed) as client:
        with trio.fail_after(1), nullcontext() if settled_by == "a later answer" else pytest.raises(PeerError):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert names == ["new"]


async def test_s2c_02_list_changed_callback_can_list_tools_of_a_server_process_during_a_call(serve_raw: Serve) -> None:
    raw = serve_raw(
        """
        handshake()
        call = until("tools/call")
        notify("notifications/tools/list_changed")
        result(until("tools/list"), {"tools": []})
        text(call)
        """,
    )

    async def changed(_: str) -> None:
        assert [tool async for tool in client.list_tools()] == []

    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", on_list_changed=changed) as client:
            assert text_of(await client.call_tool("any")) == "done"


async def test_progress_callback_can_make_another_call_with_the_client_that_runs_the_callback(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        outer = await peer.until("tools/call")
        await peer.log("before")
        await peer.progress(outer, 1)
        await peer.text(await peer.until("tools/call"), "inner")
        await peer.text(outer, "outer")

    inner: list[str] = []

    async def call_again(_: Progress) -> None:
        inner.append(text_of(await client.call_tool("inner")))

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_log=lambda _: None) as client,
    ):
        assert text_of(await client.call_tool("outer", on_progress=call_again)) == "outer"
    assert inner == ["inner"]


async def test_call_made_inside_a_log_callback_does_not_wait_for_later_log_callbacks(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.log("first")
        call = await peer.until("tools/call")
        await peer.log("second")
        await peer.text(call)

    told: list[Any] = []

    async def on_log(message: LogParams) -> None:
        told.append(message.data)
        if message.data == "first":
            await client.call_tool("from the callback")
            told.append("called")

    async with scripted(script) as (channel, _), open_client(channel, on_log=on_log) as client:
        await trio.sleep(1)
    assert told == ["first", "called", "second"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_err_02_exception_in_notification_callback_is_logged_and_call_succeeds(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.log("bad")
        await peer.log("good")
        await peer.text(call)

    told: list[Any] = []

    def plain(message: LogParams) -> None:
        told.append(message.data)
        if message.data == "bad":
            raise KeyError("callback")

    async def in_async(message: LogParams) -> None:
        plain(message)

    on_log = plain if kind == "plain" else in_async
    async with scripted(script) as (channel, _), open_client(channel, on_log=on_log) as client:
        assert text_of(await client.call_tool("any")) == "done"
    assert told == ["bad", "good"]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "a notification callback failed"
    ]
    caplog.clear()


@pytest.mark.parametrize("token", TOKENS_OF_NOBODY)
async def test_prg_04_progress_with_unknown_token_is_ignored(autojump_clock: object, token: Any) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.notify("notifications/progress", {"progressToken": token, "progress": 1})
        await peer.text(call)

    seen: list[Progress] = []
    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any", on_progress=seen.append)) == "done"
    assert seen == []


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"progress": 1},
        {"progressToken": "%"},
        {"progressToken": "%", "progress": "1"},
        {"progressToken": "%", "progress": None},
    ],
)
async def test_prg_04_malformed_progress_is_ignored(autojump_clock: object, params: Any) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        body = dict(params) if isinstance(params, dict) else params
        if isinstance(body, dict) and "progressToken" in body:
            body["progressToken"] = call["params"]["_meta"]["progressToken"]
        await peer.send({"method": "notifications/progress"} | ({} if params is None else {"params": body}))
        await peer.progress(call, 2)
        await peer.text(call)

    seen: list[Progress] = []
    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert text_of(await client.call_tool("any", on_progress=seen.append)) == "done"
    assert seen == [Progress(2)]


async def test_prg_04_client_ignores_progress_of_a_server_process_with_an_unknown_token(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw(
        """
        opened()
        first = until("tools/call")
        progress(first, 1); text(first); progress(first, 2)
        second = until("tools/call")
        token = second["params"]["_meta"]["progressToken"]
        for nobody in ("unknown", 999, str(token), "", True, None, 1.5, [], {}):
            notify("notifications/progress", {"progressToken": nobody, "progress": 1})
        notify("notifications/progress", {"progress": 1})
        notify("notifications/progress")
        progress(second, 3); text(second)
        """,
    )
    seen: list[float] = []
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era) as client:
            for _ in range(2):
                await client.call_tool("any", on_progress=lambda progress: seen.append(progress.progress))
    assert seen == [1, 3]


async def test_progress_callback_receives_only_progress_of_its_own_call(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        calls = [await peer.until("tools/call") for _ in range(3)]
        for step in range(4):
            for number, call in enumerate(calls):
                await peer.progress(call, step * 10 + int(call["params"]["name"]))
                if step == 3:
                    await peer.text(calls[number])

    async with scripted(script) as (channel, _), open_client(channel) as client:
        seen: dict[int, list[float]] = {0: [], 1: [], 2: []}

        async def call(number: int) -> None:
            await client.call_tool(str(number), on_progress=lambda p: seen[number].append(p.progress))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(call, number)
    assert seen == {number: [number, 10 + number, 20 + number, 30 + number] for number in range(3)}


@pytest.mark.parametrize("listening", [False, True])
async def test_bpl_02_client_handles_ten_thousand_notifications_before_the_response(
    serve_raw: Serve, listening: bool
) -> None:
    raw = serve_raw(
        """
        handshake()
        call = until("tools/call")
        params = {"level": "info", "data": "x" * 200}
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).encode() + b"\\n"
        write(line * 10_000)
        text(call)
        """,
    )
    count = 0

    def on_log(_: LogParams) -> None:
        nonlocal count
        count += 1

    options: Any = {"on_log": on_log} if listening else {}
    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", **options) as client:
            assert text_of(await client.call_tool("any")) == "done"
    assert count == (10_000 if listening else 0)


async def test_bpl_02_client_limits_pending_notifications_while_a_log_callback_blocks(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for _ in range(500):
            await peer.log("x" * 10_000)
        await peer.result(await peer.until("ping"), {})

    async def stuck(_: LogParams) -> None:
        await trio.sleep_forever()

    limits = Limits(max_pending_notifications=5)
    async with scripted(script) as (channel, _), open_client(channel, on_log=stuck, limits=limits):
        tracemalloc.start()
        try:
            await trio.sleep(1)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 500_000


async def test_large_log_notifications_inside_batches_count_towards_max_inbound_bytes(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake("2025-03-26")
        nothing = {"jsonrpc": "2.0", "method": "notifications/nothing"}
        for number in range(6):
            params = {"level": "info", "data": [number, "x" * 100_000]}
            log = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
            await peer.write(json.dumps([log, *[nothing] * 99]))

    told: list[Any] = []
    free = trio.Event()

    async def slowly(message: LogParams) -> None:
        told.append(message.data[0])
        await free.wait()

    limits = Limits(max_inbound_bytes=250_000)
    async with scripted(script) as (channel, _), open_client(channel, on_log=slowly, limits=limits):
        await trio.sleep(1)
        free.set()
        await trio.sleep(1)
    assert told == [0, 4, 5], "the oldest of those that wait made room"


async def test_rpc_06_client_ignores_unknown_or_malformed_notifications(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.notify("notifications/nobody_knows", {"x": 1})
        await peer.notify("nonsense")
        await peer.notify("notifications/message")
        await peer.notify("notifications/message", {"level": 5})
        await peer.notify("notifications/resources/updated", {"uri": []})
        await peer.send({"method": "notifications/tools/list_changed", "params": [1]})
        await peer.send({"method": "notifications/cancelled", "params": {"requestId": {}}})
        await peer.send({"method": "notifications/initialized"})
        await peer.log("good")
        await peer.text(await peer.until("tools/call"))

    told: list[Any] = []
    async with (
        scripted(script) as (channel, peer),
        open_client(
            channel,
            on_log=lambda log: told.append(log.data),
            on_resource_updated=told.append,
            on_list_changed=told.append,
        ) as client,
    ):
        assert text_of(await client.call_tool("any")) == "done"
    assert told == ["good"]
    assert all("error" not in message for message in peer.wire)
    assert methods_in(peer.wire)[-1] == "tools/call"


async def test_client_reads_optional_log_and_progress_fields_of_wrong_type_as_none(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        token = call["params"]["_meta"]["progressToken"]
        await peer.notify("notifications/message", {"level": "info", "data": "a", "logger": 5, "_meta": []})
        await peer.notify("notifications/progress", {"progressToken": token, "progress": 1, "total": "2"})
        await peer.notify("notifications/progress", {"progressToken": token, "progress": 2, "message": {}})
        await peer.notify("notifications/progress", {"progressToken": token, "progress": "3"})
        await peer.text(call)

    logs: list[Any] = []
    reports: list[Any] = []

    def on_progress(progress: Progress) -> None:
        reports.append((progress.progress, progress.total, progress.message))

    async with (
        scripted(script) as (channel, _),
        open_client(channel, on_log=lambda log: logs.append((log.data, log.logger))) as client,
    ):
        assert text_of(await client.call_tool("any", on_progress=on_progress)) == "done"
    assert logs == [("a", None)]
    assert reports == [(1, None, None), (2, None, None)]


async def test_rpc_06_client_ignores_unknown_or_malformed_notifications_of_a_server_process(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw(
        """
        opened()
        notify("notifications/nobody_knows", {"x": 1})
        notify("nonsense")
        notify("notifications/message", {"level": 5})
        notify("notifications/progress", {"progressToken": {}})
        notify("notifications/resources/updated", {"uri": []})
        notify("notifications/cancelled", {"requestId": {}})
        text(until("tools/call"))
        """
    )
    told: list[Any] = []
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era, on_log=told.append, on_resource_updated=told.append) as client:
            assert text_of(await client.call_tool("any")) == "done"
    assert told == []
    assert methods_in(raw.wire)[-1] == "tools/call"
    assert all("method" in message for message in raw.wire)
