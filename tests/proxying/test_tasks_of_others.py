"""Tasks through a proxy with several clients: nobody gets at the task of another."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import principal_id
from tests.proxying.test_messages import LEGACY, MODERN
from tests.proxying.test_tasks import TASK
from tests.proxying.test_tasks import THEIRS as CORE
from tests.proxying.test_tasks_extension import CREATED, DONE, OURS
from tests.proxying.test_tasks_extension import TASK as EXTENSION_TASK
from tests.proxying.test_tasks_extension import THEIRS as EXTENSION
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import proxy
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.proxying.tasks import TaskOwners
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.server.servable import connection_to
from trio_mcp.testing import MissingMessage, ScriptedClient, ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import ClientCapabilities, Proxy, Sampling

NOTHING = ClientCapabilities()
ANSWERS: dict[str, dict[str, Any]] = {
    MODERN: {"tools/call": CREATED, "tasks/get": {**DONE, **EXTENSION_TASK}},
    LEGACY: {
        "tools/call": {"task": TASK},
        "tasks/list": {"tasks": [TASK, {**TASK, "taskId": "t-0"}], "nextCursor": "c"},
    },
}


@asynccontextmanager
async def client_of(
    way: Proxy, principal: str | None, revision: str, capabilities: dict[str, Any] | None = None
) -> AsyncGenerator[ScriptedClient]:
    """Open a client of ``principal``."""
    ours, theirs = memory_transport_pair()
    async with way._running() as running, open_service_nursery("the test is over") as nursery:
        await nursery.start(connection_to(running, theirs, Peer(principal=principal_id(principal))).run)
        client = ScriptedClient(ours)
        await client.open(revision, capabilities or (OURS if revision == MODERN else None))
        yield client
        await client.aclose()


@asynccontextmanager
async def before(
    script: Any, revision: str, *, shares: bool, forwards: ClientCapabilities = NOTHING
) -> AsyncGenerator[Proxy]:
    """Put a proxy before a server that follows ``script``."""
    if not shares:
        yield proxy(partial(open_scripted_server, script))
        return
    era: Any = "modern" if revision == MODERN else "legacy"
    async with open_scripted_server(script, era=era, forwards=forwards) as client:
        yield proxy(client)


def answering(revision: str, got: list[str]) -> Any:
    """Return a server that takes every client of the proxy for the same caller, and notes what comes."""

    async def script(server: ScriptedServer) -> None:
        await server.accept(revision, EXTENSION if revision == MODERN else CORE)
        with suppress(MissingMessage):
            while True:
                message = await server.receive()
                if "id" not in message:
                    continue
                got.append(message["method"])
                await server.answer(message, ANSWERS[revision].get(message["method"], DONE))

    return script


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(
    ("revision", "method"),
    [
        (MODERN, "tasks/get"),
        (MODERN, "tasks/update"),
        (MODERN, "tasks/cancel"),
        (LEGACY, "tasks/get"),
        (LEGACY, "tasks/result"),
        (LEGACY, "tasks/cancel"),
    ],
)
async def test_proxied_task_of_a_principal_is_reported_as_unknown_to_other_principals(
    autojump_clock: MockClock, shares: bool, revision: str, method: str
) -> None:
    params, got = {"taskId": "t-1", "inputResponses": {}}, list[str]()
    async with before(answering(revision, got), revision, shares=shares) as way:
        async with client_of(way, "ann", revision) as ann:
            await ann.expect_result(await ann.request("tools/call", {"name": "t", "task": {}}))
        for other in ("bob", None):
            async with client_of(way, other, revision) as client:
                error = await client.expect_error(await client.request(method, params), -32602)
                unknown = await client.request(method, {**params, "taskId": "t-1"})
                assert await client.expect_error(unknown) == error
        async with client_of(way, "ann", revision) as again:
            await again.expect_result(await again.request(method, params))
    assert got == ["tools/call", method]


@pytest.mark.parametrize("shares", [False, True])
async def test_proxied_task_without_a_known_owner_is_reported_as_unknown_to_every_principal(
    autojump_clock: MockClock, shares: bool
) -> None:
    got: list[str] = []
    async with (
        before(answering(MODERN, got), MODERN, shares=shares) as way,
        client_of(way, "ann", MODERN) as client,
    ):
        await client.expect_error(await client.request("tasks/get", {"taskId": "t-1"}), -32602)
    assert got == []


@pytest.mark.parametrize("shares", [False, True])
async def test_client_without_a_principal_can_access_a_proxied_task_with_only_its_id(
    autojump_clock: MockClock, shares: bool
) -> None:
    async with before(answering(MODERN, []), MODERN, shares=shares) as way:
        async with client_of(way, None, MODERN) as client:
            await client.expect_result(await client.call_tool("t"))
            async with client_of(way, None, MODERN) as other:
                await other.expect_result(await other.request("tasks/get", {"taskId": "t-1"}))
        async with client_of(way, None, MODERN) as later:
            await later.expect_result(await later.request("tasks/get", {"taskId": "t-2"}))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("principals", [("ann", "bob"), (None, None)])
async def test_task_list_through_a_proxy_contains_only_the_tasks_of_the_caller(
    autojump_clock: MockClock, shares: bool, principals: tuple[str | None, str | None]
) -> None:
    one, two = principals
    async with (
        before(answering(LEGACY, []), LEGACY, shares=shares) as way,
        client_of(way, one, LEGACY) as first,
        client_of(way, two, LEGACY) as second,
    ):
        await first.expect_result(await first.request("tools/call", {"name": "t", "task": {}}))
        listed = await first.expect_result(await first.request("tasks/list"))
        assert listed == {"tasks": [TASK], "nextCursor": "c"}
        listed = await second.expect_result(await second.request("tasks/list"))
        assert listed == {"tasks": [], "nextCursor": "c"}


async def test_unshared_proxy_also_lists_tasks_that_were_not_started_through_the_proxy(
    autojump_clock: MockClock,
) -> None:
    async with (
        before(answering(LEGACY, []), LEGACY, shares=False) as way,
        open_scripted_client(way, LEGACY) as client,
    ):
        listed = await client.expect_result(await client.request("tasks/list"))
        assert listed["tasks"] == ANSWERS[LEGACY]["tasks/list"]["tasks"]


@pytest.mark.parametrize("principals", [("ann", "bob"), (None, None)])
async def test_proxy_sends_task_status_notifications_only_to_the_owner_of_the_task(
    autojump_clock: MockClock, principals: tuple[str | None, str | None]
) -> None:
    status = ("notifications/tasks/status", TASK)

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, CORE)
        await server.answer(await server.expect_request("tools/call"), {"task": TASK})
        await wait_all_tasks_blocked()
        await server.notify(*status)
        await server.notify("notifications/tasks/status", {**TASK, "taskId": "unknown"})

    one, two = principals
    async with (
        before(script, LEGACY, shares=True) as way,
        client_of(way, one, LEGACY) as first,
        client_of(way, two, LEGACY) as second,
    ):
        await first.expect_result(await first.request("tools/call", {"name": "t", "task": {}}))
        await first.expect({"method": status[0], "params": status[1]})
        await first.expect_silence(1)
        await second.expect_silence(1)


@pytest.mark.parametrize("principals", [("ann", "bob"), (None, None)])
async def test_proxy_sends_logs_of_a_task_only_to_the_owner_of_the_task(
    autojump_clock: MockClock, principals: tuple[str | None, str | None]
) -> None:
    log = {"level": "info", "data": "secret", "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}}

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, CORE)
        await server.answer(await server.expect_request("tools/call"), {"task": TASK})
        await wait_all_tasks_blocked()
        await server.notify("notifications/message", log)
        await server.log("info", "for all")

    one, two = principals
    async with (
        before(script, LEGACY, shares=True) as way,
        client_of(way, one, LEGACY) as first,
        client_of(way, two, LEGACY) as second,
    ):
        await first.expect_result(await first.request("tools/call", {"name": "t", "task": {}}))
        await first.expect({"method": "notifications/message", "params": log})
        for client in (first, second):
            if one is None:  # else nobody knows whose it is
                await client.expect({"method": "notifications/message", "params": {"level": "info", "data": "for all"}})
            await client.expect_silence(1)


SAMPLING: dict[str, Any] = {"sampling": {}}


def question(task_id: str) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/related-task": {"taskId": task_id}}
    return {"messages": [], "maxTokens": 5, "task": {"ttl": 1}, "_meta": meta}


async def test_proxy_sends_sampling_requests_and_polls_of_a_task_to_the_client_that_owns_the_task(
    autojump_clock: MockClock,
) -> None:
    over = trio.Event()

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, CORE)
        for number in ("1", "2"):
            call = await server.expect_request("tools/call")
            await server.answer(call, {"task": {**TASK, "taskId": f"t-{number}"}})
        for number in ("1", "2"):
            await server.request(number, "sampling/createMessage", question(f"t-{number}"))
            task = {**TASK, "taskId": f"c-{number}"}
            await server.expect({"id": number, "result": {"task": task, "_meta": question(f"t-{number}")["_meta"]}})
        await server.request("g", "tasks/get", {"taskId": "c-1"})
        await server.expect({"id": "g", "result": {**TASK, "taskId": "c-1"}})
        over.set()
        await wait_all_tasks_blocked()
        await server.request("h", "sampling/createMessage", question("t-1"))
        await server.expect({"id": "h", "error": {"code": -32603, ...: ...}})
        await server.request("i", "sampling/createMessage", question("t-2"))
        await server.expect({"id": "i", "result": {"task": TASK, ...: ...}})

    async with (
        before(script, LEGACY, shares=True, forwards=ClientCapabilities(sampling=Sampling())) as way,
        client_of(way, None, LEGACY, SAMPLING) as second,
    ):
        async with client_of(way, None, LEGACY, SAMPLING) as first:
            for client in (first, second):
                await client.expect_result(await client.request("tools/call", {"name": "t", "task": {}}))
            for client, number in ((first, "1"), (second, "2")):
                asked = await client.expect({"id": ..., "method": "sampling/createMessage", "params": ...})
                assert asked["params"] == question(f"t-{number}")
                await client.answer(asked, {"task": {**TASK, "taskId": f"c-{number}"}})
            asked = await first.expect({"id": ..., "method": "tasks/get", "params": {"taskId": "c-1"}})
            await first.answer(asked, {**TASK, "taskId": "c-1"})
            await over.wait()
        asked = await second.expect({"id": ..., "method": "sampling/createMessage", "params": question("t-2")})
        await second.answer(asked, {"task": TASK})
        await wait_all_tasks_blocked()


async def test_modern_client_of_a_proxy_receives_no_legacy_task_requests(autojump_clock: MockClock) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, CORE)
        listing = await server.expect_request("tools/list")  # does the proxy have to ask for a task?
        await server.answer(listing, {"tools": []})
        call = await server.expect_call("t")
        await server.request("g", "tasks/get", {"taskId": "c-1"})
        await server.expect({"id": "g", "error": {"code": -32601, ...: ...}})
        await server.answer_text(call, "done")

    async with before(script, LEGACY, shares=True) as way, client_of(way, None, MODERN) as client:
        await client.expect_result(await client.call_tool("t"))


def test_proxy_remembers_a_limited_number_of_tasks_per_principal() -> None:
    owners = TaskOwners(limit=6)
    owners.add("b-1", PrincipalId(None, "bob"))
    for number in range(10):
        owners.add(f"a-{number}", PrincipalId(None, "ann"))
    owners.add("x" * 1001, PrincipalId(None, "bob"))
    assert [number for number in range(10) if owners.owner(f"a-{number}")] == [7, 8, 9]
    assert owners.owner("b-1") == PrincipalId(None, "bob")
    assert owners.owner("x" * 1001) is None
    for number in range(20):
        owners.add("c", PrincipalId(None, f"principal {number}"))
        owners.add(f"c-{number}", PrincipalId(None, f"principal {number}"))
    assert owners.owner("c") is None
    assert owners.owner("c-19") == PrincipalId(None, "principal 19")
