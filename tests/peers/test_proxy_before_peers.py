"""A proxy of ours stands before servers of people's real software over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.peers.conversations import Conversation, conversation, hang_until
from tests.peers.http_servers import HttpServers

from trio_mcp import Address, Client, Progress, proxy
from trio_mcp.connecting.memory import open_memory
from trio_mcp.types import Change

SERVERS = Path(__file__).parent / "servers"
PEERS = [
    pytest.param((name, era), id=f"{name}-{era}") for name in ("official", "fastmcp") for era in ("legacy", "modern")
]
only_legacy = pytest.mark.parametrize("peer", PEERS[0::2], indirect=True)


def open_proxy(url: str, **options: Any) -> AbstractAsyncContextManager[Client]:
    return open_memory(proxy(Address(url).open), **options)


@pytest.fixture(scope="module", params=PEERS)
def peer(request: pytest.FixtureRequest, over_http: HttpServers) -> Iterator[Conversation]:
    name, era = request.param
    server = over_http.get(name, [sys.executable, str(SERVERS / f"{name}_server.py")])
    with conversation(name, era, server.journal, partial(open_proxy, server.url), "http") as talk:
        yield talk


def test_proxy_uses_the_same_protocol_revision_towards_client_and_server(peer: Conversation) -> None:
    assert peer.client.revision.name == ("2025-11-25" if peer.is_legacy else "2026-07-28")
    assert peer.text("echo", text="naïve ☕") == "naïve ☕"


def test_proxy_forwards_tool_lists_resources_and_prompts(peer: Conversation) -> None:
    async def listed() -> set[str]:
        return {tool.name async for tool in peer.client.list_tools()}

    assert {"echo", "add", "weather", "hang"} <= peer.run(listed)
    (contents,) = peer.run(peer.client.read_resource, "note://motto").contents
    assert contents.text == "never late, never lost"
    (message,) = peer.run(peer.client.get_prompt, "greet", {"name": "Bo"}).messages
    assert message.content.text == "Greet Bo in a warm tone."


def test_proxy_forwards_progress_in_order_and_before_the_result(peer: Conversation) -> None:
    seen: list[Any] = []

    async def count() -> None:
        await peer.client.call_tool("count", {"to": 20}, on_progress=seen.append)
        seen.append("result")

    peer.run(count)
    assert seen == [*(Progress(number, 20, f"step {number}") for number in range(1, 21)), "result"]


def test_cancelled_call_through_the_proxy_cancels_the_server_handler(peer: Conversation) -> None:
    assert hang_until(peer, trio.CancelScope.cancel)


@only_legacy
def test_proxy_forwards_sampling_and_elicitation_requests_and_their_answers(peer: Conversation) -> None:
    assert peer.text("ask_model", question="What is it?") == "deep-thought: forty-two"
    assert peer.text("ask_user", message="Which colour?") == "accept green"


@only_legacy
def test_cancelled_call_through_the_proxy_cancels_the_sampling_request_of_its_handler(peer: Conversation) -> None:
    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.client.call_tool, "ask_model", {"question": "never"})
            await peer.never_asked.wait()
            nursery.cancel_scope.cancel()
        await peer.never_cancelled.wait()

    before = len(peer.journal.lines)
    peer.run(ask)
    peer.journal.wait_for("ask_model ended", after=before)


@only_legacy
def test_proxy_forwards_list_changes_but_no_updates_of_unsubscribed_resources(peer: Conversation) -> None:
    peer.changes.clear()
    assert peer.text("change") == "changed"
    peer.run(peer.has_heard, "tools")
    assert peer.changes == ["tools"]


@pytest.mark.parametrize("peer", PEERS[1:2], indirect=True)
def test_proxy_forwards_change_notifications_to_a_listen_stream(peer: Conversation) -> None:
    async def listen() -> list[Change]:
        async with peer.client.listen(tools=True, uris=["note://motto"]) as changes:
            await peer.client.call_tool("publish")
            return [await anext(changes), await anext(changes)]

    assert peer.run(listen) == [Change("tools"), Change("resource", "note://motto")]
