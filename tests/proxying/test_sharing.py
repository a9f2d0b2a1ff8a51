"""Several clients of a proxy over one connection to the server behind."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.proxying.conftest import ALL
from tests.proxying.test_tasks_of_others import LEGACY, before, client_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, RequestContext, Server, ToolError, open_memory, proxy
from trio_mcp.jsonrpc.errors import MCPError
from trio_mcp.protocol.types.lifecycle import ClientCapabilities, Sampling
from trio_mcp.testing import ScriptedClient, ScriptedServer
from trio_mcp.types import ElicitFormParams, Proxy

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def user(name: str, asked: list[str] | None = None) -> Any:
    """Says its name, and in ``asked`` that it was asked. No thread: the clock of these tests would not wait for it."""

    async def answer(_: ElicitFormParams) -> dict[str, Any]:
        if asked is not None:
            asked.append(name)
        return {"name": name}

    return answer


def asking() -> Server:
    server = Server("s")

    @server.tool
    async def ask(wait: float, ctx: RequestContext) -> str:
        await trio.sleep(wait)
        try:
            answer = await ctx.elicit("who?", FORM)
        except MCPError as error:
            raise ToolError(str(error)) from error
        assert answer.content is not None
        return str(answer.content["name"])

    return server


async def test_elicitation_of_a_shared_modern_server_reaches_the_calling_client(
    autojump_clock: MockClock, front: Any
) -> None:
    answers: dict[str, str] = {}

    async def call(client: Client, name: str) -> None:
        answers[name] = (await client.call_tool("ask", {"wait": 1})).text

    async with open_memory(asking(), era="modern", forwards=ALL) as behind:
        shared = proxy(behind)
        async with (
            open_memory(shared, era=front, elicitation=user("one")) as one,
            open_memory(shared, era=front, elicitation=user("two")) as two,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(call, one, "one")
            nursery.start_soon(call, two, "two")
    assert answers == {"one": "one", "two": "two"}


async def test_elicitation_of_a_shared_legacy_server_reaches_the_only_calling_client_or_is_refused(
    autojump_clock: MockClock, front: Any
) -> None:
    asked: list[str] = []

    async def call(client: Client, wait: float, wanted: str) -> None:
        assert wanted in (await client.call_tool("ask", {"wait": wait})).text

    async with open_memory(asking(), era="legacy", forwards=ALL) as behind:
        shared = proxy(behind)
        async with (
            open_memory(shared, era=front, elicitation=user("one", asked)) as one,
            open_memory(shared, era=front, elicitation=user("two", asked)) as two,
        ):
            await call(one, 1, "one")
            await call(two, 1, "two")
            assert asked == ["one", "two"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, one, 1, "several clients share this server")
                nursery.start_soon(call, two, 5, "two")
            assert asked == ["one", "two", "two"]


async def test_proxy_created_from_a_client_that_forwards_no_elicitations_uses_the_handler_of_the_client(
    autojump_clock: MockClock, front: Any
) -> None:
    async with (
        open_memory(asking(), elicitation=user("the middle")) as behind,
        open_memory(proxy(behind), era=front) as client,
    ):
        assert (await client.call_tool("ask", {"wait": 0})).text == "the middle"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_proxy_that_loses_its_shared_backend_closes_all_client_connections(
    autojump_clock: MockClock, era: Any
) -> None:
    lost: list[str] = []

    async def wait(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.until_lost()
        lost.append("lost")

    async with open_memory(asking(), era=era, forwards=ALL) as behind:
        shared = proxy(behind)
        async with open_memory(shared) as client, trio.open_nursery() as nursery:
            nursery.start_soon(wait, client)
            await wait_all_tasks_blocked()
            await behind._connection.close("it is over")
    assert lost == ["lost"]


async def test_two_proxies_created_from_one_client_use_the_connection_of_that_client(
    autojump_clock: MockClock, front: Any, back: Any
) -> None:
    told: list[str] = []
    asked: list[str] = []
    server = asking()
    async with open_memory(server, era=back, forwards=ALL) as behind:
        first, second = proxy(behind), proxy(behind)
        async with (
            open_memory(
                first, era=front, elicitation=user("one", asked), on_list_changed=lambda _: told.append("one")
            ) as one,
            open_memory(
                second, era=front, elicitation=user("two", asked), on_list_changed=lambda _: told.append("two")
            ) as two,
        ):
            assert [(await client.call_tool("ask", {"wait": 1})).text for client in (one, two)] == ["one", "two"]
            server.remove_tool("ask")
            await wait_all_tasks_blocked()
            assert sorted(told) == ["one", "two"]
    assert asked == ["one", "two"]


async def test_proxy_that_served_earlier_clients_sends_each_list_change_notification_once(
    autojump_clock: MockClock, back: Any
) -> None:
    told: list[str] = []
    server = asking()
    async with open_memory(server, era=back, forwards=ALL) as behind:
        for _ in range(3):
            async with open_memory(proxy(behind), era="legacy") as client:
                assert client.server_capabilities.tools is not None
        async with open_memory(proxy(behind), era="legacy", on_list_changed=told.append):
            await wait_all_tasks_blocked()  # until it is initialized
            server.remove_tool("ask")
            await wait_all_tasks_blocked()
    assert told == ["tools"]


async def test_other_clients_are_still_notified_after_one_client_of_a_shared_proxy_is_cancelled(
    autojump_clock: MockClock, back: Any
) -> None:
    told: list[str] = []
    server = asking()

    async def be_served(shared: Proxy, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            async with open_memory(shared, era="legacy"):
                task_status.started(scope)
                await trio.sleep_forever()

    async with open_memory(server, era=back, forwards=ALL) as behind, trio.open_nursery() as nursery:
        shared = proxy(behind)
        async with open_memory(shared, era="legacy", on_list_changed=told.append) as client:
            scope = await nursery.start(be_served, shared)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            server.remove_tool("ask")
            await wait_all_tasks_blocked()
            await client.ping()
    assert told == ["tools"]


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "cancels"])
@pytest.mark.parametrize("principal", [None, "ann"])
async def test_late_sampling_request_of_a_cancelled_call_reaches_no_other_client(
    leaves: bool, principal: str | None, autojump_clock: MockClock
) -> None:
    """Without authorization, each client is a party; a client is asked all the same after a cancel of its own."""
    asked: dict[str, Any] = {"messages": [], "maxTokens": 5}

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, {"tools": {}})
        for question in ("own", "of another"):
            await server.expect_request("tools/call")
            await server.expect({"method": "notifications/cancelled", "params": ...})
            call = await server.expect_request("tools/call")
            await server.request(question, "sampling/createMessage", asked)
            if question == "own" or principal is not None:
                await server.expect({"id": question, "result": {"role": "assistant", ...: ...}})
            else:
                await server.expect({"id": question, "error": {"code": -32603, ...: ...}})
            await server.answer(call, {"content": []})

    async def left(client: ScriptedClient, *, cancels: bool) -> None:
        call = await client.request("tools/call", {"name": "t"})
        await wait_all_tasks_blocked()
        if cancels:
            await client.cancel(call)
            await wait_all_tasks_blocked()

    async def calls(client: ScriptedClient, *, is_asked: bool) -> None:
        call = await client.request("tools/call", {"name": "t"})
        if is_asked:
            question = await client.expect({"id": ..., "method": "sampling/createMessage", "params": asked})
            await client.answer(question, {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"})
        await client.expect_result(call)

    forwards = ClientCapabilities(sampling=Sampling())
    async with (
        before(script, LEGACY, shares=True, forwards=forwards) as way,
        client_of(way, principal, LEGACY, {"sampling": {}}) as second,
    ):
        await left(second, cancels=True)
        await calls(second, is_asked=True)
        async with client_of(way, principal, LEGACY, {"sampling": {}}) as first:
            await left(first, cancels=not leaves)
        await wait_all_tasks_blocked()
        await calls(second, is_asked=principal is not None)
