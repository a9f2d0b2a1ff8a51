"""Notifications outside of a request: completed elicitations, and changed roots."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawPeer, methods_in, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    ConnectionLost,
    MethodUnavailable,
    PeerError,
    RequestContext,
    Server,
    WorkerContext,
    open_memory,
    proxy,
)
from trio_mcp.client.opening import open_client
from trio_mcp.testing import open_scripted_client
from trio_mcp.types import ClientCapabilities, ConnectedClient, ElicitResult, Root, Roots

from .memory_peer import LATEST_LEGACY, MODERN

COMPLETE = "notifications/elicitation/complete"
ROOTS_CHANGED = "notifications/roots/list_changed"
URLS: Any = {"elicitation": {"url": {}}}


async def visit(_: Any) -> ElicitResult:
    return ElicitResult("accept")


def sends_to_urls() -> tuple[Server, list[RequestContext]]:
    server, contexts = Server("s"), list[RequestContext]()

    @server.tool
    async def connect(ctx: RequestContext) -> str:
        contexts.append(ctx)
        return (await ctx.elicit_url("Connect", "https://example.com/c", "e1")).action

    return server, contexts


async def test_elicitation_complete_can_be_sent_after_its_request_has_ended(autojump_clock: MockClock) -> None:
    server, contexts = sends_to_urls()
    completed: list[str] = []
    async with open_memory(
        server, era="legacy", elicitation_url=visit, on_elicitation_complete=completed.append
    ) as client:
        assert (await client.call_tool("connect")).text == "accept"
        assert await contexts[0].elicitation_complete("e1") is True
        await wait_all_tasks_blocked()
        assert completed == ["e1"]
        await contexts[0].elicitation_complete("e1")  # a client must ignore the second, and ids that it does not know
        await contexts[0].elicitation_complete("e2")
        await wait_all_tasks_blocked()
        assert completed == ["e1"]
    assert await contexts[0].elicitation_complete("e1") is False, "the connection is over"


async def test_elicitation_complete_notification_contains_only_the_id(autojump_clock: MockClock) -> None:
    server, contexts = sends_to_urls()
    async with open_scripted_client(server) as peer:
        await peer.open(LATEST_LEGACY, URLS)
        call = await peer.call_tool("connect")
        question = await peer.expect({"method": "elicitation/create", ...: ...})
        await peer.answer(question, {"action": "accept"})
        await peer.expect_text(call, "accept")
        await contexts[0].elicitation_complete("e1")
        await peer.expect({"jsonrpc": "2.0", "method": COMPLETE, "params": {"elicitationId": "e1"}})


async def test_sync_handler_can_send_elicitation_complete_from_its_thread() -> None:
    server, told = Server("s"), list[bool]()

    @server.tool
    def tell(ctx: WorkerContext) -> None:
        told.append(ctx.elicitation_complete("e1"))

    async with open_scripted_client(server) as peer:
        await peer.open(LATEST_LEGACY, URLS)
        call = await peer.call_tool("tell")
        await peer.expect({"method": COMPLETE, "params": {"elicitationId": "e1"}})
        await peer.expect_result(call)
    assert told == [True]


@pytest.mark.parametrize(("revision", "capabilities"), [(MODERN, URLS), ("2025-06-18", URLS), (LATEST_LEGACY, {})])
async def test_elicitation_complete_is_not_sent_to_clients_that_do_not_support_it(
    autojump_clock: MockClock, revision: str, capabilities: Any
) -> None:
    server, told = Server("s"), list[bool]()

    @server.tool
    async def tell(ctx: RequestContext) -> None:
        told.append(await ctx.elicitation_complete("e1"))
        with pytest.raises(ValueError, match="not ''"):
            await ctx.elicitation_complete("")

    async with open_scripted_client(server) as peer:
        await peer.open(revision, capabilities)
        await peer.expect_result(await peer.call_tool("tell"))
    assert told == [False]


async def test_client_reports_completion_of_an_elicitation_listed_in_an_error(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        required = [{"mode": "url", "elicitationId": "e9", "url": "https://example.com", "message": "Sign in"}]
        await peer.error(await peer.until("tools/call"), -32042, data={"elicitations": required})
        await peer.until("ping")
        for elicitation_id in ("e8", "e9", "e9", 7, None):
            await peer.notify(COMPLETE, {"elicitationId": elicitation_id})
        await peer.notify(COMPLETE)

    completed: list[str] = []
    async with (
        scripted(script) as (channel, _),
        open_client(channel, era="legacy", on_elicitation_complete=completed.append) as client,
    ):
        with pytest.raises(PeerError):
            await client.call_tool("any")
        with trio.move_on_after(1):
            await client.ping()
    assert completed == ["e9"]


async def test_elicitation_complete_callback_runs_even_if_the_notification_immediately_follows_the_request(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        params = {"mode": "url", "message": "go", "url": "https://example.com", "elicitationId": "now"}
        await peer.request(1, "elicitation/create", params)
        await peer.notify(COMPLETE, {"elicitationId": "now"})

    completed: list[str] = []
    async with (
        scripted(script) as (channel, _),
        open_client(channel, era="legacy", elicitation_url=visit, on_elicitation_complete=completed.append),
    ):
        await wait_all_tasks_blocked()
    assert completed == ["now"]


async def test_client_remembers_a_limited_number_of_elicitation_ids(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number in range(1001):
            params = {"mode": "url", "message": "go", "url": "https://example.com", "elicitationId": f"e{number}"}
            await peer.request(number, "elicitation/create", params)
        for number in (0, 1, 1000):
            await peer.notify(COMPLETE, {"elicitationId": f"e{number}"})

    completed: list[str] = []
    async with (
        scripted(script) as (channel, _),
        open_client(channel, era="legacy", elicitation_url=visit, on_elicitation_complete=completed.append),
    ):
        await wait_all_tasks_blocked()
    assert completed == ["e1", "e1000"]


# Roots


def hears_of_roots() -> tuple[Server, list[tuple[ConnectedClient, list[str]]]]:
    server, heard = Server("s"), list[tuple[ConnectedClient, list[str]]]()

    @server.on_roots_changed
    async def changed(client: ConnectedClient) -> None:
        heard.append((client, [root.uri for root in await client.list_roots()]))

    return server, heard


async def test_on_roots_changed_callback_can_list_the_roots_of_its_client(autojump_clock: MockClock) -> None:
    server, heard = hears_of_roots()
    roots = {"one": ["file:///one"], "two": ["file:///two"]}

    def options(name: str) -> Any:
        async def give() -> list[Root]:
            return [Root(uri) for uri in roots[name]]

        return {"era": "legacy", "roots": give}

    async with open_memory(server, **options("one")) as one, open_memory(server, **options("two")) as two:
        for client in (one, two):
            await client.roots_changed()
            await wait_all_tasks_blocked()
        roots["one"].append("file:///more")
        await one.roots_changed()
        await wait_all_tasks_blocked()
    assert [uris for _, uris in heard] == [["file:///one"], ["file:///two"], ["file:///one", "file:///more"]]
    first, second, third = [client for client, _ in heard]
    assert first is third is not second
    assert first.info is not None
    assert first.info.name == "trio-mcp"
    assert first.revision.name == LATEST_LEGACY


async def test_repeated_roots_changed_notifications_are_combined_into_one_callback(autojump_clock: MockClock) -> None:
    server, heard, go = Server("s"), list[ConnectedClient](), trio.Event()

    @server.on_roots_changed
    async def changed(client: ConnectedClient) -> None:
        heard.append(client)
        await go.wait()

    async with open_scripted_client(server) as peer:
        await peer.open(LATEST_LEGACY, {"roots": {"listChanged": True}})
        for _ in range(100):
            await peer.notify(ROOTS_CHANGED)
        await wait_all_tasks_blocked()
        assert len(heard) == 1
        go.set()
        await wait_all_tasks_blocked()
    assert len(heard) == 2


async def test_exception_in_on_roots_changed_callback_is_logged_and_the_connection_continues(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("s")

    @server.on_roots_changed
    def changed(client: ConnectedClient) -> None:
        raise LookupError("roots")

    with pytest.raises(ValueError, match="already"):
        server.on_roots_changed(changed)
    async with open_scripted_client(server) as peer:
        await peer.notify(ROOTS_CHANGED)  # before the handshake: nobody has told yet who it is
        await peer.open(LATEST_LEGACY, {"roots": {"listChanged": True}})
        await peer.notify(ROOTS_CHANGED)
        await peer.expect_result(await peer.request("ping"))
        await wait_all_tasks_blocked()
    assert [record.getMessage() for record in caplog.records if record.levelno >= 40] == [
        "a notification callback failed"
    ]
    caplog.clear()


async def test_list_roots_raises_if_client_has_no_roots_or_no_back_channel(autojump_clock: MockClock) -> None:
    server, failures = Server("s"), list[Exception]()

    @server.on_roots_changed
    async def changed(client: ConnectedClient) -> None:
        try:
            await client.list_roots()
        except Exception as error:
            failures.append(error)

    for stateless in (False, True):
        async with open_scripted_client(server, stateless=stateless) as peer:
            await peer.open(LATEST_LEGACY, {})
            await peer.notify(ROOTS_CHANGED)
            await wait_all_tasks_blocked()
    assert [type(failure).__name__ for failure in failures] == ["CapabilityMissing", "NoBackChannel"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"roots": []}, True),
        ({}, False),
        ({"forwards": ClientCapabilities(roots=Roots())}, False),
        ({"forwards": ClientCapabilities(roots=Roots(list_changed=True))}, True),
    ],
)
async def test_client_sends_roots_list_changed_only_if_it_declared_the_list_changed_capability(
    autojump_clock: MockClock, options: Any, told: bool
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel, era="legacy", **options) as client:
        await client.roots_changed()
        await wait_all_tasks_blocked()
    assert (ROOTS_CHANGED in methods_in(peer.wire)) is told


async def test_proxy_forwards_roots_list_changed_only_if_it_declared_the_list_changed_capability(
    autojump_clock: MockClock,
) -> None:
    server, heard = Server("s"), list[ConnectedClient]()
    server.on_roots_changed(heard.append)
    for declared in (True, None):
        forwards = ClientCapabilities(roots=Roots(list_changed=declared))
        async with (
            open_memory(server, era="legacy", forwards=forwards) as behind,
            open_memory(proxy(behind), era="legacy", roots=[]) as client,
        ):
            await client.ping()
            await client.roots_changed()
            await client.ping()
            await wait_all_tasks_blocked()
    assert len(heard) == 1


# Any notification


@pytest.mark.parametrize("method", ["notifications/acme", ROOTS_CHANGED])
async def test_client_can_send_notifications_of_its_revision_and_custom_notifications(
    autojump_clock: MockClock, method: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()

    async with scripted(script) as (channel, peer), open_client(channel, era="legacy") as client:
        await client.send_notification(method, {"n": 1})
        await client.send_notification(method, {"n": 1})
        await wait_all_tasks_blocked()
    sent = [message.get("params") for message in peer.wire if message.get("method") == method]
    assert sent == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_notification_that_the_revision_lacks_raises_method_unavailable(
    autojump_clock: MockClock, era: Any
) -> None:
    server, unheard = (
        Server("s"),
        {"legacy": "notifications/tasks", "modern": "notifications/elicitation/complete"}[era],
    )

    @server.tool
    async def tell(method: str, ctx: RequestContext) -> str:
        await ctx.send_notification(method, {})
        return "told"

    async with open_memory(server, era=era) as client:
        for method in (unheard, "tools/call", ROOTS_CHANGED):
            with pytest.raises(PeerError, match=f"{method} cannot be sent in revision"):
                await client.call_tool("tell", {"method": method})
        assert (await client.call_tool("tell", {"method": "notifications/acme"})).text == "told"
        for method in (unheard, "tools/call", "notifications/message"):
            with pytest.raises(MethodUnavailable, match=method):
                await client.send_notification(method)


async def test_client_notification_over_a_lost_connection_raises_connection_lost(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.close()

    async with scripted(script) as (channel, _), open_client(channel, era="legacy") as client:
        with pytest.raises(ConnectionLost):
            await client.until_lost()
        with pytest.raises(ConnectionLost):
            await client.send_notification("notifications/acme")


# Logs


async def test_queued_logs_are_filtered_by_a_log_level_set_after_they_were_queued(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def flood(ctx: RequestContext) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(ctx.log.info, f"{number} " + "x" * 1000)

    async with open_scripted_client(server) as peer:
        await peer.open(LATEST_LEGACY)
        await peer.call_tool("flood")
        await wait_all_tasks_blocked()  # the outbox is full, and most of them wait for room
        level = await peer.request("logging/setLevel", {"level": "error"})
        await wait_all_tasks_blocked()
        logged = 0
        while (message := await peer.receive())["method" if "method" in message else "id"] == "notifications/message":
            logged += 1
        assert 0 < logged < 200
        assert message["id"] == level
        assert (await peer.receive())["result"]["content"] == []
