"""Members come and go, in any order and from any task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.hosting.members import describe, greeter, hangs, in_memory, serves, target_of
from trio.testing import MockClock, Sequencer, wait_all_tasks_blocked

from trio_mcp import ConnectionLost, RequestContext, Server
from trio_mcp.hosting import MemberDescription, MemberState, MemberUnavailable, NotInCatalogue, open_group
from trio_mcp.types import LogParams


async def test_api_01_servers_of_a_group_can_be_removed_in_any_order_from_any_task(autojump_clock: MockClock) -> None:
    order = Sequencer()
    async with open_group({name: describe(serves("wait", "echo")) for name in "abc"}) as group:

        async def wait_on_a() -> None:
            async with order(0):
                await group.settled()
            with pytest.raises(ConnectionLost):
                await group.call_tool("a__wait")
            async with order(2):
                pass

        async def close_a() -> None:
            async with order(1):
                await wait_all_tasks_blocked()
                await group.remove("a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_on_a)
            nursery.start_soon(close_a)
            async with order(3):
                assert (await group.call_tool("b__echo")).text == "echo"
        assert list(group.statuses) == ["b", "c"]


async def test_call_to_a_server_removed_from_its_group_raises_member_unavailable(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        await group.settled()
        await group.remove("a")
        for call in (group.client, group.remove):
            with pytest.raises(MemberUnavailable, match="not a server of this group"):
                await call("a")
        with pytest.raises(NotInCatalogue):
            await group.call_tool("a__greet")


async def test_waiting_for_a_server_removed_from_its_group_raises_member_unavailable(autojump_clock: MockClock) -> None:
    async with open_group({"slow": describe(hangs)}) as group, trio.open_nursery() as nursery:

        async def wait(how: Callable[[], Any]) -> None:
            with pytest.raises(MemberUnavailable, match="'slow' was removed"):
                await how()

        async def wait_by_name() -> None:
            with pytest.raises(NotInCatalogue):
                await group.call_tool("slow__echo")

        nursery.start_soon(wait, lambda: group.client("slow"))
        nursery.start_soon(wait_by_name)
        nursery.start_soon(group.settled)
        await wait_all_tasks_blocked()
        await group.remove("slow")


async def test_name_of_a_server_removed_from_its_group_can_be_reused_immediately(autojump_clock: MockClock) -> None:
    description = describe(serves("echo"))
    target = target_of(description)
    object.__setattr__(target, "may_close", trio.Event())
    async with open_group({"a": description}) as group, trio.open_nursery() as nursery:
        await group.settled()
        nursery.start_soon(group.remove, "a")
        await wait_all_tasks_blocked()
        group.add("a", in_memory())
        assert (await group.call_tool("a__greet")).text == "hello from greeter"
        assert len(nursery.child_tasks) == 1
        target.may_close.set()
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 0
        assert group.statuses["a"].state == MemberState.READY


async def test_cancelled_removal_of_a_server_from_its_group_completes_in_the_background(
    autojump_clock: MockClock,
) -> None:
    description = describe(serves("echo"))
    async with open_group({"a": description}) as group:
        await group.settled()
        with trio.CancelScope() as scope:
            scope.cancel()
            await group.remove("a")
        assert group.statuses == {}
        await wait_all_tasks_blocked()
        group.add("a", description)
        assert (await group.call_tool("a__echo")).text == "echo"
    assert target_of(description).opened == 2


async def test_server_can_be_removed_from_its_group_in_a_callback_of_that_server(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> None:
        await ctx.log.error("remove me")
        await trio.sleep_forever()

    async def on_log(_: LogParams) -> None:
        await group.remove("s")

    async with open_group() as group:
        group.add("s", MemberDescription(server, options={"on_log": on_log, "era": "legacy"}))
        with pytest.raises(ConnectionLost):
            await group.call_tool("s__work")
        assert group.statuses == {}


@pytest.mark.parametrize("name", ["a", ""])
async def test_duplicate_or_empty_server_name_in_a_group_raises_value_error(
    name: str, autojump_clock: MockClock
) -> None:
    async with open_group({"a": in_memory()}) as group:
        with pytest.raises(ValueError, match=r"already has|must not be empty"):
            group.add(name, in_memory())


async def test_invalid_options_of_a_server_raise_value_error_when_it_is_added_to_a_group(
    autojump_clock: MockClock,
) -> None:
    async with open_group() as group:
        with pytest.raises(ValueError, match="call_timeout"):
            group.add("a", in_memory(call_timeout=-1))
        assert group.statuses == {}


async def test_group_skips_disabled_servers(autojump_clock: MockClock) -> None:
    disabled = MemberDescription(greeter(), disabled=True)
    async with open_group({"off": disabled, "on": in_memory()}) as group:
        assert list(group.statuses) == ["on"]
        with pytest.raises(ValueError, match="disabled"):
            group.add("off", disabled)


async def test_closed_group_rejects_new_servers_and_client_requests(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        pass
    with pytest.raises(trio.ClosedResourceError):
        group.add("b", in_memory())
    with pytest.raises(MemberUnavailable):
        await group.client("a")


async def test_exception_inside_the_group_with_block_propagates_unchanged(autojump_clock: MockClock) -> None:
    with pytest.raises(LookupError, match="body"):
        async with open_group({"a": in_memory(), "b": describe(hangs)}):
            raise LookupError("body")


async def test_cancelled_scope_around_a_group_cancels_running_calls_with_its_reason(
    autojump_clock: MockClock,
) -> None:
    server, reasons = Server("s"), list[str | None]()

    @server.tool
    async def wait(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            assert ctx.cancellation is not None
            reasons.append(ctx.cancellation.reason)

    with trio.CancelScope() as scope:
        async with open_group({"s": MemberDescription(server)}) as group, trio.open_nursery() as nursery:
            nursery.start_soon(group.call_tool, "s__wait")
            await wait_all_tasks_blocked()
            scope.cancel(reason="the user left")
    assert reasons == ["the user left"]


def test_member_unavailable_error_names_the_type_of_a_cause_without_a_message() -> None:
    assert str(MemberUnavailable("a", "has failed", error=LookupError())) == "'a' has failed: LookupError"
    assert str(MemberUnavailable("a", "was removed")) == "'a' was removed"
