"""Handlers and callbacks know which call they serve, and never have the context of the code that opened the client."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.connecting.raw_sockets import WAYS, Lines, lines, served
from tests.interaction.client.raw import RawPeer, RawServer, scripted
from tests.interaction.websocket.raw_peer import port_of
from tests.patience import PATIENCE

from trio_mcp import (
    Client,
    CodedError,
    Progress,
    RequestContext,
    Server,
    aio,
    blocking,
    current_call,
    open_http,
    open_memory,
    open_stdio,
    serve_http,
)
from trio_mcp.client.answers import Relay
from trio_mcp.client.client import forward_to
from trio_mcp.client.opening import open_client
from trio_mcp.hosting import MemberDescription, current_member, open_group
from trio_mcp.state.events import NotificationReceived
from trio_mcp.types import CreateMessageResult, CurrentCall, ElicitResult, LogParams, Root, TextContent

USER: ContextVar[str] = ContextVar("user", default="unknown")
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
NOBODY = ("unknown", None)


class Seen:
    """What the handlers of a client find: the user's variable, and the value of the call."""

    def __init__(self) -> None:
        self.all: dict[str, list[Any]] = {}

    def note(self, kind: str) -> None:
        call = current_call()
        self.all.setdefault(kind, []).append(
            (USER.get(), None if call is None else (call.name, dict(call.arguments), call.value))
        )

    def values(self, kind: str) -> list[Any]:
        """The users' values of the calls, `None` where there is no call."""
        return [None if call is None else call[2] for _, call in self.all.get(kind, [])]

    async def elicit(self, _: Any) -> dict[str, Any]:
        self.note("elicitation")
        return {}

    def elicit_in_thread(self, _: Any) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        self.note("elicitation")
        return {}

    async def sample(self, _: Any) -> CreateMessageResult:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._in_child)
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    async def _in_child(self) -> None:
        self.note("sampling")

    async def roots(self) -> list[Root]:
        self.note("roots")
        return []

    def log(self, _: LogParams) -> None:
        self.note("log")

    async def log_later(self, _: LogParams) -> None:
        await trio.lowlevel.checkpoint()
        self.note("log")

    def progress(self, _: Progress) -> None:
        self.note("progress")

    @property
    def options(self) -> dict[str, Any]:
        return {"elicitation": self.elicit, "sampling": self.sample, "roots": self.roots, "on_log": self.log}


def asking() -> Server:
    server = Server("asking")

    @server.tool
    async def ask(ctx: RequestContext, who: str) -> str:
        await ctx.log.error(f"about to ask {who}")
        ctx.progress(1)
        await ctx.elicit(f"really, {who}?", {"type": "object", "properties": {}})
        await ctx.sample("say hi", max_tokens=5)
        await ctx.list_roots()
        return "done"

    return server


@asynccontextmanager
async def over_http(**options: Any) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        port = port_of(await nursery.start(partial(serve_http, asking(), port=0)))
        async with open_http(f"http://127.0.0.1:{port}/mcp", **options) as client:
            yield client
        nursery.cancel_scope.cancel()


def in_memory(**options: Any) -> Any:
    return open_memory(asking(), **options)


@asynccontextmanager
async def opened_by_ann(open_: Callable[..., Any], **options: Any) -> AsyncIterator[Client]:
    USER.set("ann")
    async with open_(**options) as client:
        yield client


async def call_as(client: Client, user: str, seen: Seen | None = None, **options: Any) -> None:
    USER.set(user)
    progress = None if seen is None else seen.progress
    await client.call_tool("ask", {"who": user}, value=user, on_progress=progress, **options)


KINDS = ("elicitation", "sampling", "roots", "log", "progress")


@ERAS
@pytest.mark.parametrize("open_", [in_memory, over_http])
async def test_client_handler_can_read_the_call_that_caused_the_server_request(open_: Any, era: str) -> None:
    seen = Seen()
    with trio.fail_after(PATIENCE):
        async with opened_by_ann(open_, era=era, **seen.options) as client, trio.open_nursery() as nursery:
            await client.set_log_level("debug")
            nursery.start_soon(call_as, client, "bob", seen)
    for kind in KINDS:
        served = ("ask", {"who": "bob"}, "bob")
        assert seen.all[kind] == [("unknown" if kind == "log" else "bob", served)], kind


