"""Groups of asyncio programs: `trio_mcp.aio.open_group`."""

from __future__ import annotations

import asyncio

import pytest
from tests.bridging.seen import Seen, run, time_out_when

from trio_mcp import CancelCause, aio
from trio_mcp.hosting import MemberDescription, MemberState, MemberUnavailable
from trio_mcp.types import ElicitResult


async def accept(_: object) -> ElicitResult:
    await asyncio.sleep(0)
    return ElicitResult("accept", {"name": "Ada"})


def test_asyncio_group_calls_its_servers_and_cancels_calls(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_group({"a": MemberDescription(seen.server)}, elicitation=accept) as group:
            group.add("b", MemberDescription(seen.server, options={"elicitation": accept}))
            await group.settled()
            assert "b__echo" in group.catalogue.tools
            assert {status.state for status in group.statuses.values()} == {MemberState.READY}
            for member in "ab":
                assert "Ada" in str(await group.call_tool(f"{member}__ask"))
            await time_out_when(seen.began, group.call_tool("b__wait"))
            await (await group.client("b")).ping()
            assert [each.cause for each in seen.cancelled if each] == [CancelCause.PEER]
            await group.remove("b")
            with pytest.raises(MemberUnavailable):
                await group.client("b")

    run(main)


def test_asyncio_group_reports_the_state_changes_of_a_server_until_the_server_is_removed(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_group() as group:
            watch = group.watch()
            group.add("a", MemberDescription(seen.server))
            async for status in watch:
                if status.state is MemberState.READY:
                    break
            with pytest.raises(TimeoutError):  # and a cancelled step loses nothing
                async with asyncio.timeout(0.01):
                    await anext(watch)
            removing = asyncio.create_task(group.remove("a"))
            assert (await anext(watch)).state is MemberState.CLOSED
            await removing

    run(main)
