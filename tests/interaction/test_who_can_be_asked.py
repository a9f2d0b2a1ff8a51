"""CX-08, CX-11: `client_supports` agrees with whether a request to the client is refused, in every revision."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import CapabilityMissing, CodedError, NoBackChannel, RequestContext, Server
from trio_mcp.testing import RecordingContext, in_turn

from .asking import FORM, TOOL, sample
from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, REVISIONS, connected

QUESTIONS: dict[str, Any] = {
    "sampling": sample(),
    "sampling.tools": sample(tools=[TOOL]),
    "sampling.context": sample(include_context="thisServer"),
    "elicitation": lambda ctx: ctx.elicit("please", FORM),
    "elicitation.form": lambda ctx: ctx.elicit("please", FORM),
    "elicitation.url": lambda ctx: ctx.elicit_url("go", "https://example.org/", "e"),
    "roots": lambda ctx: ctx.list_roots(),
}
EVERYTHING: dict[str, Any] = {
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
DECLARED = [{}, {"sampling": {}, "elicitation": {}}, {"elicitation": {"form": {}}}, EVERYTHING]


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_client_supports_method_of_the_context_is_false_for_exactly_the_requests_that_are_refused(
    autojump_clock: MockClock, revision: str, replay: bool, stateless: bool
) -> None:
    server, told = Server("s"), dict[str, bool]()

    @server.tool(replay=replay)
    async def ask(kind: str, ctx: RequestContext) -> str:
        told[kind] = ctx.client_supports(kind)
        await QUESTIONS[kind](ctx)
        return "asked"

    for declared, kind in itertools.product(DECLARED, QUESTIONS):
        async with connected(server, revision, declared, stateless=stateless) as peer:
            call = await peer.start("ask", {"kind": kind})
            first = next(m for m in await peer.everything() if m.get("method") or m["id"] == call)
        refused = "error" in first
        assert told[kind] is not refused, (declared, kind)
        if refused:
            assert first["error"]["code"] in (-32600, -32603, -32021)


async def test_client_supports_method_is_true_for_an_experimental_capability_without_a_back_channel(
    autojump_clock: MockClock,
) -> None:
    server, told = Server("s"), list[bool]()

    @server.tool
    async def look(ctx: RequestContext) -> None:
        told.append(ctx.client_supports("experimental.x"))
        told.append(ctx.client_supports("roots"))

    for revision in (LATEST_LEGACY, MODERN):
        async with connected(server, revision, {"experimental": {"x": {}}, "roots": {}}, stateless=True) as peer:
            await peer.call("look")
    assert told == [True, False] * 2


@pytest.mark.parametrize("revision", LEGACY)
@pytest.mark.parametrize(
    "question",
    [
        *QUESTIONS.values(),
        lambda ctx: ctx.elicit_raw({"message": "m", "requestedSchema": FORM}),
        lambda ctx: ctx.send_request("tools/list", None, dict),
    ],
)
async def test_uncaught_capability_error_in_a_tool_is_not_sent_as_method_not_found(
    autojump_clock: MockClock, revision: str, question: Any
) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await question(ctx)

    for stateless in (False, True):
        async with connected(server, revision, stateless=stateless) as peer:
            call = await peer.start("ask")
            replies = [m for m in await peer.everything() if "method" not in m and m["id"] == call]
            for reply in replies:  # none where it was sent: raw questions have no gate
                assert reply["error"]["code"] in ((-32603,) if stateless else (-32600, -32603))


async def test_modern_tool_that_sends_an_unsupported_server_request_fails_with_internal_error(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.send_request("ping", None, dict)

    async with connected(server, MODERN, EVERYTHING) as peer:
        assert (await peer.error("ask"))["code"] == -32603


async def test_all_missing_capabilities_of_a_sampling_request_are_reported_together(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("hi", max_tokens=1, tools=[TOOL], include_context="allServers")

    async with connected(server, MODERN, {}) as peer:
        error = await peer.error("ask")
        assert (error["code"], error["data"]) == (
            -32021,
            {"requiredCapabilities": {"sampling": {"tools": {}, "context": {}}}},
        )


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("tools/call", ("replay=True", "return InputRequired", "serve it without stateless=True")),
        ("prompts/get", ("return InputRequired", "serve it without stateless=True")),
    ],
)
async def test_no_back_channel_error_of_a_stateless_server_advises_ways_to_get_client_input(
    autojump_clock: MockClock, method: str, advice: tuple[str, ...]
) -> None:
    server, refusals = Server("s"), list[str]()

    async def ask(ctx: RequestContext) -> str:
        with pytest.raises(NoBackChannel) as caught:
            await ctx.list_roots()
        refusals.append(caught.value.message)
        return "refused"

    server.tool(ask)
    server.prompt(ask)
    for revision in (MODERN, LATEST_LEGACY):
        async with connected(server, revision, EVERYTHING, stateless=True) as peer:
            assert "result" in await peer.request(method, {"name": "ask"})
    modern, legacy = refusals
    for words in ("replay=True", "return InputRequired", "serve it without stateless=True"):
        assert (words in modern) is (words in advice)
    assert "replay=True" not in legacy
    assert f"clients of revision {MODERN}" in legacy


@pytest.mark.parametrize("revision", LEGACY[:3])
async def test_sampling_with_tools_is_refused_in_revisions_without_tools_in_sampling(
    autojump_clock: MockClock, revision: str
) -> None:
    server, refusals = Server("s"), list[CodedError]()

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        try:
            await ctx.sample("hi", max_tokens=1, tools=[TOOL])
        except CapabilityMissing as error:
            refusals.append(error)

    async with connected(server, revision, EVERYTHING) as peer:
        await peer.call("ask")
    assert "'sampling.tools'" in refusals[0].message
    assert revision in refusals[0].message


async def test_recording_context_for_unit_tests_supports_only_the_capabilities_of_its_revision() -> None:
    ctx = RecordingContext(revision="2025-03-26", elicitation=in_turn({"name": "Ann"}))
    assert not ctx.client_supports("elicitation")
    with pytest.raises(CapabilityMissing, match="2025-03-26"):
        await ctx.elicit("?", FORM)
    ctx = RecordingContext(revision="2025-06-18", elicitation=in_turn({"name": "Ann"}))
    assert ctx.client_supports("elicitation.form")


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("deeper", [False, True])
async def test_capabilities_that_a_client_lacks_for_concurrent_requests_are_reported_together(
    autojump_clock: MockClock, revision: str, deeper: bool
) -> None:
    server = Server("s")

    async def together(ctx: RequestContext, *kinds: str) -> None:
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(QUESTIONS[kind], ctx)

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(QUESTIONS["roots"], ctx)
            if deeper:
                nursery.start_soon(together, ctx, "elicitation.url", "sampling")
            else:
                nursery.start_soon(QUESTIONS["sampling.context"], ctx)

    async with connected(server, revision, {}) as peer:
        error = await peer.error("ask")
    for capability in ("roots", "elicitation.url", "sampling") if deeper else ("roots", "sampling.context"):
        assert repr(capability) in error["message"]
    if revision == MODERN:
        missing = {"elicitation": {"url": {}}, "sampling": {}} if deeper else {"sampling": {"context": {}}}
        assert error["data"] == {"requiredCapabilities": {"roots": {}, **missing}}
    assert error["code"] == (-32021 if revision == MODERN else -32600)


async def test_missing_capability_raised_together_with_another_exception_is_an_internal_error(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    async def fail() -> None:
        raise ValueError("internal")

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.list_roots)
            nursery.start_soon(fail)

    async with connected(server, MODERN, {}) as peer:
        assert (await peer.call("ask"))["content"][0]["text"] == "internal error in tool ask"
