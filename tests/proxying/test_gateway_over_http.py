"""A gateway over HTTP: headers name what is sent on each side, tokens do not cross, and callers are told apart."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.proxying.test_authorized import issued, telling
from tests.serving.http.protection import protected
from tests.serving.http.raw import served

from trio_mcp import Address, Client, Header, PeerError, RequestContext, Server, gateway, open_http, open_memory
from trio_mcp.auth import AuthorizationError, Bearer
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.types import ALL_QUESTIONS

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@ERAS
async def test_gateway_calls_each_server_with_a_separate_token_and_never_forwards_client_tokens(era: Any) -> None:
    at_the_front, behind = issued("front-ann", "front-bob"), issued("gateway")
    async with served(telling(), auth=protected(behind)) as inner:
        members = {
            "protected": MemberDescription(Address(f"http://127.0.0.1:{inner.port}/mcp", auth=Bearer("gateway"))),
            "open": MemberDescription(Server("open")),
        }
        async with open_group(members, forwards=ALL_QUESTIONS) as group:
            await group.settled()
            async with served(gateway(group), auth=protected(at_the_front)) as outer:
                for token in ("front-ann", "front-bob"):
                    url = f"http://127.0.0.1:{outer.port}/mcp"
                    with trio.fail_after(PATIENCE):
                        async with open_http(url, auth=Bearer(token), era=era) as client:
                            told = (await client.call_tool("protected__caller")).text
                    assert told.startswith("gateway;")
    assert set(behind.verified) == {"gateway"}


async def test_gateway_sends_the_name_and_argument_headers_that_the_server_tool_expects() -> None:
    server, seen = Server("s"), list[dict[str, str]]()

    @server.tool
    async def where(region: Annotated[str, Header("Region")], ctx: RequestContext) -> str:
        seen.append({name.lower(): value for name, value in (ctx.headers or {}).items()})
        return region

    async with served(server) as inner:
        described = MemberDescription(f"http://127.0.0.1:{inner.port}/mcp", options={"era": "modern"})
        async with open_group({"one": described}) as group:
            await group.settled()
            async with served(gateway(group)) as outer:
                with trio.fail_after(PATIENCE):
                    async with open_http(f"http://127.0.0.1:{outer.port}/mcp", era="modern") as client:
                        _ = [tool async for tool in client.list_tools()]
                        assert (await client.call_tool("one__where", {"region": "north"})).text == "north"
    assert (seen[0]["mcp-name"], seen[0]["mcp-param-region"]) == ("where", "north")


@ERAS
@pytest.mark.parametrize("back", ["legacy", "modern"])
async def test_gateway_forwards_log_messages_of_a_call_to_its_caller(era: Any, back: Any) -> None:
    server, logged = Server("s"), list[Any]()

    @server.tool
    async def work(ctx: RequestContext) -> str:
        await ctx.log.info("half of it is done")
        return "done"

    async with served(server) as inner:
        described = MemberDescription(f"http://127.0.0.1:{inner.port}/mcp", options={"era": back})
        async with open_group({"one": described}) as group:
            await group.settled()
            async with open_memory(gateway(group), era=era, on_log=lambda log: logged.append(log.data)) as client:
                await client.set_log_level("info")
                with trio.fail_after(PATIENCE):
                    assert (await client.call_tool("one__work")).text == "done"
                    assert (await client.call_tool("one__work")).text == "done"  # the member is still connected
    assert logged == ["half of it is done"] * 2


@ERAS
@pytest.mark.parametrize("back", ["legacy", "modern"])
async def test_each_concurrent_gateway_caller_gets_its_own_elicitations_or_none(era: Any, back: Any) -> None:
    server, both = Server("s"), list[trio.Event]()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        both.append(trio.Event())
        if len(both) == 2:
            for each in both:
                each.set()
        await both[-1].wait()
        answer = await ctx.elicit("who?", FORM)
        return str((answer.content or {})["name"])

    told = dict[str, str]()

    def user(name: str) -> Any:
        async def answer(_: object) -> dict[str, str]:
            return {"name": name}

        return answer

    async def call(client: Client, name: str) -> None:
        try:
            result = await client.call_tool("one__ask")
            told[name] = "nobody" if result.is_error else result.text
        except PeerError:
            told[name] = "nobody"

    members = {"one": MemberDescription(server, options={"era": back})}
    async with open_group(members, forwards=ALL_QUESTIONS) as group:
        await group.settled()
        tokens = issued("ann", "bob")
        async with served(gateway(group), auth=protected(tokens)) as outer:
            url = f"http://127.0.0.1:{outer.port}/mcp"
            with trio.fail_after(PATIENCE):
                async with (
                    open_http(url, auth=Bearer("ann"), era=era, elicitation=user("ann")) as ann,
                    open_http(url, auth=Bearer("bob"), era=era, elicitation=user("bob")) as bob,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(call, ann, "ann")
                    nursery.start_soon(call, bob, "bob")
    wanted = {"ann": "ann", "bob": "bob"} if back == "modern" else {"ann": "nobody", "bob": "nobody"}
    assert told == wanted


@ERAS
async def test_tool_search_lists_only_tools_allowed_by_the_scopes_of_the_caller(era: Any) -> None:
    server = Server("s")

    @server.tool(scopes=["write"])
    async def write_note() -> str:
        """Write a note."""
        return "written"

    @server.tool
    async def read_note() -> str:
        """Read a note."""
        return "read"

    server.searchable()
    tokens = issued("ann")
    tokens.issue("bob", "bob-subject", scopes="write")
    async with served(server, auth=protected(tokens)) as outer:
        for name, wanted in (("ann", ["read_note"]), ("bob", ["read_note", "write_note"])):
            with trio.fail_after(PATIENCE):
                async with open_http(f"http://127.0.0.1:{outer.port}/mcp", auth=Bearer(name), era=era) as client:
                    found = await client.call_tool("search_tools", {"query": "a note"})
                    assert sorted(line.partition("(")[0] for line in found.text.splitlines()) == wanted
                    called = {"name": "write_note"}
                    if name == "bob":
                        assert (await client.call_tool("call_tool", called)).text == "written"
                    else:
                        with pytest.raises(AuthorizationError, match="403"):
                            await client.call_tool("call_tool", called)
