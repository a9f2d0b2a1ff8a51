"""``ctx.state``: what a server keeps for one caller between requests, and for no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.serving.http.protection import call as call_with
from tests.serving.http.protection import issued, protected, session_of
from tests.serving.http.raw import BASE, Answer, Endpoint, message, modern
from tests.serving.http.scenes import in_memory, over_sockets
from tests.tasks.callers import LEASE, calling, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, Limits, RequestContext, Server, ToolError, WorkerContext, open_memory
from trio_mcp.auth import Principal
from trio_mcp.client.opening import open_client
from trio_mcp.jsonrpc.errors import NotSerializable
from trio_mcp.server.context.request_context import RequestContext as PassiveContext
from trio_mcp.server.servable import connection_to
from trio_mcp.stores import MemoryTaskStore, StoreFull, TaskStore
from trio_mcp.testing import RecordingContext
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import StateValue


@attrs.frozen
class Cart:
    items: list[str]


def keeper(**options: Any) -> Server:
    """A server that keeps texts for its callers."""
    server = Server("keeper", **options)

    @server.tool
    async def put(ctx: RequestContext, key: str, value: Any, handle: str | None = None) -> str:
        state = ctx.state if handle is None else ctx.state.at(handle)
        try:
            return str(bool(await state.set(key, value)))
        except StoreFull as error:
            raise ToolError(str(error)) from error

    @server.tool
    async def look(ctx: RequestContext, key: str, handle: str | None = None) -> str:
        state = ctx.state if handle is None else ctx.state.at(handle)
        return str(await state.get(key, "nothing"))

    @server.tool
    def look_in_a_thread(ctx: WorkerContext, key: str) -> str:
        count = ctx.state.read(key)
        ctx.state.set(key, (count.value or 0) + 1, expected=count.version)
        ctx.state.at("other").set(key, "other")
        ctx.state.delete("none")
        return str(ctx.state.get(key))

    return server


@asynccontextmanager
async def context(**limits: Any) -> AsyncIterator[RequestContext]:
    """The context of a handler that runs."""
    server, contexts, over = Server("s", limits=Limits(**limits)), list[RequestContext](), trio.Event()

    @server.tool
    async def wait(ctx: RequestContext) -> str:
        contexts.append(ctx)
        await over.wait()
        return ""

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "wait")
        await wait_all_tasks_blocked()
        yield contexts[0]
        over.set()


@asynccontextmanager
async def on_connections(server: Server, count: int, era: Any) -> AsyncIterator[list[Client]]:
    """Clients of one running server, each on a connection of its own."""
    async with trio.open_nursery() as nursery, server._running() as running, AsyncExitStack() as parts:
        clients = list[Client]()
        for _ in range(count):
            ours, theirs = memory_transport_pair()
            await nursery.start(connection_to(running, theirs).run)
            clients.append(await parts.enter_async_context(open_client(ours, era=era)))
        yield clients
        nursery.cancel_scope.cancel()


def text(answer: Answer) -> str:
    reply = answer.reply
    return reply["error"]["message"] if "error" in reply else reply["result"]["content"][0]["text"]


async def ask(endpoint: Endpoint, headers: dict[str, str | None], tool: str, **arguments: Any) -> str:
    """Call a tool in a legacy session."""
    body = message("tools/call", {"name": tool, "arguments": arguments}, 7)
    return text(await endpoint.ask("POST", headers, body))


async def anonymous(endpoint: Endpoint, tool: str, **arguments: Any) -> str:
    """Call a tool as a modern client without a token."""
    headers, body = modern("tools/call", {"name": tool, "arguments": arguments})
    return text(await endpoint.ask("POST", {**BASE, **headers}, body))


# Values


async def test_caller_state_value_is_kept_until_it_is_deleted() -> None:
    async with context() as ctx:
        state = ctx.state
        assert (await state.get("cart"), await state.get("cart", [])) == (None, [])
        for value in ({"items": ["tea"]}, None, [], "\N{SNOWMAN}", 1.5):
            assert await state.set("cart", value)
            assert await ctx.state.get("cart", "default") == value
        assert (await state.delete("cart"), await state.delete("cart")) == (True, False)
        assert await state.get("cart", "gone") == "gone"


async def test_caller_state_value_can_be_converted_to_a_class() -> None:
    async with context() as ctx:
        await ctx.state.set("cart", Cart(["tea"]))
        found = await ctx.state.read("cart")
        assert found.as_(Cart) == Cart(["tea"])
        with pytest.raises(ValueError, match="Expected `array`"):
            found.as_(list[int])
        assert await ctx.state.read("none") == StateValue(None, "")


async def test_caller_state_value_with_an_outdated_version_is_not_replaced_or_deleted() -> None:
    async with context() as ctx:
        state = ctx.state
        first = await state.set("n", 1, expected="")
        assert first is not None
        assert await state.set("n", 2, expected="") is None
        second = await state.set("n", 2, expected=first)
        assert await state.set("n", 3, expected=first) is None
        assert await state.delete("n", expected=first) is False
        assert (await state.read("n")) == StateValue(2, second or "")
        await state.set("m", 1)
        assert await state.delete("n", expected=second)


async def test_concurrent_caller_state_updates_that_check_the_version_lose_no_increment() -> None:
    async with context() as ctx:

        async def count() -> None:
            while True:
                found = await ctx.state.read("n")
                await trio.lowlevel.checkpoint()
                if await ctx.state.set("n", (found.value or 0) + 1, expected=found.version):
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(count)
        assert await ctx.state.get("n") == 20


async def test_caller_state_value_that_cannot_be_encoded_as_json_raises_and_changes_nothing() -> None:
    async with context() as ctx:
        await ctx.state.set("a", 1)
        for value in (object(), "\ud800", float("nan")):
            with pytest.raises(NotSerializable):
                await ctx.state.set("a", value)
        assert await ctx.state.get("a") == 1


async def test_caller_state_is_limited_in_bytes_and_number_of_values() -> None:
    async with context(max_state_bytes=200, max_state_keys=3) as ctx:
        state = ctx.state
        for key in ("a", "b", "c"):
            await state.set(key, key)
        with pytest.raises(StoreFull, match="at most 3 values"):
            await state.set("d", "d")
        with pytest.raises(StoreFull, match="may have at most 200 bytes"):
            await state.set("a", "x" * 200)
        assert [await state.get(key) for key in "abcd"] == ["a", "b", "c", None]
        await state.delete("a")
        assert await state.set("d", "d")


async def test_caller_state_is_deleted_after_state_timeout(autojump_clock: MockClock) -> None:
    async with context(state_timeout=10.0) as ctx:
        await ctx.state.set("a", 1)
        for _ in range(3):
            await trio.sleep(9)
            assert await ctx.state.get("a") == 1
        await trio.sleep(11)
        assert await ctx.state.get("a") is None


async def test_caller_state_requested_with_an_empty_handle_raises_value_error() -> None:
    async with context() as ctx:
        with pytest.raises(ValueError, match=r"the argument of ctx\.state\.at\(\) must not be empty"):
            ctx.state.at("")


async def test_caller_state_can_be_used_in_threads(autojump_clock: MockClock) -> None:
    async with open_memory(keeper()) as client:
        assert [(await client.call_tool("look_in_a_thread", {"key": "n"})).text for _ in range(3)] == ["1", "2", "3"]
        assert (await client.call_tool("look", {"key": "n", "handle": "other"})).text == "other"


async def test_recording_context_keeps_caller_state_but_a_context_without_a_request_discards_it() -> None:
    ctx = RecordingContext()
    await ctx.state.set("a", 1)
    assert (await ctx.state.get("a"), await ctx.state.at("b").get("a")) == (1, None)
    passive: RequestContext = PassiveContext()
    assert await passive.state.set("a", 1)
    assert await passive.state.get("a") is None


# Callers


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_task_uses_the_caller_state_of_the_connection_that_started_the_task(era: Any) -> None:
    server = keeper()

    @server.tool(task="required")
    async def swap(ctx: RequestContext, value: str) -> str:
        before = await ctx.state.get("a"), await ctx.state.at("prefs").get("a")
        assert ctx.task is not None
        await ctx.task.start()
        assert before == (await ctx.state.get("a"), await ctx.state.at("prefs").get("a"))
        await ctx.state.set("a", value)
        await ctx.state.at("prefs").set("a", value)
        return repr(before)

    async with on_connections(server, 2, era) as (one, two):
        assert (await one.call_tool("swap", {"value": "one"})).text == "(None, None)"
        assert (await two.call_tool("swap", {"value": "two"})).text == "(None, None)"
        assert (await one.call_tool("swap", {"value": "more"})).text == "('one', 'one')"
        assert (await two.call_tool("look", {"key": "a", "handle": "prefs"})).text == "two"


@pytest.mark.parametrize("handle", [None, "prefs"])
async def test_task_that_runs_again_after_a_restart_has_no_caller_state_if_its_caller_had_no_token(
    handle: str | None, autojump_clock: MockClock
) -> None:
    store = TouchyStore(MemoryTaskStore())

    def server_of(store: TaskStore) -> Server:
        server = Server("s", tasks=settings(store))

        @server.tool(task="required", on_restart="again")
        async def keep(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            await (ctx.state if handle is None else ctx.state.at(handle)).set("a", 1)
            await trio.sleep(LEASE if ctx.task.attempt == 1 else 0)
            return "kept"

        return server

    async with trio.open_nursery() as nursery, calling(server_of(store)) as caller:
        task_id = await caller.start("keep")
        await trio.sleep(1)
        store.die()
        nursery.cancel_scope.cancel()
    async with calling(server_of(store.store)) as caller:
        ended = await caller.final(task_id)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32600)
    assert "its client had no token, so it is unknown now" in ended["error"]["message"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_connection_has_its_own_caller_state(era: Any) -> None:
    server = keeper()
    async with open_memory(server, era=era) as one, open_memory(server, era=era) as two:
        await one.call_tool("put", {"key": "a", "value": 1})
        assert (await one.call_tool("look", {"key": "a"})).text == "1"
        assert (await two.call_tool("look", {"key": "a"})).text == "nothing"


async def test_principal_has_one_caller_state_across_tokens_sessions_and_revisions() -> None:
    tokens = issued()
    async with in_memory(keeper(), auth=protected(tokens)) as endpoint:
        assert text(await call_with(endpoint, "alice-1", "put", key="a", value=1)) == "True"
        assert text(await call_with(endpoint, "alice-2", "look", key="a")) == "1"
        session = await session_of(endpoint, "alice-1")
        assert await ask(endpoint, session, "look", key="a") == "1"


async def test_caller_state_of_another_principal_cannot_be_read() -> None:
    tokens = issued()
    tokens.principals["client"] = Principal(issuer=attrs.evolve(tokens.principals["bob-1"]).issuer, client_id="alice")
    tokens.principals["other"] = Principal(issuer="https://other.example", subject="alice")
    async with in_memory(keeper(), auth=protected(tokens)) as endpoint:
        await call_with(endpoint, "alice-1", "put", key="a", value="secret")
        await call_with(endpoint, "alice-1", "put", key="a", value="secret", handle="h")
        for token in ("bob-1", "client", "other"):
            assert text(await call_with(endpoint, token, "look", key="a")) == "nothing"
            assert text(await call_with(endpoint, token, "look", key="a", handle="h")) == "nothing"
            assert await ask(endpoint, await session_of(endpoint, token), "look", key="a") == "nothing"
        assert text(await call_with(endpoint, "alice-1", "look", key="a", handle="h")) == "secret"


async def test_each_anonymous_session_has_its_own_caller_state() -> None:
    async with in_memory(keeper()) as endpoint:
        one, two = await endpoint.initialize(), await endpoint.initialize()
        assert await ask(endpoint, one, "put", key="a", value=1) == "True"
        assert await ask(endpoint, one, "look", key="a") == "1"
        assert await ask(endpoint, two, "look", key="a") == "nothing"
        assert await ask(endpoint, two, "look", key="a", handle="h") == "nothing"


async def test_anonymous_modern_client_without_a_handle_for_caller_state_gets_an_error() -> None:
    async with in_memory(keeper()) as endpoint:
        for tool, more in (("put", {"value": 1}), ("look", {})):
            assert "there is no state for a client without a token and a session" in await anonymous(
                endpoint, tool, key="a", **more
            )
        assert await anonymous(endpoint, "put", key="a", value=1, handle="secret") == "True"
        assert await anonymous(endpoint, "look", key="a", handle="secret") == "1"
        assert await anonymous(endpoint, "look", key="a", handle="other") == "nothing"
        assert await ask(endpoint, await endpoint.initialize(), "look", key="a", handle="secret") == "nothing"


async def test_caller_state_on_a_stateless_server_without_storage_raises() -> None:
    async with in_memory(keeper(expose_errors=True), stateless=True, auth=protected(issued())) as endpoint:
        assert "this server keeps nothing between requests" in text(await call_with(endpoint, "bob-1", "look", key="a"))


async def test_new_caller_at_the_state_limit_evicts_a_state_of_the_caller_with_the_most_states() -> None:
    async with in_memory(keeper(), max_server_states=3) as endpoint:
        many, other, new = [await endpoint.initialize() for _ in range(3)]
        for session, handle in ((many, "x"), (many, "y"), (other, "x"), (new, "x")):
            assert await ask(endpoint, session, "put", key="a", value=1, handle=handle) == "True"
        kept = [(many, "x"), (many, "y"), (other, "x"), (new, "x")]
        assert [await ask(endpoint, session, "look", key="a", handle=handle) for session, handle in kept] == [
            "nothing",
            *"111",
        ]


@pytest.mark.parametrize(("is_one_caller", "allowed"), [(True, 2), (False, 4)])
async def test_limit_max_server_states_is_shared_fairly_among_callers(is_one_caller: bool, allowed: int) -> None:
    sockets = over_sockets(keeper(), limits=Limits(max_server_states=4))
    async with sockets if is_one_caller else in_memory(keeper(), max_server_states=4) as endpoint:
        sessions = [await endpoint.initialize() for _ in range(allowed + 1)]
        said = [[await ask(endpoint, each, "put", key="a", value=n) for n in range(2)] for each in sessions]
        assert said[:-1] == [["True", "True"]] * allowed
        assert "the server already stores too many caller states (Limits.max_server_states)" in said[-1][0]
        assert await ask(endpoint, sessions[0], "look", key="a") == "1"