@ERAS
@pytest.mark.parametrize("open_", [in_memory, over_http])
async def test_current_call_in_a_client_handler_is_never_the_call_of_another_user(open_: Any, era: str) -> None:
    """Where several calls are in progress, HTTP and modern servers tell; a legacy server in memory doesn't."""
    seen = Seen()
    with trio.fail_after(PATIENCE):
        async with opened_by_ann(open_, era=era, **seen.options) as client, trio.open_nursery() as nursery:
            await client.set_log_level("debug")
            for user in ("bob", "cleo"):
                nursery.start_soon(call_as, client, user, seen)
    for kind in KINDS:
        for user, call in seen.all[kind]:
            assert user != "ann", kind
            assert call is None or call[1] == {"who": call[2]}, kind
            assert kind == "log" or user == ("unknown" if call is None else call[2]), kind
    if era == "modern" or open_ is over_http:
        for kind in ("elicitation", "sampling", "roots", "progress"):
            assert sorted(map(str, seen.values(kind))) == ["bob", "cleo"], kind


@ERAS
async def test_sync_client_handler_can_read_the_current_call_in_a_worker_thread(era: str) -> None:
    seen = Seen()
    options = {**seen.options, "elicitation": seen.elicit_in_thread}
    async with opened_by_ann(in_memory, era=era, **options) as client, trio.open_nursery() as nursery:
        nursery.start_soon(call_as, client, "bob")
    assert seen.all["elicitation"] == [("bob", ("ask", {"who": "bob"}, "bob"))]


@ERAS
async def test_async_log_callback_can_read_the_call_that_caused_the_log_message(
    autojump_clock: object, era: str
) -> None:
    seen = Seen()
    options = {**seen.options, "on_log": seen.log_later}
    async with opened_by_ann(in_memory, era=era, **options) as client, trio.open_nursery() as nursery:
        await client.set_log_level("debug")
        nursery.start_soon(call_as, client, "bob")
    assert seen.all["log"] == [("unknown", ("ask", {"who": "bob"}, "bob"))]


@ERAS
@pytest.mark.parametrize("open_", [in_memory, over_http])
async def test_handlers_passed_to_a_call_are_used_only_for_that_call(open_: Any, era: str) -> None:
    ours, theirs = Seen(), Seen()
    with trio.fail_after(PATIENCE):
        async with opened_by_ann(open_, era=era, **theirs.options) as client:
            await client.set_log_level("debug")
            await call_as(client, "bob", **ours.options)
            assert theirs.all == {}
            await call_as(client, "cleo")
    assert {kind: ours.values(kind) for kind in ours.all} == {key: ["bob"] for key in KINDS[:4]}
    assert {kind: theirs.values(kind) for kind in theirs.all} == {key: ["cleo"] for key in KINDS[:4]}


async def test_log_callback_passed_to_a_call_gets_only_the_logs_of_that_call(autojump_clock: object) -> None:
    seen = Seen()
    options = {**seen.options, "on_log": None}
    async with in_memory(era="legacy", **options) as client:
        await call_as(client, "bob", on_log=seen.log)
        await call_as(client, "cleo")
    assert seen.values("log") == ["bob"]


async def test_client_call_accepts_its_roots_as_a_list(autojump_clock: object) -> None:
    server, found = Server("s"), list[str]()

    @server.tool
    async def look(ctx: RequestContext) -> None:
        found.extend(root.uri for root in await ctx.list_roots())

    async with open_memory(server, era="legacy", roots=[Root("file:///a")]) as client:
        await client.call_tool("look", roots=[Root("file:///b")])
        await client.call_tool("look")
    assert found == ["file:///b", "file:///a"]


