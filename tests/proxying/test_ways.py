"""Questions and logs of a legacy server keep to their call where the way on which they come tells the call: over HTTP,
the answer to the POST of the call (AU-08)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, legacy, result, serving, text
from tests.patience import PATIENCE
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import BASE, Connection, Endpoint, modern, served

from trio_mcp import Address, RequestContext, Server, open_http, proxy
from trio_mcp.types import ClientCapabilities, Elicitation, ElicitFormParams, ElicitResult, LogParams

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
META: dict[str, Any] = {
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    "io.modelcontextprotocol/logLevel": "info",
}
LOG = {"method": "notifications/message", "params": {"level": "error", "data": "secret"}}
QUESTION = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": FORM}}
FORWARDS = ClientCapabilities(elicitation=Elicitation(form={}))


class Behind:
    """A server whose tool logs and asks for each caller, when all callers are there."""

    def __init__(self, callers: int) -> None:
        self.server = Server("behind")
        self.waiting = 0
        self.all_there = trio.Event()
        self.left: dict[str, trio.Event] = {}

        @self.server.tool
        async def ask(who: str, ctx: RequestContext) -> str:
            self.waiting += 1
            if self.waiting == callers:
                self.all_there.set()
            await self.all_there.wait()
            for number in range(30):
                await ctx.log.info(f"{who} {number}")
            answer = await ctx.elicit(f"{who}?", FORM)
            return f"{who}: {answer.content}"


@asynccontextmanager
async def before(behind: Behind, *, shares: bool = False, **options: Any) -> AsyncGenerator[Endpoint]:
    async with served(behind.server) as inner:
        address = Address(f"http://127.0.0.1:{inner.port}/mcp")
        if not shares:

            def opening(**more: Any) -> Any:
                return address.open(**{**more, "era": "legacy"})

            async with served(proxy(opening), **options) as outer:
                yield outer
            return
        async with address.open(era="legacy", forwards=FORWARDS) as client, served(proxy(client), **options) as outer:
            yield outer


def call(who: str, headers: dict[str, str | None] = BASE, **more: Any) -> tuple[dict[str, str | None], Any]:
    params = {"name": "ask", "arguments": {"who": who}, "_meta": META, **more}
    own, body = modern("tools/call", params)
    return {**own, **headers}, body


async def conversation(
    connection: Connection, who: str, headers: dict[str, str | None] = BASE
) -> tuple[list[str], str]:
    """The logs of a call that was sent, and its result, after an answer that names who was asked."""
    answer = await connection.answer()
    *logs, last = [event.data for event in answer.events]
    (key,) = last["result"]["inputRequests"]
    asked = last["result"]["inputRequests"][key]["params"]["message"]
    responses = {key: {"action": "accept", "content": {"name": f"{who} was asked {asked}"}}}
    await connection.send(
        "POST", *call(who, headers, requestState=last["result"]["requestState"], inputResponses=responses)
    )
    answer = await connection.answer()
    result = answer.json if answer.headers["content-type"] == "application/json" else answer.events[-1].data
    return [log["params"]["data"] for log in logs], result["result"]["content"][0]["text"]


async def test_each_of_two_anonymous_proxied_calls_gets_its_own_elicitations_and_logs() -> None:
    async with before(Behind(2)) as endpoint:
        heard: dict[str, tuple[list[str], str]] = {}

        async def converse(who: str) -> None:
            connection = await endpoint.connect()
            await connection.send("POST", *call(who))
            heard[who] = await conversation(connection, who)
            await connection.aclose()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for who in ("one", "two"):
                    nursery.start_soon(converse, who)
    for who in ("one", "two"):
        assert heard[who] == ([f"{who} {n}" for n in range(30)], f"{who}: {{'name': '{who} was asked {who}?'}}")


async def test_each_of_two_principals_on_one_connection_gets_its_own_elicitations_and_logs() -> None:
    async with before(Behind(2), shares=True, auth=protected(issued())) as endpoint:
        heard: dict[str, tuple[list[str], str]] = {}

        async def converse(who: str) -> None:
            connection = await endpoint.connect()
            headers = bearer(f"{who}-1")
            await connection.send("POST", *call(who, headers))
            heard[who] = await conversation(connection, who, headers)
            await connection.aclose()

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for who in ("alice", "bob"):
                    nursery.start_soon(converse, who)
    for who in ("alice", "bob"):
        assert heard[who] == ([f"{who} {n}" for n in range(30)], f"{who}: {{'name': '{who} was asked {who}?'}}")


async def test_each_of_two_calls_in_a_legacy_revision_session_gets_elicitations_and_logs_on_its_own_stream() -> None:
    async with before(Behind(2)) as endpoint:
        asked: list[str] = []
        told: list[str] = []

        async def answer(params: ElicitFormParams) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult("accept", {"name": params.message})

        def log(message: LogParams) -> None:
            told.append(message.data)

        url = f"http://127.0.0.1:{endpoint.port}/mcp"
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="legacy", elicitation=answer, on_log=log) as client:
                results: dict[str, str] = {}

                async def converse(who: str) -> None:
                    results[who] = (await client.call_tool("ask", {"who": who})).text

                async with trio.open_nursery() as nursery:
                    for who in ("one", "two"):
                        nursery.start_soon(converse, who)
    assert results == {who: f"{who}: {{'name': '{who}?'}}" for who in ("one", "two")}
    assert sorted(asked) == ["one?", "two?"]
    assert sorted(told) == sorted(f"{who} {n}" for who in ("one", "two") for n in range(30))


@pytest.mark.parametrize("known", [True, False])
async def test_proxy_drops_messages_in_the_response_to_a_cancelled_call(known: bool) -> None:
    left, bobs = trio.Event(), trio.Event()

    async def behind(got: Got, answer: Answer) -> None:
        match got.name:
            case "tools/call" if got.message["params"]["arguments"]["who"] == "alice":
                await answer.open()
                await left.wait()
                await bobs.wait()
                await answer.event({"jsonrpc": "2.0", **LOG})
                await answer.event({"jsonrpc": "2.0", "id": "late", **QUESTION})
                await answer.gone()
            case "tools/call":
                bobs.set()
                await inner.until("reply")
                await answer.json(text(got))
            case "notifications/cancelled":
                await answer.whole(202)
                left.set()
            case "reply":
                await answer.whole(202)
            case _:
                await legacy(anything, tools={}, logging={})(got, answer)

    auth: dict[str, Any] = {"auth": protected(issued())} if known else {}
    async with (
        serving(behind) as inner,
        Address(inner.url).open(era="legacy", forwards=FORWARDS) as client,
        served(proxy(client), **auth) as outer,
    ):
        alice, bob = await outer.connect(), await outer.connect()
        with trio.fail_after(PATIENCE):
            await alice.send("POST", *call("alice", bearer("alice-1")))
            await inner.until("tools/call")
            await alice.aclose()
            await left.wait()
            await bob.send("POST", *call("bob", bearer("bob-1")))
            answer = await bob.answer()
            await bob.aclose()
        assert (await inner.until("reply")).message["error"]["code"] == -32603
    assert answer.json["result"]["content"][0]["text"] == "done"


async def anything(got: Got, answer: Answer) -> None:
    await answer.json(result(got, tools=[]))
