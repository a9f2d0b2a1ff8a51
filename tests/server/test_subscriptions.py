"""``subscriptions/listen``: what a stream is told, and how it ends (2026-07-28 subscriptions, cancellation)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.interaction.conversation import LATEST_LEGACY, MODERN
from tests.server.listening import (
    ACKNOWLEDGED,
    EVERYTHING,
    PROMPTS,
    SUBSCRIPTION_ID,
    TOOLS,
    UPDATED,
    noted,
    peer_of,
    told,
)
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, Server

# What is acknowledged


async def test_listen_acknowledges_all_requested_and_available_changes() -> None:
    async with peer_of(noted()) as peer:
        params = await peer.listen(**EVERYTHING)
    assert params == {"_meta": {SUBSCRIPTION_ID: 1}, "notifications": EVERYTHING}


async def test_listen_does_not_acknowledge_lists_that_the_server_lacks() -> None:
    server = Server("bare")

    @server.tool
    async def only() -> None: ...

    async with peer_of(server) as peer:
        params = await peer.listen(**EVERYTHING)
    assert params["notifications"] == {"toolsListChanged": True}


async def test_listen_filter_field_set_to_false_is_not_acknowledged() -> None:
    async with peer_of(noted()) as peer:
        params = await peer.listen(toolsListChanged=False, resourceSubscriptions=[])
    assert params["notifications"] == {}


async def test_listen_does_not_acknowledge_unknown_too_long_or_duplicate_uris() -> None:
    async with peer_of(noted()) as peer:
        uris = ["file:///nowhere", "note://a", "note://" + "x" * 8192, "note://a", "note://b"]
        params = await peer.listen(resourceSubscriptions=uris)
    assert params["notifications"] == {"resourceSubscriptions": ["note://a", "note://b"]}


async def test_listen_does_not_acknowledge_resources_beyond_the_limit_of_all_streams() -> None:
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
async def test_malformed_listen_filter_gets_error_invalid_params(params: dict[str, Any]) -> None:
    async with peer_of(noted()) as peer:
        reply = await peer.request("subscriptions/listen", params)
        assert reply["error"]["code"] == -32602
        assert peer.messages == [reply]


async def test_subscriptions_listen_gets_error_method_not_found_in_legacy_revisions() -> None:
    async with peer_of(noted(), LATEST_LEGACY) as peer:
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
    assert reply["error"]["code"] == -32601


async def test_stateless_server_supports_listen_streams() -> None:
    server = noted()
    async with peer_of(server, stateless=True) as peer:
        await peer.listen(resourceSubscriptions=["note://a"])
        server.resource_updated("note://a")
        assert await peer.next() == f"{UPDATED} note://a"


async def test_list_changed_is_declared_to_modern_clients() -> None:
    async with peer_of(noted()) as peer:
        capabilities = (await peer.request("server/discover"))["result"]["capabilities"]
    assert capabilities["tools"] == capabilities["prompts"] == {"listChanged": True}
    assert capabilities["resources"] == {"subscribe": True, "listChanged": True}


# What is told


async def test_listen_stream_sends_only_subscribed_changes(autojump_clock: MockClock) -> None:
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
async def test_listen_notifications_contain_the_subscription_id_with_its_json_type(request_id: Any) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(request_id, toolsListChanged=True)
        server.remove_tool("hang")
        peer.connection.connection.shut_down("over")
        frames = [await peer.next(request_id) for _ in range(3)]
        assert frames == [TOOLS, "notifications/cancelled", "result"]


async def test_listen_streams_with_ids_1_and_string_1_are_separate(autojump_clock: MockClock) -> None:
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


async def test_change_notification_is_sent_in_legacy_and_modern_form_on_one_connection(
    autojump_clock: MockClock,
) -> None:
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


async def test_change_notification_is_sent_before_responses_to_later_requests() -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        server.remove_tool("hang")
        await peer.request("server/discover")
        assert [told(m) for m in peer.messages] == [ACKNOWLEDGED, TOOLS, "result"]


# How it ends


async def test_cancelled_listen_stream_sends_no_more_changes_and_no_response() -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        await peer.cancel(1)
        server.remove_tool("hang")
        peer.connection.connection.shut_down("over")
        assert await peer.rest() == []


async def test_cancelled_listen_stream_drops_its_unwritten_changes(autojump_clock: MockClock) -> None:
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


async def test_listen_stream_cancelled_immediately_during_shutdown_sends_nothing(autojump_clock: MockClock) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen(toolsListChanged=True)
        peer.connection.connection.shut_down("over")
        peer.connection.connection.shut_down("at once")  # before any task ran
        assert await peer.rest() == []


async def test_listen_stream_sends_changes_then_cancelled_then_the_result_at_shutdown(
    autojump_clock: MockClock,
) -> None:
    server = noted()
    async with peer_of(server) as peer:
        await peer.listen("s", toolsListChanged=True, resourceSubscriptions=["note://a", "note://b"])
        server.remove_tool("hang")
        server.resource_updated("note://a")
        server.resource_updated("note://b")
        peer.connection.connection.shut_down("over")
        *changes, cancelled, result = await peer.rest()
    assert [told(m) for m in changes] == [TOOLS, f"{UPDATED} note://a", f"{UPDATED} note://b"]
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == "s"
    assert result["id"] == "s"
    assert result["result"]["resultType"] == "complete"
    assert result["result"]["_meta"][SUBSCRIPTION_ID] == "s"


async def test_listen_streams_end_with_a_result_even_if_drain_timeout_is_zero(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        for number in range(20):
            await peer.listen(number, toolsListChanged=True)
        await peer.start("hang", id="slow")
        peer.connection.connection.shut_down("over", drain_timeout=0)
        ends = [told(m) for m in await peer.rest()]
    assert ends.count("notifications/cancelled") == 20
    assert ends.count("result") == 20
    assert not peer.replies("slow")


async def test_open_listen_streams_do_not_delay_the_end_of_the_connection(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.listen(toolsListChanged=True)
        before = trio.current_time()
        await peer.connection.connection.close("over")
        assert trio.current_time() == before


async def test_listen_requested_just_before_the_connection_ends_does_not_hang(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.send(peer.message("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=1))
        await peer.close()  # all that was sent is still read, and then the end of input
        with trio.fail_after(1):
            await peer.connection.connection.close("over")


async def test_listen_is_rejected_while_the_connection_shuts_down(autojump_clock: MockClock) -> None:
    async with peer_of(noted()) as peer:
        await peer.start("hang")
        peer.connection.connection.shut_down("over")
        reply = await peer.request("subscriptions/listen", {"notifications": {}})
        assert reply["error"]["code"] == -31000
