"""Calls that are left wait, shielded, for the word of the server."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import CancelAcknowledged, RequestContext, Server, confirm_cancels, open_memory


@pytest.mark.parametrize(
    ("within", "state", "seconds"), [(6.0, "stopped", 2.0), (1.5, "overran", 1.25)], ids=["in time", "too late"]
)
async def test_confirm_cancels_waits_for_the_acknowledgement_within_its_timeout(
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
