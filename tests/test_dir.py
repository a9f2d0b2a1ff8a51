"""`dir` of what users receive lists only attributes that can be read."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from tests.public import FACE, names

from trio_mcp import InMemory, RequestContext, Server, WorkerContext, blocking, open_memory
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.types import CallToolResult

NEEDS_ONE_OF_ITS_FIELDS = {"Principal"}
MADE: dict[str, Callable[[], Any]] = {
    name: kind
    for name, kind in names(*FACE).items()
    if inspect.isclass(kind)
    and name not in NEEDS_ONE_OF_ITS_FIELDS
    and not inspect.isabstract(kind)
    and attrs.has(kind)
    and all(field.default is not attrs.NOTHING for field in attrs.fields(kind) if field.init)
}
"""Classes whose instances can be made of nothing."""


def unreadable(thing: Any) -> list[str]:
    """Names of `dir` that raise."""
    found = list[str]()
    for name in dir(thing):
        try:
            getattr(thing, name)
        except Exception as error:
            found.append(f"{name}: {error!r}")
    return found


@pytest.mark.parametrize("name", sorted(MADE))
def test_dir_of_a_new_instance_lists_only_readable_attributes(name: str) -> None:
    assert unreadable(MADE[name]()) == []


@asynccontextmanager
async def received(era: Any) -> AsyncIterator[dict[str, Any]]:
    """What a host and the handlers of a server receive."""
    found: dict[str, Any] = {}
    server = Server("shop")

    @server.tool
    async def look(ctx: RequestContext) -> str:
        found["RequestContext"] = (ctx, unreadable(ctx))
        return "seen"

    @server.tool
    def search(ctx: WorkerContext) -> str:
        found["WorkerContext"] = (ctx, unreadable(ctx))
        return "seen"

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet(name: str) -> str:
        return name

    async with open_memory(server, era=era) as client:
        found["Client"] = (client, unreadable(client))
        for name in ("look", "search"):
            found["CallToolResult"] = (result := await client.call_tool(name), unreadable(result))
        async for tool in client.list_tools():
            found["Tool"] = (tool, unreadable(tool))
        async for template in client.list_resource_templates():
            found["ResourceTemplate"] = (template, unreadable(template))
        found["ReadResourceResult"] = (read := await client.read_resource("note://a"), unreadable(read))
        found["GetPromptResult"] = (prompt := await client.get_prompt("greet", {"name": "b"}), unreadable(prompt))
        yield found
    found["a closed Client"] = (client, unreadable(client))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_dir_of_received_results_lists_only_readable_attributes(era: Any) -> None:
    async with received(era) as found:
        assert {name: raised for name, (_, raised) in found.items() if raised} == {}
    assert {name: raised for name, (_, raised) in found.items() if raised} == {}
    assert len(found) == 9


async def test_dir_of_a_group_lists_only_readable_attributes() -> None:
    server = Server("shop")
    async with open_group({}) as group:
        group.add("shop", MemberDescription(InMemory(server)))
        await group.settled()
        for thing in (
            group,
            group.catalogue,
            *group.catalogue.tools.values(),
            group.statuses["shop"],
            await group.client("shop"),
        ):
            assert unreadable(thing) == []


def test_dir_of_a_blocking_client_lists_only_readable_attributes() -> None:
    with blocking.open_memory(Server("shop")) as client:
        assert unreadable(client) == []


@pytest.mark.parametrize("name", ["isError", "structuredContent", "data"])
def test_attribute_named_as_in_another_sdk_raises_an_error_that_names_the_replacement_and_is_not_in_dir(
    name: str,
) -> None:
    result = CallToolResult([])
    assert name not in dir(result)
    assert {"content", "is_error", "as_"} <= set(dir(result))
    with pytest.raises(AttributeError, match="; write "):
        getattr(result, name)
