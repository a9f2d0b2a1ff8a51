"""Threads of cancelled handlers that never look: they keep nobody from working, as long as there are not too many."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.gates import Gate
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, Limits, PeerError, Server, open_memory
from trio_mcp.concurrency.workers import frames_of
from trio_mcp.runtime.requests.scope import RequestScope, current_request


class Deaf:
    """A server with a tool whose thread ends when the test says so, and one that gives back what it gets."""

    def __init__(self, clock: MockClock, **limits: int) -> None:
        self.clock = clock
        self.release = Gate()
        self.server = Server("s", limits=Limits(cleanup_grace=LONG, **limits))
        self.scope: RequestScope

        def forever() -> None:
            self.release.wait()  # the line in which it hangs

        @self.server.tool
        def deaf() -> None:
            self.scope = current_request.get()
            forever()

        @self.server.tool
        def echo(text: str) -> str:
            return text

        @self.server.tool
        async def task() -> str:
            return "ran"

    async def abandon(self, client: Client, count: int) -> None:
        """So many calls, one after another, each left and abandoned. The first that a server gets."""
        for number in range(count):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "deaf")
                await self.release.until_waiting(number + 1)
                nursery.cancel_scope.cancel()
            await client.ping()  # the cancel has arrived
            await wait_all_tasks_blocked()
            self.clock.jump(LONG)
            await wait_all_tasks_blocked()


@pytest.fixture
def released() -> Iterator[list[Gate]]:
    """Gates that are opened at the end, whatever happens."""
    gates = list[Gate]()
    yield gates
    for gate in gates:
        gate.open()


@pytest.fixture
def clock(jump_clock: MockClock) -> MockClock:
    return jump_clock


def deaf(clock: MockClock, released: list[Gate], **limits: int) -> Deaf:
    made = Deaf(clock, **limits)
    released.append(made.release)
    return made


async def test_calls_continue_while_abandoned_threads_are_below_the_limit(
    clock: MockClock, released: list[Gate]
) -> None:
    these = deaf(clock, released, worker_threads=2)
    with trio.fail_after(PATIENCE + 10 * LONG):
        async with open_memory(these.server) as client:
            await these.abandon(client, 4)
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_sync_tool_calls_are_rejected_when_max_abandoned_threads_is_reached(
    clock: MockClock, released: list[Gate], caplog: pytest.LogCaptureFixture
) -> None:
    these = deaf(clock, released, max_abandoned_threads=2)
    with trio.fail_after(PATIENCE + 10 * LONG):
        async with open_memory(these.server) as client:
            await these.abandon(client, 2)
            caplog.clear()
            for _ in range(3):
                with pytest.raises(PeerError, match="too many cancelled calls are still running") as caught:
                    await client.call_tool("echo", {"text": "hi"})
                assert caught.value.code == -31000
            assert (await client.call_tool("task")).text == "ran"
            (record,) = caplog.records  # once for all that are refused
            assert "2 threads that were abandoned still run (max_abandoned_threads: 2)" in record.getMessage()
            assert "2 x Deaf.__init__.<locals>.deaf, at:" in record.getMessage()
            assert "the line in which it hangs" in record.getMessage()
            these.release.open()
            await until_served(client)


async def until_served(client: Client) -> None:
    """Call until a thread is to be had."""
    while True:
        try:
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        except PeerError:
            await client.ping()
        else:
            return


async def test_queued_sync_tool_calls_are_rejected_when_max_abandoned_threads_is_reached(
    clock: MockClock, released: list[Gate]
) -> None:
    these = deaf(clock, released, worker_threads=1, max_abandoned_threads=1)
    with trio.fail_after(PATIENCE + 10 * LONG):
        async with open_memory(these.server) as client, trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(PeerError, match="too many cancelled calls are still running"):
                    await client.call_tool("echo", {"text": "hi"})
                refused.set()

            refused = trio.Event()
            with trio.CancelScope() as leaving:
                nursery.start_soon(wait_then_cancel, these, leaving, nursery, wait)
                await client.call_tool("deaf")
            await client.ping()
            await wait_all_tasks_blocked()
            clock.jump(LONG)
            await refused.wait()


async def wait_then_cancel(these: Deaf, leaving: trio.CancelScope, nursery: trio.Nursery, wait: Any) -> None:
    await these.release.until_waiting()
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    leaving.cancel()


async def test_log_message_about_an_abandoned_thread_contains_the_stack_frames_of_user_code(
    clock: MockClock, released: list[Gate], caplog: pytest.LogCaptureFixture
) -> None:
    these = deaf(clock, released)
    with trio.fail_after(PATIENCE + 10 * LONG):
        async with open_memory(these.server) as client:
            await these.abandon(client, 1)
    (text,) = [text for record in caplog.records if "is abandoned" in (text := record.getMessage())]
    assert "did not end within 100 s of its cancel is abandoned: Deaf.__init__.<locals>.deaf, at:" in text
    assert_is_stack_of_the_author(text)


def assert_is_stack_of_the_author(text: str) -> None:
    where = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
    assert where[0].endswith("in deaf")
    assert where[1].endswith("in forever")
    assert "self.release.wait()  # the line in which it hangs" in text
    assert "site-packages" not in text
    assert "trio_mcp/runtime" not in text


async def test_stack_shown_for_a_slow_sync_handler_contains_the_user_code_in_its_thread(
    clock: MockClock, released: list[Gate]
) -> None:
    these = deaf(clock, released)
    with trio.fail_after(PATIENCE):
        async with open_memory(these.server) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "deaf")
            await these.release.until_waiting()
            await wait_all_tasks_blocked()
            text = "".join(traceback.StackSummary.extract(frames_of(these.scope.handler_task)).format())
            these.release.open()
    assert_is_stack_of_the_author(text)
