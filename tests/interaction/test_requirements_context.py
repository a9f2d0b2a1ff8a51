"""CX, CN, MR-01, AU: the request context of a handler, as far as it depends on the messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import CodedError, PeerError, ProtocolViolation, RequestContext, Server
from trio_mcp.auth import Auth, Principal
from trio_mcp.protocol.types.sampling import ListRootsResult
from trio_mcp.types import Root

from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, connected, connected_twice


@pytest.fixture
def server() -> Server:
    server = Server("rows", "1.0.0")

    @server.tool
    async def identity(ctx: RequestContext) -> str:
        return json.dumps({
            "id": ctx.request_id,
            "session": ctx.session_id,
            "stateless": ctx.stateless,
            "meta": dict(ctx.meta),
            "headers": ctx.headers,
            "auth": ctx.auth,
            "revision": str(ctx.revision),
        })  # fmt: skip

    @server.tool
    async def supports(names: list[str], ctx: RequestContext) -> list[bool]:
        return [ctx.client_supports(name) for name in names]

    @server.tool
    async def revision_after(ms: float, ctx: RequestContext) -> str:
        before = str(ctx.revision)
        await trio.sleep(ms / 1000)
        assert before == str(ctx.revision)
        return before

    @server.tool
    async def notify(ctx: RequestContext) -> str:
        await ctx.send_notification("notifications/message", {"level": "info", "data": "mine"})
        return "notified"

    @server.tool
    async def roots(ctx: RequestContext) -> str:
        try:
            result = await ctx.send_request("roots/list", None, ListRootsResult)
        except (PeerError, ProtocolViolation, CodedError) as error:
            return f"{type(error).__name__}: {error}"
        return repr(result.roots)

    return server


IDS: list[Any] = [1, "1", 0, "", 2**53 + 1, "ä"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cx_01_request_id_keeps_value_and_json_type(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        for request_id in IDS:
            seen = json.loads(await peer.text("identity", id=request_id))["id"]
            assert seen == request_id
            assert type(seen) is type(request_id)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cx_02_cx_05_au_03_in_memory_request_has_no_session_headers_or_auth(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        seen = json.loads(await peer.text("identity"))
        assert (seen["session"], seen["headers"], seen["auth"]) == (None, None, None)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cx_03_mr_01_modern_requests_are_stateless_and_legacy_requests_are_not(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    async with connected(server, revision) as peer:
        assert json.loads(await peer.text("identity"))["stateless"] is (revision == MODERN)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_cx_04_request_meta_reaches_the_handler_with_unknown_keys(
    autojump_clock: MockClock, server: Server, revision: str
) -> None:
    meta = {
        "progressToken": "p",
        "io.modelcontextprotocol/related-task": {"taskId": "t"},
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
        "example.org/anything": [1, {"a": None}],
    }
    async with connected(server, revision) as peer:
        message = peer.message("tools/call", {"name": "identity", "arguments": {}}, meta=meta)
        await peer.send(message)
        seen = json.loads((await peer.reply(message["id"]))["result"]["content"][0]["text"])["meta"]
        assert {key: seen[key] for key in meta} == meta
        assert set(seen) == set(meta) | set(peer.meta())


async def test_cx_06_notification_of_a_request_is_sent_before_its_answer(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server) as peer:
        await peer.text("notify")
        kinds = [m.get("method", "reply") for m in peer.messages]
        assert kinds[-2:] == ["notifications/message", "reply"]


async def test_cx_07_result_of_a_roots_request_is_validated(autojump_clock: MockClock, server: Server) -> None:
    async with connected(server, capabilities={"roots": {}}) as peer:
        for answer, seen in (
            ({"roots": [{"uri": "file:///a", "name": "A"}]}, repr([Root("file:///a", "A")])),
            ({"roots": "many"}, "ProtocolViolation"),
            ({}, "ProtocolViolation"),
            (None, "ProtocolViolation"),
            ([], "ProtocolViolation"),
        ):
            call = await peer.start("roots")
            await peer.answer(await peer.question("roots/list"), answer)
            text = (await peer.reply(call))["result"]["content"][0]["text"]
            assert text.startswith(seen), (answer, text)


async def test_cx_07_error_response_to_a_roots_request_raises_with_its_code(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, capabilities={"roots": {}}) as peer:
        call = await peer.start("roots")
        await peer.refuse(await peer.question("roots/list"), -32603, "disk on fire", {"more": 1})
        assert "disk on fire (-32603)" in (await peer.reply(call))["result"]["content"][0]["text"]


NAMES = [
    "sampling",
    "sampling.tools",
    "sampling.context",
    "elicitation",
    "elicitation.form",
    "elicitation.url",
    "roots",
]
DECLARED: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"sampling": {}}, "sampling"),
    ({"sampling": {"tools": {}}}, "sampling sampling.tools"),
    ({"sampling": {"context": {}}}, "sampling sampling.context"),
    ({"elicitation": {}}, "elicitation elicitation.form"),
    ({"elicitation": {"form": {}}}, "elicitation elicitation.form"),
    ({"elicitation": {"url": {}}}, "elicitation elicitation.url"),
    ({"elicitation": {"form": {}, "url": {}}}, "elicitation elicitation.form elicitation.url"),
    ({"roots": {"listChanged": True}}, "roots"),
    ({"experimental": {"sampling": {}}}, ""),
]


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
@pytest.mark.parametrize(("declared", "supported"), DECLARED)
async def test_cx_08_ch_07_client_supports_only_declared_capabilities(
    autojump_clock: MockClock, server: Server, revision: str, declared: dict[str, Any], supported: str
) -> None:
    async with connected(server, revision, declared) as peer:
        result = await peer.call("supports", {"names": NAMES})
        assert result["structuredContent"]["result"] == [name in supported.split() for name in NAMES]


async def test_cx_08_capabilities_of_a_modern_request_do_not_apply_to_other_requests(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, MODERN, {"roots": {}}) as peer:
        for declared in ({"roots": {}}, {}, {"roots": {}, "sampling": {}}, {}):
            peer.capabilities = declared
            result = await peer.call("supports", {"names": ["roots", "sampling"]})
            assert result["structuredContent"]["result"] == ["roots" in declared, "sampling" in declared]


async def test_cx_09_concurrent_legacy_and_modern_requests_keep_their_revisions(
    autojump_clock: MockClock, server: Server
) -> None:
    async with connected(server, "2024-11-05") as peer:
        calls: list[tuple[Any, str]] = []
        for revision in ("2024-11-05", MODERN) * 5:
            peer.revision = revision
            calls.append((await peer.start("revision_after", {"ms": 1000}), revision))
        for request_id, revision in calls:
            reply = await peer.reply(request_id)
            assert reply["result"]["content"][0]["text"] == revision
            assert ("resultType" in reply["result"]) is (revision == MODERN)


def test_cx_10_request_context_attributes_are_read_only() -> None:
    context = RequestContext()
    for name in (
        "request_id",
        "revision",
        "session_id",
        "meta",
        "trace",
        "headers",
        "auth",
        "stateless",
        "cancellation",
    ):
        with pytest.raises(AttributeError):
            setattr(context, name, None)


def test_cx_10_auth_claims_and_extra_are_read_only() -> None:
    auth = Auth("a token", Principal(subject="user", claims={"sub": "user"}), {"tenant": "one"})
    with pytest.raises(AttributeError):
        auth.token = "another"  # type: ignore[misc]
    with pytest.raises(TypeError):
        auth.claims["sub"] = "another"  # type: ignore[index]
    with pytest.raises(TypeError):
        auth.extra["tenant"] = "two"  # type: ignore[index]


def test_cx_10_repr_of_auth_contains_no_token_or_claims() -> None:
    auth = Auth("a secret", Principal(subject="user", claims={"email": "private"}), {"tenant": "hidden"})
    assert not any(secret in repr(auth) for secret in ("secret", "private", "hidden"))


@pytest.mark.parametrize("revision", LEGACY)
async def test_cn_05_connections_do_not_share_log_levels_subscriptions_or_request_ids(
    autojump_clock: MockClock, revision: str
) -> None:
    """Revision, capabilities, level, subscriptions and ids in flight, on two connections to one server."""
    server = Server("two", "1.0.0")
    value = {"text": "old"}

    @server.tool
    async def see(ctx: RequestContext) -> str:
        await ctx.log.info("seen")
        return f"{ctx.revision} {ctx.client_supports('roots')}"

    @server.tool
    async def wait(ctx: RequestContext) -> str:
        await trio.sleep(1)
        return "waited"

    @server.resource("x://one")
    async def one() -> str:
        return value["text"]

    async with connected_twice(server) as (first, second):
        await first.open(revision, {"roots": {}})
        await second.open(LATEST_LEGACY)
        await first.request("logging/setLevel", {"level": "error"})
        await first.request("resources/subscribe", {"uri": "x://one"})
        assert await first.text("see") == f"{revision} True"
        assert await second.text("see") == f"{LATEST_LEGACY} False"
        assert first.logged() == []
        assert second.logged() == [("info", "seen")]
        server.resource_updated("x://one")
        assert await first.notification("notifications/resources/updated") == {"uri": "x://one"}
        # The same id on both, and a cancel on one of them.
        await first.start("wait", id=7)
        await second.start("wait", id=7)
        await first.cancel(7)
        assert (await second.reply(7))["result"]["content"][0]["text"] == "waited"
        assert await first.everything() == []
        assert [m["method"] for m in await second.everything()] == ["notifications/message"], "no update, no reply"


async def test_cn_05_log_level_of_a_connection_ends_with_the_connection(autojump_clock: MockClock) -> None:
    server = Server("two", "1.0.0")

    @server.tool
    async def see(ctx: RequestContext) -> str:
        await ctx.log.debug("seen")
        return "seen"

    for _ in range(2):
        async with connected(server) as peer:
            await peer.text("see")
            assert peer.logged() == [], "the level of the connection before is gone with it"
            await peer.request("logging/setLevel", {"level": "debug"})
            await peer.text("see")
            assert peer.logged() == [("debug", "seen")]


async def test_ch_03_ch_08_ch_09_request_context_created_without_a_request_cannot_reach_a_client() -> None:
    context = RequestContext()
    assert not context.is_cancelled
    assert context.cancellation is None
    assert not context.cancelled.is_set()
    assert not context.stateless
    assert not context.client_supports("sampling")
    assert context.auth is None
    assert context.session_id is None
    assert context.progress(1) is False
    await context.log.emergency("dropped")
    await context.send_notification("notifications/message", {"level": "info", "data": 1})
    for ask in (
        lambda: context.sample("x", max_tokens=1),
        lambda: context.sample_raw({}),
        lambda: context.elicit("x", {"type": "object", "properties": {}}),
        lambda: context.elicit_url("x", "https://example.org", "e"),
        lambda: context.elicit_raw({}),
        lambda: context.list_roots(),
        lambda: context.list_roots_raw(),
        lambda: context.send_request("roots/list", None, ListRootsResult),
    ):
        with pytest.raises(CodedError, match=r"no server-to-client channel: this RequestContext is passive") as raised:
            await ask()
        assert raised.value.code == -32600


async def test_ch_09_ch_10_request_context_subclass_can_override_single_methods() -> None:
    class NoWay(RequestContext):
        def no_channel(self) -> CodedError:
            return CodedError(-32600, "carrier pigeons only")

    with pytest.raises(CodedError, match="carrier pigeons only"):
        await NoWay().list_roots()
    with pytest.raises(CodedError, match="carrier pigeons only"):
        await NoWay().sample("x", max_tokens=1)

    class Rooted(RequestContext):
        async def list_roots(self) -> list[Root]:
            return [Root("file:///fake")]

    assert await Rooted().list_roots() == [Root("file:///fake")]
    assert Rooted().progress(1) is False
