"""Tools are shown as the user of a group wants, and called as their server does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.hosting.members import describe
from tests.interaction.client.raw import RawPeer
from tests.patience import PATIENCE

from trio_mcp import PeerError, RequestContext, Server, gateway, open_memory
from trio_mcp.hosting import (
    Config,
    Group,
    MemberDescription,
    NotInCatalogue,
    ToolTransform,
    open_group,
    read_config,
    tool_hash,
)
from trio_mcp.types import Tool


def library() -> Server:
    server = Server("library")

    @server.tool
    async def search(ctx: RequestContext, text: str, folder: str, limit: int = 10, debug: bool = False) -> str:
        """Search everywhere."""
        return f"{text} in {folder}, {limit}, {debug}"

    @server.tool
    async def find(text: str) -> str:
        """Find a book."""
        return f"found {text}"

    @server.tool
    async def remove(text: str) -> str:
        """Remove a book."""
        return f"removed {text}"

    return server


MANUALS = ToolTransform(
    name="manuals",
    title="Manuals",
    description="Search the manuals.",
    presets={"folder": "manuals", "limit": 3},
    hidden_arguments=["debug"],
)


def described(**tools: ToolTransform) -> dict[str, MemberDescription]:
    return {"a": MemberDescription(library(), tools={name.replace("all", "*"): each for name, each in tools.items()})}


async def test_tool_changed_by_a_transform_is_listed_and_called_as_configured() -> None:
    async with open_group(described(search=MANUALS)) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__manuals", "a__find", "a__remove"]
        entry = group.catalogue.tools["a__manuals"]
        shown = entry.renamed
        assert (shown.name, shown.title, shown.description) == ("a__manuals", "Manuals", "Search the manuals.")
        assert (set(shown.input_schema["properties"]), shown.input_schema["required"]) == ({"text"}, ["text"])
        assert set(entry.item.input_schema["properties"]) == {"text", "folder", "limit", "debug"}
        assert (await group.call_tool("a__manuals", {"text": "trio"})).text == "trio in manuals, 3, False"
        task = await group.start_task("a__manuals", {"text": "trio"})
        assert (await task.result()).text == "trio in manuals, 3, False"
        assert (await group.call_from_app("a", "search", {"text": "trio"})).text == "trio in manuals, 3, False"
        with pytest.raises(NotInCatalogue):
            await group.call_tool("a__search", {"text": "trio"})


async def test_caller_cannot_override_preset_or_hidden_arguments_of_a_transformed_tool() -> None:
    sent = {"text": "trio", "folder": "/etc", "limit": 1000, "debug": True}
    async with open_group(described(search=MANUALS)) as group:
        await group.settled()
        assert (await group.call_tool("a__manuals", sent)).text == "trio in manuals, 3, False"
        async with open_memory(gateway(group)) as client:
            assert (await client.call_tool("a__manuals", sent)).text == "trio in manuals, 3, False"


async def test_gateway_lists_transformed_tools_without_preset_values() -> None:
    secret = ToolTransform(presets={"folder": "secret-folder"})
    async with open_group(described(search=secret, find=ToolTransform(hidden=True))) as group:
        await group.settled()
        async with open_memory(gateway(group)) as client:
            tools = {tool.name: tool async for tool in client.list_tools()}
            assert list(tools) == ["a__search", "a__remove"]
            assert "secret-folder" not in str(tools)
            assert (await client.call_tool("a__search", {"text": "x"})).text == "x in secret-folder, 10, False"
            with pytest.raises(PeerError, match="Unknown tool: a__find"):
                await client.call_tool("a__find", {"text": "x"})
    assert "secret-folder" not in repr(secret)


async def test_app_view_cannot_call_a_tool_by_the_new_name_that_a_transform_gave_it() -> None:
    async with open_group(described(remove=ToolTransform(name="find"))) as group:
        await group.settled()
        assert (await group.call_tool("a__find", {"text": "x"})).text == "removed x"
        assert (await group.call_from_app("a", "remove", {"text": "x"})).text == "removed x"
        with pytest.raises(NotInCatalogue, match="the server 'a' has no tool 'find'"):
            await group.call_from_app("a", "find", {"text": "x"})


async def test_tool_transform_for_an_asterisk_applies_to_all_tools_without_a_transform() -> None:
    async with open_group(described(all=ToolTransform(hidden=True), find=ToolTransform(name="books"))) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__books"]
        for hidden in ("search", "remove"):
            with pytest.raises(NotInCatalogue):
                await group.call_from_app("a", hidden, {})


async def test_tool_transforms_can_swap_the_names_of_two_tools() -> None:
    swapped = described(find=ToolTransform(name="remove"), remove=ToolTransform(name="find"))
    async with open_group(swapped) as group:
        await group.settled()
        assert (await group.call_tool("a__remove", {"text": "x"})).text == "found x"
        assert (await group.call_tool("a__find", {"text": "x"})).text == "removed x"


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (
            {"x": ToolTransform(name="z"), "y": ToolTransform(name="z")},
            "tools: 'y' and 'x' are both renamed to 'z'",
        ),
        (
            {"x": ToolTransform(name="y"), "y": ToolTransform(description="d")},
            "tools: 'x' is renamed to 'y', which is the name of another tool",
        ),
        ({"*": ToolTransform(name="z")}, r'tools\["\*"\] must not set a name: several tools cannot have the same name'),
    ],
)
def test_tool_transforms_with_colliding_names_raise_value_error(tools: dict[str, ToolTransform], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MemberDescription(Server("s"), tools=tools)


def test_tool_transforms_with_invalid_values_raise_errors() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        ToolTransform(name="")
    with pytest.raises(TypeError, match=r"right:  \['debug'\]"):
        ToolTransform(hidden_arguments="debug")


async def test_group_does_not_offer_a_tool_whose_name_a_transform_gave_to_another_tool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_group(described(search=ToolTransform(name="find"))) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__find", "a__remove"]
        assert group.catalogue.tools["a__find"].item.name == "search"
    (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    assert record.getMessage() == ("the tool find of member a is not offered: its name is that of the renamed 'search'")


async def test_group_does_not_offer_a_tool_if_a_transform_hides_a_required_argument(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_group(described(search=ToolTransform(hidden_arguments=["folder"]))) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__find", "a__remove"]
    assert "its argument 'folder' is required, so it can't be hidden" in caplog.text


@pytest.mark.parametrize(
    "schema", [{"type": "object"}, {"type": "object", "properties": 1, "required": "text"}, {"required": [1, []]}]
)
async def test_tool_transforms_accept_malformed_input_schemas(schema: dict[str, Any]) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={})
        await peer.result(await peer.until("tools/list"), {"tools": [{"name": "x", "inputSchema": schema}]})
        call = await peer.until("tools/call")
        await peer.text(call, str(call["params"]["arguments"]))
        await peer.to_the_end()

    member = describe(script)
    member = MemberDescription(member.target, tools={"x": ToolTransform(presets={"a": 1}, hidden_arguments=["b"])})
    with trio.fail_after(PATIENCE):
        async with open_group({"a": member}) as group:
            await group.settled()
            assert group.catalogue.tools["a__x"].renamed.input_schema["required" if "required" in schema else "type"]
            assert (await group.call_tool("a__x", {"b": 2, "c": 3})).text == "{'c': 3, 'a': 1}"


async def test_hash_of_a_pinned_tool_is_computed_before_transforms_are_applied() -> None:
    async def tool_of(group: Group) -> Tool:
        await group.settled()
        return next(each.item for each in group.catalogue.tools.values() if each.item.name == "search")

    async with open_group(described()) as group:
        pins = {"a": {"search": tool_hash(await tool_of(group))}}
    async with open_group(described(search=MANUALS), pin=pins) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__manuals"]
        assert set(group.catalogue.held) == {"a__find", "a__remove"}
    async with open_group(described(search=MANUALS), pin={}) as group:
        await group.settled()
        assert "a__manuals" in group.catalogue.held
        with pytest.raises(NotInCatalogue, match="'a__manuals' is held back"):
            await group.call_tool("a__manuals")


async def test_tool_name_set_by_a_transform_can_be_reused_after_its_server_is_removed() -> None:
    async with open_group(described(search=MANUALS)) as group:
        await group.settled()
        await group.remove("a")
        group.add("a", MemberDescription(library()))
        await group.settled()
        assert list(group.catalogue.tools) == ["a__search", "a__find", "a__remove"]


# In a configuration file


def config_with(tmp_path: Path, tools: Any) -> Config:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "library", "tools": tools}}}))
    return read_config(path, variables={"FOLDER": "manuals"})


def test_config_file_can_define_tool_transforms(tmp_path: Path) -> None:
    tools = {
        "search": {
            "name": "manuals",
            "title": "Manuals",
            "description": "Search the manuals.",
            "presets": {"folder": "${FOLDER}", "limit": 3},
            "hiddenArguments": ["debug"],
        },
        "*": {"hidden": True},
    }
    config = config_with(tmp_path, tools)
    assert (config.problems, config.ignored) == ({}, {})
    assert config.members["a"].tools == {"search": MANUALS, "*": ToolTransform(hidden=True)}


def test_config_entry_field_tools_in_the_format_of_another_mcp_host_is_ignored(tmp_path: Path) -> None:
    config = config_with(tmp_path, ["*"])
    assert (config.problems, config.ignored) == ({}, {"a": ("tools",)})
    assert config.members["a"].tools == {}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"x": 1}, "tools.x: must be an object"),
        ({"x": {"name": 1}}, "tools.x.name: must be a string"),
        ({"x": {"name": ""}}, "the name of a tool must not be empty"),
        ({"x": {"hidden": "yes"}}, "tools.x.hidden: must be true or false"),
        ({"x": {"presets": []}}, "tools.x.presets: must be an object"),
        ({"x": {"hiddenArguments": "debug"}}, "tools.x.hiddenArguments: must be a list"),
        ({"x": {"hiddenArguments": [1]}}, "tools.x.hiddenArguments.0: must be a string"),
        (
            {"x": {"enabled": False}},
            "tools.x.enabled: unknown key; the known keys are name, title, description, hidden, presets",
        ),
        ({"x": {"name": "z"}, "y": {"name": "z"}}, "'y' and 'x' are both renamed to 'z'"),
    ],
)
def test_invalid_tool_transforms_are_reported_as_a_problem_of_the_config_entry(
    tmp_path: Path, tools: Any, words: str
) -> None:
    config = config_with(tmp_path, tools)
    assert config.members == {}
    assert words in config.problems["a"]
