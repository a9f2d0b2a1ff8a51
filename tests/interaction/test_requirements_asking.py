"""SA, EL, RO and CH: which requests a handler may send to its client, and over which channel."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import ConnectionLost, Limits, PeerError, ProtocolViolation, RequestContext, Server
from trio_mcp.types import CreateMessageResult, ToolChoice

from .asking import ALL, FORM, QUESTIONS, SAMPLED, TOOL, Asking, elicit, sample
from .memory_peer import LATEST_LEGACY, LEGACY, MODERN, connected


@pytest.fixture
def asking() -> Asking:
    return Asking()


# The gates, in their order (ruling 18)


@pytest.mark.parametrize("kind", QUESTIONS)
async def test_sa_02_el_02_ro_04_ch_06_stateless_server_refuses_requests_to_the_client(
    autojump_clock: MockClock, asking: Asking, kind: str
) -> None:
    for revision in (LATEST_LEGACY, MODERN):
        for capabilities in (ALL, {}):
            async with connected(asking.server, revision, capabilities, stateless=True) as peer:
                error = await asking.refused(peer, QUESTIONS[kind])
                assert error.code == -32603, "no way back comes before any capability"
                assert "return InputRequired" in error.message
                assert "serve it without stateless=True" in error.message


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("revision", LEGACY)
async def test_sa_03_el_02_ro_03_server_request_without_the_client_capability_raises_and_is_not_sent(
    autojump_clock: MockClock, asking: Asking, kind: str, revision: str
) -> None:
    async with connected(asking.server, revision, {"experimental": {"x": {}}}) as peer:
        error = await asking.refused(peer, QUESTIONS[kind])
        assert error.code == -32600
        assert kind.partition(".")[0] in error.message


async def test_sa_04_sampling_with_tools_requires_sampling_tools_capability(
    autojump_clock: MockClock, asking: Asking
) -> None:
    for options in (
        {"tools": [TOOL]},
        {"tools": []},
        {"tool_choice": ToolChoice("none")},
        {"tool_choice": ToolChoice()},
    ):
        async with connected(asking.server, capabilities={"sampling": {}}) as peer:
            error = await asking.refused(peer, sample(**options))
            assert (error.code, "sampling.tools" in error.message) == (-32600, True)
        async with connected(asking.server, capabilities={"sampling": {"tools": {}}}) as peer:
            _, outcome = await asking.answered(peer, sample(**options), "sampling/createMessage", SAMPLED)
            assert isinstance(outcome, CreateMessageResult)


async def test_sa_05_sampling_with_server_context_requires_sampling_context_capability(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities={"sampling": {}}) as peer:
        for context in ("thisServer", "allServers"):
            error = await asking.refused(peer, sample(include_context=context))
            assert (error.code, "sampling.context" in error.message) == (-32600, True)
        params, _ = await asking.answered(peer, sample(include_context="none"), "sampling/createMessage", SAMPLED)
        assert params["includeContext"] == "none"
    async with connected(asking.server, capabilities={"sampling": {"context": {}}}) as peer:
        params, _ = await asking.answered(peer, sample(include_context="allServers"), "sampling/createMessage", SAMPLED)
        assert params["includeContext"] == "allServers"


async def test_el_03_el_15_client_with_an_empty_elicitation_capability_supports_only_forms(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async with connected(asking.server, capabilities={"elicitation": {}}) as peer:
        _, answer = await asking.answered(peer, elicit(FORM), "elicitation/create", {"action": "decline"})
        assert answer.action == "decline"
        assert (await asking.refused(peer, QUESTIONS["elicitation.url"])).code == -32600
    async with connected(asking.server, capabilities={"elicitation": {"url": {}}}) as peer:
        assert (await asking.refused(peer, elicit(FORM))).code == -32600


# The channel under it


async def test_ch_04_sv_11_handler_that_waits_for_roots_does_not_block_calls_to_other_tools(
    autojump_clock: MockClock, asking: Asking
) -> None:
    @asking.server.tool
    async def echo(text: str) -> str:
        return text

    async with connected(asking.server, capabilities=ALL) as peer:
        asking.question = QUESTIONS["roots"]
        call = await peer.start("ask")
        assert await peer.text("echo", {"text": "meanwhile"}) == "meanwhile"
        question = await peer.question("roots/list")
        await peer.refuse(question, -32603, "no", {"why": "because"})
        await peer.reply(call)
        assert isinstance(asking.outcome, PeerError)
        assert (asking.outcome.code, asking.outcome.message, asking.outcome.data) == (-32603, "no", {"why": "because"})


async def test_ch_13_server_request_ids_differ_from_client_request_ids_in_flight(
    autojump_clock: MockClock, asking: Asking
) -> None:
    @asking.server.tool
    async def wait() -> str:
        await trio.sleep(10)
        return "waited"

    async with connected(asking.server, capabilities=ALL) as peer:
        for number in range(1, 20):
            await peer.start("wait", id=number)
        asking.question = QUESTIONS["roots"]
        call = await peer.start("ask", id=20)
        question = await peer.question("roots/list")
        assert question["id"] not in range(1, 21)
        await peer.answer(question, {"roots": []})
        await peer.reply(call)


async def test_ch_16_each_pending_request_to_the_client_fails_at_end_of_input(autojump_clock: MockClock) -> None:
    server = Server("asking", "1.0.0")
    outcomes: list[Any] = []

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        async def one() -> None:
            try:
                await ctx.list_roots()
            except ConnectionLost as error:
                outcomes.append(error)

        for _ in range(5):
            ctx.nursery.start_soon(one)
        return "asked"

    async with connected(server, capabilities=ALL) as peer:
        await peer.start("ask")
        await peer.close()
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcomes) == 5
        assert len(set(map(id, outcomes))) == 5, "an exception for each, so that tracebacks do not mix"


async def test_ch_17_roots_request_that_times_out_raises_too_slow_error_and_sends_one_cancel(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async def impatient(ctx: RequestContext) -> Any:
        with trio.fail_after(3):
            await ctx.list_roots()

    async with connected(asking.server, capabilities=ALL) as peer:
        asking.question = impatient
        call = await peer.start("ask")
        question = await peer.question("roots/list")
        cancel = await peer.notification("notifications/cancelled")
        assert cancel["requestId"] == question["id"]
        assert "deadline" in cancel["reason"]
        await peer.answer(question, {"roots": []})  # late, and ignored
        assert "result" in await peer.reply(call)
        assert isinstance(asking.outcome, trio.TooSlowError)
        assert await peer.everything() == []


async def test_ch_14_ch_15_invalid_line_gets_one_error_and_the_connection_stays_open(autojump_clock: MockClock) -> None:
    """The framing itself is tested over pipes; here is what the connection makes of it."""
    server = Server("lines", "1.0.0", limits=Limits(max_message_bytes=100))
    assert server.limits.max_message_bytes == 100
    async with connected(server) as peer:
        await peer.send(b"{bad")
        await peer.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode())
        codes = [m.get("error", {}).get("code") for m in await peer.everything()]
        assert codes == [-32700, None]


async def test_ch_18_notifications_and_requests_sent_by_a_handler_keep_their_order(
    autojump_clock: MockClock, asking: Asking
) -> None:
    async def question(ctx: RequestContext) -> Any:
        await ctx.log.error("before")
        roots = await ctx.list_roots()
        await ctx.log.error("after")
        return roots

    async with connected(asking.server, LATEST_LEGACY, ALL) as peer:
        await asking.answered(peer, question, "roots/list", {"roots": []})
        kinds = [m.get("method", "reply") for m in peer.messages[1:]]
        assert kinds == ["notifications/message", "roots/list", "notifications/message", "reply"]


async def test_roots_answer_that_is_not_json_raises_in_the_handler(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def where(ctx: RequestContext) -> str:
        try:
            await ctx.list_roots()
        except ProtocolViolation as error:
            return str(error)
        return "an answer"

    async with connected(server, LATEST_LEGACY, ALL) as peer:
        call = await peer.start("where")
        question = await peer.question("roots/list")
        await peer.send(b'{"jsonrpc":"2.0","id":%d,"result":{"roots":[{"uri":"\\ud800"}]}}' % question["id"])
        text = (await peer.reply(call))["result"]["content"][0]["text"]
        assert text.startswith("roots/list: the answer cannot be read: not JSON")
        assert await peer.everything() == []
