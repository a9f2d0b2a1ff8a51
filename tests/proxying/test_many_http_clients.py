"""Modern clients over HTTP whom nobody knows share one connection to the server behind a proxy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from tests.patience import PATIENCE
from tests.serving.http.raw import Endpoint, modern, served
from trio.testing import wait_all_tasks_blocked

from trio_mcp import RequestContext, Server, open_memory, proxy
from trio_mcp.testing import MissingMessage, ScriptedServer, open_scripted_server

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
ASKS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


class Behind:
    """A legacy server whose tool waits, then logs and asks."""

    def __init__(self) -> None:
        self.server = Server("behind")
        self.waiting = 0
        self.arrived = trio.lowlevel.ParkingLot()
        self.go = trio.Event()
        self.opened: list[Any] = []

        @self.server.tool
        async def ask(ctx: RequestContext) -> str:
            """Log and ask."""
            self.waiting += 1
            self.arrived.unpark_all()
            await self.go.wait()
            await ctx.log.warning("secret")
            answer = await ctx.elicit("Who?", FORM)
            return str(answer.content)

        @self.server.tool
        async def echo(text: str) -> str:
            """Return the text."""
            return text

    async def has(self, count: int) -> None:
        while self.waiting < count:
            await self.arrived.park()


LEVEL = "io.modelcontextprotocol/logLevel"


async def telling(server: ScriptedServer, size: int = 0) -> None:
    """Tell of three calls in turns, and answer them."""
    await server.accept("2025-11-25", {"tools": {}, "logging": {}})
    calls: dict[str, Any] = {}
    with suppress(MissingMessage):
        while True:
            message = await server.receive()
            if message.get("method") != "tools/call":
                await server.answer(message, {})
                continue
            calls[message["params"]["name"]] = message
            if len(calls) == 3:
                for number in range(30):
                    for name in ("one", "two"):
                        await server.log("info", f"{name} {number}" + "." * size)
                for name, each in calls.items():
                    await server.answer_text(each, name)


def behind_scripted(script: Any) -> Any:
    return served(proxy(partial(open_scripted_server, script)))


def call(name: str, **more: Any) -> tuple[dict[str, str | None], Any]:
    headers, body = modern("tools/call", {"name": name, "arguments": {}, "_meta": ASKS, **more})
    return {**headers}, body


def behind_proxy(behind: Behind) -> Any:
    def open_legacy(**options: Any) -> Any:
        return open_memory(behind.server, **{**options, "era": "legacy"})

    return served(proxy(open_legacy))


async def test_proxy_assigns_elicitations_and_logs_of_a_legacy_server_to_the_only_running_call() -> None:
    behind = Behind()
    behind.go.set()
    async with behind_proxy(behind) as endpoint:
        answer = await endpoint.ask("POST", *call("ask"))
        told, asked = [event.data for event in answer.events]
        assert told["params"]["data"] == "secret"
        (key,) = asked["result"]["inputRequests"]
        responses = {key: {"action": "accept", "content": {"name": "Ann"}}}
        retry = call("ask", requestState=asked["result"]["requestState"], inputResponses=responses)
        last = await endpoint.ask("POST", *retry)
        assert last.json["result"]["content"][0]["text"] == "{'name': 'Ann'}"


async def test_proxy_refuses_an_elicitation_that_either_of_two_calls_may_have_caused() -> None:
    behind = Behind()
    async with behind_proxy(behind) as endpoint:
        connections = [await endpoint.connect() for _ in range(2)]
        for connection in connections:
            await connection.send("POST", *call("ask"))
        await behind.has(2)
        behind.go.set()
        answers = [await connection.answer() for connection in connections]
        for connection in connections:
            await connection.aclose()
        assert all(b"secret" in answer.body for answer in answers)
        # The first question could be for either. Then its call is over, and the other one is for the client left.
        assert sum(answer.events[-1].data["result"].get("isError", False) for answer in answers) >= 1


async def test_proxy_sends_logs_of_a_shared_legacy_server_to_each_call_that_requested_their_log_level() -> None:
    def told_of(logs: list[str]) -> list[str]:
        return [f"{tool} {number}" for tool in ("one", "two") for number in range(30) if f"{tool} {number}" in logs]

    async with behind_scripted(telling) as endpoint:
        connections = [await endpoint.connect() for _ in range(3)]
        for connection, name, level in zip(
            connections, ("one", "two", "quiet"), ("info", "info", "error"), strict=True
        ):
            await connection.send("POST", *call(name, _meta={**ASKS, LEVEL: level}))
        answers = [await connection.answer() for connection in connections]
        for connection in connections:
            await connection.aclose()
    *told, quiet = answers
    for answer in told:
        assert len(told_of([event.data["params"]["data"] for event in answer.events[:-1]])) == 60
    assert quiet.json["result"]["content"][0]["text"] == "quiet"


async def test_client_that_reads_its_logs_slowly_does_not_delay_other_clients() -> None:
    async with behind_scripted(partial(telling, size=100_000)) as endpoint:
        slow, quick, third = [await endpoint.connect() for _ in range(3)]
        for connection, name in ((slow, "one"), (quick, "two"), (third, "quiet")):
            await connection.send("POST", *call(name, _meta={**ASKS, LEVEL: "info" if name != "quiet" else "error"}))
        with trio.fail_after(PATIENCE):
            answer = await quick.answer()
            assert len(answer.events) == 61
        for connection in (slow, quick, third):
            await connection.aclose()


async def test_client_of_a_proxy_gets_missing_capability_error_if_it_cannot_answer_elicitations() -> None:
    behind = Behind()
    behind.go.set()
    async with served(proxy(partial(open_memory, behind.server))) as endpoint:
        nothing = {"io.modelcontextprotocol/clientCapabilities": {}}
        answer = await endpoint.ask("POST", *call("ask", _meta=nothing))
        last = answer.json if answer.status == 400 else answer.events[-1].data
        assert last["error"]["code"] == -32021


async def test_proxy_reconnects_at_the_next_request_after_it_lost_the_backend() -> None:
    behind = Behind()

    @asynccontextmanager
    async def open_upstream(**options: Any) -> AsyncGenerator[Any]:
        async with open_memory(behind.server, **options) as client:
            behind.opened.append(client)
            yield client

    async def echo(endpoint: Endpoint) -> Any:
        answer = await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        return answer.json

    async with served(proxy(open_upstream)) as endpoint:
        assert (await echo(endpoint))["result"]["content"][0]["text"] == "x"
        await behind.opened[0]._connection.close("the server behind died")
        await wait_all_tasks_blocked()
        assert (await echo(endpoint))["result"]["content"][0]["text"] == "x"
        assert len(behind.opened) == 2
