"""Every public async method is a checkpoint, and sends nothing if its scope is already cancelled."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from trio_mcp import Client, RequestContext, Server, Skills
from trio_mcp.client.client import request_skills
from trio_mcp.client.opening import open_client
from trio_mcp.client.requests import forward_request, meta_in, open_stream
from trio_mcp.connecting.memory import open_server
from trio_mcp.protocol.types.notifications import SubscriptionFilter
from trio_mcp.transports.lines import MemoryTransport, memory_transport_pair
from trio_mcp.types import (
    CreateMessageResult,
    ElicitResult,
    LogLevel,
    PromptReference,
    RequestLog,
    Root,
    Skill,
    TextContent,
)

Era = Literal["legacy", "modern"]


def public_async(kind: type) -> set[str]:
    """The names of what can be awaited, iterated over or entered."""
    found: set[str] = set()
    for name, member in inspect.getmembers(kind, callable):
        told = str(inspect.signature(member).return_annotation) if not name.startswith("_") else ""
        if told and (
            inspect.iscoroutinefunction(member)
            or told.startswith(("Coroutine[", "Awaitable[", "AsyncIterator[", "AbstractAsyncContextManager["))
        ):
            found.add(name)
    return found


async def drain(items: AsyncIterator[object]) -> None:
    async for _ in items:
        pass


async def listen(client: Client) -> None:
    async with client.listen(tools=True):
        pass


async def send(client: Client) -> None:
    meta = {} if client.revision.handshake else meta_in(client, client.revision)
    await forward_request(client, "tools/call", {"name": "echo", "arguments": {"text": "x"}, "_meta": meta})


NOTES = "---\nname: notes\ndescription: Take notes\n---\n"
SKILL = Skill("skill://notes/SKILL.md", {"name": "notes", "description": "Take notes"}, "dynamic")

CLIENT: dict[str, Callable[[Client], Awaitable[object]]] = {
    "call_tool": lambda client: client.call_tool("echo", {"text": "x"}),
    "complete": lambda client: client.complete(PromptReference("greet"), "name", ""),
    "forward_request": send,
    "get_prompt": lambda client: client.get_prompt("greet", {"name": "Ada"}),
    "get_skill": lambda client: client.get_skill(SKILL.uri),
    "list_directory": lambda client: drain(client.list_directory("skill://notes")),
    "list_prompts": lambda client: drain(client.list_prompts()),
    "list_resource_templates": lambda client: drain(client.list_resource_templates()),
    "list_resources": lambda client: drain(client.list_resources()),
    "list_skills": lambda client: drain(client.list_skills()),
    "list_tasks": lambda client: drain(client.list_tasks()),
    "list_tools": lambda client: drain(client.list_tools()),
    "listen": listen,
    "load_skill": lambda client: client.load_skill(SKILL),
    "open_stream": lambda client: open_stream(client, SubscriptionFilter(tools_list_changed=True), lambda *_: None),
    "ping": lambda client: client.ping(),
    "read_resource": lambda client: client.read_resource("s:thing"),
    "request": lambda client: client.request(
        "tools/call", {"name": "echo", "arguments": {"text": "x"}}, dict[str, Any]
    ),
    "request_skills": lambda client: request_skills(client, "skills/list", None, dict[str, Any]),
    "roots_changed": lambda client: client.roots_changed(),
    "send_notification": lambda client: client.send_notification("notifications/acme"),
    "start_task": lambda client: client.start_task("work"),
    "set_log_level": lambda client: client.set_log_level(LogLevel.ERROR),
    "subscribe": lambda client: client.subscribe("s:thing"),
    "unsubscribe": lambda client: client.unsubscribe("s:thing"),
    "until_lost": lambda client: client.until_lost(),
}
FOR_FORWARDING = {"forward_request", "open_stream", "request_skills"}
"""Functions of the package that take a client."""
NEVER_RETURNS = {"open_stream", "until_lost"}
ONE_ERA = {"listen": "modern", "open_stream": "modern", "list_tasks": "legacy"}

CONTEXT: dict[str, Callable[[RequestContext], Awaitable[object]]] = {
    "check_cancelled": lambda ctx: ctx.check_cancelled(),
    "elicit": lambda ctx: ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}}),
    "elicit_raw": lambda ctx: ctx.elicit_raw(
        {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
    ),
    "elicit_url": lambda ctx: ctx.elicit_url("Go there", "https://example.com", "1"),
    "list_roots": lambda ctx: ctx.list_roots(),
    "list_roots_raw": lambda ctx: ctx.list_roots_raw(),
    "sample": lambda ctx: ctx.sample("well?", max_tokens=5),
    "sample_raw": lambda ctx: ctx.sample_raw({"messages": [], "maxTokens": 5}),
    "send_notification": lambda ctx: ctx.send_notification("notifications/tools/list_changed"),
    "elicitation_complete": lambda ctx: ctx.elicitation_complete("e1"),
    "send_request": lambda ctx: ctx.send_request("roots/list", None, dict[str, Any]),
}
LETS_NOBODY_RUN = {"check_cancelled", "send_notification"}
"""They say so: a cancel is noticed, and that is all."""

LOG: dict[str, Callable[[RequestLog], Awaitable[object]]] = {
    **{name: lambda log, name=name: getattr(log, name)("x") for name in LogLevel},
    "log": lambda log: log.log("error", "x"),
}


class Recorded(MemoryTransport):
    """Remembers what was sent."""

    def __init__(self, channel: MemoryTransport) -> None:
        super().__init__(channel._incoming, channel._outgoing)
        self.sent: list[bytes] = []

    async def send(self, messages: bytes | bytearray) -> None:
        self.sent.append(bytes(messages))
        await super().send(messages)


class World:
    """A client, its server, and what went over the wire in either direction."""

    client: Client
    to_server: Recorded
    to_client: Recorded
    handler: Callable[[RequestContext], Awaitable[object]]

    @property
    def said(self) -> int:
        return len(self.to_server.sent) + len(self.to_client.sent)


@asynccontextmanager
async def opened(era: Era) -> AsyncIterator[World]:
    skills = Skills()
    skills.add_files("notes", {"SKILL.md": NOTES})
    world, server = World(), Server("s", extensions=[skills])

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool(task="required")
    async def work() -> str:
        return "done"

    @server.tool
    async def run(ctx: RequestContext) -> str:
        await world.handler(ctx)
        return "ran"

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}"

    @server.resource("s:thing")
    async def thing() -> str:
        return "thing"

    async def sample(_: object) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    async def fill_in(_: object) -> ElicitResult:
        return ElicitResult("accept", {})

    async def go(_: object) -> ElicitResult:
        return ElicitResult("accept")

    ours, theirs = memory_transport_pair()
    world.to_server, world.to_client = Recorded(ours), Recorded(theirs)
    async with (
        open_server(server, world.to_client),
        open_client(
            world.to_server,
            era=era,
            sampling=sample,
            elicitation=fill_in,
            elicitation_url=go,
            roots=[Root("file:///a")],
            on_resource_updated=lambda _: None,
        ) as world.client,
    ):
        yield world


def test_tables_of_checkpoint_tests_contain_all_public_async_methods() -> None:
    assert public_async(Client) | FOR_FORWARDING == set(CLIENT)
    assert public_async(RequestContext) == set(CONTEXT)
    assert public_async(RequestLog) == set(LOG)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("name", [name for name in CLIENT if name not in NEVER_RETURNS])
async def test_every_async_client_method_executes_a_trio_checkpoint(
    name: str, era: Era, autojump_clock: object
) -> None:
    if ONE_ERA.get(name, era) != era:
        pytest.skip("the other era alone has such a thing")
    async with opened(era) as world:
        with assert_checkpoints():
            await CLIENT[name](world.client)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("name", CLIENT)
async def test_client_method_called_in_a_cancelled_scope_sends_nothing(
    name: str, era: Era, autojump_clock: object
) -> None:
    if ONE_ERA.get(name, era) != era:
        pytest.skip("the other era alone has such a thing")
    async with opened(era) as world:
        await world.client.ping()
        await wait_all_tasks_blocked()
        said = world.said
        with trio.CancelScope() as scope:
            scope.cancel(reason="too late")
            await CLIENT[name](world.client)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert world.said == said
        assert (await world.client.call_tool("echo", {"text": "usable"})).text == "usable"


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("name", [name for name in CONTEXT if name not in LETS_NOBODY_RUN])
async def test_every_async_request_context_method_executes_a_trio_checkpoint(
    name: str, era: Era, autojump_clock: object
) -> None:
    async def handler(ctx: RequestContext) -> None:
        with assert_checkpoints():
            await CONTEXT[name](ctx)

    async with opened(era) as world:
        world.handler = handler
        assert (await world.client.call_tool("run")).text == "ran"


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("name", [*CONTEXT, *(f"log.{name}" for name in LOG)])
async def test_request_context_method_called_in_a_cancelled_scope_sends_nothing(
    name: str, era: Era, autojump_clock: object
) -> None:
    async def handler(ctx: RequestContext) -> None:
        nonlocal caught, silent
        said = world.said
        with trio.CancelScope() as scope:
            scope.cancel(reason="too late")
            await (LOG[name.removeprefix("log.")](ctx.log) if name.startswith("log.") else CONTEXT[name](ctx))
        caught = scope.cancelled_caught
        await wait_all_tasks_blocked()
        silent = world.said == said

    caught = silent = False
    async with opened(era) as world:
        world.handler = handler
        await world.client.set_log_level(LogLevel.DEBUG)
        assert (await world.client.call_tool("run")).text == "ran"
    assert caught
    assert silent
