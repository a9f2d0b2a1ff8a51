"""Extensions that a proxy does not know pass as they are, or are declared to neither side."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from tests.proxying.test_authorized import issued
from tests.proxying.test_messages import LEGACY, MODERN, between
from tests.serving.http.protection import protected
from tests.serving.http.raw import served
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import PeerError, RequestContext, Server, gateway, open_http, open_memory, proxy
from trio_mcp.auth import Bearer
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.testing import ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.testing.scripted_sides import Script
from trio_mcp.types import ALL_QUESTIONS, ClientCapabilities, Extension

CLIENT = "io.modelcontextprotocol/clientCapabilities"
SEARCH = "com.example/search"
QUERY, ADDED, INDEXED = f"{SEARCH}/query", f"notifications/{SEARCH}/added", f"notifications/{SEARCH}/indexed"
OURS: dict[str, Any] = {"extensions": {SEARCH: {"scores": [1, None]}, "com.example/other": {"x": 1}}}
THEIRS: dict[str, Any] = {"tools": {}, "extensions": {SEARCH: {"maxHits": 100, "new": {"a": []}}}}
ERAS = pytest.mark.parametrize("revision", [LEGACY, "2024-11-05", MODERN])
MIXED = pytest.mark.parametrize(("front", "back"), [(LEGACY, MODERN), (MODERN, LEGACY)])


def declared_in(opening: dict[str, Any]) -> Any:
    params = opening["params"]
    return params["capabilities"] if opening["method"] == "initialize" else params["_meta"][CLIENT]


def sharing(script: Script, era: Any, **options: Any) -> Any:
    """Opens a client for several proxies, whose server does what ``script`` says."""
    return open_scripted_server(script, era=era, forwards=ClientCapabilities(**options))


async def offered(client: Any, revision: str, capabilities: dict[str, Any] = OURS) -> Any:
    """What the proxy offers to a client that opens now."""
    opened = await client.open(revision, capabilities)
    if opened is None:
        opened = await client.expect_result(await client.request("server/discover"))
    return opened["capabilities"].get("extensions")


@ERAS
async def test_proxy_forwards_extension_requests_and_results_unchanged(
    autojump_clock: MockClock, revision: str
) -> None:
    result = {"hits": [{"name": "a", "n": 1.0}], "resultType": "com.example/partial", "_meta": {"com.example/b": 2}}

    async def behind(server: ScriptedServer) -> None:
        opening = await server.accept(revision, THEIRS)
        if revision != MODERN:
            assert declared_in(opening) == OURS
        request = await server.expect_request(QUERY)
        given = request["params"].pop("_meta")
        assert request["params"] == {"text": "trio", "new": [None]}
        assert given["com.example/k"] == "v"
        if revision == MODERN:
            assert given[CLIENT] == OURS
        await server.answer(request, result)

    async with between(behind, revision, OURS) as client:
        query = await client.request(QUERY, {"text": "trio", "new": [None]}, meta={"com.example/k": "v"})
        got = await client.expect_result(query)
        assert {**got, "_meta": result["_meta"]} == result
        assert got["_meta"].items() >= result["_meta"].items()


@ERAS
async def test_proxy_forwards_extension_settings_of_the_server_unchanged(
    autojump_clock: MockClock, revision: str
) -> None:
    async def behind(server: ScriptedServer) -> None:
        for _ in ("the proxy", "the client") if revision == MODERN else ("the proxy",):
            await server.accept(revision, THEIRS)

    async with open_scripted_client(proxy(partial(open_scripted_server, behind)), None) as client:
        assert await offered(client, revision) == THEIRS["extensions"]


@ERAS
async def test_proxy_forwards_errors_of_extension_methods_unchanged(autojump_clock: MockClock, revision: str) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, THEIRS)
        await server.refuse(await server.expect_request(QUERY), -7, "declare it", {"requiredCapabilities": {}})

    async with between(behind, revision, OURS) as client:
        error = await client.expect_error(await client.request(QUERY), -7, "declare it")
        assert error["data"] == {"requiredCapabilities": {}}


@ERAS
async def test_proxy_forwards_each_extension_notification_in_both_directions(
    autojump_clock: MockClock, revision: str
) -> None:
    told = {"count": 3, "_meta": {"com.example/k": 1}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, THEIRS)
        request = await server.expect_request(QUERY)
        for _ in range(2):
            await server.notify(INDEXED, told)
        await server.answer(request, {})
        for _ in range(3):
            await server.expect({"method": ADDED, "params": told})
        await server.answer(await server.expect_request(QUERY), {})

    async with between(behind, revision, OURS) as client:
        query = await client.request(QUERY)
        for _ in range(2):
            await client.expect({"method": INDEXED, "params": told})
        await client.expect_result(query)
        for _ in range(3):
            await client.notify(ADDED, told)
        await wait_all_tasks_blocked()
        await client.expect_result(await client.request(QUERY))


async def test_proxy_forwards_extension_notifications_outside_of_a_request_in_legacy_revisions(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        await wait_all_tasks_blocked()
        await server.notify(INDEXED)

    async with between(behind, LEGACY, OURS) as client:
        await client.expect({"method": INDEXED})


async def test_proxy_drops_extension_notifications_outside_of_a_request_in_modern_revisions(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        await server.answer(await server.expect_request(QUERY), {})
        await wait_all_tasks_blocked()
        await server.notify(INDEXED)

    async with between(behind, MODERN, OURS) as client:
        await client.expect_result(await client.request(QUERY))
        await client.expect_silence(1)


@ERAS
async def test_proxy_forwards_cancellation_and_progress_of_extension_requests(
    autojump_clock: MockClock, revision: str
) -> None:
    cancelled = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, THEIRS)
        request = await server.expect_request(QUERY)
        assert request["params"]["_meta"]["progressToken"] != "mine"
        await server.progress(request, 1, total=3)
        await server.expect_cancel(request, "enough")
        cancelled.set()

    async with between(behind, revision, OURS) as client:
        query = await client.request(QUERY, meta={"progressToken": "mine"})
        params = {"progressToken": "mine", "progress": 1, "total": 3}
        await client.expect({"method": "notifications/progress", "params": params})
        await client.cancel(query, "enough")
        await cancelled.wait()
        await client.expect_silence(1)


@ERAS
async def test_proxy_forwards_the_deadline_of_extension_requests(autojump_clock: MockClock, revision: str) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, THEIRS)
        request = await server.expect_request(QUERY)
        assert 0 < request["params"]["_meta"]["trio-mcp/remainingMs"] <= 5_500
        await server.expect_cancel(request)

    async with between(behind, revision, OURS) as client:
        await client.request(QUERY, meta={"trio-mcp/remainingMs": 5_000})
        await trio.sleep(20)


async def test_proxy_forwards_server_to_client_requests_of_extensions_in_legacy_revisions(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        request = await server.expect_request(QUERY)
        await server.request("q", f"{SEARCH}/confirm", {"why": "?", "_meta": {"com.example/k": 1}})
        await server.expect({"id": "q", "result": {"yes": True, "_meta": {"x": 1}}})
        await server.request("r", f"{SEARCH}/confirm")
        await server.expect({"id": "r", "error": {"code": -7, "message": "no"}})
        await server.answer(request, {})

    async with between(behind, LEGACY, OURS) as client:
        query = await client.request(QUERY)
        asked = await client.expect({"id": ..., "method": f"{SEARCH}/confirm", "params": ...})
        assert asked["params"] == {"why": "?", "_meta": {"com.example/k": 1}}
        await client.answer(asked, {"yes": True, "_meta": {"x": 1}})
        await client.refuse(await client.expect({"id": ..., "method": f"{SEARCH}/confirm"}), -7, "no")
        await client.expect_result(query)


async def test_proxy_forwards_input_requests_for_extension_methods_and_the_retry_with_the_answers(
    autojump_clock: MockClock,
) -> None:
    questions = {"where": {"method": "roots/list"}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        first = await server.expect_request(QUERY)
        asking = {"resultType": "input_required", "inputRequests": questions, "requestState": "s"}
        await server.answer(first, asking)
        again = await server.expect_request(QUERY)
        params = again["params"]
        assert (params["text"], params["requestState"], params["inputResponses"]) == (
            "trio",
            "s",
            {"where": {"roots": []}},
        )
        await server.answer(again, {"hits": 1})

    async with between(behind, MODERN, {**OURS, "roots": {}}) as client:
        got = await client.expect_result(await client.request(QUERY, {"text": "trio"}))
        assert got["inputRequests"] == questions
        more = {"inputResponses": {"where": {"roots": []}}, "requestState": got["requestState"]}
        done = await client.expect_result(await client.request(QUERY, {"text": "trio", **more}))
        assert done["hits"] == 1


@MIXED
async def test_proxy_between_peers_of_a_legacy_and_a_modern_revision_hides_extensions_from_both(
    autojump_clock: MockClock, front: str, back: str
) -> None:
    asked: list[Any] = []

    async def behind(server: ScriptedServer) -> None:
        opening = await server.accept(back, THEIRS)
        call = await server.expect_call("t")
        asked.append(declared_in(call if back == MODERN else opening))
        await server.notify(INDEXED)
        await server.answer_text(call, "done")

    def opening(**options: Any) -> Any:
        options.pop("revision", None)
        return open_scripted_server(behind, **{**options, "era": "modern" if back == MODERN else "legacy"})

    async with open_scripted_client(proxy(opening), None) as client:
        if front == LEGACY:
            assert await offered(client, front, {**OURS, "roots": {}}) is None
        else:
            await client.open(front, {**OURS, "roots": {}})
        await client.notify(ADDED)
        await client.expect_text(await client.call_tool("t"), "done")
        await client.expect_error(await client.request(QUERY), -32601)
        if front == MODERN:
            assert await offered(client, front) is None
    assert asked == [{"roots": {}}]


@ERAS
@pytest.mark.parametrize("passes", [(), ("com.example/other",)])
async def test_shared_proxy_hides_extensions_that_its_options_do_not_list(
    autojump_clock: MockClock, revision: str, passes: tuple[str, ...]
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, THEIRS)
        call = await server.expect_call("t")
        if revision == MODERN:
            others = {key: value for key, value in OURS["extensions"].items() if key in passes}
            assert declared_in(call) == ({"extensions": others} if others else {})
        await server.notify(INDEXED)
        await server.answer_text(call, "done")
        if revision == MODERN:
            await server.accept(revision, THEIRS)

    era = "modern" if revision == MODERN else "legacy"
    async with sharing(behind, era) as shared, open_scripted_client(proxy(shared, passes=passes), None) as client:
        if revision != MODERN:
            assert await offered(client, revision) is None
        else:
            await client.open(revision, OURS)
        await client.notify(ADDED)
        await client.expect_text(await client.call_tool("t"), "done")
        await client.expect_error(await client.request(QUERY), -32601)
        if revision == MODERN:
            assert await offered(client, revision) is None


known: Extension[Any, Any] = Extension(SEARCH)
for each in (QUERY, "search/again"):
    known.method(each, dict[str, Any], dict[str, Any])
known.notification(INDEXED, dict[str, Any])


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize(("passes", "method"), [(SEARCH, QUERY), (known, "search/again")])
async def test_shared_proxy_forwards_extensions_that_its_options_list(
    autojump_clock: MockClock, revision: str, passes: Any, method: str
) -> None:
    both = {**THEIRS, "extensions": {**THEIRS["extensions"], "com.example/other": {}}}
    mine = {SEARCH: OURS["extensions"][SEARCH]}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(revision, both)
        request = await server.expect_request(method)
        if revision == MODERN:
            assert declared_in(request) == {"extensions": mine}
        await server.notify("notifications/com.example/other/told")
        await server.notify(INDEXED)
        await server.answer(request, {"hits": 1})

    era = "modern" if revision == MODERN else "legacy"
    async with (
        sharing(behind, era, extensions=mine) as shared,
        open_scripted_client(proxy(shared, passes=[passes]), revision, OURS) as client,
        open_scripted_client(proxy(shared, passes=[passes]), revision) as undeclared,
    ):
        await client.expect_error(await client.request("com.example/other/do"), -32601)
        query = await client.request(method)
        await client.expect({"method": INDEXED})
        assert (await client.expect_result(query))["hits"] == 1
        await undeclared.expect_silence(1)


async def test_shared_proxy_forwards_no_extensions_if_its_own_client_answers_server_requests(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)

    async with (
        open_scripted_server(behind, era="legacy") as shared,
        open_scripted_client(proxy(shared, passes=[SEARCH]), None) as client,
    ):
        assert await offered(client, LEGACY) is None
        await client.expect_error(await client.request(QUERY), -32601)


@pytest.mark.parametrize("passes", ["search", "com.example/search/query"])
def test_invalid_name_of_an_extension_to_forward_raises_value_error(passes: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of an extension"):
        proxy(["server"], passes=[passes])


@pytest.mark.parametrize(("length", "code"), [(256, -7), (257, -32601)])
async def test_proxy_does_not_forward_a_method_name_longer_than_256_characters(
    autojump_clock: MockClock, length: int, code: int
) -> None:
    method = "m" * length

    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        request = await server.receive()
        await server.refuse(request, -7 if request["method"] == method else -8)

    async with between(behind, LEGACY, OURS) as client:
        await client.expect_error(await client.request(method), code)


async def test_proxy_forwards_a_thousand_extensions(autojump_clock: MockClock) -> None:
    many = {"extensions": {f"com.example/e{number}": {"n": number} for number in range(1000)}}

    async def behind(server: ScriptedServer) -> None:
        assert declared_in(await server.accept(LEGACY, many)) == many
        await server.answer(await server.expect_request(QUERY), {})

    async with open_scripted_client(proxy(partial(open_scripted_server, behind)), None) as client:
        assert await offered(client, LEGACY, many) == many["extensions"]
        await client.expect_result(await client.request(QUERY))


# Over HTTP, and with servers and clients of ours


@attrs.frozen
class Query:
    text: str


@attrs.frozen
class Hits:
    names: list[str]


search = Extension(SEARCH)
query = search.method(QUERY, Query, Hits)
confirm = search.method(f"{SEARCH}/confirm", Query, Hits, sender="server", until=LEGACY)
indexed = search.notification(INDEXED, Query, of_request=True)


async def allow(question: Query) -> Hits:
    return Hits([question.text])


DECLARED: dict[str, Any] = {"extensions": [search], "handlers": {confirm: allow}}


@pytest.fixture
def server() -> Server:
    server = Server("search", extensions=[search])

    @server.handles(query)
    async def answer(params: Query, ctx: RequestContext) -> Hits:
        await ctx.send_notification(indexed, params)
        return Hits([params.text])

    return server


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(("caller", "passes"), [("ann", ()), (None, ()), (None, (SEARCH,))])
async def test_anonymous_http_clients_of_modern_revisions_can_use_only_extensions_listed_in_the_proxy_options(
    server: Server, era: Any, caller: str | None, passes: tuple[str, ...]
) -> None:
    told: list[Query] = []
    auth = None if caller is None else protected(issued(caller))
    mine = {} if caller is None else {"auth": Bearer(caller)}
    async with served(proxy(partial(open_memory, server), passes=passes), auth=auth) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}/mcp"
        with trio.fail_after(PATIENCE):
            async with open_http(url, era=era, on_notification={indexed: told.append}, **DECLARED, **mine) as client:
                if era == "legacy" or caller is not None or passes:
                    assert client.server_extension(search) == {}
                    assert await client.request(query, Query("trio")) == Hits(["trio"])
                    assert told == [Query("trio")]
                else:
                    assert client.server_extension(search) is None
                    with pytest.raises(PeerError) as caught:
                        await client.request(query.name, {"text": "trio"}, dict[str, Any])
                    assert caught.value.code == -32601


async def test_unknown_method_sent_to_a_proxy_over_http_gets_status_404(server: Server) -> None:
    async with served(proxy(partial(open_memory, server))) as endpoint:
        with trio.fail_after(PATIENCE):
            for _ in ("the first opens the server", "the second"):
                answer = await endpoint.modern("com.example/no/such")
                assert (answer.status, answer.code, answer.json["id"]) == (404, -32601, 1)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("by_http", [False, True])
async def test_extension_request_is_answered_through_two_proxies(server: Server, era: Any, by_http: bool) -> None:
    told: list[Query] = []
    async with served(server) as behind:
        inner = proxy(f"http://127.0.0.1:{behind.port}/mcp" if by_http else server)
        outer = proxy(partial(open_memory, inner))
        with trio.fail_after(PATIENCE):
            async with open_memory(outer, era=era, on_notification={indexed: told.append}, **DECLARED) as client:
                for text in ("one", "two"):
                    assert await client.request(query, Query(text)) == Hits([text])
    assert told == [Query("one"), Query("two")]


# Groups and gateways


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("forwards", [None, ALL_QUESTIONS])
async def test_group_declares_an_extension_to_each_of_its_servers_and_can_call_its_methods(
    server: Server, era: Any, forwards: ClientCapabilities | None
) -> None:
    told: list[Query] = []

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str(await ctx.send_request(confirm, Query("sure?")))

    members = {name: MemberDescription(server, options={"era": era}) for name in ("one", "two")}
    options: Any = {**DECLARED, "on_notification": {indexed: told.append}, "forwards": forwards}
    async with open_group(members, **options) as group:
        for name in members:
            client = await group.client(name)
            assert client.server_extension(search) == {}
            assert await client.request(query, Query(name)) == Hits([name])
            if era == "legacy":
                assert (await client.call_tool("ask")).text == "Hits(names=['sure?'])"
    assert told == [Query("one"), Query("two")]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_gateway_does_not_offer_the_extensions_of_its_servers(server: Server, era: Any) -> None:
    declared: list[Any] = []

    @server.tool
    async def look(ctx: RequestContext) -> str:
        declared.append(ctx.client_extension(search))
        return "seen"

    members = {"one": MemberDescription(server)}
    async with open_group(members, forwards=ALL_QUESTIONS) as group:
        await group.settled()
        async with open_memory(gateway(group), era=era, **DECLARED) as client:
            assert client.server_extension(search) is None
            with pytest.raises(PeerError) as caught:
                await client.request(query.name, {"text": "trio"}, dict[str, Any])
            assert caught.value.code == -32601
            await client.call_tool("one__look")
        with pytest.raises(TypeError, match="a gateway does not forward extensions of its member servers"):
            proxy(group, passes=[SEARCH])  # type: ignore[call-overload]
    assert declared == [None]
