"""User-defined extensions (SEP-2133): declared by client and server, with requests and notifications in either
direction, legacy and modern, in memory and over HTTP.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    CacheHints,
    CapabilityMissing,
    Client,
    CodedError,
    InputRequired,
    MethodUnavailable,
    PeerError,
    ProtocolViolation,
    RequestContext,
    Server,
    WorkerContext,
    open_memory,
)
from trio_mcp.testing import open_scripted_client
from trio_mcp.types import ConnectedClient, Extension, InputRequest, TextContent

Era = Literal["modern", "legacy"]


@attrs.frozen
class SearchSettings:
    max_hits: int = 10


@attrs.frozen
class SearcherSettings:
    wants_scores: bool = False


@attrs.frozen
class Query:
    search_text: str
    most: int = 3


@attrs.frozen
class Hits:
    found_names: list[str]


@attrs.frozen
class Indexed:
    count: int


@attrs.frozen
class Ask:
    why: str


@attrs.frozen
class Said:
    yes: bool


search = Extension("com.example/search", server=SearchSettings(100), client=SearcherSettings(wants_scores=True))
query = search.method("com.example/search/query", Query, Hits, cacheable=True)
refine = search.method("com.example/search/refine", Query, Hits, may_ask=True, requires_client=False)
confirm = search.method("com.example/search/confirm", Ask, Said, sender="server", until="2025-11-25")
indexed = search.notification("notifications/com.example/search/indexed", Indexed, of_request=True)
added = search.notification("notifications/com.example/search/added", Indexed, sender="client")
hinted = search.notification("notifications/com.example/search/hinted", Indexed, sender="client", requires_client=False)


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
def server() -> Server:
    server = Server("search", extensions=[search])

    @server.handles(query)
    async def answer(params: Query, ctx: RequestContext) -> Hits:
        await ctx.send_notification(indexed, Indexed(7))
        return Hits([params.search_text] * params.most)

    @server.handles(refine)
    def again(params: Query) -> Hits:  # in a thread
        return Hits([params.search_text.upper()])

    return server


async def no_answer(question: Ask) -> Said:
    raise AssertionError(question)


def declaring(server: Server, **options: Any) -> AbstractAsyncContextManager[Client]:
    return open_memory(server, extensions=[search], handlers={confirm: no_answer}, **options)


async def test_extension_request_sends_and_returns_instances_of_the_declared_classes(server: Server, era: Era) -> None:
    async with declaring(server, era=era) as client:
        assert await client.request(query, Query("trio", 2)) == Hits(["trio", "trio"])
        assert await client.request(refine, Query("trio")) == Hits(["TRIO"])


async def test_client_and_server_can_read_each_others_extension_settings(server: Server, era: Era) -> None:
    seen: list[SearcherSettings | None] = []

    @server.tool
    def look(ctx: WorkerContext) -> str:
        seen.append(ctx.client_extension(search))
        return "seen"

    async with declaring(server, era=era) as client:
        assert client.server_extension(search) == SearchSettings(100)
        await client.call_tool("look")
    async with open_memory(server, era=era) as client:
        await client.call_tool("look")
    async with open_memory(Server("plain"), era=era, extensions=[search], handlers={confirm: no_answer}) as client:
        assert client.server_extension(search) is None
    assert seen == [SearcherSettings(wants_scores=True), None]


async def test_extension_settings_and_params_are_sent_with_camel_case_names(server: Server) -> None:
    async with declaring(server) as client:
        assert (client.server_capabilities.extensions or {})["com.example/search"] == {"maxHits": 100}
        with pytest.raises(PeerError) as caught:
            await client.request("com.example/search/query", {"search_text": "trio"}, dict[str, Any])
        assert (caught.value.code, "missing 'searchText'" in caught.value.message) == (-32602, True)


async def test_extension_request_raises_method_unavailable_if_the_server_does_not_declare_the_extension(
    era: Era,
) -> None:
    async with declaring(Server("plain"), era=era) as client:
        with pytest.raises(MethodUnavailable, match=r"has not declared com\.example/search"):
            await client.request(query, Query("trio"))
        with pytest.raises(MethodUnavailable, match=r"has not declared com\.example/search"):
            await client.send_notification(added, Indexed(1))


async def test_extension_method_unknown_to_the_server_gets_method_not_found(era: Era) -> None:
    """The names of the peer's extensions are unknown methods to a server without them."""
    other = Extension("com.example/search")
    row = other.method("com.example/search/query", Query, Hits)
    server = Server("other", extensions=[Extension("com.example/search")])
    async with open_memory(server, era=era, extensions=[other]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(row, Query("trio"))
        assert caught.value.code == -32601


async def test_extension_request_from_client_without_the_extension_is_refused(server: Server, era: Era) -> None:
    undeclared = Extension("com.example/other")
    stolen = undeclared.method("com.example/search/query", Query, Hits)
    free = undeclared.method("com.example/search/refine", Query, Hits)
    async with open_memory(server, era=era, extensions=[undeclared]) as client:
        assert await client.request(free.name, {"searchText": "a"}, dict[str, Any]) != {}
        with pytest.raises(PeerError) as caught:
            await client.request(stolen.name, {"searchText": "trio"}, dict[str, Any])
    required = {"requiredCapabilities": {"extensions": {"com.example/search": {}}}}
    expected = (-32021, required) if era == "modern" else (-32600, None)
    assert (caught.value.code, caught.value.data) == expected


async def test_extension_notification_of_a_request_handler_is_sent_before_the_response(
    server: Server, era: Era
) -> None:
    seen: list[Indexed] = []
    async with declaring(server, era=era, on_notification={indexed: seen.append}) as client:
        await client.request(query, Query("trio"))
        assert seen == [Indexed(7)]


async def test_extension_notification_is_not_sent_to_client_without_the_extension(era: Era) -> None:
    server = Server("search", extensions=[search])
    server.handles(query)(lambda: Hits([]))
    server.handles(refine)(lambda: Hits([]))
    told: list[Any] = []

    @server.tool
    async def tell(ctx: RequestContext) -> str:
        await ctx.send_notification(indexed, Indexed(7))
        return "told"

    others = Extension("com.example/others")
    same = others.notification(indexed.name, Indexed)
    async with open_memory(server, era=era, extensions=[others], on_notification={same: told.append}) as client:
        await client.call_tool("tell")
    assert told == []


async def test_legacy_server_sends_extension_request_to_client(server: Server) -> None:
    @server.tool
    async def delete(ctx: RequestContext) -> str:
        return str(await ctx.send_request(confirm, Ask("delete all?")))

    def allow(question: Ask) -> Said:
        return Said(question.why == "delete all?")

    async with open_memory(server, era="legacy", extensions=[search], handlers={confirm: allow}) as client:
        result = await client.call_tool("delete")
    assert result.content == [TextContent("Said(yes=True)")]


async def test_extension_request_to_client_without_the_extension_raises(server: Server, era: Era) -> None:
    raised: list[BaseException] = []

    @server.tool
    async def delete(ctx: RequestContext) -> str:
        try:
            await ctx.send_request(confirm, Ask("delete all?"))
        except CodedError as error:
            raised.append(error)
        return "no"

    async with open_memory(server, era=era) as client:
        await client.call_tool("delete")
    async with declaring(server, era="modern") as client:
        await client.call_tool("delete")
    first, second = raised
    assert isinstance(first, CapabilityMissing)
    assert first.missing == ("extensions.com.example/search",)
    assert isinstance(second, CodedError), "modern servers send no requests"


async def test_extension_handler_can_return_input_required(server: Server) -> None:
    asking = Extension("com.example/asking")
    deep = asking.method("com.example/asking/deep", Query, Hits, may_ask=True)
    server = Server("asking", extensions=[asking])

    @server.handles(deep)
    async def dig(params: Query, ctx: RequestContext) -> Hits | InputRequired:
        if not ctx.is_resubmit:
            return InputRequired({"roots": InputRequest("roots/list")})
        return Hits([params.search_text, *ctx.input_responses])

    async with open_memory(server, extensions=[asking], roots=[]) as client:
        assert await client.request(deep, Query("trio")) == Hits(["trio", "roots"])


async def test_extension_handler_continues_after_elicitation(era: Era) -> None:
    asking = Extension("com.example/asking")
    deep = asking.method("com.example/asking/deep", Query, Hits, may_ask=True)
    server = Server("asking", extensions=[asking])
    begun: list[str] = []

    @server.handles(deep)
    async def dig(params: Query, ctx: RequestContext) -> Hits:
        begun.append(params.search_text)
        return Hits([str((await ctx.elicit("which?", str)).value) for _ in range(2)])

    async with open_memory(server, era=era, extensions=[asking], elicitation=lambda _: {"value": "this"}) as client:
        assert await client.request(deep, Query("trio")) == Hits(["this", "this"])
    assert begun == ["trio"]


async def test_cancelled_extension_request_stops_the_handler(server: Server, era: Era) -> None:
    slow = Extension("com.example/slow")
    wait = slow.method("com.example/slow/wait", Query, Hits)
    server = Server("slow", extensions=[slow])
    begun, ended = trio.Event(), trio.Event()

    @server.handles(wait)
    async def hang(ctx: RequestContext) -> Hits:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_memory(server, era=era, extensions=[slow]) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.request, wait, Query("trio"))
            await begun.wait()
            nursery.cancel_scope.cancel(reason="enough")
        with trio.fail_after(PATIENCE):
            await ended.wait()


