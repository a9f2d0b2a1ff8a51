"""A protected proxy has a connection to the server behind for each principal, and never guesses between principals
(AU-08)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from tests.proxying.test_tasks_extension import CREATED, DONE, TASK
from tests.proxying.test_tasks_of_others import client_of
from tests.serving.http.protection import Tokens, bearer, issued, protected
from tests.serving.http.raw import INITIALIZE, LEGACY, MODERN, Answer, Endpoint, modern, served
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits, proxy
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.proxying.tenants import Tenant
from trio_mcp.server.servable import connection_to
from trio_mcp.testing import MissingMessage, ScriptedClient, ScriptedServer, open_scripted_server
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import ClientCapabilities, Elicitation

ASKS: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
SECONDS = Limits().session_timeout


class Behind:
    """A legacy server that asks and tells after a call was cancelled, once a test says so."""

    def __init__(self, revision: str = LEGACY) -> None:
        self.revision = revision
        self.opened: list[ScriptedServer] = []
        self.calls: list[tuple[ScriptedServer, Any]] = []
        self.left = trio.Event()
        self.answers: list[Any] = []
        self.closed = 0
        self.send, self.receive = trio.open_memory_channel[str](100)

    async def script(self, server: ScriptedServer) -> None:
        self.opened.append(server)
        capabilities = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}} | (
            {"logging": {}} if self.revision == LEGACY else {}
        )
        await server.accept(self.revision, capabilities)
        server.patience = 10**6
        try:
            while True:
                await self._take(server, await server.receive())
        except MissingMessage:
            self.closed += 1
            self.send.send_nowait("closed")

    async def _take(self, server: ScriptedServer, message: Any) -> None:
        match message:
            case {"method": "tools/call", "params": {"name": "echo"}}:
                await server.answer(message, {"content": [{"type": "text", "text": "echo"}], "resultType": "complete"})
            case {"method": "tools/call", "params": {"name": "task"}}:
                await server.answer(message, CREATED)
            case {"method": "tasks/get"}:
                await server.answer(message, {**DONE, **TASK, "status": "completed"})
            case {"method": "tools/call"}:
                self.calls.append((server, message))
                self.send.send_nowait("called")
            case {"method": "notifications/cancelled"}:
                self.send.send_nowait("left")
            case {"id": _, "method": _}:
                await server.answer(
                    message, {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
                )
            case {"id": "late"}:
                self.answers.append(message)
                self.send.send_nowait("answered")

    async def until(self, what: str) -> None:
        while await self.receive.receive() != what:
            pass

    async def ask_late(self, server: ScriptedServer) -> None:
        await server.log("error", "secret")
        await server.request("late", "elicitation/create", {"message": "Who?", "requestedSchema": FORM})

    @property
    def way(self) -> Any:
        return partial(open_scripted_server, self.script)


@asynccontextmanager
async def before(behind: Behind, **limits: Any) -> AsyncGenerator[Endpoint]:
    async with served(proxy(behind.way, limits=Limits(**limits)), auth=protected(issued_more())) as endpoint:
        yield endpoint


def issued_more() -> Tokens:
    tokens = issued()
    tokens.issue("carol-1", "carol", "read")
    return tokens


def request(token: str, tool: str) -> tuple[dict[str, str | None], Any]:
    headers, body = modern("tools/call", {"name": tool, "arguments": {}, "_meta": ASKS})
    return {**headers, **bearer(token)}, body


async def call(endpoint: Endpoint, token: str, tool: str = "echo") -> Answer:
    return await endpoint.ask("POST", *request(token, tool))


def text(answer: Answer) -> str:
    result = answer.json if answer.headers["content-type"] == "application/json" else answer.events[-1].data
    return result["result"]["content"][0]["text"]


async def test_late_messages_for_one_principal_reach_no_other_principal_of_a_proxy() -> None:
    behind = Behind()
    async with before(behind) as endpoint:
        alice, bob = await endpoint.connect(), await endpoint.connect()
        await alice.send("POST", *request("alice-1", "wait"))
        await behind.until("called")
        await bob.send("POST", *request("bob-1", "wait"))
        await behind.until("called")
        (of_alice, _), (of_bob, bobs_call) = behind.calls
        await alice.aclose()
        await behind.until("left")
        await behind.ask_late(of_alice)
        await behind.until("answered")
        await of_bob.answer_text(bobs_call, "for Bob")
        answer = await bob.answer()
        await bob.aclose()
    assert (text(answer), b"secret" in answer.body, b"Who?" in answer.body) == ("for Bob", False, False)
    assert behind.answers[0]["error"]["code"] == -32603


async def test_proxy_uses_one_backend_connection_for_all_tokens_of_a_principal() -> None:
    behind = Behind()
    async with before(behind) as endpoint:
        for token in ("alice-1", "bob-1", "alice-2", "alice-1"):
            assert text(await call(endpoint, token)) == "echo"
    assert len(behind.opened) == 2


async def test_proxy_that_loses_the_backend_connection_of_one_principal_keeps_other_connections_open() -> None:
    behind = Behind()
    async with before(behind) as endpoint:
        alice, bob = await endpoint.connect(), await endpoint.connect()
        for connection, token in ((alice, "alice-1"), (bob, "bob-1")):
            await connection.send("POST", *request(token, "wait"))
            await behind.until("called")
        (of_alice, _), (of_bob, bobs_call) = behind.calls
        await of_alice.aclose()
        lost = await alice.answer()
        assert text(await call(endpoint, "alice-1")) == "echo"
        await of_bob.answer_text(bobs_call, "for Bob")
        assert text(await bob.answer()) == "for Bob"
        for connection in (alice, bob):
            await connection.aclose()
    assert lost.json["error"]["code"] == -31001
    assert len(behind.opened) == 3


async def test_proxy_closes_an_idle_backend_connection_and_reopens_it_at_the_next_request_of_its_principal(
    jump_clock: MockClock,
) -> None:
    behind = Behind()
    async with before(behind) as endpoint:
        assert text(await call(endpoint, "alice-1")) == "echo"
        waiting = await endpoint.connect()
        await waiting.send("POST", *request("bob-1", "wait"))
        await behind.until("called")
        jump_clock.jump(SECONDS)
        await behind.until("closed")
        await wait_all_tasks_blocked()
        assert behind.closed == 1
        assert text(await call(endpoint, "alice-1")) == "echo"
        (of_bob, bobs_call), *_ = behind.calls
        await of_bob.answer_text(bobs_call, "for Bob")
        assert text(await waiting.answer()) == "for Bob"
        await waiting.aclose()
    assert len(behind.opened) == 3


async def test_proxy_keeps_a_backend_connection_open_while_a_listen_stream_is_open(jump_clock: MockClock) -> None:
    behind = Behind()
    async with before(behind) as endpoint:
        listening = await endpoint.connect()
        headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await listening.send("POST", {**headers, **bearer("alice-1")}, body)
        assert (await listening.head()).status == 200
        await listening.event()
        jump_clock.jump(SECONDS)
        await wait_all_tasks_blocked()
        assert behind.closed == 0
        await listening.aclose()
        await wait_all_tasks_blocked()
        jump_clock.jump(SECONDS)
        await behind.until("closed")


async def test_proxy_keeps_a_backend_connection_open_while_a_task_runs(jump_clock: MockClock) -> None:
    behind = Behind(MODERN)
    tasks = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
    async with before(behind) as endpoint:
        headers, body = modern("tools/call", {"name": "task", "arguments": {}, "_meta": tasks})
        created = await endpoint.ask("POST", {**headers, **bearer("alice-1")}, body)
        task_id = created.json["result"]["taskId"]
        jump_clock.jump(SECONDS)
        await wait_all_tasks_blocked()
        assert behind.closed == 0
        headers, body = modern("tasks/get", {"taskId": task_id, "_meta": tasks})
        got = await endpoint.ask("POST", {**headers, "Mcp-Name": task_id, **bearer("alice-1")}, body)
        assert got.json["result"]["status"] == "completed"
        jump_clock.jump(SECONDS)
        await behind.until("closed")


async def test_proxy_closes_the_longest_idle_backend_connection_for_a_new_principal() -> None:
    behind = Behind()
    async with before(behind, max_upstreams=2) as endpoint:
        for token in ("alice-1", "bob-1", "carol-1"):
            assert text(await call(endpoint, token)) == "echo"
        assert behind.closed == 1
        assert text(await call(endpoint, "bob-1")) == "echo"
    assert len(behind.opened) == 3


async def test_proxy_rejects_a_new_principal_while_all_backend_connections_are_busy() -> None:
    behind = Behind()
    async with before(behind, max_upstreams=2) as endpoint:
        connections = [await endpoint.connect() for _ in range(2)]
        for connection, token in zip(connections, ("alice-1", "bob-1"), strict=True):
            await connection.send("POST", *request(token, "wait"))
            await behind.until("called")
        refused = await call(endpoint, "carol-1")
        assert refused.json["error"]["code"] == -31000
        server, waiting = behind.calls[0]
        await server.answer_text(waiting, "for Alice")
        assert text(await connections[0].answer()) == "for Alice"
        assert text(await call(endpoint, "carol-1")) == "echo"
        for connection in connections:
            await connection.aclose()


@pytest.mark.parametrize("most", [4])
async def test_sessions_of_one_principal_cannot_use_all_backend_connections_of_a_proxy(most: int) -> None:
    behind = Behind()
    async with before(behind, max_upstreams=most) as endpoint:
        opened: list[int] = []
        for _ in range(most):
            answer = await endpoint.ask("POST", bearer("alice-1"), INITIALIZE)
            reply = answer.json if answer.headers["content-type"] == "application/json" else answer.events[-1].data
            opened.append(reply.get("error", {}).get("code", 0))
        assert opened == [0, 0, -31000, -31000]
        assert text(await call(endpoint, "bob-1")) == "echo"


LOGS = {"io.modelcontextprotocol/logLevel": "debug"}
FORWARDS = ClientCapabilities(elicitation=Elicitation(form={}))


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_proxy_forwards_no_elicitations_or_logs_over_a_connection_shared_by_several_principals(
    autojump_clock: MockClock, revision: str
) -> None:
    behind, asks = Behind(), {"elicitation": {"form": {}}}
    async with open_scripted_server(behind.script, era="legacy", forwards=FORWARDS) as shared:
        way = proxy(shared)
        async with client_of(way, "alice", revision, asks) as alice, client_of(way, "bob", revision, asks) as bob:
            of_alice = await alice.call_tool("wait", meta=LOGS)
            await behind.until("called")
            await alice.cancel(of_alice)
            await behind.until("left")
            of_bob = await bob.call_tool("wait", meta=LOGS)
            await behind.until("called")
            await behind.ask_late(behind.opened[0])
            await behind.until("answered")
            server, call = behind.calls[1]
            await server.answer_text(call, "for Bob")
            await bob.expect_text(of_bob, "for Bob")
    assert behind.answers[0]["error"]["code"] == -32603


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_proxy_forwards_elicitations_and_logs_over_a_connection_of_a_single_principal(
    autojump_clock: MockClock, revision: str
) -> None:
    behind, asks = Behind(), {"elicitation": {"form": {}}}
    async with (
        open_scripted_server(behind.script, era="legacy", forwards=FORWARDS) as shared,
        client_of(proxy(shared), "alice", revision, asks) as alice,
    ):
        called = await alice.call_tool("wait", meta=LOGS)
        await behind.until("called")
        await behind.ask_late(behind.opened[0])
        await alice.expect({"method": "notifications/message", ...: ...})
        asked = await alice.receive()
        if revision == LEGACY:
            assert asked["method"] == "elicitation/create"
        else:
            assert (asked["id"], asked["result"]["resultType"]) == (called, "input_required")


async def test_update_of_a_subresource_reaches_only_the_principal_that_subscribed(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with open_scripted_server(behind.script, era="legacy") as shared:
        way = proxy(shared)
        async with client_of(way, "alice", LEGACY) as alice, client_of(way, "bob", LEGACY) as bob:
            for client, uri in ((alice, "file:///alice"), (bob, "file:///bob")):
                await client.expect_result(await client.request("resources/subscribe", {"uri": uri}))
            for uri in ("file:///alice/secret", "file:///bob"):
                await behind.opened[0].notify("notifications/resources/updated", {"uri": uri})
            told = await bob.receive()
    assert told["params"]["uri"] == "file:///bob"


async def test_url_elicitation_completion_reaches_only_the_principal_that_received_the_url(
    autojump_clock: MockClock,
) -> None:
    visit = {"mode": "url", "message": "Pay", "url": "https://pay.example.com", "elicitationId": "e-1"}

    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, {"tools": {}})
        await server.refuse(await server.expect_call("pay"), -32042, data={"elicitations": [visit]})
        await wait_all_tasks_blocked()  # no visit takes less
        for elicitation_id in ("e-0", "e-1"):
            await server.notify("notifications/elicitation/complete", {"elicitationId": elicitation_id})
        await wait_all_tasks_blocked()

    asks = {"elicitation": {"url": {}}}
    async with open_scripted_server(script, era="legacy", forwards=ClientCapabilities()) as shared:
        way = proxy(shared)
        async with client_of(way, "alice", LEGACY, asks) as alice, client_of(way, "bob", LEGACY, asks) as bob:
            await alice.expect_error(await alice.call_tool("pay"), -32042)
            assert (await alice.receive())["params"] == {"elicitationId": "e-1"}
            await bob.expect_silence(1)


async def test_closed_backend_connection_of_a_proxy_leaves_no_reference_cycles(jump_clock: MockClock) -> None:
    behind, before_it = Behind(), set(map(id, callers()))
    async with before(behind) as endpoint:
        assert text(await call(endpoint, "alice-1")) == "echo"
        (caller,) = [weakref.ref(each) for each in callers() if id(each) not in before_it]
        gc.disable()
        try:
            jump_clock.jump(SECONDS)
            await behind.until("closed")
            await wait_all_tasks_blocked()
            assert caller() is None
        finally:
            gc.enable()


def callers() -> list[Tenant]:
    return [each for each in gc.get_objects() if isinstance(each, Tenant)]


async def test_proxy_can_notify_clients_that_all_lists_of_the_backend_may_have_changed(
    autojump_clock: MockClock,
) -> None:
    async def script(server: ScriptedServer) -> None:
        await server.accept(LEGACY, {"tools": {"listChanged": True}})
        with suppress(MissingMessage):
            await server.receive()

    ours, theirs = memory_transport_pair()
    async with (
        proxy(partial(open_scripted_server, script))._running() as running,
        open_service_nursery("the test is over") as nursery,
    ):
        connection = connection_to(running, theirs)
        await nursery.start(connection.run)
        client = ScriptedClient(ours)
        await client.open(LEGACY)
        await wait_all_tasks_blocked()
        connection.everything_changed()
        await client.expect({"method": "notifications/tools/list_changed"})
        await client.aclose()
