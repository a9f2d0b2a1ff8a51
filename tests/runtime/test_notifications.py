from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.concurrency.bounded import Backlog
from trio_mcp.jsonrpc.codec import decode, encode
from trio_mcp.jsonrpc.messages import Notification
from trio_mcp.protocol.methods import METHODS
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.notifications import NotificationQueue
from trio_mcp.state.events import NotificationReceived


@asynccontextmanager
async def queue_to(
    handle: Callable[[Any], Awaitable[None]], bound: int = 100
) -> AsyncGenerator[tuple[Any, list[Exception]]]:
    """A running queue whose events are plain values, and the failures of its callback."""
    failures: list[Exception] = []
    queue: Any = NotificationQueue(Backlog(bound, 1_000_000), handle, failures.append)
    async with trio.open_nursery() as nursery:
        queue.task.start_in(nursery, copy_context())
        yield queue, failures
        nursery.cancel_scope.cancel()


async def test_notifications_are_handled_one_at_a_time_in_order(autojump_clock: object) -> None:
    handled: list[Any] = []

    async def handle(value: Any) -> None:
        handled.append(("begin", value))
        await trio.sleep(1)
        handled.append(("end", value))

    async with queue_to(handle) as (queue, _):
        for value in (1, 2):
            queue.put(value, 10)
        await queue.wait_until_handled(2)
    assert handled == [("begin", 1), ("end", 1), ("begin", 2), ("end", 2)]


async def test_wait_until_handled_returns_after_the_given_number_of_notifications(autojump_clock: object) -> None:
    async def handle(_: Any) -> None:
        await trio.sleep(1)

    begun = trio.current_time()
    async with queue_to(handle) as (queue, _):
        for value in range(10):
            queue.put(value, 10)
        await queue.wait_until_handled(3)
        assert trio.current_time() == pytest.approx(begun + 3)
        await queue.wait_until_handled(queue.received)
        assert trio.current_time() == pytest.approx(begun + 10)


async def test_notification_whose_handler_raises_is_reported_and_the_next_notification_is_handled(
    autojump_clock: object,
) -> None:
    handled: list[Any] = []

    async def handle(value: Any) -> None:
        if value == "bad":
            raise LookupError(value)
        handled.append(value)

    async with queue_to(handle) as (queue, failures):
        for value in ("bad", "good"):
            queue.put(value, 10)
        await queue.wait_until_handled(2)
    assert handled == ["good"]
    assert [repr(error) for error in failures] == ["LookupError('bad')"]


async def test_oldest_queued_notification_is_dropped_beyond_the_limit_and_counts_as_handled(
    autojump_clock: object,
) -> None:
    handled: list[Any] = []

    async def handle(value: Any) -> None:
        handled.append(value)

    async with queue_to(handle, bound=3) as (queue, _):
        for value in range(10):
            queue.put(value, 10)
        await queue.wait_until_handled(10)
        assert (queue.received, queue.handled, queue.dropped) == (10, 10, 7)
    assert handled == [7, 8, 9]


async def test_method_wait_until_handled_returns_immediately_inside_a_callback(autojump_clock: object) -> None:
    handled: list[Any] = []

    async def handle(value: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.wait_until_handled, 2)
        await queue.wait_until_handled(2)
        handled.append(value)

    async with queue_to(handle) as (queue, _):
        for value in (1, 2):
            queue.put(value, 10)
        with trio.fail_after(1):
            await queue.wait_until_handled(2)
    assert handled == [1, 2]


async def test_method_wait_until_handled_waits_inside_a_callback_of_another_connection(
    autojump_clock: object,
) -> None:
    order: list[str] = []

    async def slow(_: Any) -> None:
        await trio.sleep(1)
        order.append("theirs")

    async def handle(_: Any) -> None:
        await theirs.wait_until_handled(1)
        order.append("ours")

    async with queue_to(slow) as (theirs, _), queue_to(handle) as (ours, _):
        theirs.put(1, 10)
        ours.put(1, 10)
        await ours.wait_until_handled(1)
    assert order == ["theirs", "ours"]


async def test_task_that_waits_for_a_notification_continues_when_the_notification_queue_ends(
    autojump_clock: object,
) -> None:
    async def stuck(_: Any) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery, queue_to(stuck) as (queue, _):
        queue.put(1, 10)
        nursery.start_soon(queue.wait_until_handled, 1)
        await wait_all_tasks_blocked()


async def test_request_made_in_a_callback_does_not_wait_for_callbacks(autojump_clock: object) -> None:
    async def handle(_: Any) -> None:
        await trio.sleep(1)

    async with queue_to(handle) as (queue, _):
        queue.put(1, 10)
        await wait_all_tasks_blocked()
        seen, running = queue.received, queue.running
        queue.put(2, 10)
        begun = trio.current_time()
        await queue.wait_until_finished(seen, 2, running)
        assert trio.current_time() == begun
        await queue.wait_until_handled(1)
        await queue.wait_until_finished(seen, 2, running)  # that callback is done: now it waits for what is its own
        assert trio.current_time() == pytest.approx(begun + 2)


async def test_dropped_notifications_do_not_restart_the_callback_grace(autojump_clock: object) -> None:
    async def stuck(_: Any) -> None:
        await trio.sleep_forever()

    queue: Any = NotificationQueue(Backlog(2, 1_000_000), stuck, print, 3)
    async with trio.open_nursery() as nursery:
        queue.task.start_in(nursery, copy_context())

        async def flood() -> None:
            while True:
                queue.put("more", 10)
                await trio.sleep(1)

        nursery.start_soon(flood)
        begun = trio.current_time()
        await trio.sleep(0.5)
        await queue.wait_until_finished(0, 1_000, 0)
        assert trio.current_time() <= begun + 4
        nursery.cancel_scope.cancel()


async def test_queued_notifications_are_limited_in_bytes(autojump_clock: object) -> None:
    lists = [[0]] * 25_000  # 100 KB on the wire, 2.4 MB as objects
    line = encode(Notification("notifications/message", {"level": "info", "data": lists}))
    free = trio.Event()
    handled: list[int] = []

    async def handle(event: NotificationReceived) -> None:
        await free.wait()
        handled.append(len(event.params["data"]))

    def received() -> NotificationReceived:
        message = decode(line)
        assert isinstance(message, Notification)
        return NotificationReceived(METHODS["notifications/message"], message.params, LATEST_LEGACY)

    async with queue_to(handle, bound=1000) as (queue, _):
        queue.put(received(), len(line))
        await wait_all_tasks_blocked()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(9):
                queue.put(received(), len(line))
            assert tracemalloc.get_traced_memory()[0] - before < 2_000_000
        finally:
            tracemalloc.stop()
        free.set()
        await queue.wait_until_handled(10)
    assert handled == [25_000] * 10
