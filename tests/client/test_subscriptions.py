"""Listening for changes of a modern server, and having callbacks told of them as in the legacy era."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    Change,
    Changes,
    Client,
    ConnectionLost,
    Limits,
    MethodUnavailable,
    PeerError,
    ProtocolViolation,
    Server,
    SubscriptionFilter,
    open_memory,
)
from trio_mcp.client.opening import open_client
from trio_mcp.server.connection import ServerConnection
from trio_mcp.spec.meta import SUBSCRIPTION_ID
from trio_mcp.transports.memory import MemoryChannel, memory_channel_pair

ERAS: Any = ("legacy", "modern")
TOOLS, PROMPTS, RESOURCES = Change("tools"), Change("prompts"), Change("resources")
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


def noted() -> Server:
    """A server with one of each, and any number of notes."""
    server = Server("noted")

    @server.tool
    async def change(uri: str) -> None:
        server.resource_updated(uri)

    @server.tool
    async def spare() -> None: ...

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet() -> str:
        return "hello"

    return server


class Scripted:
    """A modern server, spoken by the test line by line."""

    def __init__(self, channel: MemoryChannel) -> None:
        self.channel = channel
        self.seen: list[dict[str, Any]] = []

    async def receive(self, method: str) -> dict[str, Any]:
        """The next message, which must be this request or notification."""
        message = json.loads(await self.channel.receive())
        self.seen.append(message)
        assert message["method"] == method, message
        return message

    async def send(self, message: dict[str, Any]) -> None:
        await self.channel.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def discover(self, **capabilities: Any) -> None:
        """Answer ``server/discover``."""
        request = await self.receive("server/discover")
        result = {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
        }
        await self.send({"id": request["id"], "result": result})

    async def tell(self, subscription_id: Any, method: str, **params: Any) -> None:
        """One notification on a stream."""
        await self.send({"method": method, "params": {"_meta": {SUBSCRIPTION_ID: subscription_id}, **params}})

    async def acknowledge(self, **honoured: Any) -> Any:
        """Take a request to listen and acknowledge it, by default as asked; its id."""
        request = await self.receive("subscriptions/listen")
        await self.tell(request["id"], ACKNOWLEDGED, notifications=honoured or request["params"]["notifications"])
        return request["id"]


@asynccontextmanager
async def scripted(**options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A modern client and the server that the test speaks for."""
    ours, theirs = memory_channel_pair()
    server = Scripted(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.discover)
        async with open_client(ours, era="modern", **options) as client:
            yield client, server


@asynccontextmanager
async def listening(client: Client, server: Scripted, **asked: Any) -> AsyncIterator[tuple[Changes, Any]]:
    """A stream that the scripted server has acknowledged as it was asked for, and its id."""
    ids: list[Any] = []

    async def acknowledge() -> None:
        ids.append(await server.acknowledge())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acknowledge)
        async with client.listen(**asked) as changes:
            yield changes, ids[0]


# Listening


async def test_the_block_is_entered_when_the_server_has_acknowledged() -> None:
    asked = {"tools": True, "uris": ["note://a", "file:///nowhere"]}
    async with open_memory(noted()) as client, client.listen(**cast("Any", asked)) as changes:
        assert changes.acknowledged == SubscriptionFilter(tools_list_changed=True, resource_subscriptions=["note://a"])


async def test_changes_come_typed_and_in_order() -> None:
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


async def test_several_streams_get_each_what_they_asked_for() -> None:
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


async def test_leaving_the_block_ends_the_stream_in_the_server() -> None:
    server = noted()
    async with open_memory(server) as client:
        async with client.listen(tools=True) as changes:
            assert server.statistics().listening == 1
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 0
        with pytest.raises(StopAsyncIteration):
            await anext(changes)


async def test_leaving_the_block_sends_one_cancel() -> None:
    async with scripted() as (client, server):
        async with listening(client, server, tools=True) as (_, stream):
            pass
        message = await server.receive("notifications/cancelled")
        assert message["params"]["requestId"] == stream
        with trio.move_on_after(0):
            await wait_all_tasks_blocked()
        assert len(server.seen) == 3


async def test_a_wait_for_the_acknowledgement_can_be_left() -> None:
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


async def test_exceptions_of_the_block_leave_as_they_are() -> None:
    async with open_memory(noted()) as client:
        with pytest.raises(KeyError):
            async with client.listen(tools=True):
                raise KeyError


