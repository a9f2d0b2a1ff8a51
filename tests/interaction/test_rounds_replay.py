"""MR: replayed tools keep no state in the server between the retries."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import CancelCause, Limits, RequestContext, Server, ToolError

from .conversation import ANSWERS
from .memory_peer import LATEST_LEGACY, MODERN, connected
from .rounds import ALL, NAME, ask, asked, methods, text

SECRET = b"k" * 32


@attrs.define
class Desk:
    """A server whose tool asks twice, and is run again for each answer; ``runs`` counts."""

    secrets: tuple[bytes, ...] = (SECRET,)
    limits: Limits = attrs.field(factory=Limits)
    runs: int = 0
    causes: list[CancelCause] = attrs.field(factory=list[CancelCause])
    server: Server = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.server = Server("desk", secrets=self.secrets, limits=self.limits)

        @self.server.tool(replay=True)
        async def book(ctx: RequestContext) -> str:
            self.runs += 1
            try:
                answer = await ctx.elicit("name?", NAME)
                roots = await ctx.list_roots()
            finally:
                if ctx.cancellation is not None:
                    self.causes.append(ctx.cancellation.cause)
            return f"{answer.content['name']} at {roots[0].uri}"  # type: ignore[index]


async def test_tool_with_replay_runs_again_from_its_start_with_the_answers(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with connected(desk.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "book")
        assert (methods(result), desk.runs, desk.server.statistics().parked) == (["elicitation/create"], 1, 0)
        result = asked(await peer.retry(first, result))
        assert (methods(result), desk.runs) == (["roots/list"], 2)
        assert text(await peer.retry(first, result)) == "Ada at file:///a"
    assert (desk.runs, desk.causes) == (3, [CancelCause.REPLAY] * 2)
    assert desk.server.statistics().cancelled == 0


async def test_another_process_with_the_same_secret_accepts_the_retry_of_a_tool_with_replay(
    autojump_clock: MockClock,
) -> None:
    desks = [Desk(), Desk((b"n" * 32, SECRET)), Desk()]
    reply: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for desk in desks:
        async with connected(desk.server, MODERN, ALL) as peer:
            if not first:
                first, result = await ask(peer, "book")
                continue
            reply = await peer.retry(first, result)
            if "inputRequests" in reply["result"]:
                result = asked(reply)
        if desk is desks[1]:
            # The second seals with its first secret, which the third has not.
            async with connected(desks[2].server, MODERN, ALL) as peer:
                assert "not issued to this caller" in (await peer.retry(first, result))["error"]["message"]
            async with connected(desks[1].server, MODERN, ALL) as peer:
                assert text(await peer.retry(first, result)) == "Ada at file:///a"
            break
    assert [desk.runs for desk in desks] == [1, 2, 0]


async def test_another_process_refuses_the_retry_of_a_handler_that_awaits_input(autojump_clock: MockClock) -> None:
    servers = [Server("shop", secrets=[SECRET]) for _ in range(2)]
    runs: list[str] = []
    for server in servers:

        @server.tool
        async def order(ctx: RequestContext) -> None:
            runs.append("run")
            await ctx.list_roots()

    async with connected(servers[0], MODERN, ALL) as peer, connected(servers[1], MODERN, ALL) as other:
        first, result = await ask(peer, "order")
        error = (await other.retry(first, result))["error"]
        assert (error["code"], runs) == (-32602, ["run"])


async def test_tool_with_replay_and_an_expired_request_state_sends_its_input_requests_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(limits=Limits(retry_timeout=60))
    async with connected(desk.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "book")
        monkeypatch.setattr("time.time", lambda: 10.0**10)
        again = asked(await peer.retry(first, result))
        assert again["inputRequests"] == result["inputRequests"]


async def test_answers_to_input_requests_that_were_not_sent_are_ignored(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with connected(desk.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "book")
        (name,) = result["inputRequests"]
        second = asked(await peer.retry(first, result))
        (roots,) = second["inputRequests"]
        # Roots sent too early: the server has not requested them yet.
        early = asked(await peer.retry(first, result, {name: ANSWERS["elicitation/create"], roots: {"roots": []}}))
        assert methods(early) == ["roots/list"]
        # Unanswered input requests are repeated.
        assert asked(await peer.retry(first, result, {}))["inputRequests"] == result["inputRequests"]


async def test_concurrent_elicitations_of_a_tool_with_replay_get_their_answers_in_any_order(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool(replay=True)
    async def many(ctx: RequestContext) -> str:
        found: dict[str, str] = {}

        async def name(label: str) -> None:
            found[label] = (await ctx.elicit(label, NAME)).content["name"]  # type: ignore[index]

        async with trio.open_nursery() as nursery:
            for label in ("a", "b", "c"):
                nursery.start_soon(name, label)
        return " ".join(found[label] for label in ("a", "b", "c"))

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "many")
        responses = {
            key: {"action": "accept", "content": {"name": question["params"]["message"] * 2}}
            for key, question in result["inputRequests"].items()
        }
        assert len(responses) == 3
        assert text(await peer.retry(first, result, responses)) == "aa bb cc"


async def test_replayed_handler_whose_first_run_swallowed_its_cancel_gets_the_answers_of_the_retry(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool(replay=True)
    async def stubborn(ctx: RequestContext) -> str:
        try:
            return (await ctx.list_roots())[0].uri
        except trio.Cancelled:
            raise ToolError("never mind") from None

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "stubborn")
        assert text(await peer.retry(first, result)) == "file:///a"


async def test_call_cancelled_during_the_cleanup_of_its_replayed_handler_is_not_answered(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool(replay=True)
    async def slow(ctx: RequestContext) -> None:
        try:
            await ctx.list_roots()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                await trio.sleep(2)

    async with connected(server, MODERN, ALL) as peer:
        call = await peer.start("slow")
        await peer.cancel(call)
        assert await peer.everything() == []
        assert server.statistics().cancelled == 1


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_stateless_server_replays_tools_only_for_modern_clients(autojump_clock: MockClock, revision: str) -> None:
    desk = Desk()
    async with connected(desk.server, revision, ALL, stateless=True) as peer:
        if revision == LATEST_LEGACY:
            message = (await peer.error("book"))["message"]
            assert "serve it without stateless=True" in message
            assert "replay=True" not in message, "which helps with modern clients only"
            return
        first, result = await ask(peer, "book")
        result = asked(await peer.retry(first, result))
        assert text(await peer.retry(first, result)) == "Ada at file:///a"


async def test_tool_with_replay_runs_once_for_a_legacy_client_and_sends_it_server_requests(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    async with connected(desk.server, LATEST_LEGACY, ALL) as peer:
        call = await peer.start("book")
        for method in ("elicitation/create", "roots/list"):
            await peer.answer(await peer.question(method), ANSWERS[method])
        assert (await peer.reply(call))["result"]["content"][0]["text"] == "Ada at file:///a"
    assert desk.runs == 1


async def test_tool_with_replay_uses_the_client_capabilities_of_the_retry(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with connected(desk.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "book")
        peer.capabilities = {"elicitation": {}}
        error = (await peer.retry(first, result))["error"]
        assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"roots": {}}})