async def test_client_sends_extension_notification_to_server(server: Server, era: Era) -> None:
    told: list[tuple[Indexed, type]] = []
    came = trio.Event()

    @server.handles(added)
    async def note(params: Indexed, client: ConnectedClient) -> None:
        told.append((params, type(client)))
        came.set()

    async with declaring(server, era=era) as client:
        await client.send_notification(added, Indexed(3))
        with trio.fail_after(PATIENCE):
            await came.wait()
    assert told == [(Indexed(3), ConnectedClient)]


@pytest.mark.parametrize("declared", [{}, {"extensions": {search.name: True}}, {"extensions": {search.name: {}}}])
async def test_extension_notification_from_legacy_client_without_the_extension_is_ignored(
    server: Server, declared: dict[str, Any], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.DEBUG, "trio_mcp")
    told = list[Any]()
    server.handles(added)(told.append)
    server.handles(hinted)(told.append)
    async with open_scripted_client(server, "2025-11-25", declared) as client:
        await client.notify(hinted.name, {"count": 2})
        await client.notify(added.name, {"count": 3})
        await wait_all_tasks_blocked()
    is_heard = declared.get("extensions") == {search.name: {}}
    assert told == [Indexed(2), *([Indexed(3)] if is_heard else [])]
    words = f"ignored: {added.name} of an extension that the client has not declared"
    assert (words in caplog.messages) is not is_heard