async def test_passing_a_handler_to_a_call_for_an_undeclared_client_capability_raises_value_error(
    autojump_clock: object,
) -> None:
    seen = Seen()
    async with in_memory(era="legacy") as client:
        with pytest.raises(
            ValueError, match=r"call_tool\(elicitation=\.\.\.\) needs a client that declares elicitation"
        ):
            await client.call_tool("ask", {"who": "bob"}, elicitation=seen.elicit)
        with pytest.raises(TypeError, match=r"^Client\.call_tool has no option 'on_lag'; did you mean on_log=\?"):
            await client.call_tool("ask", {"who": "bob"}, on_lag=seen.log)  # type: ignore[call-arg]


async def test_current_call_returns_none_outside_client_handlers(autojump_clock: object) -> None:
    async with in_memory(**Seen().options) as client:
        assert current_call() is None
        await call_as(client, "bob")
        assert current_call() is None


async def test_current_call_in_a_client_handler_can_be_a_prompt_or_resource_request(autojump_clock: object) -> None:
    server, seen = Server("s"), list[CurrentCall | None]()

    @server.prompt
    async def greet(ctx: RequestContext, name: str) -> str:
        ctx.progress(1)
        return f"hello {name}"

    @server.resource("note://{name}")
    async def note(ctx: RequestContext, name: str) -> str:
        ctx.progress(1)
        return name

    def progress(_: Progress) -> None:
        seen.append(current_call())

    async with open_memory(server) as client:
        await client.get_prompt("greet", {"name": "bob"}, on_progress=progress)
        await client.read_resource("note://a", on_progress=progress)
    assert seen == [
        CurrentCall("prompts/get", "greet", {"name": "bob"}),
        CurrentCall("resources/read", "note://a", {}),
    ]


async def test_current_call_in_the_handler_of_a_nested_call_is_the_nested_call(autojump_clock: object) -> None:
    inner, seen, back = in_memory, Seen(), Seen()

    async with inner(era="legacy", **seen.options) as second:

        async def elicit(_: Any) -> dict[str, Any]:
            await second.call_tool("ask", {"who": "inner"}, value="inner")
            back.note("elicitation")
            return {}

        async with in_memory(era="legacy", **{**Seen().options, "elicitation": elicit}) as first:
            await first.call_tool("ask", {"who": "outer"}, value="outer")
    assert seen.values("elicitation") == ["inner"]
    assert back.values("elicitation") == ["outer"]


# Legacy servers, message by message


def elicitation(number: int, **params: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    return {
        "id": f"q{number}",
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": schema, **params},
    }


async def answered(peer: RawPeer, number: int) -> None:
    while not any(message.get("id") == f"q{number}" for message in peer.wire):
        await peer.read()


async def got(peer: RawPeer, method: str) -> dict[str, Any]:
    """The first message of this method, which may have been read."""
    while not (found := [message for message in peer.wire if message.get("method") == method]):
        await peer.read()
    return found[0]


async def test_current_call_in_a_client_handler_is_none_if_no_call_runs(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.send(elicitation(1))
        await answered(peer, 1)
        await peer.log("alone")
        await peer.result(await got(peer, "ping"), {})

    seen = Seen()
    async with scripted(script) as (channel, _), opened_by_ann(partial(open_client, channel), **seen.options) as client:
        await client.ping()
    assert seen.all == {"elicitation": [NOBODY], "log": [NOBODY]}


async def test_elicitation_of_a_cancelled_call_is_handled_without_a_current_call(autojump_clock: object) -> None:
    """The server may not have read the cancel yet."""
    left = trio.Event()

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await peer.log("of the first")
        await left.wait()
        second = await peer.until("tools/call")
        await peer.log("of the first, too")
        await peer.send(elicitation(1))  # for the first
        await answered(peer, 1)
        await peer.text(second)
        third = await peer.until("tools/call")  # behind the cancel and an answer to what was sent after it
        await peer.send(elicitation(2))
        await answered(peer, 2)
        await peer.text(third)

    seen = Seen()
    async with scripted(script) as (channel, _), open_client(channel, **seen.options) as client:
        with trio.move_on_after(1):
            await call_as(client, "bob")
        left.set()
        await call_as(client, "cleo")
        await call_as(client, "dan")
    assert seen.values("elicitation") == [None, "dan"]
    assert seen.values("log") == ["bob", None]


async def test_log_message_is_attributed_to_a_call_only_if_no_other_call_runs(autojump_clock: object) -> None:
    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "unknown"}}}

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        first = await peer.until("tools/call")
        await peer.log("bob's")
        await peer.log("bob's")
        await peer.notify("notifications/message", {"level": "info", "data": "nobody's", **related})
        await peer.log("bob's")
        second = await peer.until("tools/call")
        await peer.log("of either")
        await peer.text(second)
        await peer.log("bob's")
        await peer.text(first)
        await peer.log("of no call")
        await peer.result(await got(peer, "ping"), {})

    seen = Seen()
    async with scripted(script) as (channel, _), open_client(channel, **seen.options) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_as, client, "bob")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call_as, client, "cleo")
        await client.ping()
    assert seen.values("log") == ["bob", "bob", None, "bob", None, "bob", None]


