"""A modern server: its discover result, removed methods, and error codes."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from trio_mcp import CodedError, PeerError, RequestContext, ResourceNotFound, Server, open_memory
from trio_mcp.jsonrpc import errors as json_rpc
from trio_mcp.protocol import errors as mcp
from trio_mcp.types import Icon

from .conversation import META_PREFIX
from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, MemoryPeer, connected

EACH = pytest.mark.parametrize("revision", REVISIONS)
REMOVED = (
    ("ping", {}),
    ("logging/setLevel", {"level": "debug"}),
    ("resources/subscribe", {"uri": "x://one"}),
    ("resources/unsubscribe", {"uri": "x://one"}),
    ("tasks/list", {}),
    ("sampling/createMessage", {"messages": [], "maxTokens": 1}),
    ("roots/list", {}),
)


@pytest.fixture
def server() -> Server:
    server = Server(
        "modern", "2.1", title="Modern", instructions="Ask it.", icons=[Icon("https://example.org/i.png")], page_size=3
    )

    @server.tool
    async def refuse(code: int) -> str:
        raise CodedError(code, "no", {"k": 1})

    @server.tool(requires=["elicitation.url"])
    async def demanding() -> None: ...

    @server.resource("x://one")
    async def one() -> str:
        raise ResourceNotFound

    @server.resource("x://{name}/deep")
    async def deep(name: str) -> str:
        raise ResourceNotFound

    return server


async def test_discover_returns_capabilities_versions_and_server_info(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, MODERN) as peer:
        result = (await peer.request("server/discover"))["result"]
    capabilities = result.pop("capabilities")
    assert set(capabilities) == {"tools", "resources", "logging"}
    assert result == {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "instructions": "Ask it.",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {
            META_PREFIX + "serverInfo": {
                "name": "modern",
                "version": "2.1",
                "title": "Modern",
                "icons": [{"src": "https://example.org/i.png"}],
            }
        },
    }


async def test_discover_result_of_a_server_without_features_omits_optional_fields(autojump_clock: MockClock) -> None:
    async with connected(Server("bare", logging=False), MODERN) as peer:
        result = (await peer.request("server/discover"))["result"]
    assert result["capabilities"] == {}
    assert "instructions" not in result
    assert result["_meta"][META_PREFIX + "serverInfo"] == {"name": "bare", "version": "0.0.0"}


async def test_discover_lists_capabilities_added_while_the_server_runs(autojump_clock: MockClock) -> None:
    server = Server("growing")
    async with connected(server, MODERN) as peer:
        assert "prompts" not in (await peer.request("server/discover"))["result"]["capabilities"]

        @server.prompt
        async def late() -> str:
            return ""

        assert "prompts" in (await peer.request("server/discover"))["result"]["capabilities"]


@pytest.mark.parametrize(("method", "params"), REMOVED)
async def test_modern_request_with_a_removed_method_gets_method_not_found(
    autojump_clock: MockClock, server: Server, method: str, params: dict[str, Any]
) -> None:
    for handshake in (False, True):
        async with connected(server, LATEST_LEGACY if handshake else MODERN) as peer:
            peer.revision = MODERN
            error = (await peer.request(method, params))["error"]
            assert (error["code"], error["data"]) == (-32601, {"method": method})


@pytest.mark.parametrize("without", ["protocolVersion", "clientCapabilities"])
@pytest.mark.parametrize("insists", [False, True])
async def test_modern_request_without_required_meta_is_refused_and_not_run(
    autojump_clock: MockClock, without: str, insists: bool
) -> None:
    server = Server("strict", require_initialized=insists)
    called: list[None] = []

    @server.tool
    async def tool() -> None:
        called.append(None)

    async with connected(server, MODERN) as peer:
        for method in ("tools/call", "server/discover"):
            message = peer.message(method, {"name": "tool", "arguments": {}})
            del message["params"]["_meta"][META_PREFIX + without]
            await peer.send(message)
            error = (await peer.reply(message["id"]))["error"]
            assert error["code"] == -32602
            assert META_PREFIX + without in error["message"]
        assert called == []
        await peer.call("tool")


async def test_modern_request_without_client_info_is_accepted(autojump_clock: MockClock, server: Server) -> None:
    async with connected(server, MODERN) as peer:
        message = peer.message("server/discover")
        del message["params"]["_meta"][META_PREFIX + "clientInfo"]
        await peer.send(message)
        assert "result" in await peer.reply(message["id"])


@pytest.mark.parametrize("level", ["loud", "WARNING", "", 3, True, [], {"level": "info"}])
async def test_modern_request_with_invalid_log_level_is_refused_for_every_method(
    autojump_clock: MockClock, server: Server, level: Any
) -> None:
    async with connected(server, MODERN) as peer:
        for method in ("tools/list", "server/discover", "tools/call"):
            reply = await peer.request(method, {"name": "refuse"}, meta={META_PREFIX + "logLevel": level})
            assert reply["error"]["code"] == -32602
            assert META_PREFIX + "logLevel" in reply["error"]["message"]


@EACH
async def test_unknown_resource_error_has_the_code_of_the_revision_and_names_the_uri(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    """Whether nothing is there, or a handler says so, of a resource or of a template."""
    async with connected(server, revision) as peer:
        for uri in ("x://none", "x://one", "x://some/deep"):
            error = (await peer.request("resources/read", {"uri": uri}))["error"]
            assert error["code"] == (-32602 if revision == MODERN else -32002)
            assert error["data"] == {"uri": uri}


@EACH
@pytest.mark.parametrize(
    ("code", "legacy", "modern"),
    [
        (-32002, -32002, -32602),
        (-32042, -32042, -32603),
        (-32021, -32600, -32021),
        (-31999, -31999, -31999),
        (7, 7, 7),
    ],
)
async def test_error_code_that_a_revision_lacks_is_replaced_by_an_equivalent_code(
    autojump_clock: MockClock, server: Server, revision: str, code: int, legacy: int, modern: int
) -> None:
    async with connected(server, revision) as peer:
        error = await peer.error("refuse", {"code": code})
    assert error == {"code": modern if revision == MODERN else legacy, "message": "no", "data": {"k": 1}}


def test_error_codes_match_the_specification_and_custom_codes_avoid_reserved_ranges() -> None:
    """2026-07-28 basic, Error Codes: -32768 to -32000 are reserved, and of -32020 to -32099 three are defined."""
    codes = {name: code for module in (json_rpc, mcp) for name, code in vars(module).items() if isinstance(code, int)}
    assert {name for name, code in codes.items() if -32099 <= code <= -32020} == {
        "HEADER_MISMATCH",
        "MISSING_REQUIRED_CLIENT_CAPABILITY",
        "UNSUPPORTED_PROTOCOL_VERSION",
        "URL_ELICITATION_REQUIRED",
    }
    assert (mcp.HEADER_MISMATCH, mcp.MISSING_REQUIRED_CLIENT_CAPABILITY) == (-32020, -32021)
    assert mcp.UNSUPPORTED_PROTOCOL_VERSION == -32022
    ours = {name for name, code in codes.items() if not -32768 <= code <= -32000}
    assert ours == {"REPLICA_LOST", "TOO_BUSY", "UPSTREAM_LOST"}


async def test_error_for_a_missing_elicitation_url_capability_names_the_capability(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, MODERN, {"elicitation": {"form": {}}}) as peer:
        error = await peer.error("demanding")
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"elicitation": {"url": {}}}})
        peer.capabilities = {"elicitation": {"url": {}}}
        await peer.call("demanding")


@EACH
async def test_lists_keep_the_order_of_definition_across_pages_and_changes(
    autojump_clock: MockClock, revision: str
) -> None:
    """2026-07-28 tools, Listing Tools: the order SHOULD be deterministic. Pages and changes do not disturb it."""
    server = Server("ordered", page_size=3)
    names = [f"{letter}{number}" for number in range(4) for letter in "qazp"]

    async def function() -> str:
        return ""

    for name in names:
        server.tool(name=name)(function)
        server.prompt(name=name)(function)
        server.resource(f"x://{name}", name=name)(function)
    async with connected(server, revision) as peer:
        for _ in range(2):
            for kind in ("tools", "prompts", "resources"):
                assert await _names(peer, kind) == names
        server.remove_tool("a1")
        server.tool(name="a1")(function)
        moved = [*(name for name in names if name != "a1"), "a1"]
        assert await _names(peer, "tools") == moved
        peer.revision = LATEST_LEGACY if revision == MODERN else MODERN
        if revision in LEGACY:  # the other era sees the same
            assert await _names(peer, "tools") == moved


async def _names(peer: MemoryPeer, kind: str) -> list[str]:
    names: list[str] = []
    params: dict[str, Any] = {}
    while True:
        result = (await peer.request(f"{kind}/list", params))["result"]
        names += [item["name"] for item in result[kind]]
        if "nextCursor" not in result:
            return names
        params = {"cursor": result["nextCursor"]}


async def test_log_level_in_the_meta_of_a_call_overrides_the_log_level_of_the_client(autojump_clock: MockClock) -> None:
    server = Server("logging")
    heard: list[Any] = []

    @server.tool
    async def log(ctx: RequestContext) -> None:
        await ctx.log.info("quiet")
        await ctx.log.error("loud")

    async with open_memory(server, era="modern", on_log=lambda message: heard.append(message.data)) as client:
        await client.call_tool("log")
        assert heard == []
        await client.call_tool("log", meta={META_PREFIX + "logLevel": "error"})
        assert heard == ["loud"]
        await client.call_tool("log")
        assert heard == ["loud"]
        with pytest.raises(PeerError) as raised:
            await client.call_tool("log", meta={META_PREFIX + "logLevel": "deafening"})
        assert raised.value.code == -32602
        await client.set_log_level("debug")
        await client.call_tool("log", meta={META_PREFIX + "logLevel": "error"})
        assert heard == ["loud", "loud"]
        await client.call_tool("log")
        assert heard == ["loud", "loud", "quiet", "loud"]


async def test_meta_of_a_call_cannot_override_protocol_version_or_client_capabilities(
    autojump_clock: MockClock,
) -> None:
    server = Server("strict")

    @server.tool
    async def who(ctx: RequestContext) -> list[Any]:
        return [ctx.revision.name, ctx.client_supports("sampling")]

    theirs = {META_PREFIX + "protocolVersion": "2099-01-01", META_PREFIX + "clientCapabilities": {"sampling": {}}}
    async with open_memory(server, era="modern") as client:
        result = await client.call_tool("who", meta=theirs)
    assert result.structured_content == {"result": [MODERN, False]}