@pytest.mark.parametrize("era", ["legacy"])
async def test_legacy_revisions_have_no_streams(era: Any) -> None:
    async with open_memory(noted(), era=era) as client:
        with pytest.raises(MethodUnavailable):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_one_uri_in_place_of_a_list_is_refused() -> None:
    async with open_memory(noted()) as client:
        with pytest.raises(TypeError, match="list of URIs"):
            client.listen(uris="note://a")


async def test_an_error_of_the_server_is_raised_on_entering() -> None:
    server = noted()
    server.limits = Limits(max_subscriptions=1)
    async with open_memory(server) as client, client.listen(tools=True):
        with pytest.raises(PeerError, match="Too busy"):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_a_stream_that_ends_unacknowledged_is_a_violation() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:

        async def end() -> None:
            request = await server.receive("subscriptions/listen")
            await server.send({"id": request["id"], "result": {"resultType": "complete"}})

        nursery.start_soon(end)
        with pytest.raises(ProtocolViolation, match="never acknowledged"):
            async with client.listen(tools=True):
                pytest.fail("it was entered")


async def test_an_acknowledgement_without_sense_is_a_violation_and_the_stream_is_left() -> None:
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
async def test_the_iteration_ends_when_the_server_ends_the_stream_and_no_cancel_follows(way: str) -> None:
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


async def test_a_shutdown_of_the_server_ends_the_iteration_after_the_last_change() -> None:
    server = noted()
    ours, theirs = memory_channel_pair()
    async with server.running() as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs)
        nursery.start_soon(connection.run)
        async with open_client(ours) as client, client.listen(tools=True, uris=["note://a"]) as changes:
            server.remove_tool("spare")
            server.resource_updated("note://a")
            connection.duplex.shut_down("over")
            assert [change async for change in changes] == [TOOLS, Change("resource", "note://a")]


async def test_the_loss_of_the_connection_is_raised_after_what_came_before_it() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True) as (changes, stream):
        await server.tell(stream, "notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        await server.channel.aclose()
        assert await anext(changes) == TOOLS
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await anext(changes)


async def test_a_lost_connection_does_not_disturb_a_block_that_does_not_ask() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True):
        await server.channel.aclose()
        await wait_all_tasks_blocked()


async def test_an_error_that_ends_the_stream_is_raised() -> None:
    async with scripted() as (client, server), listening(client, server, tools=True) as (changes, stream):
        await server.send({"id": stream, "error": {"code": -32603, "message": "broken"}})
        with pytest.raises(PeerError, match="broken"):
            await anext(changes)


# What comes on it


async def test_what_was_not_asked_for_is_passed_over() -> None:
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


async def test_an_update_without_a_uri_is_passed_over() -> None:
    async with scripted() as (client, server), listening(client, server, uris=["note://a"]) as (changes, stream):
        await server.tell(stream, UPDATED)
        await server.tell(stream, UPDATED, uri=7)
        await server.send({"id": stream, "result": {}})
        assert [change async for change in changes] == []


async def test_equal_changes_that_wait_are_one() -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(tools=True, uris=["note://a"]) as changes:
        for _ in range(1000):
            server.resource_updated("note://a")
        server.remove_tool("spare")
        await client.ping()
        assert [await anext(changes), await anext(changes)] == [Change("resource", "note://a"), TOOLS]
        server.resource_updated("note://a")
        assert await anext(changes) == Change("resource", "note://a")
        with trio.move_on_after(0) as nothing_more:
            await anext(changes)
        assert nothing_more.cancelled_caught


async def test_parts_of_a_resource_have_bounded_room_and_what_was_asked_for_always_has() -> None:
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


async def test_a_listener_that_does_not_look_holds_up_nobody(autojump_clock: MockClock) -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(uris=["note://a"]):
        with trio.fail_after(1):
            for _ in range(100):
                await client.call_tool("change", {"uri": "note://a"})


async def test_a_cancelled_step_loses_nothing() -> None:
    server = noted()
    async with open_memory(server) as client, client.listen(tools=True) as changes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(changes)
        assert scope.cancelled_caught
        server.remove_tool("spare")
        assert await anext(changes) == TOOLS