async def test_proxy_that_attaches_to_a_client_during_a_call_receives_the_next_log_message(
    autojump_clock: object,
) -> None:
    class Noted(Relay):
        def on_notification(self, event: NotificationReceived) -> None:
            relayed.append(event.params["data"])

        def on_question(self, request: Any) -> None: ...

        async def ask(self, method: str, params: dict[str, Any], key: str | None) -> Any: ...

    relays = trio.Event()

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.log("before")
        await relays.wait()
        await peer.log("after")
        await peer.text(call)

    seen, relayed = Seen(), list[str]()
    async with (
        scripted(script) as (channel, _),
        open_client(channel, **seen.options) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(call_as, client, "bob")
        await trio.testing.wait_all_tasks_blocked()
        forward_to(client, Noted())
        relays.set()
    assert relayed == ["after"]
    assert seen.values("log") == ["bob", "bob"]


async def test_current_call_in_a_task_started_by_a_log_callback_does_not_change_later(autojump_clock: object) -> None:
    """Later messages, and the end of the call, change nothing."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for _ in range(2):
            call = await peer.until("tools/call")
            await peer.log("one")
            await peer.log("two")
            await peer.text(call)

    seen, later = Seen(), trio.Event()

    async def note_later() -> None:
        await later.wait()
        seen.note("log")

    async with (
        trio.open_nursery() as nursery,
        scripted(script) as (channel, _),
        open_client(channel, on_log=lambda _: nursery.start_soon(note_later)) as client,
    ):
        await call_as(client, "bob")
        await call_as(client, "cleo")
        later.set()
    assert sorted(seen.values("log")) == ["bob", "bob", "cleo", "cleo"]


async def test_elicitation_has_no_current_call_while_an_abandoned_call_may_still_run_at_the_server(
    autojump_clock: object,
) -> None:
    left = trio.Event()

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await left.wait()
        await peer.text(await peer.until("tools/call"))
        third = await peer.until("tools/call")
        await peer.send(elicitation(1))  # for the first
        await answered(peer, 1)
        await peer.text(third)

    seen = Seen()
    async with scripted(script) as (channel, _), open_client(channel, send_cancels=False, **seen.options) as client:
        with trio.move_on_after(1):
            await call_as(client, "bob")
        left.set()
        await call_as(client, "cleo")
        await call_as(client, "dan")
    assert seen.values("elicitation") == [None]


async def test_current_call_in_an_elicitation_handler_is_never_a_ping(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call, ping = await peer.until("tools/call"), await peer.until("ping")
        await peer.send(elicitation(1))
        await answered(peer, 1)
        await peer.result(ping, {})
        await peer.text(call)

    seen = Seen()
    async with (
        scripted(script) as (channel, _),
        open_client(channel, **seen.options) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(call_as, client, "bob")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(client.ping)
    assert seen.values("elicitation") == ["bob"]


async def test_current_call_of_a_queued_elicitation_is_the_call_that_ran_when_the_elicitation_arrived(
    autojump_clock: object,
) -> None:
    """What is in progress when its turn comes says nothing."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        first = await peer.until("tools/call")
        for number in (1, 2):
            await peer.send(elicitation(number))
        second = await peer.until("tools/call")
        for number in (1, 2):
            await answered(peer, number)
        await peer.text(first)
        await peer.text(second)

    seen, go_on = Seen(), trio.Event()

    async def slow(params: Any) -> dict[str, Any]:
        await go_on.wait()
        return await seen.elicit(params)

    async with (
        scripted(script) as (channel, _),
        open_client(channel, max_questions=1, **{**seen.options, "elicitation": slow}) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(call_as, client, "bob")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(call_as, client, "cleo")
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert seen.values("elicitation") == ["bob", "bob"]


async def test_elicitation_from_an_unknown_task_has_no_current_call(autojump_clock: object) -> None:
    related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t"}}}

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.send(elicitation(1, **related))
        await answered(peer, 1)
        await peer.text(call)

    seen = Seen()
    async with scripted(script) as (channel, _), open_client(channel, **seen.options) as client:
        await call_as(client, "bob")
    assert seen.all["elicitation"] == [NOBODY]


async def test_elicitation_from_a_task_has_the_call_of_the_task_as_current_call(autojump_clock: object) -> None:
    """Revision 2025-11-25: the question names its task."""
    server = Server("tasks")

    @server.tool(task="required")
    async def ask(ctx: RequestContext, who: str) -> str:
        await trio.sleep(1)
        await ctx.elicit(f"really, {who}?", {"type": "object", "properties": {}})
        return who

    seen = Seen()
    async with opened_by_ann(partial(open_memory, server), era="legacy", **seen.options) as client:
        async with trio.open_nursery() as nursery:
            for user in ("bob", "cleo"):
                nursery.start_soon(call_as, client, user)
        USER.set("dan")
        task = await client.start_task("ask", {"who": "dan"}, value="dan")
        await task.result()
    assert sorted(map(str, seen.values("elicitation"))) == ["bob", "cleo", "dan"]
    for user, call in seen.all["elicitation"]:
        assert user != "ann"
        assert call is not None
        assert call[1] == {"who": call[2]}


@pytest.mark.parametrize("way", [*WAYS, "stdio"])
async def test_client_handler_can_read_the_current_call_over_every_transport(tmp_path: Path, way: str) -> None:
    seen = Seen()
    if way == "stdio":
        raw = RawServer(
            tmp_path,
            """
            handshake()
            call = until("tools/call")
            schema = {"type": "object", "properties": {}}
            request("q", "elicitation/create", {"message": "?", "requestedSchema": schema})
            read()
            text(call)
            """,
        )
        with trio.fail_after(PATIENCE):
            async with opened_by_ann(partial(open_stdio, raw.command), era="legacy", **seen.options) as client:
                await call_as(client, "bob")
    else:

        async def script(end: Lines) -> None:
            greeting = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "s", "version": "1"},
            }
            await end.write(lines({"id": (await end.read())["id"], "result": greeting}))
            while (call := await end.read()).get("method") != "tools/call":
                pass
            await end.write(lines(elicitation(1)))
            await end.read()
            await end.write(lines({"id": call["id"], "result": {"content": []}}))

        USER.set("ann")
        async with served(way, script, tmp_path, era="legacy", **seen.options) as client:
            await call_as(client, "bob")
    assert seen.all["elicitation"] == [("bob", ("ask", {"who": "bob"}, "bob"))]


