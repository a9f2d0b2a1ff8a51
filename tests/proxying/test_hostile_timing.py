"""A protected proxy before a legacy server, over sockets: whatever the server says of a call, before and after its end,
reaches the principal of the call or nobody (AU-08)."""

from __future__ import annotations

import itertools
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, legacy, result, serving, text
from tests.patience import PATIENCE
from tests.serving.http.protection import issued, protected
from tests.serving.http.raw import served

from trio_mcp import Address, Client, open_http, proxy
from trio_mcp.auth import Bearer
from trio_mcp.types import ClientCapabilities, Elicitation, ElicitFormParams, ElicitResult, LogParams

CALLS = 12
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


class Behind:
    """A legacy server that does with each call, in random order: log, ask, have its caller leave; and then answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ids = itertools.count(1000)
        self.leave: dict[str, trio.Event] = {}
        self.left: dict[Any, trio.Event] = {}
        self.asked: dict[int, str] = {}
        self.answered: dict[int, trio.Event] = {}
        self.wrong: list[tuple[str, Any]] = []
        self.heard = 0

    async def __call__(self, got: Got, answer: Answer) -> None:
        match got.name:
            case "tools/call":
                await self.run(got, answer)
            case "notifications/cancelled":
                await answer.whole(202)
                self.left.setdefault(got.message["params"]["requestId"], trio.Event()).set()
            case "reply":
                await answer.whole(202)
                self.take(got.message)
            case _:
                await legacy(anything, tools={}, logging={})(got, answer)

    def take(self, reply: Any) -> None:
        name = reply.get("result", {}).get("content", {}).get("name")
        whose = self.asked[reply["id"]]
        if name is not None:
            self.heard += 1
            if name != whose:
                self.wrong.append((whose, name))
        self.answered[reply["id"]].set()

    async def run(self, got: Got, answer: Answer) -> None:
        arguments = got.message["params"]["arguments"]
        whose, call = arguments["whose"], arguments["call"]
        steps = [self.random.choice(("log", "ask")) for _ in range(self.random.randrange(4))]
        if self.random.random() < 0.4:
            steps.insert(self.random.randrange(len(steps) + 1), "leave")
        await answer.open()
        for step in steps:
            if step == "log":
                params = {"level": "error", "data": whose}
                await answer.event({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            elif step == "ask":
                number = next(self.ids)
                self.asked[number], self.answered[number] = whose, trio.Event()
                params = {"message": whose, "requestedSchema": FORM}
                await answer.event({"jsonrpc": "2.0", "id": number, "method": "elicitation/create", "params": params})
                if "leave" not in steps:  # else the answer may have been given up with the call
                    await self.answered[number].wait()
            else:
                self.leave[call].set()
                await self.left.setdefault(got.message["id"], trio.Event()).wait()
        if "leave" not in steps:
            await answer.event(text(got, whose))
        await answer.end()


async def anything(got: Got, answer: Answer) -> None:
    await answer.json(result(got, tools=[]))


class Caller:
    """A principal with a client of its own."""

    def __init__(self, name: str, behind: Behind) -> None:
        self.name = name
        self.behind = behind
        self.got: list[str] = []

    async def answer(self, question: ElicitFormParams) -> ElicitResult:
        self.got.append(question.message)
        return ElicitResult("accept", {"name": self.name})

    def log(self, message: LogParams) -> None:
        self.got.append(message.data)

    async def call(self, client: Client, number: int) -> None:
        call = f"{self.name} {number}"
        left = self.behind.leave[call] = trio.Event()

        async def leave() -> None:
            await left.wait()
            nursery.cancel_scope.cancel(reason="the server says so")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            answered = await client.call_tool("any", {"whose": self.name, "call": call})
            self.got.append(answered.text)
            nursery.cancel_scope.cancel(reason="answered")


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_principals_receive_only_their_own_messages_even_if_a_legacy_server_sends_them_late(
    era: Any, shares: bool, seed: int
) -> None:
    behind = Behind(seed)
    callers = [Caller(name, behind) for name in ("alice", "bob")]
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(serving(behind))
            address = Address(inner.url)
            if shares:
                forwards = ClientCapabilities(elicitation=Elicitation(form={}))
                way = proxy(await stack.enter_async_context(address.open(era="legacy", forwards=forwards)))
            else:
                way = proxy(address.open)
            outer = await stack.enter_async_context(served(way, auth=protected(issued())))  # type: ignore[arg-type]
            url = f"http://127.0.0.1:{outer.port}/mcp"
            clients = [
                await stack.enter_async_context(
                    open_http(url, auth=Bearer(f"{each.name}-1"), era=era, elicitation=each.answer, on_log=each.log)
                )
                for each in callers
            ]
            async with trio.open_nursery() as nursery:
                for caller, client in zip(callers, clients, strict=True):
                    await client.set_log_level("debug")
                    for number in range(CALLS):
                        nursery.start_soon(caller.call, client, number)
    assert behind.wrong == []
    assert behind.heard > 0
    for caller in callers:
        assert set(caller.got) == {caller.name}
