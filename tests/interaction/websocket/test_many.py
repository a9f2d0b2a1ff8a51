"""Many connections to one server don't affect each other (BPL-03), and all are counted."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from tests.interaction.conversation import MODERN, Conversation
from tests.interaction.websocket.raw_peer import RawPeer, connected, port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits, TrustedProxies, open_websocket, serve_http, serve_websocket
from trio_mcp.types import Change, Statistics

served = partial(serving, serve_websocket)


async def test_resource_subscriber_that_stops_reading_its_websocket_does_not_block_other_subscribers() -> None:
    watched, told = watched_server(), dict[str, trio.Event]()

    async with served(watched.server, port=0) as listeners:
        port = port_of(listeners)
        url = f"ws://127.0.0.1:{port}/mcp"
        with trio.fail_after(PATIENCE):
            async with (
                connected(port) as stuck,
                open_websocket(url, era="legacy", on_resource_updated=lambda _: told["one"].set()) as one,
                open_websocket(url, era="legacy", on_resource_updated=lambda _: told["two"].set()) as two,
            ):
                await stuck.open_legacy()
                await stuck.ask(1, "resources/subscribe", {"uri": "watched:thing"})
                await stuck.ask(2, "logging/setLevel", {"level": "debug"})
                await stuck.ask(3, "tools/call", {"name": "flood", "arguments": {"count": 10_000_000}})
                await watched.started.wait()  # and it never reads what comes
                for client in (one, two):
                    await client.subscribe("watched:thing")
                for _ in range(3):
                    told.update(one=trio.Event(), two=trio.Event())
                    watched.server.resource_updated("watched:thing")
                    await told["one"].wait()
                    await told["two"].wait()
                    for client in (one, two):
                        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


def counted(**counts: int) -> Statistics:
    """Statistics of which all but ``counts`` are nought."""
    return Statistics(**{**dict.fromkeys(attrs.fields_dict(Statistics), 0), **counts})


async def test_listen_stream_whose_client_stops_reading_does_not_block_other_listen_streams() -> None:
    watched = watched_server()
    modern = Conversation()
    modern.revision = MODERN
    filters = {"notifications": {"resourceSubscriptions": ["watched:thing"]}}
    async with served(watched.server, port=0) as listeners:
        port = port_of(listeners)
        url = f"ws://127.0.0.1:{port}/mcp"
        with trio.fail_after(PATIENCE):
            async with (
                connected(port) as stuck,
                open_websocket(url, era="modern") as one,
                open_websocket(url, era="modern") as two,
                one.listen(uris=["watched:thing"]) as told_one,
                two.listen(uris=["watched:thing"]) as told_two,
            ):
                for message in (
                    modern.message("subscriptions/listen", filters),
                    modern.call_message("flood", {"count": 10_000_000}, log_level="debug"),
                ):
                    await stuck.say(json.dumps(message))
                await watched.started.wait()  # and it never reads what comes
                for _ in range(100):
                    watched.server.resource_updated("watched:thing")
                    for client, told in ((one, told_one), (two, told_two)):
                        assert await anext(told) == Change("resource", "watched:thing")
                        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_server_statistics_count_all_websocket_connections() -> None:
    watched = watched_server(Limits(max_in_flight=1))
    server = watched.server
    async with served(server, port=0) as listeners:
        port = port_of(listeners)
        async with connected(port) as one, connected(port) as two:
            for peer in (one, two):
                await peer.open_legacy()
                await peer.ask(1, "tools/call", {"name": "hang"})
                await peer.ask(2, "tools/call", {"name": "hang"})
                await peer.ask(3, "ping")
                await peer.reply(3)
            assert server.statistics() == counted(connections=2, in_flight=2, queued=2)
            await one.notify("notifications/cancelled", {"requestId": 1})
            await one.notify("notifications/cancelled", {"requestId": 2})
            await one.ask(4, "ping")
            await one.reply(4)
        with trio.fail_after(PATIENCE):
            while server.statistics().connections:
                await wait_all_tasks_blocked()
    assert server.statistics() == counted(connections=0, in_flight=0, queued=0, cancelled=4)


async def test_server_with_max_server_requests_running_refuses_the_busiest_client_first() -> None:
    watched = watched_server(Limits(max_server_requests=3))
    with trio.fail_after(PATIENCE):
        async with served(watched.server, port=0) as listeners:
            port = port_of(listeners)
            async with connected(port, address="127.0.0.2") as busy:
                await busy.open_legacy()
                for id in (1, 2, 3):
                    await busy.ask(id, "tools/call", {"name": "hang"})
                assert "Too busy" in (await busy.reply(3))["error"]["message"]
                async with open_websocket(f"ws://127.0.0.1:{port}/mcp") as client:
                    assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
                    await busy.notify("notifications/cancelled", {"requestId": 1})
                    await busy.ask(4, "ping")
                    await busy.reply(4)
                    assert await echoed(busy, "hi") == "hi"


async def test_max_server_bytes_limits_the_total_size_of_requests_of_all_connections() -> None:
    watched = watched_server(Limits(max_server_bytes=12_000))
    hang = {"name": "hang", "arguments": {}, "_meta": {"padding": "x" * 6000}}
    with trio.fail_after(PATIENCE):
        async with served(watched.server, port=0) as listeners:
            port = port_of(listeners)
            async with connected(port) as one, connected(port, address="127.0.0.2") as two:
                for peer in (one, two):
                    await peer.open_legacy()
                await one.ask(1, "tools/call", hang)
                await watched.started.wait()
                await two.ask(1, "tools/call", hang)
                assert (await two.reply(1))["error"]["code"] == -31000  # though it is the only one here
                assert await echoed(two, "x" * 1000) == "x" * 1000  # there is room for less
                await one.notify("notifications/cancelled", {"requestId": 1})
                await watched.ended.wait()
                assert await echoed(two, "x" * 6000) == "x" * 6000
    assert len(watched.causes) == 1  # the other never ran


async def test_bytes_of_a_lost_connection_no_longer_count_towards_max_server_bytes() -> None:
    watched = watched_server(Limits(max_server_bytes=10_000))
    hang = {"name": "hang", "arguments": {}, "_meta": {"padding": "x" * 6000}}
    with trio.fail_after(PATIENCE):
        async with served(watched.server, port=0) as listeners:
            port = port_of(listeners)
            async with connected(port) as two:
                await two.open_legacy()
                async with connected(port) as one:
                    await one.open_legacy()
                    await one.ask(1, "tools/call", hang)
                    await watched.started.wait()
                    await two.ask("no room", "tools/call", hang)
                    assert (await two.reply("no room"))["error"]["code"] == -31000
                    await one.reset()
                await watched.ended.wait()
                assert await echoed(two, "x" * 6000) == "x" * 6000


async def test_request_larger_than_max_server_bytes_is_served_if_no_other_request_runs() -> None:
    watched = watched_server(Limits(max_server_bytes=10_000))
    with trio.fail_after(PATIENCE):
        async with served(watched.server, port=0) as listeners, connected(port_of(listeners)) as one:
            await one.open_legacy()
            assert await echoed(one, "x" * 20_000) == "x" * 20_000
            async with connected(port_of(listeners)) as two:
                await two.open_legacy()
                await one.ask(1, "tools/call", {"name": "hang"})
                await watched.started.wait()
                await two.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "x" * 20_000}})
                assert (await two.reply(1))["error"]["code"] == -31000


@pytest.mark.parametrize("over_http", [False, True])
async def test_client_behind_a_trusted_proxy_can_use_at_most_half_of_the_connections(over_http: bool) -> None:
    options: dict[str, Any] = {"limits": Limits(max_connections=6), "trusted_proxies": TrustedProxies(["127.0.0.1"])}
    start: Any = partial(serve_http, websocket=True) if over_http else serve_websocket
    with trio.fail_after(PATIENCE):
        async with serving(start, watched_server().server, port=0, **options) as listeners:
            port = port_of(listeners)
            async with contextlib.AsyncExitStack() as stack:

                async def came(client: str) -> RawPeer:
                    headers = {"X-Forwarded-For": client}
                    return await stack.enter_async_context(connected(port, headers=headers))

                for _ in range(3):
                    await (await came("203.0.113.1")).open_legacy()
                closed = await (await came("203.0.113.1")).closed()
                assert closed is not None
                assert closed.code == 1013
                await (await came("203.0.113.2")).open_legacy()


async def echoed(peer: RawPeer, text: str) -> str:
    """What a call of ``echo`` gives."""
    await peer.ask("echo", "tools/call", {"name": "echo", "arguments": {"text": text}})
    return (await peer.reply("echo"))["result"]["content"][0]["text"]


async def test_websocket_server_on_listeners_of_the_application_requires_allowed_origins() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.raises(ValueError, match="so allowed_origins"):
        await serve_websocket(watched_server().server, listeners=listeners)
    for listener in listeners:
        await listener.aclose()
