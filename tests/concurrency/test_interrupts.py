"""cancel_on_interrupt: Ctrl-C cancels a call."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio
import trio.lowlevel

from trio_mcp import CancelCause, Cancellation, RequestContext, Server, cancel_on_interrupt, open_memory


@pytest.fixture(autouse=True)
def interrupts_are_raised() -> Iterator[None]:
    """Also where the tests run in the background, and would ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def test_first_ctrl_c_in_cancel_on_interrupt_cancels_the_call_in_the_server_with_a_reason() -> None:
    server, seen = Server("slow"), list[Cancellation | None]()

    @server.tool
    async def wait(ctx: RequestContext) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        finally:
            seen.append(ctx.cancellation)

    async with open_memory(server) as client:
        with cancel_on_interrupt() as scope:
            await client.call_tool("wait")
        assert scope.cancelled_caught
        await client.ping()
    (cancelled,) = seen
    assert cancelled is not None
    assert (cancelled.cause, cancelled.reason) == (CancelCause.PEER, "the user pressed Ctrl-C")


async def test_second_ctrl_c_or_a_ctrl_c_after_cancel_on_interrupt_raises_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), cancel_on_interrupt() as scope:
        signal.raise_signal(signal.SIGINT)
        with trio.CancelScope(shield=True):
            while not scope.cancel_called:
                await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGINT)
    with cancel_on_interrupt():
        await trio.lowlevel.checkpoint()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


async def test_cancel_on_interrupt_outside_the_main_thread_raises_runtime_error() -> None:
    def enter() -> None:
        with cancel_on_interrupt():
            pass

    with pytest.raises(RuntimeError, match="main thread"):
        await trio.to_thread.run_sync(enter)