@pytest.mark.parametrize("params", [{}, {"count": "three"}])
async def test_malformed_extension_notification_is_ignored(server: Server, params: dict[str, Any]) -> None:
    told: list[Indexed] = []
    came = trio.Event()

    @server.handles(added)
    def note(given: Indexed) -> None:
        told.append(given)
        came.set()

    async with declaring(server, era="legacy") as client:
        await client.send_notification(added.name, params)
        await client.send_notification(added, Indexed(3))
        with trio.fail_after(PATIENCE):
            await came.wait()
    assert told == [Indexed(3)]


async def test_extension_results_are_cached_if_the_method_is_cacheable() -> None:
    calls: list[str] = []
    server = Server("search", extensions=[search], cache=CacheHints(60_000, "private"))

    @server.handles(query)
    async def answer(params: Query) -> Hits:
        calls.append(params.search_text)
        return Hits([])

    server.handles(refine)(lambda: Hits([]))
    async with declaring(server) as client:
        for _ in range(2):
            assert await client.request(query, Query("trio")) == Hits([])
        await client.request(query, Query("trio"), refresh=True)
    assert calls == ["trio", "trio"]


async def test_extension_handler_that_returns_the_wrong_class_causes_an_internal_error(era: Era) -> None:
    server = Server("search", extensions=[search])
    server.handles(query)(lambda: ["no hits"])
    server.handles(refine)(lambda: Hits([]))
    async with declaring(server, era=era) as client:
        with pytest.raises(PeerError, match="Internal error"):
            await client.request(query, Query("trio"))


