"""``subscriptions/listen``: what a stream is told, and how it ends (2026-07-28 subscriptions, cancellation)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.interaction.conversation import LATEST_LEGACY, META_PREFIX, MODERN, is_same
from tests.interaction.memory_peer import MemoryPeer
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, Server
from trio_mcp.server.connection import ServerConnection
from trio_mcp.transports.memory import memory_channel_pair

SUBSCRIPTION_ID = META_PREFIX + "subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["note://a", "note://b"],
}


def noted() -> Server:
    """A server with one of each, and any number of notes."""
    server = Server("noted")

    @server.tool
    async def hang() -> None:
        await trio.sleep_forever()

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet() -> str:
        return "hello"

    return server


class Peer(MemoryPeer):
    """A modern client of one connection to ``server``."""

    def __init__(self, connection: ServerConnection, channel: Any) -> None:
        super().__init__(channel)
        self.connection = connection

    async def listen(self, request_id: Any = 1, **notifications: Any) -> dict[str, Any]:
        """Open a stream; the parameters of its first message."""
        message = self.message("subscriptions/listen", {"notifications": notifications}, id=request_id)
        await self.send(message)
        first = await self.take(lambda m: is_same(subscription_of(m), request_id))
        assert first["method"] == ACKNOWLEDGED
        return first["params"]

    async def next(self, request_id: Any = 1) -> str:
        """What the stream tells next: a method, with the URI of a resource."""
        message = await self.take(lambda m: is_same(subscription_of(m), request_id))
        return told(message)

    async def rest(self) -> list[dict[str, Any]]:
        """All that comes until the server closes the connection and that nobody took yet."""
        came: list[dict[str, Any]] = []
        with suppress(trio.EndOfChannel):
            while True:
                came.append(await self.take(lambda _: True))
        return came


def subscription_of(message: dict[str, Any]) -> Any:
    inside: dict[str, Any] = message.get("params") or message.get("result") or {}
    return inside.get("_meta", {}).get(SUBSCRIPTION_ID)


def told(message: dict[str, Any]) -> str:
    if "method" not in message:
        return "result"
    return " ".join([message["method"], *([message["params"]["uri"]] if "uri" in message["params"] else [])])


@asynccontextmanager
async def peer_of(
    server: Server, revision: str = MODERN, *, capacity: int = 65536, stateless: bool = False
) -> AsyncIterator[Peer]:
    """A raw client; ``capacity`` in bytes is what fits on the wire to it."""
    ours, theirs = memory_channel_pair(capacity)
    async with server.running(stateless=stateless) as running, trio.open_nursery() as nursery:
        connection = ServerConnection(running, theirs)
        await nursery.start(connection.run)
        peer = Peer(connection, ours)
        await peer.open(revision)
        yield peer
        nursery.cancel_scope.cancel()


# What is acknowledged


async def test_what_is_acknowledged_is_what_was_asked_for_and_can_be_told() -> None:
    async with peer_of(noted()) as peer:
        params = await peer.listen(**EVERYTHING)
    assert params == {"_meta": {SUBSCRIPTION_ID: 1}, "notifications": EVERYTHING}


async def test_lists_that_the_server_does_not_have_are_left_out() -> None:
    server = Server("bare")

    @server.tool
    async def only() -> None: ...

    async with peer_of(server) as peer:
        params = await peer.listen(**EVERYTHING)
    assert params["notifications"] == {"toolsListChanged": True}


async def test_what_is_refused_with_false_is_not_acknowledged() -> None:
    async with peer_of(noted()) as peer:
        params = await peer.listen(toolsListChanged=False, resourceSubscriptions=[])
    assert params["notifications"] == {}


async def test_uris_that_name_no_resource_are_left_out_and_so_are_endless_ones_and_repetitions() -> None:
    async with peer_of(noted()) as peer:
        uris = ["file:///nowhere", "note://a", "note://" + "x" * 8192, "note://a", "note://b"]
        params = await peer.listen(resourceSubscriptions=uris)
    assert params["notifications"] == {"resourceSubscriptions": ["note://a", "note://b"]}


async def test_resources_beyond_the_bound_are_left_out_over_all_streams_and_both_eras() -> None:
    server = noted()
    server.limits = Limits(max_subscriptions=3)
    async with peer_of(server, LATEST_LEGACY) as peer:
        await peer.request("resources/subscribe", {"uri": "note://legacy"})
        peer.revision = MODERN
        first = await peer.listen(1, resourceSubscriptions=["note://a"])
        second = await peer.listen(2, resourceSubscriptions=["note://b", "note://c"])
        assert first["notifications"] == {"resourceSubscriptions": ["note://a"]}
        assert second["notifications"] == {"resourceSubscriptions": ["note://b"]}
        await peer.cancel(1)
        third = await peer.listen(3, resourceSubscriptions=["note://d", "note://e"])
        assert third["notifications"] == {"resourceSubscriptions": ["note://d"]}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": "yes"}},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "note://a"}},
        {"notifications": {"resourceSubscriptions": [1]}},
    ],
)
async def test_a_malformed_filter_is_refused(params: dict[str, Any]) -> None:
    async with peer_of(noted()) as peer:
        reply = await peer.request("subscriptions/listen", params)
        assert reply["error"]["code"] == -32602
        assert peer.messages == [reply]


async def test_legacy_revisions_have_no_such_method() -> None:
    async with peer_of(noted(), LATEST_LEGACY) as peer:
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
    assert reply["error"]["code"] == -32601


async def test_a_server_run_stateless_has_streams_too() -> None:
    server = noted()
    async with peer_of(server, stateless=True) as peer:
        await peer.listen(resourceSubscriptions=["note://a"])
        server.resource_updated("note://a")
        assert await peer.next() == f"{UPDATED} note://a"


async def test_modern_clients_are_told_that_changes_can_be_listened_for() -> None:
    async with peer_of(noted()) as peer:
        capabilities = (await peer.request("server/discover"))["result"]["capabilities"]
    assert capabilities["tools"] == capabilities["prompts"] == {"listChanged": True}
    assert capabilities["resources"] == {"subscribe": True, "listChanged": True}


# What is told


async def test_only_what_was_asked_for_is_told(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(1, toolsListChanged=True, resourceSubscriptions=["note://a"])
        await peer.listen(2, promptsListChanged=True)
        server.resource_updated("note://b")
        server.remove_prompt("greet")
        server.remove_tool("hang")
        server.remove_resource("note://{name}")
        server.resource_updated("note://a")
        assert await peer.next(1) == TOOLS
        assert await peer.next(1) == f"{UPDATED} note://a"
        assert await peer.next(2) == PROMPTS
        assert await peer.everything() == []


@pytest.mark.parametrize("request_id", [0, 1, -7, "1", "a", "", 2**53])
async def test_every_frame_carries_the_id_in_its_own_json_type(request_id: Any) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(request_id, toolsListChanged=True)
        server.remove_tool("hang")
        peer.connection.duplex.shut_down("over")
        frames = [await peer.next(request_id) for _ in range(3)]
        assert frames == [TOOLS, "notifications/cancelled", "result"]


async def test_ids_that_differ_in_type_only_are_two_streams(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(1, toolsListChanged=True)
        await peer.listen("1", promptsListChanged=True)
        server.remove_prompt("greet")
        server.remove_tool("hang")
        assert await peer.next("1") == PROMPTS
        assert await peer.next(1) == TOOLS
        await peer.cancel("1")
        server.remove_tool("echo")
        assert await peer.next(1) == TOOLS
        assert await peer.everything() == []


async def test_one_change_reaches_both_eras_on_one_connection_each_in_its_form(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server, LATEST_LEGACY) as peer:
        await peer.request("resources/subscribe", {"uri": "note://a"})
        peer.revision = MODERN
        await peer.listen("s", toolsListChanged=True, resourceSubscriptions=["note://a"])
        peer.forget()
        server.resource_updated("note://a")
        server.remove_tool("hang")
        came = await peer.everything()
    meta = {"_meta": {SUBSCRIPTION_ID: "s"}}
    assert [(m["method"], m.get("params")) for m in came] == [
        (UPDATED, {"uri": "note://a"}),
        (UPDATED, {**meta, "uri": "note://a"}),
        (TOOLS, None),
        (TOOLS, meta),
    ]


async def test_changes_come_before_the_reply_to_what_was_asked_after_them() -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        server.remove_tool("hang")
        await peer.request("server/discover")
        assert [told(m) for m in peer.messages] == [ACKNOWLEDGED, TOOLS, "result"]


# How it ends


async def test_a_cancelled_stream_is_told_nothing_more_and_never_answered() -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        await peer.cancel(1)
        server.remove_tool("hang")
        peer.connection.duplex.shut_down("over")
        assert await peer.rest() == []


async def test_a_cancel_takes_back_what_was_not_written(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server, capacity=100) as peer:
        await peer.listen(toolsListChanged=True, resourceSubscriptions=["note://a"])
        peer.forget()
        for _ in range(10):
            server.resource_updated("note://a")
            await wait_all_tasks_blocked()
        await peer.cancel(1)
        # One is on the wire, and one in the writer's hand.
        assert [told(m) for m in await peer.everything()] == [f"{UPDATED} note://a"] * 2
        assert server.statistics().listening == 0


async def test_cancelled_in_the_moment_of_the_shutdown_it_says_nothing(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        peer.connection.duplex.shut_down("over")
        peer.connection.duplex.shut_down("at once")  # before any task ran
        assert await peer.rest() == []


async def test_at_a_shutdown_changes_go_first_then_the_cancel_then_the_result_then_nothing(
    autojump_clock: MockClock,
) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen("s", toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
        server.remove_tool("hang")
        server.resource_updated("note://a")
        server.resource_updated("note://b")
        peer.connection.duplex.shut_down("over")
        *changes, cancelled, result = await peer.rest()
    assert [told(m) for m in changes] == [TOOLS, f"{UPDATED} note://a", f"{UPDATED} note://b"]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == "s"
    assert result["id"] == "s"
    assert result["result"]["resultType"] == "complete"
    assert result["result"]["_meta"][SUBSCRIPTION_ID] == "s"


async def test_streams_end_in_good_order_even_when_nobody_is_waited_for(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        for number in range(20):
            await peer.listen(number, toolsListChanged=True)
        await peer.start("hang", id="slow")
        peer.connection.duplex.shut_down("over", drain_timeout=0)
        ends = [told(m) for m in await peer.rest()]
    assert ends.count("notifications/cancelled") == 20
    assert ends.count("result") == 20
    assert not peer.replies("slow")


async def test_streams_do_not_hold_up_the_end_of_the_connection(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.listen(toolsListChanged=True)
        before = trio.current_time()
        await peer.connection.duplex.close("over")
        assert trio.current_time() == before


async def test_a_stream_asked_for_in_the_last_moment_is_opened_and_ended(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.send(peer.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1))
        await peer.close()  # all that was sent is still read, and then the end of input
        with trio.fail_after(1):
            await peer.connection.duplex.close("over")


async def test_a_new_stream_is_refused_while_the_connection_ends(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.start("hang")
        peer.connection.duplex.shut_down("over")
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
        assert reply["error"]["code"] == -31000


# Bounds


async def test_streams_keep_no_request_from_running() -> None:
    server = noted()
    server.limits = Limits(max_in_flight=1, max_queued=0)
    async with peer_of(server) as peer:
        for number in range(10):
            await peer.listen(number, toolsListChanged=True)
        assert await peer.text("echo", {"text": "hi"}) == "hi"
        assert (server.statistics().listening, server.statistics().in_flight) == (10, 0)


async def test_one_stream_more_than_the_bound_is_refused_until_another_ends() -> None:
    server = noted()
    server.limits = Limits(max_subscriptions=2)
    async with peer_of(server) as peer:
        await peer.listen(1)
        await peer.listen(2)
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
        assert reply["error"]["code"] == -31000
        await peer.cancel(1)
        await peer.listen(3)


async def test_a_slow_listener_gets_each_change_once_and_others_do_not_wait(autojump_clock: MockClock) -> None:
    server = noted()
    server.limits = Limits(high_water=200)
    async with server.running() as running, trio.open_nursery() as nursery:
        peers: list[Peer] = []
        for capacity in (100, 65536):
            ours, theirs = memory_channel_pair(capacity)
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
        assert slow.connection.duplex.outbox.size < 1000
        await wait_all_tasks_blocked()
        came = [told(m) for m in await slow.everything()]
        assert len(came) < 20
        assert set(came[-2:]) == {f"{UPDATED} note://a", f"{UPDATED} note://b"}
        server.resource_updated("note://a")
        assert await slow.next() == f"{UPDATED} note://a"
        nursery.cancel_scope.cancel()


async def test_what_waits_for_a_slow_listener_still_goes_before_the_end(autojump_clock: MockClock) -> None:
    server = noted()
    server.limits = Limits(high_water=1)
    async with peer_of(server, capacity=1) as peer:
        await peer.listen(toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
        for _ in range(3):
            for uri in ("note://a", "note://b"):
                server.resource_updated(uri)
        server.remove_tool("hang")
        peer.connection.duplex.shut_down("over")
        came = [told(m) for m in await peer.rest()]
    # The first had room; of the five that did not, the second of a kind told nothing new.
    first, *waited = [f"{UPDATED} note://a", f"{UPDATED} note://b", f"{UPDATED} note://a"]
    assert came == [first, *waited, TOOLS, "notifications/cancelled", "result"]


CHANGES = {"tools": TOOLS, "prompts": PROMPTS}
changes = st.sampled_from([*CHANGES, "note://a", "note://b", "note://c"])


bursts = st.tuples(st.lists(changes, max_size=6), st.integers(0, 4) | st.just("all"))


@given(st.lists(bursts, max_size=12), st.integers(1, 400), st.integers(1, 400))
def test_however_slowly_it_is_read_each_change_is_followed_by_its_news(
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
            peer.connection.duplex.shut_down("over")
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
    listing = {"tools": server.tools.listing, "prompts": server.prompts.listing}.get(change)
    if listing is None:
        server.resource_updated(change)
    elif change == "tools":
        server.remove_tool("extra") if listing.get("extra") else server.tool(name="extra")(nothing)
    else:
        server.remove_prompt("extra") if listing.get("extra") else server.prompt(name="extra")(nothing)


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
def test_whatever_is_opened_cancelled_and_published_each_stream_gets_what_it_asked_for_and_nothing_else(
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
            peer.connection.duplex.shut_down("over")
            ends = [framed(message) for message in await peer.rest()]
        for _, one in streams:
            mine = [frame for said_of, frame in ends if is_same(said_of, one)]
            assert mine == ["notifications/cancelled", "result"]
        assert len(ends) == 2 * len(streams)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def framed(message: dict[str, Any]) -> tuple[Any, str]:
    """Whose a message is, and what it says."""
    return (None, "refused") if "error" in message else (subscription_of(message), told(message))
