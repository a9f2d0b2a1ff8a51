"""Calls that are left wait, shielded, for the word of the server."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import (
    CancelAcknowledged,
    ConnectionLost,
    HTTPError,
    MCPError,
    ProtocolViolation,
    RequestContext,
    Server,
    confirm_cancels,
    open_memory,
)


@pytest.mark.parametrize(
    ("within", "state", "seconds"), [(6.0, "stopped", 2.0), (1.5, "overran", 1.25)], ids=["in time", "too late"]
)
async def test_confirm_cancels_block_reports_whether_the_handler_stopped_within_the_given_time(
    within: float, state: str, seconds: float, autojump_clock: MockClock
) -> None:
    server = Server("slow", extensions=[CancelAcknowledged()])

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_memory(server, extensions=[CancelAcknowledged()]) as client:
        with confirm_cancels(within) as endings, trio.move_on_after(1):
            await client.call_tool("slow")
    [ending] = endings
    assert (ending.state, ending.seconds) == (state, pytest.approx(seconds, abs=0.1))


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ConnectionLost("gone"), "lost"),
        (HTTPError(503, "busy"), "lost"),
        (HTTPError(404, "unknown"), "unknown"),
        (ProtocolViolation("unreadable"), "unknown"),
    ],
)
async def test_confirm_cancels_block_never_reports_a_call_without_a_reply_as_finished(
    error: MCPError, state: str
) -> None:
    server = Server("slow", extensions=[CancelAcknowledged()])

    @server.tool
    async def slow() -> None:
        await trio.sleep_forever()

    async with open_memory(server, extensions=[CancelAcknowledged()]) as client:
        with confirm_cancels() as endings:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "slow")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                # The request fails before the task of the call notices its cancellation.
                outbound = client._connection.outbound
                (request,) = outbound._state.outbound
                outbound._state.abandon(request)
                outbound.settle(request, None, error)
    [ending] = endings
    assert (ending.state, ending.outcome) == (state, None)