async def test_watchers_see_what_listeners_get() -> None:
    server, seen = noted(), list[Change]()
    async with open_memory(server) as client, client.listen(tools=True) as changes:
        client.callbacks.watchers.append(seen.append)
        server.remove_tool("spare")
        assert await anext(changes) == TOOLS
    assert seen == [TOOLS]


# Callbacks, in either era


@pytest.mark.parametrize("era", ERAS)
async def test_list_changes_reach_the_callback_from_the_first_on(era: Any) -> None:
    server, told = noted(), list[str]()
    async with open_memory(server, era=era, on_list_changed=told.append) as client:
        if era == "legacy":
            await client.ping()  # the handshake is complete before this
        server.remove_tool("spare")
        server.remove_prompt("greet")
        await client.ping()
        assert told == ["tools", "prompts"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_subscription_reaches_the_callback_until_it_is_undone(era: Any) -> None:
    server, told = noted(), list[str]()
    async with open_memory(server, era=era, on_resource_updated=told.append) as client:
        await client.subscribe("note://a")
        await client.subscribe("note://a")
        await client.subscribe("note://b")
        for uri in ("note://a", "note://b", "note://c"):
            await client.call_tool("change", {"uri": uri})
        assert told == ["note://a", "note://b"]
        await client.unsubscribe("note://a")
        await client.unsubscribe("note://a")
        for uri in ("note://a", "note://b"):
            await client.call_tool("change", {"uri": uri})
        assert told == ["note://a", "note://b", "note://b"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_subscription_to_nothing_is_an_error_of_the_peer(era: Any) -> None:
    async with open_memory(noted(), era=era) as client:
        with pytest.raises(PeerError, match="Resource not found") as caught:
            await client.subscribe("file:///nowhere")
        assert caught.value.code == client.revision.resource_not_found


async def test_a_subscription_made_twice_at_once_is_one_stream() -> None:
    server = noted()
    async with open_memory(server, era="modern") as client:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.subscribe, "note://a")
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 1
        await client.unsubscribe("note://a")
        await client.ping()
        await wait_all_tasks_blocked()
        assert server.statistics().listening == 0


async def test_a_subscription_that_was_given_up_leaves_nothing_behind() -> None:
    async with scripted() as (client, server):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def leave() -> None:
                    await server.receive("subscriptions/listen")
                    scope.cancel()

                nursery.start_soon(leave)
                await client.subscribe("note://a")
        await server.receive("notifications/cancelled")


async def test_a_subscription_that_the_server_ended_can_be_made_again() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        for _ in range(2):
            streams: list[Any] = []

            async def acknowledge(streams: list[Any] = streams) -> None:
                streams.append(await server.acknowledge())

            nursery.start_soon(acknowledge)
            await client.subscribe("note://a")
            await server.send({"id": streams[0], "result": {}})
            await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("end", "level"), [({"result": {}}, "INFO"), ({"error": {"code": -32603, "message": "broken"}}, "WARNING")]
)
async def test_the_end_of_a_subscription_that_nobody_else_would_see_is_logged(
    end: dict[str, Any], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trio_mcp")
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        ids: list[Any] = []

        async def acknowledge() -> None:
            ids.append(await server.acknowledge())

        nursery.start_soon(acknowledge)
        await client.subscribe("note://a")
        await server.send({"id": ids[0], **end})
        await wait_all_tasks_blocked()
    (record,) = [record for record in caplog.records if "note://a" in record.getMessage()]
    assert record.levelname == level


# Ends of streams that only callbacks use


@asynccontextmanager
async def followed(told: list[str], **options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A client whose callbacks are told of ``note://a``, and the server that has acknowledged it."""
    async with (
        scripted(on_resource_updated=told.append, **options) as (client, server),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.acknowledge)
        await client.subscribe("note://a")
        yield client, server


@pytest.mark.parametrize("end", [{"result": {}}, {"error": {"code": -31000, "message": "Shutting down"}}, "cancelled"])
async def test_a_stream_for_callbacks_is_opened_anew_and_what_was_missed_is_told(
    end: Any, autojump_clock: MockClock
) -> None:
    told: list[str] = []
    async with followed(told) as (client, server):
        first = server.seen[-1]["id"]
        if end == "cancelled":
            await server.send({"method": "notifications/cancelled", "params": {"requestId": first}})
        else:
            await server.send({"id": first, **end})
        second = await server.acknowledge()
        assert server.seen[-1]["params"]["notifications"] == {"resourceSubscriptions": ["note://a"]}
        await wait_all_tasks_blocked()
        assert told == ["note://a"]
        await server.tell(second, UPDATED, uri="note://a")
        await wait_all_tasks_blocked()
        assert told == ["note://a"] * 2
        await client.unsubscribe("note://a")
        cancel = await server.receive("notifications/cancelled")
        assert cancel["params"]["requestId"] == second


async def test_what_is_kept_of_a_resource_is_asked_for_again_once_its_stream_was_opened_anew(
    autojump_clock: MockClock,
) -> None:
    told: list[str] = []
    async with followed(told) as (client, server), trio.open_nursery() as nursery:

        async def read() -> None:
            await client.read_resource("note://a")

        async def answer() -> None:
            request = await server.receive("resources/read")
            await server.send({"id": request["id"], "result": {"contents": [], "ttlMs": 600_000}})

        nursery.start_soon(answer)
        await read()
        await read()
        await server.send({"id": server.seen[0]["id"] + 1, "result": {}})
        await server.acknowledge()
        await wait_all_tasks_blocked()
        nursery.start_soon(answer)
        await read()


async def test_a_server_that_ends_each_stream_at_once_is_asked_at_growing_intervals(autojump_clock: MockClock) -> None:
    async with followed([]) as (_, server):
        ends = [trio.current_time()]
        for _ in range(12):
            await server.send({"id": server.seen[-1]["id"], "result": {}})
            await server.acknowledge()
            ends.append(trio.current_time())
        pauses = [later - earlier for earlier, later in itertools.pairwise(ends)]
        bounds = [min(2.0**number, 60) for number in range(12)]
        assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
        await trio.sleep(60)
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        before = trio.current_time()
        await server.acknowledge()
        assert trio.current_time() - before <= 1, "it had lasted"


async def test_refusals_do_not_end_the_attempts_but_a_server_that_has_no_streams_any_more_does(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed([]) as (client, server):
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        for code in (-31000, -32603, -32601):
            request = await server.receive("subscriptions/listen")
            await server.send({"id": request["id"], "error": {"code": code, "message": "no"}})
        await trio.sleep(1000)
        await client.unsubscribe("note://a")
    assert [message["method"] for message in server.seen].count("subscriptions/listen") == 4
    assert "tells no more of changes of note://a: the peer answered: no (-32601)" in caplog.text


async def test_a_resource_that_the_server_cannot_tell_of_any_more_is_given_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    async with followed(told) as (_, server):
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        await server.acknowledge(toolsListChanged=True)
        await server.receive("notifications/cancelled")
        await trio.sleep(1000)
    assert (told, "tells no more of changes of note://a" in caplog.text) == ([], True)


async def test_lists_are_followed_anew_too(autojump_clock: MockClock) -> None:
    ours, theirs = memory_channel_pair()
    server, told = Scripted(theirs), list[str]()

    async def serve() -> None:
        await server.discover(tools={"listChanged": True}, prompts={"listChanged": True})
        await server.send({"id": await server.acknowledge(), "result": {}})
        await server.acknowledge()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=told.append):
            await trio.sleep(10)
    assert told == ["prompts", "tools"]


async def test_a_subscription_made_again_while_its_stream_is_interrupted_is_opened_at_once(
    autojump_clock: MockClock,
) -> None:
    async with followed([]) as (client, server), trio.open_nursery() as nursery:
        await server.send({"id": server.seen[-1]["id"], "result": {}})
        await wait_all_tasks_blocked()
        before = trio.current_time()
        nursery.start_soon(server.acknowledge)
        await client.subscribe("note://a")
        assert trio.current_time() == before
        await trio.sleep(1000)
    assert [message["method"] for message in server.seen].count("subscriptions/listen") == 2, "the other was given up"


async def test_callbacks_are_told_only_what_streams_of_theirs_were_asked_to_tell() -> None:
    """2026-07-28 subscriptions: what is on no stream, or was not asked for on it, is of no subscription."""
    told: list[str] = []
    async with followed(told, on_list_changed=told.append) as (_, server):
        stream = server.seen[-1]["id"]
        await server.send({"method": UPDATED, "params": {"uri": "note://a"}})
        await server.send({"method": "notifications/tools/list_changed"})
        await server.tell(stream, "notifications/tools/list_changed")
        await server.tell(stream + 1, UPDATED, uri="note://a")
        await server.tell(stream, UPDATED, uri="note://a/part")
        await wait_all_tasks_blocked()
        assert told == ["note://a/part"]


async def test_nothing_is_logged_of_a_subscription_that_was_undone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trio_mcp")
    async with open_memory(noted(), era="modern", on_list_changed=print) as client:
        await client.subscribe("note://a")
        await client.unsubscribe("note://a")
        await client.subscribe("note://b")
    assert not [record for record in caplog.records if "no more" in record.getMessage()]


async def test_without_a_callback_no_stream_is_opened() -> None:
    server = noted()
    async with open_memory(server, era="modern") as client:
        await client.ping()
        assert server.statistics().listening == 0


async def test_only_lists_whose_changes_are_declared_are_followed() -> None:
    ours, theirs = memory_channel_pair()
    server, asked = Scripted(theirs), list[Any]()

    async def serve() -> None:
        await server.discover(tools={"listChanged": True}, prompts={}, resources={"subscribe": True})
        await server.acknowledge()
        asked.append(server.seen[-1]["params"]["notifications"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=print):
            assert asked == [{"toolsListChanged": True}]


@pytest.mark.parametrize("answer", ["error", "silence"])
async def test_a_server_that_does_not_keep_what_it_declares_is_no_obstacle(
    answer: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = memory_channel_pair()
    server = Scripted(theirs)

    async def serve() -> None:
        await server.discover(tools={"listChanged": True})
        request = await server.receive("subscriptions/listen")
        if answer == "error":
            await server.send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours, era="modern", on_list_changed=print, probe_timeout=2) as client:
            assert client.server_capabilities.tools is not None
    assert ("Method not found" in caplog.text) == (answer == "error")


steps = st.lists(st.sampled_from(["tools", "prompts", "note://a", "note://b", "take"]), max_size=40)


@given(steps)
def test_whatever_the_pace_nothing_is_lost_but_repetition(steps: list[str]) -> None:
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


async def test_a_resource_that_is_not_among_the_acknowledged_is_not_subscribed() -> None:
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(partial(server.acknowledge, resourceSubscriptions=["note://b"]))
        with pytest.raises(PeerError, match="Resource not found"):
            await client.subscribe("note://a")
        await server.receive("notifications/cancelled")


@pytest.mark.parametrize("kind", ["input_required", "hologram", None])
async def test_a_stream_that_ends_with_no_complete_result_has_failed(kind: Any) -> None:
    """2026-07-28 basic, ResultType: MUST be considered invalid."""
    async with scripted() as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(server.acknowledge)
        async with client.listen(tools=True) as changes:
            await server.send({"id": server.seen[-1]["id"], "result": {"resultType": kind, "requestState": "x"}})
            with pytest.raises(ProtocolViolation, match="subscriptions/listen"):
                await anext(changes)


async def test_a_server_that_never_acknowledges_is_given_up_after_the_limit_of_a_call(
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


async def test_the_limit_of_a_call_is_none_of_the_stream(autojump_clock: MockClock) -> None:
    async with scripted(call_timeout=5) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(server.acknowledge)
        async with client.listen(tools=True) as changes:
            await trio.sleep(60)
            await server.tell(server.seen[-1]["id"], "notifications/tools/list_changed")
            assert await anext(changes) == TOOLS


async def _listen_for_tools(client: Client) -> None:
    async with client.listen(tools=True):
        pass


# What is left behind


async def listened(client: Client) -> None:
    async with client.listen(tools=True, uris=["note://a"]) as changes:
        await client.call_tool("change", {"uri": "note://a"})
        await anext(changes)


async def left_by_a_cancel(client: Client) -> None:
    with trio.CancelScope() as scope:
        async with client.listen(tools=True) as changes:
            scope.cancel()
            await anext(changes)


async def subscribed(client: Client) -> None:
    await client.subscribe("note://a")
    await client.unsubscribe("note://a")
    with pytest.raises(PeerError):
        await client.subscribe("nobody://a")


@pytest.mark.parametrize("use", [listened, left_by_a_cancel, subscribed])
async def test_streams_leave_no_work_for_the_garbage_collector(use: Callable[[Client], Awaitable[None]]) -> None:
    async with open_memory(noted(), era="modern") as client:
        await use(client)
        await wait_all_tasks_blocked()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await use(client)
            await wait_all_tasks_blocked()
            assert gc.collect() < 20
        finally:
            gc.enable()
