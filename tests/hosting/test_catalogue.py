"""What the members offer, as it is now."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio
from tests.hosting.members import QUICK, Scripted, describe, hangs, refuses, serves
from tests.interaction.client.raw import RawPeer
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import ConnectionLost, Server, open_memory
from trio_mcp.hosting import Catalogue, MemberDescription, open_group
from trio_mcp.hosting.member import MemberListing
from trio_mcp.types import Tool


def offering(*tools: str) -> Server:
    server = Server("s")
    for name in tools:
        offer(server, name)
    return server


def offer(server: Server, name: str) -> None:
    @server.tool(name=name, description=f"does {name}")
    async def do() -> str:
        return f"did {name}"


async def test_tool_list_of_a_group_has_the_order_of_its_servers_and_of_their_tools(autojump_clock: MockClock) -> None:
    members = {"b": MemberDescription(offering("y", "x")), "a": MemberDescription(offering("z"))}
    async with open_group(members) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["b__y", "b__x", "a__z"]
        entry = group.catalogue.tools["b__x"]
        assert (entry.name, entry.member, entry.item.name) == ("b__x", "b", "x")
        assert entry.item.description == "does x"


async def test_tool_or_resource_template_listed_by_a_group_can_be_renamed_to_its_prefixed_name(
    autojump_clock: MockClock,
) -> None:
    server = offering("x")

    @server.resource("note://{title}", name="note")
    async def note(title: str) -> str:
        return title

    async with open_group({"a": MemberDescription(server)}) as group:
        await group.settled()
        (tool,) = group.catalogue.tools.values()
        assert tool.renamed == Tool("a__x", tool.item.input_schema, description="does x")
        (template,) = group.catalogue.resource_templates.values()
        assert (template.renamed.uri_template, template.renamed.name) == ("member://a/note://{title}", "note")


async def test_server_and_tool_names_that_contain_the_separator_do_not_collide_in_a_group(
    autojump_clock: MockClock,
) -> None:
    members = {"a": MemberDescription(offering("b__c")), "a__b": MemberDescription(offering("c"))}
    async with open_group(members) as group:
        await group.settled()
        assert len(group.catalogue.tools) == 2
        for entry in group.catalogue.tools.values():
            assert (await group.call_tool(entry.name)).text == f"did {entry.item.name}"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_tool_list_of_a_group_is_updated_after_list_changes_of_a_server(
    era: Literal["legacy", "modern"], autojump_clock: MockClock
) -> None:
    server = offering("x")
    async with open_group({"a": MemberDescription(server, options={"era": era})}) as group:
        await group.settled()
        changes = group.catalogue.watch()
        assert await changes.__anext__() == "tools"
        offer(server, "y")
        assert await changes.__anext__() == "tools"
        assert list(group.catalogue.tools) == ["a__x", "a__y"]
        assert (await group.call_tool("a__y")).text == "did y"


async def test_group_lists_tools_of_a_server_again_if_they_change_while_it_lists_them(
    autojump_clock: MockClock,
) -> None:
    def listed(*names: str) -> dict[str, Any]:
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}

    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        first = await peer.until("tools/list")
        await peer.notify("notifications/tools/list_changed")
        await peer.result(first, listed("old"))
        await peer.result(await peer.until("tools/list"), listed("new"))

    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__old"]
        await trio.sleep(1)
        assert list(group.catalogue.tools) == ["a__new"]


async def test_group_lists_tools_only_once_more_after_a_burst_of_list_changes(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        request = await peer.until("tools/list")
        for _ in range(100):
            await peer.notify("notifications/tools/list_changed")
        await peer.result(request, {"tools": []})
        await peer.result(await peer.until("tools/list"), {"tools": []})

    target = Scripted(script)
    async with open_group({"a": MemberDescription(target)}) as group:
        await group.settled()
        await trio.sleep(10)
    assert sum(message.get("method") == "tools/list" for message in target.peers[0].wire) == 2


async def test_group_lists_tools_at_most_ten_times_a_second_during_continuous_list_changes(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        while True:
            await peer.result(await peer.until("tools/list"), {"tools": []})
            await peer.notify("notifications/tools/list_changed")

    target = Scripted(script)
    async with open_group({"a": MemberDescription(target)}) as group:
        await group.settled()
        await trio.sleep(9.95)
    assert sum(message.get("method") == "tools/list" for message in target.peers[0].wire) == 100


async def test_group_spends_at_most_half_of_the_time_listing_tools_of_a_slow_server(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        while True:
            listing = await peer.until("tools/list")
            await trio.sleep(3)
            await peer.result(listing, {"tools": []})
            await peer.notify("notifications/tools/list_changed")

    target = Scripted(script)
    async with open_group({"a": MemberDescription(target)}) as group:
        await trio.sleep(59)
        assert group.statuses["a"].error is None
    assert sum(message.get("method") == "tools/list" for message in target.peers[0].wire) == 10


@pytest.mark.parametrize("answer", ["tools", "refusal", "silence"])
async def test_group_lists_tools_once_from_a_server_that_declares_no_tools_capability(
    autojump_clock: MockClock, answer: str
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        listing = await peer.until("tools/list")
        if answer == "tools":
            await peer.result(listing, {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]})
        elif answer == "refusal":
            await peer.error(listing, -32601, "Method not found")
        await peer.to_the_end()

    target = Scripted(script)
    async with open_group({"a": MemberDescription(target)}) as group:
        with trio.fail_after(11):
            await group.settled()
        assert list(group.catalogue.tools) == (["a__x"] if answer == "tools" else [])
        assert ("tools" in group.statuses["a"].problems) is (answer == "silence")
    methods = [message["method"] for message in target.peers[0].wire]
    assert [name for name in methods if name.endswith("/list")] == ["tools/list"]


async def test_group_immediately_drops_the_listed_tools_of_a_removed_server(autojump_clock: MockClock) -> None:
    async with open_group({name: MemberDescription(offering("x")) for name in "ab"}) as group, trio.open_nursery() as n:
        await group.settled()
        before = group.catalogue.tools
        n.start_soon(group.remove, "a")
        await wait_all_tasks_blocked()
        assert list(group.catalogue.tools) == ["b__x"]
        assert list(before) == ["a__x", "b__x"]


async def test_group_drops_the_listed_tools_of_a_failed_server_but_not_of_a_restarting_server(
    autojump_clock: MockClock,
) -> None:
    members = {"failed": describe(serves("die")), "restarting": describe(serves("die"), hangs, restart=QUICK)}
    async with open_group(members) as group:
        await group.settled()
        for name in members:
            with pytest.raises(ConnectionLost):
                await group.call_tool(f"{name}__die")
        await wait_all_tasks_blocked()
        assert list(group.catalogue.tools) == ["restarting__die"]


async def test_tool_list_of_a_group_is_updated_after_a_server_restarts(autojump_clock: MockClock) -> None:
    async with open_group({"a": describe(serves("die", "old"), serves("new"), restart=QUICK)}) as group:
        await group.settled()
        with pytest.raises(ConnectionLost):
            await group.call_tool("a__die")
        assert (await group.call_tool("a__new")).text == "new"
        assert list(group.catalogue.tools) == ["a__new"]


async def test_tool_that_a_server_lists_twice_occurs_once_in_the_tool_list_of_its_group(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group({"a": describe(serves("x", "x"))}) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["a__x"]
    assert "offers x twice" in caplog.text
    caplog.clear()


async def _refuses_lists(peer: RawPeer) -> None:
    await peer.handshake(tools={})
    await peer.error(await peer.until("tools/list"), -32603)


async def _gives_nonsense(peer: RawPeer) -> None:
    await peer.handshake(tools={})
    await peer.result(await peer.until("tools/list"), {"tools": 1})


async def _gives_empty_pages_for_ever(peer: RawPeer) -> None:
    await peer.handshake(tools={})
    for number in range(10**9):
        request = await peer.until("tools/list")
        await trio.sleep(1)
        await peer.result(request, {"tools": [], "nextCursor": str(number)})


@pytest.mark.parametrize("script", [_refuses_lists, _gives_nonsense, _gives_empty_pages_for_ever])
async def test_group_reports_an_unreadable_list_of_one_server_and_lists_the_tools_of_other_servers(
    script: Any, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group({"bad": describe(script), "good": MemberDescription(offering("x"))}) as group:
        await group.settled()
        assert list(group.catalogue.tools) == ["good__x"]
        assert (await group.client("bad")).lost is None
    assert "the tools of member bad are incomplete" in caplog.text
    caplog.clear()


async def test_group_truncates_an_endless_tool_list_at_ten_thousand_tools(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={})
        for page in range(10**9):
            tools = [{"name": f"{page}-{number}", "inputSchema": {"type": "object"}} for number in range(1000)]
            await peer.result(await peer.until("tools/list"), {"tools": tools, "nextCursor": str(page)})

    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        assert len(group.catalogue.tools) == 10_000
    assert "only the first 10000 are listed" in caplog.text
    caplog.clear()


async def test_group_truncates_a_tool_list_at_a_size_limit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={})
        for page in range(10**9):
            tool = {"name": f"t{page}", "inputSchema": {"type": "object"}, "description": "x" * 5_000_000}
            await peer.result(await peer.until("tools/list"), {"tools": [tool], "nextCursor": str(page)})

    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        assert len(group.catalogue.tools) == 3
    assert "only the first 3 are listed" in caplog.text
    caplog.clear()


async def test_group_discards_a_tool_list_of_a_server_that_was_removed_meanwhile(autojump_clock: MockClock) -> None:
    async with open_memory(offering("x")) as client:
        catalogue = Catalogue()
        catalogue._add("a")
        listing = MemberListing("a", catalogue)
        listing.start(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listing.run, client, trio.lowlevel.ParkingLot(), lambda _: None)
            listing.stop()
            catalogue._remove("a")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert listing.read
        assert dict(catalogue.tools) == {}


async def test_settled_method_of_a_group_does_not_wait_for_failed_and_restarting_servers(
    autojump_clock: MockClock,
) -> None:
    members = {"failed": describe(refuses), "again": describe(refuses, hangs, restart=QUICK)}
    async with open_group(members) as group:
        with trio.fail_after(0.5):
            await group.settled()


@pytest.mark.parametrize("resources", [True, False])
async def test_group_logs_no_warning_if_a_server_lacks_the_resource_templates_method(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, resources: bool
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(resources={})
        listing = await peer.until("resources/list")
        if resources:
            await peer.result(listing, {"resources": [{"uri": "x:1", "name": "one"}]})
        else:
            await peer.error(listing, -32601, "Method not found")
        await peer.error(await peer.until("resources/templates/list"), -32601, "Method not found")
        await peer.error(await peer.until("tools/list"), -32601, "Method not found")

    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        assert len(group.catalogue.resources) == resources
        assert list(group.catalogue.resource_templates) == []
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["resources of member a" in warning for warning in warnings] == ([] if resources else [True])
    caplog.clear()


def _lists(page: Any, *, error: int | None = None, silent: bool = False) -> Any:
    """A server whose prompts are good, and whose tools are these, again and again."""

    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={}, prompts={})
        while True:
            message = await peer.read()
            match message.get("method"):
                case "prompts/list":
                    await peer.result(message, {"prompts": [{"name": "good"}]})
                case "tools/list" if error is not None and (page is None or "cursor" in (message.get("params") or {})):
                    await peer.error(message, error, "bo\x1bom" * 1000)
                case "tools/list" if not silent:
                    await peer.result(message, page)

    return script


_AB = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in "ab"]}


@pytest.mark.parametrize(
    ("script", "tools", "problem"),
    [
        (_lists(_AB), 2, None),
        (_lists({**_AB, "nextCursor": "x"}), 2, "repeats a cursor"),
        (_lists({**_AB, "nextCursor": ""}), 2, "repeats a cursor"),
        (_lists({**_AB, "nextCursor": 5}), 2, "$.nextCursor"),
        (_lists({**_AB, "nextCursor": False}), 2, "$.nextCursor"),
        (_lists({"tools": [*_AB["tools"], None]}), 2, "$.tools[2]"),
        (_lists({"tools": [*_AB["tools"], *[None] * 1000], "nextCursor": "x"}), 2, "repeats a cursor"),
        (_lists({**_AB, "nextCursor": "x"}, error=-32603), 2, "bo\N{REPLACEMENT CHARACTER}om"),
        (_lists(None, error=-32603), 0, "bo\N{REPLACEMENT CHARACTER}om"),
        (_lists(None, error=-32601), 0, "the peer answered"),
        (_lists({"tools": "many"}), 0, "expected a list of Tool"),
        (_lists(None, silent=True), 0, "did not answer within 60 s"),
    ],
)
async def test_group_status_of_a_server_describes_what_is_wrong_with_an_invalid_list(
    script: Any, tools: int, problem: str | None, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group({"a": describe(script)}) as group:
        await group.settled()
        status = group.statuses["a"]
        assert (status.state, status.error, hash(status) == hash(group.statuses["a"])) == ("ready", None, True)
        assert (len(group.catalogue.tools), len(group.catalogue.prompts)) == (tools, 1)
        if problem is None:
            assert status.problems == {}
        else:
            assert list(status.problems) == ["tools"]
            assert problem in status.problems["tools"]
            assert len(status.problems["tools"]) <= 300
            assert status.problems["tools"].isprintable()
            assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    caplog.clear()


async def test_group_status_of_a_server_reports_a_list_request_that_is_still_unanswered(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake(tools={}, prompts={})
        tools = await peer.until("tools/list")
        await peer.result(await peer.until("prompts/list"), {"prompts": [{"name": "good"}]})
        await trio.sleep(10)
        await peer.result(tools, _AB)
        await peer.to_the_end()

    async with open_group({"a": describe(script)}) as group:
        await trio.sleep(5)
        assert "has not answered" in group.statuses["a"].problems["tools"]
        assert list(group.catalogue.prompts) == ["a__good"]
        await group.settled()
        assert group.statuses["a"].problems == {}
        assert len(group.catalogue.tools) == 2
