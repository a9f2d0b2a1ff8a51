"""Notifications on their way to callbacks: how long answers wait for them, and what is told of those that are slow.

Their order, their bounds and the waits inside callbacks are in `test_notifications.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.protocol.methods import METHODS
from trio_mcp.protocol.revisions import LATEST_LEGACY
from trio_mcp.runtime.limits import Limits
from trio_mcp.runtime.notifications import NotificationQueue, notification_queue
from trio_mcp.state.events import NotificationReceived


def message(data: Any = "x") -> NotificationReceived:
    return NotificationReceived(METHODS["notifications/message"], {"level": "info", "data": data}, LATEST_LEGACY)


class Callback:
    """A callback that takes a second for each notification, and as long as it is told for some."""

    def __init__(self, **slow: float) -> None:
        self.begun: list[Any] = []
        self.handled: list[Any] = []
        self._slow = slow

    async def __call__(self, event: NotificationReceived) -> None:
        data = event.params["data"]
        self.begun.append(data)
        await trio.sleep(self._slow.get(data, 1) if isinstance(data, str) else 1)
        self.handled.append(data)


@asynccontextmanager
async def running(
    notified: Callable[[NotificationReceived], Awaitable[None]], grace: float = math.inf, **limits: Any
) -> AsyncGenerator[NotificationQueue]:
    queue = notification_queue(Limits(**limits), notified, grace)
    async with trio.open_nursery() as nursery:
        queue.task.start_in(nursery, copy_context())
        yield queue
        nursery.cancel_scope.cancel()


async def test_queue_of_received_notifications_counts_received_and_handled_notifications(
    autojump_clock: MockClock,
) -> None:
    async with running(Callback()) as queue:
        assert (queue.received, queue.handled, queue.dropped, queue.running) == (0, 0, 0, 0)
        for _ in range(3):
            queue.put(message(), 10)
        assert (queue.received, queue.handled, queue.running) == (3, 0, 0)
        await wait_all_tasks_blocked()
        assert queue.running == 1
        await queue.wait_until_handled(2)
        await wait_all_tasks_blocked()
        assert (queue.handled, queue.running) == (2, 3)
        await queue.wait_until_handled(3)
        assert (queue.received, queue.handled, queue.dropped, queue.running) == (3, 3, 0, 0)


async def test_queue_of_received_notifications_has_the_limits_of_its_connection(autojump_clock: MockClock) -> None:
    async with running(Callback(), max_pending_notifications=3) as queue:
        for number in range(5):
            queue.put(message(str(number)), 10)
        assert (queue.dropped, queue.handled) == (2, 2)
    async with running(Callback(), max_inbound_bytes=100) as queue:
        for number in range(5):
            queue.put(message(str(number)), 40)
        assert (queue.dropped, queue.handled) == (3, 3)


async def test_waiting_until_a_notification_is_handled_ends_if_the_notification_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async with running(Callback(a=1000), max_pending_notifications=2) as queue, trio.open_nursery() as nursery:
        queue.put(message("a"), 10)
        await wait_all_tasks_blocked()
        caught_up = trio.Event()

        async def wait() -> None:
            await queue.wait_until_handled(1)
            caught_up.set()

        nursery.start_soon(wait)
        for _ in range(3):
            queue.put(message(), 10)
        await wait_all_tasks_blocked()
        assert caught_up.is_set()


async def test_notification_whose_callback_fails_is_logged_and_counts_as_handled(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    error = LookupError("why")

    async def fail(_: NotificationReceived) -> None:
        raise error

    async with running(fail) as queue:
        queue.put(message(), 10)
        await queue.wait_until_handled(1)
        assert (queue.handled, queue.running) == (1, 0)
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "a notification callback failed")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize(("size", "as_text"), [(256, False), (257, True)])
async def test_queued_notification_is_stored_as_json_text_only_if_it_is_large(
    autojump_clock: MockClock, size: int, as_text: bool
) -> None:
    seen = list[NotificationReceived]()

    async def handle(event: NotificationReceived) -> None:
        seen.append(event)
        await trio.sleep(1)

    first, second = message("first"), message("second")
    async with running(handle) as queue:
        queue.put(first, size)
        queue.put(second, size)
        await queue.wait_until_handled(2)
        third = message("third")
        queue.put(third, size)
        await queue.wait_until_handled(3)
    assert [event.params["data"] for event in seen] == ["first", "second", "third"]
    assert seen[0] is first, "it does not wait"
    assert (seen[1] is not second) is as_text
    assert seen[2] is third, "it does not wait either"


async def test_waiting_until_notifications_are_handled_returns_immediately_if_the_queue_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with running(Callback(a=1000)) as queue:
        queue.put(message("a"), 10)
        await wait_all_tasks_blocked()
    begun = trio.current_time()
    await queue.wait_until_handled(1)
    await queue.wait_until_finished(0, 1, 0)
    assert trio.current_time() == begun


async def test_tasks_that_wait_for_notifications_continue_when_the_queue_ends(autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    async with trio.open_nursery() as nursery, running(Callback(a=1000)) as queue:
        queue.put(message("a"), 10)
        nursery.start_soon(queue.wait_until_handled, 1)
        nursery.start_soon(queue.wait_until_finished, 0, 1, 0)
        await wait_all_tasks_blocked()
    assert trio.current_time() == begun


async def test_notification_queue_drops_the_reference_to_its_callback_when_it_is_detached() -> None:
    callback = Callback()
    queue = notification_queue(Limits(), callback)
    queue.detach()
    assert callback not in vars(queue).values()


# How long an answer waits


async def test_response_waits_only_for_callbacks_of_notifications_received_before_the_response(
    autojump_clock: MockClock,
) -> None:
    async with running(Callback(), grace=100) as queue:
        begun = trio.current_time()
        for _ in range(4):
            queue.put(message(), 10)
        await queue.wait_until_finished(1, 3, 0)
        assert trio.current_time() == begun + 3


async def test_response_without_earlier_notifications_is_returned_immediately(autojump_clock: MockClock) -> None:
    async with running(Callback(), grace=100) as queue:
        begun = trio.current_time()
        for _ in range(2):
            queue.put(message(), 10)
        await queue.wait_until_finished(2, 2, 0)
        assert trio.current_time() == begun


async def test_response_to_a_request_made_in_a_callback_does_not_wait_for_that_callback(
    autojump_clock: MockClock,
) -> None:
    async with running(Callback(), grace=100) as queue:
        queue.put(message(), 10)
        queue.put(message(), 10)
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        await queue.wait_until_finished(0, 2, 1)
        assert trio.current_time() == begun
        await queue.wait_until_finished(0, 2, 2)
        assert trio.current_time() == begun + 2


async def test_response_waits_at_most_callback_grace_for_each_notification_callback(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(Callback(a=4, b=4, c=4), grace=5) as queue:
        begun = trio.current_time()
        for data in "abc":
            queue.put(message(data), 10)
        await queue.wait_until_finished(0, 3, 0)
        assert trio.current_time() == begun + 12
    assert caplog.records == []


async def test_callback_grace_starts_when_the_response_arrives(autojump_clock: MockClock) -> None:
    async with running(Callback(a=100), grace=5) as queue:
        queue.put(message("a"), 10)
        await trio.sleep(50)
        begun = trio.current_time()
        await queue.wait_until_finished(0, 1, 0)
        assert trio.current_time() == begun + 5


async def test_callback_grace_of_a_queued_callback_starts_when_its_turn_comes(autojump_clock: MockClock) -> None:
    async with running(Callback(b=100), grace=5) as queue:
        queue.put(message(), 10)
        await queue.wait_until_handled(1)
        begun = trio.current_time()
        queue.put(message("b"), 10)
        assert queue.running == 0
        await queue.wait_until_finished(1, 2, 0)
        assert trio.current_time() == begun + 5


async def test_slow_callback_is_logged_once_however_many_responses_wait_for_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(Callback(a=100, b=100), grace=5) as queue:
        queue.put(message("a"), 10)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(queue.wait_until_finished, 0, 1, 0)
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            "a callback for a log message takes longer than 5 s: results no longer wait for it"
        )
        queue.put(message("b"), 10)
        await queue.wait_until_handled(1)
        await queue.wait_until_finished(1, 2, 0)
        assert len(caplog.records) == 2, "another one is reported again"
