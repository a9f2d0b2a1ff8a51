"""A client that asks only for what it has no fresh answer to."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio
from tests.client.rounds import FORM, asking, elicit
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CacheHints, Client, ConnectionLost, PeerError, RequestContext, ResponseCache, Server, open_memory
from trio_mcp.testing import ScriptedServer, open_scripted_server
from trio_mcp.types import ReadResourceResult, Tool

TOOL: dict[str, Any] = {"inputSchema": {"type": "object"}}


class Counting:
    """A server, and how often it was asked to read."""

    def __init__(self, scope: Literal["public", "private"] = "public") -> None:
        self.server = Server("counting", cache=CacheHints(10_000, scope))
        self.reads = 0
        self.may_answer = trio.Event()
        self.may_answer.set()

        @self.server.tool
        async def tool() -> None: ...

        @self.server.resource("count://{name}")
        async def count(name: str) -> str:
            self.reads += 1
            number = self.reads
            await self.may_answer.wait()
            return f"{name} {number}"

        @self.server.resource("asking://one")
        async def question(ctx: RequestContext) -> str:
            self.reads += 1
            answer = await ctx.elicit("who?", FORM["params"]["requestedSchema"])
            return str(answer.content)


def text_of(result: ReadResourceResult) -> str:
    return result.contents[0].text  # type: ignore[union-attr]


async def read(client: Client, name: str = "a", **options: Any) -> str:
    return text_of(await client.read_resource(f"count://{name}", **options))


async def tools(client: Client, **options: Any) -> list[Tool]:
    return [tool async for tool in client.list_tools(**options)]


async def test_client_reuses_a_cached_response_only_until_its_ttl_ends(autojump_clock: MockClock) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern") as client:
        assert [await read(client), await read(client), await read(client, "b")] == ["a 1", "a 1", "b 2"]
        await trio.sleep(10)
        assert await read(client) == "a 3"


async def test_cache_ttl_starts_when_the_response_arrives(autojump_clock: MockClock) -> None:
    counting = Counting()
    counting.may_answer = trio.Event()
    async with open_memory(counting.server, era="modern") as client, trio.open_nursery() as nursery:
        nursery.start_soon(read, client)
        await trio.sleep(60)
        counting.may_answer.set()
        await wait_all_tasks_blocked()
        await trio.sleep(9.9)
        assert await read(client) == "a 1"
        await trio.sleep(0.1)
        assert await read(client) == "a 2"


async def test_cache_ttl_includes_the_time_in_which_a_log_callback_delays_the_response(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        for number in range(2):
            request = await server.expect_request("resources/read")
            await server.log("info", "before the answer")
            contents = [{"uri": "x://a", "text": str(number)}]
            await server.answer(request, {"contents": contents, "ttlMs": 5000, "cacheScope": "private"})

    async def on_log(_: Any) -> None:
        await trio.sleep(6)

    async with open_scripted_server(script, on_log=on_log) as client:
        assert [text_of(await client.read_resource("x://a")) for _ in range(2)] == ["0", "1"]


@pytest.mark.parametrize("options", [{"era": "legacy"}, {"era": "modern", "cache": None}])
async def test_results_are_not_cached_in_legacy_revisions_or_without_a_cache(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    counting = Counting()
    async with open_memory(counting.server, **options) as client:
        assert [await read(client), await read(client)] == ["a 1", "a 2"]


async def test_cache_hints_in_a_result_of_a_legacy_revision_are_ignored(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept("2025-11-25")
        for name in ("a", "b"):
            request = await server.expect_request("tools/list")
            await server.answer(request, {"tools": [{"name": name, **TOOL}], "ttlMs": 5000, "cacheScope": "public"})

    async with open_scripted_server(script) as client:
        assert [(await tools(client))[0].name for _ in range(2)] == ["a", "b"]


async def test_call_with_refresh_option_sends_a_request_and_caches_the_response(autojump_clock: MockClock) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern") as client:
        assert [await read(client), await read(client, refresh=True), await read(client)] == ["a 1", "a 2", "a 2"]


async def test_client_fetches_a_cached_list_again_after_its_change_notification(autojump_clock: MockClock) -> None:
    server = Counting().server
    async with open_memory(server, era="modern") as client:
        assert len(await tools(client)) == 1
        server.remove_tool("tool")
        assert len(await tools(client)) == 1, "nobody has told the client"
        assert await tools(client, refresh=True) == []


async def test_client_fetches_a_cached_list_again_after_its_change_notification_on_a_listen_stream(
    autojump_clock: MockClock,
) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern", on_list_changed=lambda _: None) as client:
        assert [await read(client), len(await tools(client))] == ["a 1", 1]
        await wait_all_tasks_blocked()
        counting.server.remove_tool("tool")
        await wait_all_tasks_blocked()
        assert [await read(client), len(await tools(client))] == ["a 1", 0]


async def test_caller_that_modifies_a_cached_result_does_not_change_it_for_other_callers(
    autojump_clock: MockClock,
) -> None:
    async with open_memory(Counting().server, era="modern") as client:
        for _ in range(3):
            (tool,) = await tools(client)
            assert tool.input_schema["type"] == "object"
            tool.input_schema.clear()
            plain = await client.request("tools/list", None, dict)
            assert plain["tools"][0]["name"] == "tool"
            plain["tools"].clear()


async def test_requests_with_different_capabilities_or_metadata_share_no_cached_response(
    autojump_clock: MockClock,
) -> None:
    counting, cache = Counting(), ResponseCache()
    partition = cache.partition("memory", "ann")
    async with open_memory(counting.server, era="modern", cache=partition) as client:
        assert await read(client) == "a 1"
        assert await read(client, meta={"example.org/tenant": "t"}) == "a 2"
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert await read(client, meta={"traceparent": trace}) == "a 1"
        await client.set_log_level("debug")
        assert await read(client) == "a 1"
    async with open_memory(counting.server, era="modern", cache=partition, roots=[]) as client:
        assert await read(client) == "a 3"


async def test_clients_of_different_principals_share_only_public_cached_results(
    autojump_clock: MockClock,
) -> None:
    cache = ResponseCache()
    expected: dict[Literal["public", "private"], list[str]] = {"public": ["a 1"] * 3, "private": ["a 1", "a 1", "a 2"]}
    for scope, texts in expected.items():
        counting = Counting(scope)
        seen: list[str] = []
        for principal in ("ann", "ann", "bob"):
            partition = cache.partition(f"server {scope}", principal)
            async with open_memory(counting.server, era="modern", cache=partition) as client:
                seen.append(await read(client))
        assert seen == texts


async def test_ping_is_never_answered_from_the_cache(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        for _ in range(2):
            request = await server.expect_request("server/discover")
            discovered = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
            await server.answer(request, {**discovered, "ttlMs": 60_000, "cacheScope": "public"})

    async with open_scripted_server(script) as client:
        await client.ping()
        await client.ping()


async def test_lost_connection_raises_although_the_result_is_cached(autojump_clock: MockClock) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern") as client:
        await read(client)
    with pytest.raises(ConnectionLost):
        await read(client)


async def test_result_of_a_call_that_required_input_is_not_cached(autojump_clock: MockClock) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern", elicitation=elicit) as client:
        for _ in range(2):
            result = await client.read_resource("asking://one")
            assert result.ttl_ms == 10_000
    assert counting.reads == 2


async def test_result_of_a_request_with_a_request_state_is_not_cached(autojump_clock: MockClock) -> None:
    async def script(peer: Any) -> None:
        for number in range(2):
            request = await peer.until("resources/read")
            hints = {"ttlMs": 5000, "cacheScope": "public"}
            await peer.result(request, {"contents": [{"uri": "x://a", "text": str(number)}], **hints})

    async with asking(script) as (client, _):
        for number in range(2):
            params = {"uri": "x://a", "requestState": "s"}
            result = await client.request("resources/read", params, ReadResourceResult)
            assert text_of(result) == str(number)


async def test_error_response_is_not_cached_and_removes_the_cached_result(autojump_clock: MockClock) -> None:
    counting = Counting()
    async with open_memory(counting.server, era="modern") as client:
        await read(client)
        counting.server.remove_resource("count://{name}")
        assert await read(client) == "a 1"
        for options in ({"refresh": True}, {}):
            with pytest.raises(PeerError):
                await read(client, **options)


async def test_response_is_not_cached_if_a_change_notification_arrives_before_the_response(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        for number in range(3):
            request = await server.expect_request("tools/list")
            if number == 0:
                await server.notify("notifications/tools/list_changed")
            page = {"tools": [{"name": f"t{number}", **TOOL}], "ttlMs": 60_000, "cacheScope": "private"}
            await server.answer(request, page)
            if number == 1:
                await server.expect_request("resources/templates/list")
                await server.notify("notifications/tools/list_changed")

    async with open_scripted_server(script) as client, trio.open_nursery() as nursery:
        assert [(await tools(client))[0].name for _ in range(3)] == ["t0", "t1", "t1"]

        async def wait_for_the_change() -> None:
            async for _ in client.list_resource_templates():
                raise AssertionError

        nursery.start_soon(wait_for_the_change)
        await wait_all_tasks_blocked()
        assert (await tools(client))[0].name == "t2"
        nursery.cancel_scope.cancel()


def _page(*names: str, cursor: str | None = None) -> dict[str, Any]:
    more = {} if cursor is None else {"nextCursor": cursor}
    return {"tools": [{"name": name, **TOOL} for name in names], "ttlMs": 5000, "cacheScope": "private", **more}


async def test_listing_restarts_without_duplicates_if_the_server_rejects_a_cached_cursor(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        await server.answer(await server.expect_request("tools/list"), _page("a", "b", cursor="old"))
        await server.refuse(await server.expect_request("tools/list"), -32602, "no such cursor")
        await server.answer(await server.expect_request("tools/list"), _page("b", "c", cursor="new"))
        await server.answer(await server.expect_request("tools/list"), _page("d"))

    async with open_scripted_server(script) as client:
        assert [tool.name for tool in await tools(client)] == ["a", "b", "c", "d"]
        assert [tool.name for tool in await tools(client)] == ["b", "c", "d"], "the new pages are kept"


async def test_client_restarts_a_listing_only_once_if_the_server_rejects_every_cursor_it_issued(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept()
        for _ in range(2):
            await server.answer(await server.expect_request("tools/list"), _page("a", cursor="bad"))
            await server.refuse(await server.expect_request("tools/list"), -32602, "no such cursor")

    async with open_scripted_server(script) as client:
        with pytest.raises(PeerError, match="no such cursor"):
            await tools(client)
