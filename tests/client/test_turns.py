"""At most a few questions of a kind are answered at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.client.rounds import FORM, ROOTS, SAMPLE, URL, RoundsPeer, asking
from tests.interaction.client.raw import RawPeer, scripted, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Client, RequestContext, Server, fail_after_work, open_memory, proxy
from trio_mcp.client.opening import open_client
from trio_mcp.client.options import ClientSettings
from trio_mcp.protocol.types.lifecycle import Elicitation
from trio_mcp.types import ClientCapabilities, CreateMessageResult, ElicitResult, Root, TextContent

EMPTY: Any = {"type": "object", "properties": {}}
ERAS: Any = ("legacy", "modern")


class User:
    """Handlers that wait to be let go, and how many of each kind have begun and run."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.begun: list[str] = []
        self.running = dict.fromkeys(("sampling", "elicitation", "roots"), 0)
        self.most = dict(self.running)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "elicitation": self.elicitation,
            "elicitation_url": self.elicitation_url,
            "roots": self.roots,
        }

    async def _handle(self, kind: str) -> None:
        self.begun.append(kind)
        self.running[kind] += 1
        self.most[kind] = max(self.most[kind], self.running[kind])
        try:
            await self.go.wait()
        finally:
            self.running[kind] -= 1

    async def sampling(self, _: Any) -> CreateMessageResult:
        await self._handle("sampling")
        return CreateMessageResult("assistant", TextContent("yes"), "model")

    async def elicitation(self, _: Any) -> dict[str, Any]:
        await self._handle("elicitation")
        return {}

    async def elicitation_url(self, _: Any) -> ElicitResult:
        await self._handle("elicitation")
        return ElicitResult("accept")

    async def roots(self) -> list[Root]:
        await self._handle("roots")
        return []


def asks_much() -> Server:
    server = Server("asks much")

    @server.tool
    async def ask(count: int, ctx: RequestContext) -> str:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(ctx.elicit, f"question {number}", EMPTY)
        return "asked"

    return server


@asynccontextmanager
async def legacy(questions: list[dict[str, Any]], **options: Any) -> AsyncIterator[tuple[Client, RawPeer]]:
    """A client whose server sends these requests, with the ids 0, 1, 2 …"""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number, question in enumerate(questions):
            await peer.send({"id": number, **question})

    async with scripted(script) as (channel, peer), open_client(channel, era="legacy", **options) as client:
        yield client, peer


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("most", [1, 4, None])
async def test_concurrent_elicitation_handlers_of_a_client_are_limited(
    autojump_clock: object, era: Any, most: int | None
) -> None:
    user = User()
    options: Any = {} if most is None else {"max_questions": most}
    count = 50 if most else 1000
    async with (
        open_memory(asks_much(), era=era, elicitation=user.elicitation, **options) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.call_tool, "ask", {"count": count})
        await wait_all_tasks_blocked()
        assert len(user.begun) == (most or 4)
        user.go.set()
    assert len(user.begun) == count
    assert user.running["elicitation"] == 0


async def test_each_kind_of_server_request_has_its_own_concurrency_limit(autojump_clock: object) -> None:
    user = User()
    questions: list[dict[str, Any]] = [*[SAMPLE] * 5, *[FORM, URL] * 3, *[ROOTS] * 5]
    async with legacy(questions, max_questions=2, **user.options) as (_, peer):
        await wait_all_tasks_blocked()
        assert user.running == {"sampling": 2, "elicitation": 2, "roots": 2}
        user.go.set()
        await wait_all_tasks_blocked()
    assert max(user.most.values()) == 2
    assert {message["id"] for message in peer.wire if "result" in message} == set(range(16))


async def test_queued_elicitations_run_in_order_of_arrival(autojump_clock: object) -> None:
    asked: list[str] = []

    async def answer(params: Any) -> dict[str, Any]:
        asked.append(params.message)
        await trio.sleep(1)
        return {}

    async with legacy([], max_questions=1, elicitation=answer) as (_, peer):
        for number in range(10):
            params = {"message": str(number), "requestedSchema": EMPTY}
            await peer.send({"id": number, "method": "elicitation/create", "params": params})
            await wait_all_tasks_blocked()
        await trio.sleep(20)
    assert asked == [str(number) for number in range(10)]


async def test_elicitation_that_is_cancelled_while_queued_never_runs_its_handler(autojump_clock: object) -> None:
    user = User()
    async with legacy([FORM], max_questions=1, elicitation=user.elicitation) as (_, peer):
        await wait_all_tasks_blocked()
        await peer.send({"id": "waits", **FORM})
        await peer.send({"id": "waits, too", **FORM})
        await wait_all_tasks_blocked()
        await peer.notify("notifications/cancelled", {"requestId": "waits"})
        await wait_all_tasks_blocked()
        user.go.set()
        await wait_all_tasks_blocked()
    assert len(user.begun) == 2
    assert [message["id"] for message in peer.wire if "result" in message] == [0, "waits, too"]


