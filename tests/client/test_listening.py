"""Listening for changes of a modern server."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.client.listening import ACKNOWLEDGED, UPDATED, listening, noted, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, ConnectionLost, Limits, MethodUnavailable, PeerError, ProtocolViolation, open_memory
from trio_mcp.client.opening import open_client
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import Change, SubscriptionFilter

TOOLS, PROMPTS, RESOURCES = Change("tools"), Change("prompts"), Change("resources")


# Listening


async def test_with_block_of_a_listen_stream_is_entered_after_the_server_acknowledges_it() -> None:
    asked = {"tools": True, "uris": ["note://a", "file:///nowhere"]}
    async with open_memory(noted()) as client, client.listen(**cast("Any", asked)) as changes:
        assert changes.acknowledged == SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["note://a"])


async def test_listen_iteration_yields_typed_changes_in_order() -> None:
    server = noted()
    async with (
        open_memory(server) as client,
        client.listen(tools=True, prompts=True, resources=True, uris=["note://a"]) as changes,
    ):
        server.resource_updated("note://a")
        server.remove_prompt("greet")
        server.remove_tool("spare")
        server.remove_resource("note://{name}")
        came = [await anext(changes) for _ in range(4)]
    assert came == [Change("resource", "note://a"), PROMPTS, TOOLS, RESOURCES]


async def test_each_of_two_listen_streams_yields_only_the_changes_it_subscribed_to() -> None:
    server = noted()
    async with (
        open_memory(server) as client,
        client.listen(tools=True) as one,
        client.listen(tools=True, prompts=True) as both,
    ):
        server.remove_prompt("greet")
        server.remove_tool("spare")
        assert [await anext(both), await anext(both)] == [PROMPTS, TOOLS]
        assert await anext(one) == TOOLS


async def test_listen_stream_ends_in_the_server_when_the_client_exits_the_with_block() -> None:
    server = noted()
    async with open_memory(server) as client:
        async with client.listen(tools=True) as changes:
            assert server.statistics().listening == 1
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 0
        with pytest.raises(StopAsyncIteration):
            await anext(changes)


async def test_client_sends_one_cancelled_notification_when_it_exits_a_listen_with_block() -> None:
    async with scripted() as (client, server):
        async with listening(client, server, tools=True) as (_, stream):
            pass
        message = await server.receive("notifications/cancelled")
        assert message["params"]["requestId"] == stream
        with trio.move_on_after(0):
            await wait_all_tasks_blocked()
        assert len(server.seen) == 3


async def test_client_can_cancel_the_wait_for_the_acknowledgement_of_a_listen_stream() -> None:
    async with scripted() as (client, server):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def leave() -> None:
                    await server.receive("subscriptions/listen")
                    scope.cancel()

                nursery.start_soon(leave)
                async with client.listen(tools=True):
                    pytest.fail("nothing was acknowledged")
        assert scope.cancelled_caught
        await server.receive("notifications/cancelled")


async def test_exception_in_the_with_block_of_a_listen_stream_is_raised_unchanged() -> None:
    async with open_memory(noted()) as client:
        with pytest.raises(KeyError):
            async with client.listen(tools=True):
                raise KeyError


@pytest.mark.parametrize("era", ["legacy"])
async def test_listen_raises_method_unavailable_in_legacy_revisions(era: Any) -> None:
    async with open_memory(noted(), era=era) as client:
        with pytest.raises(MethodUnavailable):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_listen_raises_type_error_for_a_single_uri_instead_of_a_list() -> None:
    async with open_memory(noted()) as client:
        with pytest.raises(TypeError, match="list of URIs"):
            client.listen(uris="note://a")


async def test_listen_raises_the_server_error_when_its_with_block_is_entered() -> None:
    server = noted()
    server.limits = Limits(max_subscriptions=1)
    async with open_memory(server) as client, client.listen(tools=True):
        with pytest.raises(PeerError, match="Too busy"):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_listen_raises_protocol_violation_if_the_stream_ends_before_its_acknowledgement() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:

        async def end() -> None:
            request = await server.receive("subscriptions/listen")
            await server.send({"id": request["id"], "result": {"resultType": "complete"}})

        nursery.start_soon(end)
        with pytest.raises(ProtocolViolation, match="never acknowledged"):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_listen_raises_protocol_violation_and_cancels_the_stream_after_an_invalid_acknowledgement() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:

        async def say() -> None:
            request = await server.receive("subscriptions/listen")
            await server.tell(request["id"], ACKNOWLEDGED, notifications="all")
            await server.receive("notifications/cancelled")

        nursery.start_soon(say)
        with pytest.raises(ProtocolViolation, match="acknowledgement"):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


# The end of a stream


@pytest.mark.parametrize("way", ["cancelled", "result"])
async def test_listen_iteration_ends_when_the_server_ends_the_stream_and_sends_no_cancel(way: str) -> None:
    async with scripted() as (client, server):
        async with listening(client, server, tools=True) as (changes, stream):
            await server.tell(stream, "notifications/tools/list_changed")
            if way == "cancelled":
                await server.send({"method": "notifications/cancelled", "params": {"requestId": stream}})
            await server.send({"id": stream, "result": {"resultType": "complete"}})
            assert [change async for change in changes] == [TOOLS]
        await wait_all_tasks_blocked()
        with trio.move_on_after(0) as nothing_more:
            await server.channel.receive()
        assert nothing_more.cancelled_caught


async def test_server_shutdown_ends_the_listen_iteration_after_the_last_change() -> None:
    server = noted()
    ours, theirs = memory_transport_pair()
    async with server._running() as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs)
        nursery.start_soon(connection.run)
        async with open_client(ours) as client, client.listen(tools=True, uris=["note://a"]) as changes:
            server.remove_tool("spare")
            server.resource_updated("note://a")
            connection.connection.shut_down("over")
            assert [change async for change in changes] == [TOOLS, Change("resource", "note://a")]


async def test_listen_iteration_raises_connection_lost_after_it_yields_earlier_changes() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True) as (changes, stream):
        await server.tell(stream, "notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        await server.channel.aclose()
        assert await anext(changes) == TOOLS
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await anext(changes)


async def test_listen_with_block_that_is_not_iterated_continues_after_the_connection_is_lost() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True):
        await server.channel.aclose()
        await wait_all_tasks_blocked()


async def test_listen_iteration_raises_peer_error_if_an_error_response_ends_the_stream() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True) as (changes, stream):
        await server.send({"id": stream, "error": {"code": -32603, "message": "broken"}})
        with pytest.raises(PeerError, match="broken"):
            await anext(changes)


# What comes on it


async def test_listen_iteration_ignores_changes_that_were_not_subscribed_to() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True) as (changes, stream):
        await server.tell(stream, UPDATED, uri="note://a")
        await server.tell(stream, "notifications/prompts/list_changed")
        await server.tell(stream, "notifications/message", level="info", data="x")
        await server.tell(str(stream), "notifications/tools/list_changed")
        await server.tell(stream + 1, "notifications/tools/list_changed")
        await server.tell(stream, ACKNOWLEDGED, notifications={})
        await server.send({"id": stream, "result": {}})
        assert [change async for change in changes] == []
        assert changes.acknowledged == SubscriptionFilter(tools_list_changed=True)


async def test_listen_iteration_ignores_a_resource_update_without_a_uri() -> None:
    async with scripted() as (client, server), listening(client, server, uris=["note://a"]) as (changes, stream):
        await server.tell(stream, UPDATED)
        await server.tell(stream, UPDATED, uri=7)
        await server.send({"id": stream, "result": {}})
        assert [change async for change in changes] == []


async def test_listen_iteration_merges_equal_changes_that_wait_to_be_yielded() -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(tools=True, uris=["note://a"]) as changes:
        for _ in range(1000):
            server.resource_updated("note://a")
        server.remove_tool("spare")
        await client.ping()
        await wait_all_tasks_blocked()  # a reply may come ahead of changes that had no room in the outbox
        assert [await anext(changes), await anext(changes)] == [Change("resource", "note://a"), TOOLS]
        server.resource_updated("note://a")
        assert await anext(changes) == Change("resource", "note://a")
        with trio.move_on_after(0) as nothing_more:
            await anext(changes)
        assert nothing_more.cancelled_caught


async def test_listen_stream_drops_pending_changes_of_subresources_beyond_the_limit() -> None:
    async with (
        scripted(limits=Limits(max_pending_notifications=3)) as (client, server),
        listening(client, server, tools=True, uris=["note://a"]) as (changes, stream),
    ):
        for number in range(10):
            await server.tell(stream, UPDATED, uri=f"note://a/{number}")
        await server.tell(stream, UPDATED, uri="note://a")
        await server.tell(stream, "notifications/tools/list_changed")
        await server.send({"id": stream, "result": {}})
        came = [change async for change in changes]
        assert changes.dropped == 7
    assert came == [*(Change("resource", f"note://a/{n}") for n in range(3)), Change("resource", "note://a"), TOOLS]


async def test_listen_stream_that_is_not_iterated_does_not_delay_other_calls(autojump_clock: MockClock) -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(uris=["note://a"]):
        with trio.fail_after(1):
            for _ in range(100):
                await client.call_tool("change", {"uri": "note://a"})


async def test_cancelled_listen_iteration_loses_no_change() -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(tools=True) as changes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(changes)
        assert scope.cancelled_caught
        server.remove_tool("spare")
        assert await anext(changes) == TOOLS


async def test_internal_watchers_of_a_client_receive_the_changes_of_listen_streams() -> None:
    server, seen = noted(), list[Change]()
    async with open_memory(server) as client, client.listen(tools=True) as changes:
        client._callbacks.watchers.append(seen.append)
        server.remove_tool("spare")
        assert await anext(changes) == TOOLS
    assert seen == [TOOLS]


steps = st.lists(st.sampled_from(["tools", "prompts", "note://a", "note://b", "take"]), max_size=40)


@given(steps)
def test_slow_iteration_over_a_listen_stream_misses_only_repeated_changes(steps: list[str]) -> None:
    async def scenario() -> None:
        waiting: list[Change] = []
        async with (
            scripted() as (client, server),
            listening(client, server, tools=True, prompts=True, uris=["note://a"]) as (changes, stream),
        ):
            for step in steps:
                if step == "take":
                    if waiting:
                        assert await anext(changes) == waiting.pop(0)
                    continue
                if step.startswith("note:"):
                    change = Change("resource", step)
                    await server.tell(stream, UPDATED, uri=step)
                else:
                    change = Change(cast("Any", step))
                    await server.tell(stream, f"notifications/{step}/list_changed")
                await wait_all_tasks_blocked()
                if change not in waiting:
                    waiting.append(change)
            await server.send({"id": stream, "result": {}})
            assert [change async for change in changes] == waiting

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("kind", ["input_required", "hologram", None])
async def test_listen_iteration_raises_if_the_stream_ends_without_a_complete_result(kind: Any) -> None:
    """2026-07-28 basic, ResultType: MUST be considered invalid."""
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(server.acknowledge)
        async with client.listen(tools=True) as changes:
            await server.send({"id": server.seen[-1]["id"], "result": {"resultType": kind, "requestState": "x"}})
            with pytest.raises(ProtocolViolation, match="subscriptions/listen"):
                await anext(changes)


async def test_listen_raises_after_call_timeout_if_the_acknowledgement_is_missing(
    autojump_clock: MockClock,
) -> None:
    async with scripted(call_timeout=5) as (client, server):
        for listen in (client.subscribe("note://a"), _listen_for_tools(client)):
            began = trio.current_time()
            with pytest.raises(trio.TooSlowError), trio.fail_after(60):
                await listen
            assert trio.current_time() - began == 5
            request = await server.receive("subscriptions/listen")
            cancel = await server.receive("notifications/cancelled")
            assert cancel["params"]["requestId"] == request["id"]


async def test_call_timeout_does_not_apply_to_an_open_listen_stream(autojump_clock: MockClock) -> None:
    async with scripted(call_timeout=5) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(server.acknowledge)
        async with client.listen(tools=True) as changes:
            await trio.sleep(60)
            await server.tell(server.seen[-1]["id"], "notifications/tools/list_changed")
            assert await anext(changes) == TOOLS


async def _listen_for_tools(client: Client) -> None:
    async with client.listen(tools=True):
        pass