async def test_current_call_returns_none_in_change_callbacks(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        call = await peer.until("tools/call")
        await peer.notify("notifications/tools/list_changed")
        await peer.text(call)

    seen, told = Seen(), trio.Event()

    def changed(_: Any) -> None:
        seen.note("change")
        told.set()

    async with (
        scripted(script) as (channel, _),
        opened_by_ann(partial(open_client, channel), on_list_changed=changed) as client,
    ):
        await call_as(client, "bob")
        await told.wait()
    assert seen.all["change"] == [NOBODY]


# Groups, asyncio and scripts


@ERAS
async def test_client_handler_of_a_group_can_read_the_server_and_the_call_that_caused_the_elicitation(
    autojump_clock: object, era: str
) -> None:
    found: list[Any] = []

    async def elicit(_: Any) -> ElicitResult:
        found.append((current_member(), current_call()))
        return ElicitResult("accept", {})

    seen = Seen()
    options: Any = {**seen.options, "elicitation": elicit, "era": era}
    async with open_group({"a": MemberDescription(asking(), options=options)}) as group:
        await group.call_tool("a__ask", {"who": "bob"}, value="bob")
        await group.call_tool("a__ask", {"who": "cleo"}, value="cleo", elicitation=elicit)
    expected = [CurrentCall("tools/call", "ask", {"who": user}, user) for user in ("bob", "cleo")]
    assert [(member, call.name, call.value) for member, call in found] == [
        ("a", call.name, call.value) for call in expected
    ]


@ERAS
async def test_asyncio_client_handler_can_read_the_current_call(era: Any) -> None:
    import asyncio

    async def main() -> tuple[list[Any], list[Any]]:
        ours, theirs, progress = list[Any](), list[Any](), list[Any]()

        async def elicit(_: Any) -> dict[str, Any]:
            theirs.append((USER.get(), current_call().value))  # type: ignore[union-attr]
            return {}

        async def elicit_own(_: Any) -> dict[str, Any]:
            ours.append((USER.get(), current_call().value))  # type: ignore[union-attr]
            return {}

        async def on_progress(_: Progress) -> None:
            await asyncio.sleep(0)
            progress.append(current_call().value)  # type: ignore[union-attr]

        async def call(user: str, **options: Any) -> None:
            USER.set(user)
            await client.call_tool("ask", {"who": user}, value=user, on_progress=on_progress, **options)

        USER.set("ann")
        options: Any = {**Seen().options, "sampling": _sampled, "roots": [], "on_log": None, "elicitation": elicit}
        async with aio.open_memory(asking(), era=era, **options) as client:
            await asyncio.create_task(call("bob"))
            await asyncio.create_task(call("cleo", elicitation=elicit_own))
        assert progress == ["bob", "cleo"]
        return theirs, ours

    theirs, ours = await trio.to_thread.run_sync(lambda: asyncio.run(main()))
    assert (theirs, ours) == ([("bob", "bob")], [("cleo", "cleo")])


def _sampled(_: Any) -> CreateMessageResult:
    return CreateMessageResult("assistant", TextContent("hi"), "m")


@ERAS
async def test_handler_of_a_blocking_client_can_read_the_current_call(era: Any) -> None:
    def main() -> list[Any]:
        found: list[Any] = []

        def elicit(_: Any) -> dict[str, Any]:
            found.append(("theirs", current_call().value))  # type: ignore[union-attr]
            return {}

        def elicit_own(_: Any) -> dict[str, Any]:
            found.append(("own", current_call().value))  # type: ignore[union-attr]
            return {}

        def on_progress(_: Progress) -> None:
            found.append(("progress", current_call().value))  # type: ignore[union-attr]

        with blocking.open_memory(asking(), era=era, elicitation=elicit, sampling=_sampled, roots=[]) as client:
            client.call_tool("ask", {"who": "bob"}, value="bob", on_progress=on_progress)
            client.call_tool("ask", {"who": "cleo"}, value="cleo", elicitation=elicit_own)
        return found

    found = await trio.to_thread.run_sync(main)
    assert sorted(found) == [("own", "cleo"), ("progress", "bob"), ("theirs", "bob")]


async def test_elicitation_handler_can_reject_an_elicitation_that_belongs_to_no_known_call(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.send(elicitation(1))
        await answered(peer, 1)
        [refusal] = [message for message in peer.wire if message.get("id") == "q1"]
        assert refusal["error"]["message"] == "which user?"
        await peer.result(await got(peer, "ping"), {})

    async def elicit(_: Any) -> dict[str, Any]:
        if current_call() is None:
            raise CodedError(-1, "which user?")
        return {}

    async with scripted(script) as (channel, _), open_client(channel, elicitation=elicit) as client:
        await client.ping()
