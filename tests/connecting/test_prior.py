"""Clients that are opened with an earlier answer to ``server/discover`` (``prior=``): how many requests they send, and
what they do when the server has changed since."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, discovered, error, legacy, modern, result, serving, text
from tests.interaction.client.raw import RawPeer, methods_in, scripted, text_of
from tests.pages import Page

from trio_mcp import (
    Address,
    Command,
    MethodUnavailable,
    PeerError,
    Server,
    aio,
    blocking,
    open_http,
    open_memory,
    serve_http,
)
from trio_mcp.client.opening import open_client
from trio_mcp.client.prior import saved
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.protocol.converters import structure
from trio_mcp.protocol.errors import UNSUPPORTED_PROTOCOL_VERSION
from trio_mcp.protocol.types.lifecycle import DiscoverResult
from trio_mcp.types import ClientCapabilities, Extension

PAGE = Page("clients/discovery.md")
PLAIN = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
"""A plain answer, as another SDK might save it."""


async def call(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def saved_by(url: str) -> Any:
    """What a client of ``url`` gives out, as it comes out of a file."""
    async with open_http(url) as client:
        return json.loads(json.dumps(client.discovery))


async def test_client_with_a_saved_discover_result_sends_no_discover_request_before_its_call() -> None:
    async with serving(modern(call, tools={"listChanged": True})) as server:
        prior = await saved_by(server.url)
        server.got.clear()
        async with open_http(server.url, prior=prior) as client:
            assert server.names == []
            assert client.revision.name == "2026-07-28"
            assert client.server_capabilities.supports("tools.listChanged")
            assert client.discovery == prior
            assert text_of(await client.call_tool("any")) == "done"
        assert server.names == ["tools/call"]


async def test_saved_discover_result_describes_the_server_without_its_url() -> None:
    server = Server("counted", version="3", instructions="Be quick.")
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0))
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        prior = await saved_by(f"{url}?key=secret")
        assert "secret" not in json.dumps(prior)
        async with open_http(f"{url}?key=secret", prior=prior) as client:
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("counted", "3")
            assert client.instructions == "Be quick."
        nursery.cancel_scope.cancel()


async def test_client_with_a_saved_discover_result_sends_discover_once_after_a_failed_call() -> None:
    async def refuse(got: Got, answer: Answer) -> None:
        await answer.json(error(got, -32602, "Unknown tool"))

    async with serving(modern(refuse)) as server:
        async with open_http(server.url, prior=PLAIN) as client:
            for _ in range(2):
                with pytest.raises(PeerError, match="Unknown tool"):
                    await client.call_tool("missing")
        assert server.names == ["tools/call", "server/discover", "tools/call"]


@pytest.mark.parametrize("code", [UNSUPPORTED_PROTOCOL_VERSION, -32600, -32601, -32602])
async def test_client_sends_initialize_and_repeats_the_call_if_the_server_changed_to_a_legacy_revision(
    code: int,
) -> None:
    behind = legacy(call)

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "tools/call" and "mcp-session-id" not in got.headers:
            await answer.json(error(got, code), 400)
        else:
            await behind(got, answer)

    async with serving(handler) as server:
        async with open_http(server.url, prior=PLAIN) as client:
            assert text_of(await client.call_tool("any")) == "done"
            assert client.revision.handshake
            assert client.discovery is None
            await client.call_tool("any")
        asked = [name for name in server.names if name not in ("GET", "DELETE")]
    assert asked == [
        *("tools/call", "server/discover", "initialize", "notifications/initialized", "tools/call"),
        "tools/call",
    ]


async def test_client_sends_one_discover_request_for_concurrent_refused_calls() -> None:
    behind = legacy(call)
    calls, all_sent = 0, trio.Event()

    async def handler(got: Got, answer: Answer) -> None:
        nonlocal calls
        if got.name == "tools/call" and "mcp-session-id" not in got.headers:
            calls += 1
            if calls == 5:
                all_sent.set()
            await all_sent.wait()
            await answer.whole(400, b"no session")
        else:
            await behind(got, answer)

    done: list[str] = []
    async with serving(handler) as server, open_http(server.url, prior=PLAIN) as client:

        async def one() -> None:
            done.append(text_of(await client.call_tool("any")))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert done == ["done"] * 5
        assert (len(server.named("server/discover")), len(server.named("initialize"))) == (1, 1)


async def test_client_with_a_saved_discover_result_does_not_repeat_a_call_after_an_internal_error() -> None:
    async def fail(got: Got, answer: Answer) -> None:
        if got.name == "tools/call":
            await answer.json(error(got, -32603, "out of paper"))
        else:
            await legacy(call)(got, answer)

    async with serving(fail) as server:
        async with open_http(server.url, prior=PLAIN) as client:
            with pytest.raises(PeerError, match="out of paper"):
                await client.call_tool("print")
        assert server.names == ["tools/call"]


async def test_client_raises_the_error_of_the_call_if_discover_fails_afterwards() -> None:
    async def refuse(got: Got, answer: Answer) -> None:
        if got.name == "tools/call":
            await answer.json(error(got, -32601, "not here"))
        else:
            await answer.whole(503)

    async with serving(refuse) as server, open_http(server.url, prior=PLAIN) as client:
        with pytest.raises(PeerError, match="not here"):
            await client.call_tool("any")


@attrs.frozen
class Answered:
    ready: bool = False


SHOP = Extension("com.example/shop")
ASK = SHOP.method("com.example/shop/ask", Answered, Answered)


async def test_client_sends_discover_to_check_an_extension_missing_in_a_saved_discover_result() -> None:
    async def ask(got: Got, answer: Answer) -> None:
        await answer.json(result(got, resultType="complete", ready=True))

    async with serving(modern(ask, extensions={"com.example/shop": {}})) as server:
        async with open_http(server.url, prior=PLAIN, extensions=[SHOP]) as client:
            assert (await client.request(ASK, Answered())).ready
        assert server.names == ["server/discover", "com.example/shop/ask"]
    async with serving(modern(ask)) as server:
        async with open_http(server.url, prior=PLAIN, extensions=[SHOP]) as client:
            for _ in range(2):
                with pytest.raises(MethodUnavailable):
                    await client.request(ASK, Answered())
        assert server.names == ["server/discover"]


async def test_client_uses_a_saved_discover_result_until_its_ttl_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        message = discovered(got)
        message["result"]["ttlMs"] = 60_000
        await answer.json(message if got.name == "server/discover" else text(got))

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    async with serving(handler) as server:
        prior = await saved_by(server.url)
        for later, asked in ((59, 0), (61, 1)):
            server.got.clear()
            now += later
            async with open_http(server.url, prior=prior) as client:
                await client.call_tool("any")
            assert len(server.named("server/discover")) == asked
            now -= later


async def test_infinite_ttl_of_a_discover_result_is_treated_as_one_day(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.discovered(ttlMs=10**400)

    async with scripted(script) as (channel, _), open_client(channel) as client:
        assert client.discovery is not None
        assert client.discovery["_meta"]["trio-mcp/expires"] <= time.time() + 24 * 3600


async def test_stdio_client_with_a_saved_discover_result_opens_without_sending_a_message(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.text(await peer.read())

    async with scripted(script) as (channel, peer), open_client(channel, prior=PLAIN) as client:
        assert text_of(await client.call_tool("any")) == "done"
    assert methods_in(peer.wire) == ["tools/call"]


async def test_client_with_a_saved_discover_result_sends_discover_before_log_level_and_subscriptions(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.result(await peer.until("logging/setLevel"), {})
        await peer.result(await peer.until("resources/subscribe"), {})

    async with scripted(script) as (channel, peer), open_client(channel, prior=PLAIN) as client:
        await client.set_log_level("info")
        await client.subscribe("file:///notes")
    assert methods_in(peer.wire)[0] == "server/discover"


BAD: list[tuple[Any, str]] = [
    ([], "must be the Client.discovery"),
    ("{}", "must be the Client.discovery"),
    ({}, "supportedVersions"),
    ({**PLAIN, "supportedVersions": 3}, "supportedVersions"),
    ({**PLAIN, "capabilities": [1]}, "capabilities"),
    ({**PLAIN, "supportedVersions": []}, "must name one of the revisions .* not none"),
    ({**PLAIN, "supportedVersions": ["2025-11-25", "x" * 5000]}, r"'2025-11-25', 'x{40}'$"),
    ({**PLAIN, "_meta": 1}, "_meta"),
    ({**PLAIN, "_meta": {"io.modelcontextprotocol/serverInfo": 1}}, "isn't a response to server/discover"),
    ({**PLAIN, "_meta": {"trio-mcp/server": 1}}, "trio-mcp/server must be a string"),
    ({**PLAIN, "_meta": {"trio-mcp/expires": "soon"}}, "trio-mcp/expires must be a number"),
    ({**PLAIN, "_meta": {"trio-mcp/expires": True}}, "trio-mcp/expires must be a number"),
    ({**PLAIN, "_meta": {"trio-mcp/expires": math.nan}}, "trio-mcp/expires must be a number"),
    ({**PLAIN, "_meta": {"trio-mcp/expires": 10**400}}, "trio-mcp/expires must be a number"),
]


@pytest.mark.parametrize(("prior", "words"), BAD, ids=lambda each: each if isinstance(each, str) else "")
def test_invalid_saved_discover_result_raises_value_error(prior: Any, words: str) -> None:
    targets: list[Callable[[], Any]] = [
        lambda: Address("http://127.0.0.1:1/mcp", prior=prior),
        lambda: Command(["server"], prior=prior),
    ]
    for target in targets:
        with pytest.raises(ValueError, match=words):
            target()


async def test_saved_discover_result_of_another_url_raises_value_error() -> None:
    async with serving(modern(call)) as server:
        prior = await saved_by(server.url)
        server.got.clear()
        with pytest.raises(ValueError, match="prior= comes from another server"):
            async with open_http(f"{server.url}/other", prior=prior):
                pass
        assert server.names == []


@pytest.mark.parametrize("options", [{"era": "legacy"}, {"forwards": ClientCapabilities()}], ids=["legacy", "forwards"])
async def test_saved_discover_result_for_a_legacy_client_raises_value_error(options: Any) -> None:
    with pytest.raises(ValueError, match="prior= works with modern servers only"):
        async with open_memory(Server("any"), prior=PLAIN, **options):
            pass


TOOL = {"name": "any", "inputSchema": {"type": "object"}}


async def tools(got: Got, answer: Answer) -> None:
    if got.name == "tools/list":
        await answer.json(result(got, resultType="complete", tools=[TOOL], ttlMs=0, cacheScope="private"))
    else:
        await answer.json(text(got))


@pytest.mark.parametrize(
    "member",
    [
        lambda url, prior: Address(url, prior=prior),
        lambda url, prior: Address(url, prior={**prior, "_meta": {}}),
    ],
    ids=["saved", "plain"],
)
async def test_each_server_of_a_group_can_have_its_own_saved_discover_result(member: Callable[..., Address]) -> None:
    async with serving(modern(tools)) as server:
        prior = await saved_by(server.url)
        server.got.clear()
        async with open_group({"one": MemberDescription(member(server.url, prior))}) as group:
            assert text_of(await group.call_tool("one__any")) == "done"
        assert "server/discover" not in server.names


def test_asyncio_and_blocking_clients_accept_a_saved_discover_result() -> None:
    server = Server("small", instructions="first")

    async def main() -> Any:
        async with aio.open_memory(server) as client:
            return client.discovery

    prior = {**asyncio.run(main()), "instructions": "saved"}
    with blocking.open_memory(server, prior=prior) as client:
        assert client.instructions == "saved"
        assert client.discovery == prior


async def test_saved_discover_result_example_sends_discover_only_in_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = PAGE.write(tmp_path, monkeypatch)
    saving = next(pages).load("saved_discovery")
    async with serving(modern(call)) as server:
        await saving.main(server.url)
        await saving.main(server.url)
        assert server.names == ["server/discover", "tools/call", "tools/call"]
    assert capsys.readouterr().out == "done\ndone\n"
    assert next(pages, None) is None


async def test_saved_discover_result_of_another_command_raises_value_error() -> None:
    prior = saved((structure(PLAIN, DiscoverResult), None), None, "\0".join(["server", "--other"]))
    with pytest.raises(ValueError, match="prior= comes from another server"):
        async with Command(["server"], prior=prior).open():
            pass
