"""The questions of a task of 2025-11-25 are requests to its client, which say that they are the task's, and wait in its
record for an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import (
    InputRequired,
    Limits,
    MethodUnavailable,
    NoBackChannel,
    PeerError,
    ProtocolViolation,
    RequestContext,
    Server,
    TaskSettings,
)
from trio_mcp.protocol.types.elicitation import ElicitFormParams
from trio_mcp.protocol.types.lifecycle import EmptyResult
from trio_mcp.runtime.peer import SOLE_CLIENT, Peer, PrincipalId
from trio_mcp.server.servable import connection_to
from trio_mcp.stores import MemoryTaskStore
from trio_mcp.testing import ScriptedClient, open_scripted_client
from trio_mcp.transports.lines import memory_transport_pair

LEGACY = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"
ALL = {"elicitation": {}, "sampling": {}, "roots": {}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
BOB = {"action": "accept", "content": {"name": "Bob"}}


def asking_server(tasks: TaskSettings | None = None) -> Server:
    server = Server("s", limits=Limits(drain_timeout=0.01, retry_timeout=1), tasks=tasks or TaskSettings())

    @server.tool(task="optional")
    async def greet(ctx: RequestContext) -> str:
        answer = await ctx.elicit("who?", FORM)
        return f"hello {(answer.content or {}).get('name')}"

    @server.tool(task="optional")
    async def sample(ctx: RequestContext) -> str:
        return (await ctx.sample("hi", max_tokens=1)).model

    @server.tool(task="optional")
    async def roots(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    @server.tool(task="optional")
    async def ping(ctx: RequestContext) -> str:
        await ctx.send_request("ping", None, EmptyResult)
        return "pong"

    @server.tool(task="optional")
    async def late_ping(ctx: RequestContext) -> str:
        await trio.sleep(5)
        with pytest.raises(NoBackChannel):
            await ctx.send_request("ping", None, EmptyResult)
        return "away"

    @server.tool(task="optional")
    async def custom(ctx: RequestContext) -> str:
        with pytest.raises(MethodUnavailable) as caught:
            await ctx.send_request("acme/do", {"n": 1}, dict)
        return str(caught.value.code)

    @server.tool(task="optional")
    async def both(ctx: RequestContext) -> str:
        names: list[str] = []

        async def one(message: str) -> None:
            names.append((await ctx.elicit(message, FORM)).action)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "first")
            nursery.start_soon(one, "second")
        return " ".join(sorted(names))

    @server.tool(task="optional")
    async def robust(ctx: RequestContext) -> str:
        try:
            await ctx.elicit("who?", FORM)
        except PeerError as error:
            return f"{error.code} {error.message} {error.data}"
        except ProtocolViolation:
            return "violation"
        return "answered"

    @server.tool(task="optional")
    async def impatient(ctx: RequestContext) -> str:
        with trio.move_on_after(5):
            await ctx.elicit("who?", FORM)
        return "gave up"

    @server.tool(task="optional")
    async def returned(ctx: RequestContext) -> str | InputRequired:
        if not ctx.input_responses:
            return InputRequired({"a": ElicitFormParams("who?", FORM)}, "kept")
        return f"{ctx.input_responses['a']['action']} {ctx.request_state}"

    @server.tool(task="optional", replay=True)
    async def replayed(ctx: RequestContext) -> str:
        return (await ctx.elicit("who?", FORM)).action

    return server


@asynccontextmanager
async def opened(capabilities: dict[str, Any] = ALL, **tasks: Any) -> AsyncGenerator[ScriptedClient]:
    async with open_scripted_client(asking_server(TaskSettings(**tasks)), LEGACY, capabilities, patience=30) as client:
        yield client


async def create(client: ScriptedClient, name: str, **task: Any) -> str:
    asked = await client.request("tools/call", {"name": name, "arguments": {}, "task": task})
    return (await client.until({"id": asked, "result": ...}))["result"]["task"]["taskId"]


async def question(client: ScriptedClient, method: str = "elicitation/create") -> Any:
    return await client.until({"id": ..., "method": method, "params": ...})


async def ask(client: ScriptedClient, method: str, **params: Any) -> Any:
    asked = await client.request(method, params)
    return (await client.until({"id": asked, "result": ...}))["result"]


async def text_of(client: ScriptedClient, task: str) -> str:
    return (await ask(client, "tasks/result", taskId=task))["content"][0]["text"]


async def test_elicitation_from_a_legacy_task_is_sent_immediately_with_related_task_meta(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        task = await create(client, "greet")
        asked = await question(client)
        assert asked["params"]["message"] == "who?"
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        assert (await ask(client, "tasks/get", taskId=task))["status"] == "input_required"
        await client.answer(asked, BOB)
        assert await text_of(client, task) == "hello Bob"


async def test_legacy_task_status_is_input_required_while_an_elicitation_is_open(autojump_clock: MockClock) -> None:
    async with opened() as client:
        await create(client, "greet")
        status: Callable[[str], Any] = lambda status: {  # noqa: E731
            "method": "notifications/tasks/status",
            "params": {"status": status, ...: ...},
        }
        await client.expect(status("input_required"))
        await client.answer(await question(client), BOB)
        messages = [await client.receive()]
        while messages[-1]["params"]["status"] != "completed":
            messages.append(await client.receive())
        assert [each["params"]["status"] for each in messages] in (["working", "completed"], ["completed"])


async def test_handler_that_runs_as_a_legacy_task_can_request_sampling_and_roots(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "sample")
        asked = await question(client, "sampling/createMessage")
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        content = {"type": "text", "text": "x"}
        await client.answer(asked, {"role": "assistant", "content": content, "model": "m"})
        assert await text_of(client, task) == "m"
        task = await create(client, "roots")
        asked = await question(client, "roots/list")
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await client.answer(asked, {"roots": [{"uri": "file:///a"}]})
        assert await text_of(client, task) == "file:///a"


async def test_ping_from_a_legacy_task_is_sent_on_the_connection_without_input_required(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        task = await create(client, "ping")
        asked = await client.expect({"id": ..., "method": "ping", "params": ...})
        assert asked["params"] == {"_meta": {RELATED: {"taskId": task}}}
        assert (await ask(client, "tasks/get", taskId=task))["status"] == "working"
        await client.answer(asked, {})
        assert await text_of(client, task) == "pong"


async def test_request_that_the_revision_lacks_raises_method_not_found_in_a_legacy_task(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        assert await text_of(client, await create(client, "custom")) == "-32601"


async def test_concurrent_elicitations_of_a_legacy_task_each_get_their_answer(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "both")
        first, second = await question(client), await question(client)
        await client.answer(second, {"action": "decline"})
        assert (await ask(client, "tasks/get", taskId=task))["status"] == "input_required"
        await client.answer(first, {"action": "cancel"})
        assert await text_of(client, task) == "cancel decline"


async def test_elicitation_from_a_legacy_task_raises_the_error_response_of_the_client(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        task = await create(client, "robust")
        await client.refuse(await question(client), -1, "not now", {"a": 1})
        assert await text_of(client, task) == "-1 not now {'a': 1}"


@pytest.mark.parametrize("result", [[1, "x", None], "text", 5, None])
async def test_elicitation_from_a_legacy_task_raises_on_a_result_that_is_not_an_object(
    autojump_clock: MockClock, result: Any
) -> None:
    async with opened() as client:
        task = await create(client, "robust")
        await client.answer(await question(client), result)
        assert await text_of(client, task) == "violation"


async def test_elicitation_from_a_legacy_task_raises_on_an_invalid_result(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "robust")
        await client.answer(await question(client), {"action": "laugh"})
        assert await text_of(client, task) == "violation"


async def test_elicitation_from_a_legacy_task_is_not_sent_without_the_client_capability(
    autojump_clock: MockClock,
) -> None:
    async with opened({}) as client:
        task = await create(client, "greet")
        asked = await client.request("tasks/result", {"taskId": task})
        error = (await client.until({"id": asked, "error": ...}))["error"]
        assert error["code"] == -32600
        assert not any("elicitation" in str(each.get("method")) for way, each in client.transcript if way == "received")


async def test_tasks_cancel_cancels_the_open_elicitation_of_the_task(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "greet")
        asked = await question(client)
        await client.request("tasks/cancel", {"taskId": task})
        cancel = await client.until({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"]["requestId"] == asked["id"]
        await client.answer(asked, BOB)
        assert (await ask(client, "tasks/get", taskId=task))["status"] == "cancelled"


async def test_elicitation_is_cancelled_if_the_task_handler_stops_awaiting_the_elicitation(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        task = await create(client, "impatient")
        asked = await question(client)
        cancel = await client.until({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"]["requestId"] == asked["id"]
        assert await text_of(client, task) == "gave up"


async def test_open_elicitation_of_a_legacy_task_is_cancelled_when_the_task_ttl_expires(
    autojump_clock: MockClock,
) -> None:
    async with opened(ttl=20) as client:
        task = await create(client, "greet")
        asked = await question(client)
        await client.expect_silence(15)
        cancel = await client.until({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"]["requestId"] == asked["id"]
        assert (await ask(client, "tasks/get", taskId=task))["status"] == "failed"


async def test_input_required_result_of_a_legacy_task_is_sent_as_an_elicitation(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "returned")
        asked = await question(client)
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await client.answer(asked, {"action": "decline"})
        assert await text_of(client, task) == "decline kept"


async def test_tool_with_replay_can_elicit_in_a_legacy_task(autojump_clock: MockClock) -> None:
    async with opened() as client:
        task = await create(client, "replayed")
        asked = await question(client)
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await client.answer(asked, {"action": "decline"})
        assert await text_of(client, task) == "decline"


async def test_elicitation_from_a_task_is_sent_only_once_if_its_client_also_waits_in_tasks_result(
    autojump_clock: MockClock,
) -> None:
    async with opened() as client:
        task = await create(client, "greet")
        result = await client.request("tasks/result", {"taskId": task})
        asked = await question(client)
        await client.expect_silence(15)
        await client.answer(asked, BOB)
        answer = await client.until({"id": result, "result": ...})
        assert answer["result"]["content"][0]["text"] == "hello Bob"


async def test_elicitation_from_a_task_fails_on_a_stateless_server(autojump_clock: MockClock) -> None:
    server = asking_server(TaskSettings(store=MemoryTaskStore()))
    async with open_scripted_client(server, LEGACY, ALL, stateless=True) as client:
        for name in ("greet", "returned"):
            task = await create(client, name)
            asked = await client.request("tasks/result", {"taskId": task})
            assert (await client.until({"id": asked, "error": ...}))["error"]["code"] == -32603


# Several connections


class Connections:
    """A running server, to which clients connect."""

    def __init__(self, nursery: trio.Nursery, running: Any) -> None:
        self._nursery = nursery
        self._running = running

    async def open(self, principal: str | None = None, capabilities: dict[str, Any] = ALL) -> ScriptedClient:
        ours, theirs = memory_transport_pair()
        peer = SOLE_CLIENT if principal is None else Peer(principal=PrincipalId(None, principal))
        await self._nursery.start(connection_to(self._running, theirs, peer).run)
        client = ScriptedClient(ours, patience=30)
        await client.open(LEGACY, capabilities)
        return client


@asynccontextmanager
async def connections() -> AsyncGenerator[Connections]:
    async with asking_server()._running() as running, trio.open_nursery() as nursery:
        yield Connections(nursery, running)
        nursery.cancel_scope.cancel()


async def test_elicitation_for_a_disconnected_client_is_sent_when_the_client_next_requests_tasks_result(
    autojump_clock: MockClock,
) -> None:
    async with connections() as server:
        first = await server.open("ann")
        task = await create(first, "greet")
        await question(first)
        await first.aclose()
        second = await server.open("ann")
        assert (await ask(second, "tasks/get", taskId=task))["status"] == "input_required"
        await second.expect_silence(15)
        result = await second.request("tasks/result", {"taskId": task})
        asked = await question(second)
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await second.answer(asked, BOB)
        answer = await second.until({"id": result, "result": ...})
        assert answer["result"]["content"][0]["text"] == "hello Bob"


async def test_elicitation_rejected_by_a_disconnecting_client_is_sent_again_at_the_next_tasks_result(
    autojump_clock: MockClock,
) -> None:
    async with connections() as server:
        first, second = await server.open("ann"), await server.open("ann")
        task = await create(first, "greet")
        await first.refuse(await question(first), -31000, "Shutting down: no new requests are taken")
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(second, "tasks/get", taskId=task))["status"] == "input_required"
        result = await second.request("tasks/result", {"taskId": task})
        await second.answer(await question(second), BOB)
        answer = await second.until({"id": result, "result": ...})
        assert answer["result"]["content"][0]["text"] == "hello Bob"


async def test_elicitation_is_sent_to_a_second_waiting_client_if_the_client_that_got_it_disconnects(
    autojump_clock: MockClock,
) -> None:
    async with connections() as server:
        first, second = await server.open("ann"), await server.open("ann")
        task = await create(first, "greet")
        await question(first)
        await second.request("tasks/result", {"taskId": task})
        await second.expect_silence(15)
        await first.aclose()
        await second.answer(await question(second), BOB)
        await second.until({"id": ..., "result": {"content": [{"type": "text", "text": "hello Bob"}], ...: ...}})


async def test_elicitation_is_sent_again_at_a_second_tasks_result_if_the_first_tasks_result_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    async with connections() as server:
        first = await server.open("ann")
        task = await create(first, "greet")
        await first.aclose()
        second = await server.open("ann")
        result = await second.request("tasks/result", {"taskId": task})
        asked = await question(second)
        await second.cancel(result, "later")
        cancel = await second.until({"method": "notifications/cancelled", "params": ...})
        assert cancel["params"] == {"requestId": asked["id"], "reason": "later"}
        await second.request("tasks/result", {"taskId": task})
        assert (await question(second))["params"]["message"] == "who?"


async def test_ping_from_a_legacy_task_fails_after_its_client_disconnected(autojump_clock: MockClock) -> None:
    async with connections() as server:
        first, second = await server.open("ann"), await server.open("ann")
        task = await create(first, "late_ping")
        await first.aclose()
        assert await text_of(second, task) == "away"


async def test_waiting_tasks_result_request_gets_an_error_when_the_task_is_cancelled(autojump_clock: MockClock) -> None:
    async with connections() as server:
        first, other = await server.open("ann"), await server.open("ann")
        task = await create(first, "greet")
        await first.aclose()
        second = await server.open("ann")
        result = await second.request("tasks/result", {"taskId": task})
        asked = await question(second)
        await ask(other, "tasks/cancel", taskId=task)
        messages = [await second.receive(), await second.receive()]
        (cancel,) = (each for each in messages if each.get("method") == "notifications/cancelled")
        (reply,) = (each for each in messages if each.get("id") == result)
        assert cancel["params"]["requestId"] == asked["id"]
        assert reply["error"]["code"] == -32602


async def test_elicitation_from_a_task_is_not_sent_to_a_client_without_the_capability(
    autojump_clock: MockClock,
) -> None:
    async with connections() as server:
        first = await server.open("ann")
        task = await create(first, "greet")
        await first.aclose()
        deaf = await server.open("ann", {"roots": {}})
        await deaf.request("tasks/result", {"taskId": task})
        await deaf.expect_silence(15)
        able = await server.open("ann")
        await able.request("tasks/result", {"taskId": task})
        await able.answer(await question(able), BOB)
        await deaf.until({"id": ..., "result": {"content": [{"type": "text", "text": "hello Bob"}], ...: ...}})


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_legacy_task_of_another_principal_is_reported_as_unknown(autojump_clock: MockClock, method: str) -> None:
    async with connections() as server:
        ann, bob = await server.open("ann"), await server.open("bob")
        task = await create(ann, "greet")
        mine = await create(bob, "greet")
        asked = await bob.request(method, {"taskId": task})
        theirs = (await bob.until({"id": asked, "error": ...}))["error"]
        asked = await bob.request(method, {"taskId": "unknown"})
        assert theirs == (await bob.until({"id": asked, "error": ...}))["error"]
        assert [each["taskId"] for each in (await ask(bob, "tasks/list"))["tasks"]] == [mine]
        assert (await ask(ann, "tasks/get", taskId=task))["status"] == "input_required"
        asked = await bob.request("tasks/list", {"cursor": task})
        assert (await bob.until({"id": asked, "error": ...}))["error"]["code"] == -32602


async def test_tasks_list_gets_error_method_not_found_if_clients_have_no_principal(autojump_clock: MockClock) -> None:
    async with asking_server()._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        await nursery.start(connection_to(running, theirs, Peer(session_id="s")).run)
        client = ScriptedClient(ours)
        declared = await client.open(LEGACY, ALL)
        assert declared is not None
        assert declared["capabilities"]["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        await create(client, "greet")
        asked = await client.request("tasks/list")
        assert (await client.until({"id": asked, "error": ...}))["error"]["code"] == -32601
        nursery.cancel_scope.cancel()


async def test_elicitation_from_a_task_can_be_sent_by_another_server_with_the_same_store(
    autojump_clock: MockClock,
) -> None:
    settings = TaskSettings(store=MemoryTaskStore())
    first, second = asking_server(settings), asking_server(settings)
    async with first._running() as one, second._running() as other, trio.open_nursery() as nursery:
        ann = await Connections(nursery, one).open("ann")
        tasks = [await create(ann, "greet"), await create(ann, "robust")]
        await ann.aclose()
        ann = await Connections(nursery, other).open("ann")
        results = [await ann.request("tasks/result", {"taskId": task}) for task in tasks]
        for _ in tasks:
            asked = await question(ann)
            if asked["params"]["_meta"][RELATED]["taskId"] == tasks[0]:
                await ann.answer(asked, BOB)
            else:
                await ann.refuse(asked, -1, "not now")
        texts = {}
        while len(texts) < len(tasks):
            reply = await ann.until({"id": ..., "result": ...})
            texts[reply["id"]] = reply["result"]["content"][0]["text"]
        assert [texts[each] for each in results] == ["hello Bob", "-1 not now None"]
        nursery.cancel_scope.cancel()
