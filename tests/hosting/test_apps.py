"""Tools with views in a group: what the model sees, what views may call, and where the views are (SEP-1865)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from trio_mcp import UI, AppPolicy, Apps, Server, WorkerContext
from trio_mcp.hosting import Group, MemberDescription, NotInCatalogue, open_group
from trio_mcp.hosting.catalogue import catalogue_uri, parse_uri

VIEW = "ui://w/dash"


def dashboard() -> Server:
    apps = Apps()
    server = Server("w", extensions=[apps])

    @server.tool(ui=UI(VIEW))
    def show(ctx: WorkerContext) -> str:
        return "shown" if ctx.client_extension(apps) else "told"

    @server.tool(ui=UI(VIEW, visible_to=("app",)))
    def refresh() -> str:
        return "fresh"

    @server.tool(ui=UI(visible_to=("model",)))
    def think() -> str:
        return "thought"

    @server.tool
    def plain() -> str:
        return "plain"

    server.resource(VIEW, app=AppPolicy(prefers_border=True))(lambda: "<!doctype html>")
    return server


def members() -> dict[str, MemberDescription]:
    return {"a": MemberDescription(dashboard()), "b": MemberDescription(dashboard())}


def seen(group: Group, caller: str) -> list[str]:
    return [name for name, entry in group.catalogue.tools.items() if getattr(entry, f"for_{caller}")]


async def test_group_lists_tools_for_the_model_separately_from_tools_for_app_views(
    autojump_clock: MockClock,
) -> None:
    async with open_group({"a": MemberDescription(dashboard())}) as group:
        await group.settled()
        assert seen(group, "model") == ["a__show", "a__think", "a__plain"]
        assert seen(group, "app") == ["a__show", "a__refresh", "a__plain"]
        (view,) = group.catalogue.resources.values()
        assert view.for_model
        assert view.for_app
        assert view.view is None


async def test_app_view_calls_tools_of_its_own_server_by_their_original_names(autojump_clock: MockClock) -> None:
    async with open_group(members(), extensions=[Apps()]) as group:
        assert (await group.call_from_app("b", "refresh")).text == "fresh"
        assert (await group.call_from_app("a", "show")).text == "shown"
        with pytest.raises(NotInCatalogue, match="an MCP app must not call the tool 'think' of 'a'"):
            await group.call_from_app("a", "think")
        for name in ("b__refresh", "a__refresh", "unknown"):
            with pytest.raises(NotInCatalogue, match="no server of this group offers"):
                await group.call_from_app("a", name)


async def test_group_declares_the_apps_extension_to_its_servers(autojump_clock: MockClock) -> None:
    async with open_group(members()) as group:
        assert (await group.call_tool("a__show")).text == "told"


async def test_app_view_of_a_tool_can_be_read_by_the_uri_that_the_group_lists(autojump_clock: MockClock) -> None:
    async with open_group(members()) as group:
        await group.settled()
        entry = group.catalogue.tools["b__show"]
        assert entry.view == "ui://b/w/dash"
        assert entry.renamed.meta == {"ui": {"resourceUri": "ui://b/w/dash"}}
        assert entry.item.meta == {"ui": {"resourceUri": VIEW}}
        (contents,) = (await group.read_resource(entry.view)).contents
        assert AppPolicy.of(contents).prefers_border
        assert list(group.catalogue.resources) == ["ui://a/w/dash", "ui://b/w/dash"]
        assert group.catalogue.tools["a__plain"].view is None


@pytest.mark.parametrize("member", ["a", "a/b", "ü", "a__b", "member://"])
@pytest.mark.parametrize("uri", [VIEW, "ui://", "ui://x/member://y", "ui:/w", "member://a/ui://b", "note://a"])
def test_uri_that_a_group_lists_can_be_parsed_into_server_name_and_original_uri(member: str, uri: str) -> None:
    assert parse_uri(catalogue_uri(member, uri)) == (member, uri)