async def test_next_queued_elicitation_starts_when_the_running_elicitation_is_cancelled(autojump_clock: object) -> None:
    user = User()
    async with legacy([FORM], max_questions=1, elicitation=user.elicitation) as (_, peer):
        await wait_all_tasks_blocked()
        await peer.send({"id": "waits", **FORM})
        await peer.notify("notifications/cancelled", {"requestId": 0})
        await wait_all_tasks_blocked()
        assert len(user.begun) == 2
        user.go.set()
        await wait_all_tasks_blocked()
    assert [message["id"] for message in peer.wire if "result" in message] == ["waits"]


async def test_cancelled_call_removes_its_elicitations_from_the_queue(autojump_clock: object) -> None:
    user = User()
    async with open_memory(asks_much(), era="modern", elicitation=user.elicitation) as client:
        with trio.move_on_after(1):
            await client.call_tool("ask", {"count": 100})
        assert len(user.begun) == 4
        user.go.set()
        assert text_of(await client.call_tool("ask", {"count": 1})) == "asked"
    assert len(user.begun) == 5


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kind", ["elicitation", "sampling"])
async def test_call_timeout_does_not_include_the_time_of_elicitations_in_the_queue(
    autojump_clock: object, era: Any, kind: str
) -> None:
    server = Server("asks")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        await (ctx.elicit("?", EMPTY) if kind == "elicitation" else ctx.sample("?", max_tokens=1))
        return "asked"

    async def elicitation(_: Any) -> dict[str, Any]:
        await trio.sleep(5)
        return {}

    async def sampling(_: Any) -> CreateMessageResult:
        await trio.sleep(5)
        return CreateMessageResult("assistant", TextContent("yes"), "model")

    async with open_memory(
        server, era=era, elicitation=elicitation, sampling=sampling, sampling_asks_user=True, max_questions=1
    ) as client:

        async def call() -> None:
            with fail_after_work(1):
                await client.call_tool("ask")

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)


@pytest.mark.parametrize("era", ERAS)
async def test_sampling_handler_that_calls_a_tool_which_samples_again_does_not_deadlock_at_the_limit(
    autojump_clock: object, era: Any
) -> None:
    server = Server("nested")

    @server.tool
    async def ask(depth: int, ctx: RequestContext) -> str:
        return (await ctx.sample(str(depth), max_tokens=1)).content.text  # type: ignore[union-attr]

    running = most = 0

    async def sampling(params: Any) -> CreateMessageResult:
        nonlocal running, most
        depth = int(params.messages[0].content.text)
        below = text_of(await client.call_tool("ask", {"depth": depth - 1})) if depth else "the end"
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return CreateMessageResult("assistant", TextContent(below), "model")

    async with open_memory(server, era=era, sampling=sampling, max_questions=2) as client:
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(client.call_tool, "ask", {"depth": 5})
    assert most == 2


@pytest.mark.parametrize("era", ERAS)
async def test_max_questions_of_the_client_behind_a_proxy_does_not_limit_forwarded_elicitations(
    autojump_clock: object, era: Any
) -> None:
    patient, busy = User(), User()
    patient.go.set()
    forwards = ClientCapabilities(elicitation=Elicitation({}))
    async with (
        open_memory(asks_much(), era="modern", forwards=forwards, max_questions=1) as behind,
        open_memory(proxy(behind), era=era, elicitation=busy.elicitation) as one,
        open_memory(proxy(behind), era=era, elicitation=patient.elicitation) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(one.call_tool, "ask", {"count": 10})
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            assert text_of(await other.call_tool("ask", {"count": 10})) == "asked"
        assert len(busy.begun) == 4
        busy.go.set()


async def test_client_answers_all_input_requests_even_beyond_the_concurrency_limit(autojump_clock: object) -> None:
    user = User()
    user.go.set()

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), **{str(number): FORM for number in range(20)})
        retry = await peer.call()
        await peer.text(retry, str(len(retry["params"]["inputResponses"])))

    async with asking(script, max_questions=1, elicitation=user.elicitation) as (client, _):
        assert text_of(await client.call_tool("any")) == "20"


def test_limit_of_zero_concurrent_server_requests_raises_value_error() -> None:
    with pytest.raises(ValueError, match="max_questions"):
        ClientSettings(max_questions=0)
