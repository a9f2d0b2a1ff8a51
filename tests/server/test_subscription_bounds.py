"""Streams of changes stay within their bounds, whoever reads slowly and whatever comes in whatever order."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.interaction.conversation import MODERN, is_same
from tests.server.listening import (
    ACKNOWLEDGED,
    EVERYTHING,
    PROMPTS,
    TOOLS,
    UPDATED,
    Peer,
    noted,
    peer_of,
    subscription_of,
    told,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, Server
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.lines import memory_transport_pair

# Bounds


async def test_open_listen_streams_do_not_count_as_requests_in_flight() -> None:
    server = noted()
    server.limits = Limits(max_in_flight=1, max_queued=0)
    async with peer_of(server) as peer:
        for number in range(10):
            await peer.listen(number, toolsListChanged=True)
        assert await peer.text("echo", {"text": "hi"}) == "hi"
        assert (server.statistics().listening, server.statistics().in_flight) == (10, 0)


async def test_listen_request_beyond_the_stream_limit_is_rejected_until_another_stream_ends() -> None:
    server = noted()
    server.limits = Limits(max_subscriptions=2)
    async with peer_of(server) as peer:
        await peer.listen(1)
        await peer.listen(2)
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
        assert reply["error"]["code"] == -31000
        await peer.cancel(1)
        await peer.listen(3)


async def test_slow_listen_stream_receives_each_change_once_without_delaying_other_listen_streams(
    autojump_clock: MockClock,
) -> None:
    server = noted()
    server.limits = Limits(high_water=200)
    async with server._running() as running, trio.open_nursery() as nursery:
        peers: list[Peer] = []
        for capacity in (100, 65536):
            ours, theirs = memory_transport_pair(capacity)
            connection = ServerConnection(running, theirs)
            await nursery.start(connection.run)
            peers.append(Peer(connection, ours))
            await peers[-1].open(MODERN)
            await peers[-1].listen(resourceSubscriptions=["note://a", "note://b"])
        slow, quick = peers
        for _ in range(1000):
            for uri in ("note://a", "note://b"):
                server.resource_updated(uri)
                assert await quick.next() == f"{UPDATED} {uri}"
        assert slow.connection.connection.outbox.size < 1000
        await wait_all_tasks_blocked()
        came = [told(m) for m in await slow.everything()]
        assert len(came) < 20
        assert set(came[-2:]) == {f"{UPDATED} note://a", f"{UPDATED} note://b"}
        server.resource_updated("note://a")
        assert await slow.next() == f"{UPDATED} note://a"
        nursery.cancel_scope.cancel()


async def test_changes_queued_for_a_slow_listen_stream_are_sent_before_its_end(autojump_clock: MockClock) -> None:
    server = noted()
    server.limits = Limits(high_water=1)
    async with peer_of(server, capacity=1) as peer:
        await peer.listen(toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
        for _ in range(3):
            for uri in ("note://a", "note://b"):
                server.resource_updated(uri)
        server.remove_tool("hang")
        peer.connection.connection.shut_down("over")
        came = [told(m) for m in await peer.rest()]
    # The first had room; of the five that did not, the second of a kind told nothing new.
    first, *waited = [f"{UPDATED} note://a", f"{UPDATED} note://b", f"{UPDATED} note://a"]
    assert came == [first, *waited, TOOLS, "notifications/cancelled", "result"]


CHANGES = {"tools": TOOLS, "prompts": PROMPTS}
changes = st.sampled_from([*CHANGES, "note://a", "note://b", "note://c"])
bursts = st.tuples(st.lists(changes, max_size=6), st.integers(0, 4) | st.just("all"))


@given(st.lists(bursts, max_size=12), st.integers(1, 400), st.integers(1, 400))
def test_slow_listen_stream_receives_a_notification_after_the_last_change_of_each_resource(
    steps: list[tuple[list[str], int | str]], high_water: int, capacity: int
) -> None:
    server = noted()
    server.limits = Limits(high_water=high_water)

    async def scenario() -> None:
        owed = list[tuple[int, str]]()  # what is to come after so many messages
        published, seen = list[str](), 1
        async with peer_of(server, capacity=capacity) as peer:
            await peer.listen(**{**EVERYTHING, "resourcesListChanged": False})
            for burst, reads in steps:
                for change in burst:
                    publish(server, change)
                    published.append(CHANGES.get(change, f"{UPDATED} {change}"))
                    owed.append((seen, published[-1]))
                await wait_all_tasks_blocked()
                if reads == "all":
                    await peer.everything()
                    seen = len(peer.messages)
                for _ in range(0 if reads == "all" else int(reads)):
                    with trio.move_on_after(0):
                        await peer.next()
            peer.connection.connection.shut_down("over")
            await peer.rest()
            came = [told(m) for m in peer.messages]
        assert came[0] == ACKNOWLEDGED
        assert came[-2:] == ["notifications/cancelled", "result"]
        wanted = {TOOLS, PROMPTS, f"{UPDATED} note://a", f"{UPDATED} note://b"}
        assert set(came[1:-2]) <= wanted
        assert all(news in came[after:] for after, news in owed if news in wanted)
        assert all(came.count(news) <= published.count(news) for news in wanted)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def publish(server: Server, change: str) -> None:
    """One change: a thing more or less of a kind, or a resource with new contents."""
    registry = {"tools": server._tools.registry, "prompts": server._prompts.registry}.get(change)
    if registry is None:
        server.resource_updated(change)
    elif change == "tools":
        server.remove_tool("extra") if registry.get("extra") else server.tool(name="extra")(nothing)
    else:
        server.remove_prompt("extra") if registry.get("extra") else server.prompt(name="extra")(nothing)


async def nothing() -> None:
    """Does nothing."""


ids = st.sampled_from([1, "1", "a"])
asked_lists = st.sets(st.sampled_from(["tools", "prompts"]))
asked_notes = st.sets(st.sampled_from(["note://a", "note://b"]))
moves = st.one_of(
    st.tuples(st.just("listen"), ids, asked_lists, asked_notes),
    st.tuples(st.just("cancel"), ids),
    st.tuples(st.just("publish"), changes),
)


@given(st.lists(moves, max_size=30))
def test_each_listen_stream_receives_exactly_its_subscribed_changes(
    moves: list[tuple[Any, ...]],
) -> None:
    server = noted()

    async def scenario() -> None:
        streams: dict[tuple[type, Any], set[str]] = {}

        async with peer_of(server) as peer:
            for move in moves:
                expected = list[tuple[Any, str]]()
                match move:
                    case "listen", request_id, lists, notes:
                        filters = {f"{kind}ListChanged": True for kind in lists}
                        await peer.send(
                            peer.message(
                                "subscriptions/listen",
                                {"notifications": {**filters, "resourceSubscriptions": sorted(notes)}},
                                id=request_id,
                            )
                        )
                        if (type(request_id), request_id) in streams:
                            expected.append((None, "refused"))
                        else:
                            streams[type(request_id), request_id] = {*lists, *notes}
                            expected.append((request_id, ACKNOWLEDGED))
                    case "cancel", request_id:
                        await peer.cancel(request_id)
                        streams.pop((type(request_id), request_id), None)
                    case _, change:
                        publish(server, change)
                        news = CHANGES.get(change, f"{UPDATED} {change}")
                        expected += [(one, news) for (_, one), asked in streams.items() if change in asked]
                assert [framed(message) for message in await peer.everything()] == expected
            peer.connection.connection.shut_down("over")
            ends = [framed(message) for message in await peer.rest()]
        for _, one in streams:
            mine = [frame for said_of, frame in ends if is_same(said_of, one)]
            assert mine == ["notifications/cancelled", "result"]
        assert len(ends) == 2 * len(streams)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def framed(message: dict[str, Any]) -> tuple[Any, str]:
    """Whose a message is, and what it says."""
    return (None, "refused") if "error" in message else (subscription_of(message), told(message))