async def test_malformed_extension_result_raises_protocol_violation(era: Era) -> None:
    theirs = Extension("com.example/search")
    row = theirs.method("com.example/search/query", Query, dict[str, Any])
    server = Server("search", extensions=[theirs])
    server.handles(row)(lambda: {"foundNames": 3})
    async with declaring(server, era=era) as client:
        with pytest.raises(ProtocolViolation, match=r"expected a list of str @ \$\.foundNames"):
            await client.request(query, Query("trio"))


async def test_client_treats_extension_with_invalid_settings_as_undeclared_by_the_server(
    era: Era, caplog: pytest.LogCaptureFixture
) -> None:
    theirs: Extension[Any, Any] = Extension("com.example/search", server={"maxHits": "many"})
    async with declaring(Server("odd", extensions=[theirs]), era=era) as client:
        assert [client.server_extension(search) for _ in range(2)] == [None, None]


# What an author may declare


@pytest.mark.parametrize(
    "name",
    ["search", "/search", "com.example/", "com..example/search", "1com.example/search", "com.example/sea rch", "a/b/c"],
)
def test_extension_name_without_prefix_or_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of an extension"):
        Extension(name)


@pytest.mark.parametrize("name", ["io.modelcontextprotocol/mine", "dev.mcp/mine", "COM.MCP.tools/mine"])
def test_extension_with_a_name_prefix_reserved_by_the_specification_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        Extension(name)


def core(extension: Extension[Any, Any]) -> None:
    extension.method("tools/call", Query, Hits)


def twice(extension: Extension[Any, Any]) -> None:
    extension.method("com.example/a/b", Query, Hits)
    extension.notification("com.example/a/b", Query)


@pytest.mark.parametrize(
    ("declare", "words"), [(core, "is a method of MCP itself"), (twice, "declares the method com.example/a/b twice")]
)
def test_extension_that_declares_a_method_twice_is_rejected(declare: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        declare(Extension("com.example/a"))


def test_server_with_two_extensions_of_the_same_name_or_with_the_same_method_is_rejected() -> None:
    with pytest.raises(ValueError, match="twice"):
        Server("s", extensions=[search, search])
    other = Extension("com.example/other")
    other.method(query.name, Query, Hits)
    with pytest.raises(ValueError, match="two extensions declare the method"):
        Server("s", extensions=[search, other])


def test_server_handler_for_a_handled_or_client_side_or_undeclared_extension_method_raises(
    server: Server,
) -> None:
    with pytest.raises(ValueError, match="already has a handler"):
        server.handles(query)
    with pytest.raises(ValueError, match="because servers send it"):
        server.handles(confirm)
    with pytest.raises(ValueError, match="belongs to an extension that"):
        Server("plain").handles(query)


def test_extension_handler_with_wrong_parameters_is_rejected() -> None:
    server = Server("s", extensions=[search])
    with pytest.raises(TypeError, match="must be a Query, not"):

        @server.handles(query)
        async def answer(params: Hits) -> Hits:
            return params

    with pytest.raises(TypeError, match="takes one Query and"):

        @server.handles(query)
        async def spread(search_text: str, most: int) -> Hits:
            return Hits([])


async def test_opening_a_server_or_client_raises_if_a_declared_extension_method_has_no_handler() -> None:
    server = Server("s", extensions=[search])
    with pytest.raises(RuntimeError, match=r"no handler for .*search/query, com\.example/search/refine: add"):
        async with open_memory(server):
            raise AssertionError
    with pytest.raises(ValueError, match=r"a function for .*confirm, which an extension in"):
        async with open_memory(Server("s"), extensions=[search]):
            raise AssertionError
