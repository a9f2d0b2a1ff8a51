"""What a server says of how its answers may be cached, as each revision shows it (SV-07)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.interaction.memory_peer import LEGACY, MODERN, MemoryPeer, connected
from trio.testing import MockClock

from trio_mcp import CacheHints, RequestContext, Server
from trio_mcp.types import ReadResourceResult, TextResourceContents

ASKS: dict[str, dict[str, Any]] = {
    "server/discover": {},
    "tools/list": {},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "x://plain"},
}
"""One request of each method whose results are cacheable."""


def offering(**options: Any) -> Server:
    server = Server("hints", page_size=2, **options)
    for number in range(5):

        async def tool() -> None: ...

        server.tool(name=f"t{number}")(tool)

    @server.resource("x://plain")
    async def plain() -> str:
        return "text"

    @server.resource("x://special", ttl_ms=7, cache_scope="public")
    async def special() -> str:
        return "text"

    @server.resource("x://brief", ttl_ms=7)
    async def brief() -> str:
        return "text"

    @server.resource("x://own/{ttl}/{scope}", ttl_ms=9, cache_scope="public")
    async def own(ttl: str, scope: str) -> ReadResourceResult:
        contents = [TextResourceContents("x://own", "text")]
        return ReadResourceResult(
            contents, ttl_ms=None if ttl == "none" else int(ttl), cache_scope=None if scope == "none" else scope
        )

    @server.resource("x://asking", ttl_ms=9)
    async def asking(ctx: RequestContext) -> str:
        return str(await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}}))

    @server.prompt
    async def prompt() -> str:
        return "hi"

    return server


async def hints(peer: MemoryPeer, method: str, **params: Any) -> tuple[Any, Any]:
    result = (await peer.request(method, params))["result"]
    return result["ttlMs"], result["cacheScope"]


async def pages(peer: MemoryPeer, method: str) -> AsyncIterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = (await peer.request(method, {"cursor": cursor} if cursor else {}))["result"]
        yield page
        cursor = page.get("nextCursor")
        if cursor is None:
            return


@pytest.mark.parametrize("method", ASKS)
async def test_cacheable_results_have_a_ttl_of_zero_and_private_scope_by_default(
    autojump_clock: MockClock, method: str
) -> None:
    async with connected(offering(), MODERN) as peer:
        assert await hints(peer, method, **ASKS[method]) == (0, "private")


@pytest.mark.parametrize("method", ASKS)
async def test_server_cache_hints_apply_to_all_cacheable_results(autojump_clock: MockClock, method: str) -> None:
    async with connected(offering(cache=CacheHints(60_000, "public")), MODERN) as peer:
        assert await hints(peer, method, **ASKS[method]) == (60_000, "public")


@pytest.mark.parametrize("method", ASKS)
async def test_server_can_set_cache_hints_for_a_single_method(autojump_clock: MockClock, method: str) -> None:
    server = offering(cache=CacheHints(60_000), cache_by_method={method: CacheHints(5, "public")})
    async with connected(server, MODERN) as peer:
        for each, params in ASKS.items():
            assert await hints(peer, each, **params) == ((5, "public") if each == method else (60_000, "private"))


@pytest.mark.parametrize("revision", LEGACY)
async def test_results_in_legacy_revisions_have_no_cache_hints(autojump_clock: MockClock, revision: str) -> None:
    async with connected(offering(cache=CacheHints(60_000, "public")), revision) as peer:
        for method, params in [*ASKS.items(), ("resources/read", {"uri": "x://own/5/public"})]:
            if method != "server/discover":
                result = (await peer.request(method, params))["result"]
                assert not {"ttlMs", "cacheScope"} & set(result), method


async def test_results_of_uncacheable_methods_have_no_cache_hints(autojump_clock: MockClock) -> None:
    async with connected(offering(cache=CacheHints(60_000, "public")), MODERN) as peer:
        for result in (
            await peer.call("t0"),
            (await peer.request("prompts/get", {"name": "prompt"}))["result"],
        ):
            assert not {"ttlMs", "cacheScope"} & set(result)


async def test_input_required_result_has_no_cache_hints_but_the_final_result_has(autojump_clock: MockClock) -> None:
    async with connected(offering(), MODERN, {"elicitation": {}}) as peer:
        asked = (await peer.request("resources/read", {"uri": "x://asking"}))["result"]
        assert asked["resultType"] == "input_required"
        assert not {"ttlMs", "cacheScope"} & set(asked)
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "Ann"}}}
        more = {"inputResponses": answers, "requestState": asked["requestState"]}
        assert await hints(peer, "resources/read", uri="x://asking", **more) == (9, "private")


async def test_cache_hints_of_a_resource_override_the_cache_hints_of_the_server(autojump_clock: MockClock) -> None:
    async with connected(offering(cache=CacheHints(60_000, "public")), MODERN) as peer:
        assert await hints(peer, "resources/read", uri="x://special") == (7, "public")
        assert await hints(peer, "resources/read", uri="x://brief") == (7, "public")
        assert await hints(peer, "resources/read", uri="x://plain") == (60_000, "public")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("5/private", (5, "private")),
        ("0/private", (0, "private")),
        ("none/private", (9, "private")),
        ("5/none", (5, "public")),
        ("none/none", (9, "public")),
    ],
)
async def test_cache_hints_of_a_result_override_the_cache_hints_of_the_resource(
    autojump_clock: MockClock, said: str, told: tuple[int, str]
) -> None:
    async with connected(offering(), MODERN) as peer:
        assert await hints(peer, "resources/read", uri=f"x://own/{said}") == told


@pytest.mark.parametrize("said", ["-1/private", "5/shared"])
async def test_result_with_invalid_cache_hints_is_a_logged_internal_error(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    async with connected(offering(), MODERN) as peer:
        reply = await peer.request("resources/read", {"uri": f"x://own/{said}"})
    assert reply["error"] == {"code": -32603, "message": "Internal error"}
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_all_pages_of_a_list_have_the_same_cache_scope_and_their_own_ttl(autojump_clock: MockClock) -> None:
    server = offering(cache_by_method={"tools/list": CacheHints(5, "public")})
    async with connected(server, MODERN) as peer:
        told = [(page["ttlMs"], page["cacheScope"]) async for page in pages(peer, "tools/list")]
    assert told == [(5, "public")] * 3


async def test_lists_have_the_same_order_for_every_caller(autojump_clock: MockClock) -> None:
    server, seen = offering(), list[Any]()
    server.remove_tool("t1")

    @server.tool(name="a-late-one")
    async def late() -> None: ...

    for _ in range(2):
        async with connected(server, MODERN) as peer:
            for _ in range(2):
                seen.append([tool["name"] async for page in pages(peer, "tools/list") for tool in page["tools"]])
    assert seen == [["t0", "t2", "t3", "t4", "a-late-one"]] * 4


@pytest.mark.parametrize("ttl_ms", [-1, 2**53, 1.5, "5", True, None])
def test_cache_hints_with_a_ttl_that_is_not_a_nonnegative_json_integer_raise(ttl_ms: Any) -> None:
    with pytest.raises(ValueError, match="ttl_ms"):
        CacheHints(ttl_ms)


def test_cache_hints_with_a_scope_other_than_public_or_private_raise() -> None:
    with pytest.raises(ValueError, match="must be 'public' or 'private'"):
        CacheHints(5, "shared")  # type: ignore[arg-type]


def test_invalid_cache_hints_of_a_resource_raise_at_registration() -> None:
    server = Server("hints")
    with pytest.raises(ValueError, match="ttl_ms"):

        @server.resource("x://one", ttl_ms=-1)
        async def one() -> str:
            return ""

    assert server.capabilities.resources is None


def test_cache_hints_for_uncacheable_methods_raise() -> None:
    with pytest.raises(ValueError, match="tools/call"):
        Server("hints", cache_by_method={"tools/call": CacheHints(5)})
