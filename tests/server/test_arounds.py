"""Functions around requests: they check, change and observe, in both eras, under cancel, in tasks and where handlers
run again (AR-01, AR-02, AR-03)."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import Any, Literal

import attrs
import pytest
import trio
from tests.interaction.memory_peer import LATEST_LEGACY
from tests.server.extension import KNOWS, knowing, task_of
from tests.tasks.callers import calling, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    Client,
    CodedError,
    InputRequired,
    Next,
    PeerError,
    RequestContext,
    Server,
    ServerRequest,
    Skills,
    TaskSettings,
    ToolError,
    open_memory,
    text_result,
)
from trio_mcp.protocol.methods import ROWS
from trio_mcp.protocol.types.input_required import InputRequiredResult
from trio_mcp.server.connection import ServerConnection
from trio_mcp.server.middleware import MIDDLEWARE_METHODS
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.testing import ScriptedClient, open_scripted_client
from trio_mcp.types import CallToolResult, ElicitFormParams, ElicitResult, Extension, PromptReference

Era = Literal["legacy", "modern"]
ERAS: list[Era] = ["legacy", "modern"]
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


@attrs.frozen
class Query:
    text: str


@attrs.frozen
class Hits:
    names: list[str]


searching = Extension("com.example/search")
query = searching.method("com.example/search/query", Query, Hits)


async def answer(_: object) -> ElicitResult:
    return ElicitResult("accept", {"name": "Ada"})


def seen_by(server: Server, *methods: str) -> list[str]:
    """The begins and ends that a function around the requests of ``server`` sees."""
    seen: list[str] = []

    @server.middleware(*methods)
    async def observe(request: ServerRequest, next: Next) -> Any:
        seen.append(f"{request.method} {request.offer}")
        try:
            result = await next(request)
            seen.append(type(result).__name__)
            return result
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    return seen


def shop() -> Server:
    server = Server("shop")

    @server.tool
    async def double(number: int) -> int:
        return 2 * number

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    @server.prompt
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @server.completion(argument="name", prompt="greet")
    async def names(value: str) -> list[str]:
        return ["Ada"]

    return server


async def listed(things: AsyncIterable[Any]) -> list[Any]:
    return [thing async for thing in things]


def ask_for(method: str, client: Client) -> Any:
    match method:
        case "tools/call":
            return client.call_tool("double", {"number": 2})
        case "resources/read":
            return client.read_resource("note://a")
        case "prompts/get":
            return client.get_prompt("greet", {"name": "Ada"})
        case "completion/complete":
            return client.complete(PromptReference("greet"), "name", "A")
        case "tools/list":
            return listed(client.list_tools())
        case "resources/list":
            return listed(client.list_resources())
        case "resources/templates/list":
            return listed(client.list_resource_templates())
        case "prompts/list":
            return listed(client.list_prompts())
        case _:
            raise AssertionError(method)


OFFERED = {
    "tools/call": "double",
    "resources/read": "note://{name}",
    "prompts/get": "greet",
    "completion/complete": None,
    "tools/list": None,
    "resources/list": None,
    "resources/templates/list": None,
    "prompts/list": None,
}


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_registered_first_is_outermost(era: Era) -> None:
    server, order = shop(), list[str]()
    for name in ("outer", "inner"):

        @server.middleware("tools/call")
        async def around(request: ServerRequest, next: Next, name: str = name) -> Any:
            order.append(f"{name} begins")
            result = await next(request)
            order.append(f"{name} ends")
            return result

    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("double", {"number": 2})).text == "4"
    assert order == ["outer begins", "inner begins", "inner ends", "outer ends"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("method", OFFERED)
async def test_middleware_runs_only_for_requests_with_the_methods_it_is_registered_for(method: str, era: Era) -> None:
    server = shop()
    seen, seen_of_all = seen_by(server, method), seen_by(server)
    async with open_memory(server, era=era) as client:
        for each in OFFERED:
            await ask_for(each, client)
    assert len(seen) == 2
    assert seen[0] == f"{method} {OFFERED[method]}"
    assert [line for line in seen_of_all if "/" in line] == [f"{each} {offer}" for each, offer in OFFERED.items()]


def test_middleware_methods_are_all_client_requests_that_the_server_cannot_answer_at_once() -> None:
    requests = {row.name for row in ROWS if row.is_request and row.sent_by("client")}
    at_once = {name for name in ServerConnection._immediate_answers if not name.startswith("tasks/")}
    assert requests - at_once == MIDDLEWARE_METHODS


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_can_reject_a_request_before_the_handler_runs(era: Era) -> None:
    server, ran = Server("s"), False

    @server.tool
    async def drop() -> None:
        nonlocal ran
        ran = True

    @server.middleware("tools/call")
    async def told(request: ServerRequest, next: Next) -> Any:
        raise ToolError(f"{request.params.name} is for admins")

    @server.middleware("tools/list")
    async def refused(request: ServerRequest, next: Next) -> Any:
        raise CodedError(-32050, "closed", {"until": "Monday"})

    async with open_memory(server, era=era) as client:
        result = await client.call_tool("drop")
        assert result.is_error
        assert result.text == "drop is for admins"
        with pytest.raises(PeerError) as caught:
            await listed(client.list_tools())
    assert (caught.value.code, caught.value.data) == (-32050, {"until": "Monday"})
    assert not ran


@pytest.mark.parametrize("era", ERAS)
async def test_arguments_replaced_by_middleware_are_validated(era: Era) -> None:
    server = shop()

    @server.middleware("tools/call", "prompts/get")
    async def change(request: ServerRequest, next: Next) -> Any:
        given = request.arguments
        return await next(request.with_arguments({**given, "name": "Bob"} if "name" in given else {"number": "x"}))

    async with open_memory(server, era=era) as client:
        prompt = await client.get_prompt("greet", {"name": "Ada"})
        assert prompt.messages[0].content.text == "Hello Bob"  # pyright: ignore
        result = await client.call_tool("double", {"number": 2})
    assert result.is_error
    assert "number" in result.text


async def test_middleware_does_not_change_arguments_of_the_original_request() -> None:
    server, kept = shop(), list[Any]()

    @server.middleware("tools/call")
    async def change(request: ServerRequest, next: Next) -> Any:
        request.arguments["number"] = 5
        result = await next(request)
        kept.append(request.params.arguments)
        return result

    async with open_memory(server) as client:
        assert (await client.call_tool("double", {"number": 2})).text == "10"
    assert kept == [{"number": 2}]


async def test_middleware_that_sets_arguments_of_tools_list_raises() -> None:
    server = shop()

    @server.middleware("tools/list")
    async def change(request: ServerRequest, next: Next) -> Any:
        with pytest.raises(TypeError, match="tools/list has no arguments"):
            request.with_arguments({})
        return await next(request)

    async with open_memory(server) as client:
        await listed(client.list_tools())


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_can_change_the_result_or_skip_the_handler(era: Era) -> None:
    server = shop()

    @server.middleware("tools/list")
    async def untitled(request: ServerRequest, next: Next) -> Any:
        result = await next(request)
        return attrs.evolve(result, tools=[attrs.evolve(tool, title="T") for tool in result.tools])

    @server.middleware("tools/call")
    async def cached(request: ServerRequest, next: Next) -> CallToolResult:
        return text_result("from the cache")

    async with open_memory(server, era=era) as client:
        assert [tool.title for tool in await listed(client.list_tools())] == ["T"]
        assert (await client.call_tool("anything")).text == "from the cache"


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_receives_the_result_or_exception_of_the_handler(era: Era) -> None:
    server = Server("s")

    @server.tool
    async def fail(how: str) -> None:
        raise {"told": ToolError("no"), "coded": CodedError(-32050, "no"), "defect": RuntimeError("secret")}[how]

    seen = seen_by(server, "tools/call")
    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("fail", {"how": "told"})).text == "no"
        assert "secret" not in (await client.call_tool("fail", {"how": "defect"})).text
        with pytest.raises(PeerError):
            await client.call_tool("fail", {"how": "coded"})
        with pytest.raises(PeerError, match="Unknown tool"):
            await client.call_tool("x" * 300)
    assert seen == [
        *("tools/call fail", "CallToolResult", "tools/call fail", "RuntimeError"),
        *("tools/call fail", "CodedError", "tools/call None", "CodedError"),
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_cancelled_request_cancels_middleware_and_runs_its_cleanup(era: Era, autojump_clock: MockClock) -> None:
    server, cleaned = shop(), list[object]()

    @server.middleware("tools/call")
    async def wait(request: ServerRequest, next: Next) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                await trio.sleep(1)
                cleaned.append(request.ctx.cancellation)

    async with open_memory(server, era=era) as client:
        with trio.move_on_after(3):
            await client.call_tool("double", {"number": 2})
        await trio.sleep(2)
        assert await listed(client.list_tools())
    assert len(cleaned) == 1
    assert cleaned[0] is not None


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_runs_once_for_a_handler_that_elicits(era: Era) -> None:
    server = Server("s")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("Who?", NAME)).content)

    seen = seen_by(server)
    async with open_memory(server, era=era, elicitation=answer) as client:
        assert "Ada" in (await client.call_tool("ask")).text
    assert seen == ["tools/call ask", "CallToolResult"]


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("era", ERAS)
async def test_middleware_can_elicit_from_the_user(era: Era, replay: bool) -> None:
    server = Server("s")

    @server.tool(replay=replay)
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("Who?", NAME)).content)

    @server.middleware("tools/call")
    async def confirm(request: ServerRequest, next: Next) -> Any:
        if (await request.ctx.elicit(f"Run {request.offer}?", NAME)).action != "accept":
            raise ToolError("declined")
        return await next(request)

    async with open_memory(server, era=era, elicitation=answer) as client:
        assert "Ada" in (await client.call_tool("ask")).text


async def test_middleware_runs_again_with_each_run_of_a_handler_with_replay() -> None:
    server = Server("s")

    @server.tool(replay=True)
    async def again(ctx: RequestContext) -> str:
        return str((await ctx.elicit("Who?", NAME)).content)

    @server.tool
    async def returned(ctx: RequestContext) -> str | InputRequired:
        return "Ada" if ctx.is_resubmit else InputRequired({"who": ElicitFormParams("Who?", NAME)})

    seen = seen_by(server, "tools/call")
    async with open_memory(server, era="modern", elicitation=answer) as client:
        for tool in ("again", "returned"):
            assert "Ada" in (await client.call_tool(tool)).text
    assert seen == [
        *("tools/call again", "Cancelled", "tools/call again", "CallToolResult"),
        *("tools/call returned", InputRequiredResult.__name__, "tools/call returned", "CallToolResult"),
    ]


async def test_middleware_of_a_listen_stream_runs_until_the_stream_ends(autojump_clock: MockClock) -> None:
    server = shop()
    seen = seen_by(server, "subscriptions/listen")
    async with open_memory(server, era="modern") as client:
        async with client.listen(tools=True):
            await wait_all_tasks_blocked()
            assert seen == ["subscriptions/listen None"]
        await wait_all_tasks_blocked()
    assert seen[1:] == ["Cancelled"]


# Tasks


SLEEP = {"name": "sleep", "arguments": {"seconds": 1}, "task": {}}


async def core(client: ScriptedClient, method: str, params: Any = None, end: str = "result") -> Any:
    """The result of a request, or the error that is its ``end``."""
    return (await client.until({"id": await client.request(method, params or {}), end: ...}))[end]


def tasking(check: Any, **options: Any) -> Server:
    server = Server("s", tasks=TaskSettings(**options))

    @server.tool(task="optional")
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return "slept"

    server.middleware("tools/call")(check)
    return server


async def refuse(request: ServerRequest, next: Next) -> Any:
    raise CodedError(-31000, "too many calls")


async def tell(request: ServerRequest, next: Next) -> Any:
    raise ToolError("not you")


async def mark(request: ServerRequest, next: Next) -> Any:
    result = await next(request)
    return attrs.evolve(result, meta={"example.org/marked": True})


async def test_call_rejected_by_middleware_creates_no_task(autojump_clock: MockClock) -> None:
    server = tasking(refuse)
    async with open_scripted_client(server, LATEST_LEGACY) as client:
        assert (await core(client, "tools/call", SLEEP, "error"))["code"] == -31000
        assert (await core(client, "tasks/list"))["tasks"] == []


@pytest.mark.parametrize(("check", "text"), [(tell, "not you"), (mark, "slept")])
async def test_call_requested_as_a_task_creates_a_task_even_if_middleware_answers(
    check: Any, text: str, autojump_clock: MockClock
) -> None:
    server = tasking(check)
    async with open_scripted_client(server, LATEST_LEGACY) as client:
        task_id = (await core(client, "tools/call", SLEEP))["task"]["taskId"]
        result = await core(client, "tasks/result", {"taskId": task_id})
    assert result["content"][0]["text"] == text
    assert ("example.org/marked" in result["_meta"]) is (check is mark)


async def test_call_becomes_a_task_after_the_task_grace_even_if_the_time_is_spent_in_middleware(
    autojump_clock: MockClock,
) -> None:
    async def wait(request: ServerRequest, next: Next) -> Any:
        await trio.sleep(10)
        return await next(request)

    async with knowing(tasking(wait, grace=1), KNOWS) as peer:
        start = trio.current_time()
        await task_of(peer, "sleep", {"seconds": 1})
        assert trio.current_time() - start == pytest.approx(1)


async def test_call_with_middleware_that_ends_within_the_task_grace_does_not_become_a_task(
    autojump_clock: MockClock,
) -> None:
    async def wait(request: ServerRequest, next: Next) -> Any:
        await trio.sleep(2)
        return await next(request)

    async with knowing(tasking(wait, grace=4), KNOWS) as peer:
        assert await peer.text("sleep", {"seconds": 1}) == "slept"
        await trio.sleep(10)
        assert await peer.text("sleep", {"seconds": 1}) == "slept"


async def test_middleware_runs_again_if_a_task_is_rerun_after_a_restart(autojump_clock: MockClock) -> None:
    store, attempts = MemoryTaskStore(), list[int]()

    def server_of() -> Server:
        server = Server("s", tasks=settings(store))

        @server.tool(task="required", on_restart="again")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            await trio.sleep(20)
            return "done"

        @server.middleware("tools/call")
        async def observe(request: ServerRequest, next: Next) -> Any:
            assert request.ctx.task is not None
            attempts.append(request.ctx.task.attempt)
            return await mark(request, next)

        return server

    async with calling(server_of()) as caller:
        task = await caller.start("work")
    async with calling(server_of()) as caller:
        state = await caller.final(task)
    assert state["status"] == "completed"
    assert "example.org/marked" in state["result"]["_meta"]
    assert len(attempts) == 2


# Extensions


@pytest.mark.parametrize("era", ERAS)
async def test_middleware_runs_for_extension_requests_with_typed_params(era: Era) -> None:
    server = Server("s", extensions=[searching])
    of_all = seen_by(server)
    order = list[Any]()

    @server.middleware(query.name)
    async def shortened(request: ServerRequest, next: Next) -> Any:
        order.append((request.method, request.params, request.offer, request.arguments))
        if request.params.text == "no":
            raise CodedError(-7, "no")
        found = await next(request)
        order.append(found)
        return attrs.evolve(found, names=found.names[:1])

    @server.handles(query)
    async def answer(params: Query) -> Hits:
        return Hits([params.text, "b"])

    async with open_memory(server, era=era, extensions=[searching]) as client:
        assert await client.request(query, Query("a")) == Hits(["a"])
        with pytest.raises(PeerError, match="no"):
            await client.request(query, Query("no"))
    assert order == [
        (query.name, Query("a"), None, {}),
        Hits(["a", "b"]),
        (query.name, Query("no"), None, {}),
    ]
    assert of_all == [f"{query.name} None", "Hits", f"{query.name} None", "CodedError"]


async def test_middleware_of_an_extension_method_returns_its_result_class() -> None:
    server = Server("s", extensions=[searching])

    @server.middleware(query.name)
    async def wrong(request: ServerRequest, next: Next) -> Any:
        return {"names": ["a"]}

    @server.handles(query)
    async def answer(params: Query) -> Hits:
        raise AssertionError("it is not called")

    async with open_memory(server, extensions=[searching]) as client:
        with pytest.raises(PeerError) as caught:
            await client.request(query, Query("a"))
        assert caught.value.code == -32603


async def test_middleware_runs_for_requests_of_the_skills_extension() -> None:
    skills = Skills()
    skills.add_files("fish", {"SKILL.md": "---\nname: fish\ndescription: How to fish\n---\n"})
    server = Server("s", extensions=[skills])
    seen = seen_by(server)
    async with open_memory(server, extensions=[Skills()]) as client:
        assert [skill.name async for skill in client.list_skills()] == ["fish"]
    assert seen == ["skills/list None", "ListSkillsResult"]


# Mistakes


def test_middleware_for_an_unsupported_method_raises_at_registration() -> None:
    server = Server("s")
    with pytest.raises(ValueError, match=r"'ping', because it is answered without starting a task.* tools/call"):
        server.middleware("ping")
    with pytest.raises(ValueError, match="'tools/cal', because it is not a request from clients"):
        server.middleware("tools/call", "tools/cal")
    with pytest.raises(ValueError, match="query', because it is not a request from clients"):
        server.middleware(query.name)
    asking = Extension("com.example/ask")
    asked = asking.method("com.example/ask/asked", Query, Hits, sender="server")
    searches = Server("s", extensions=[searching, asking])
    with pytest.raises(ValueError, match="asked', because it is not a request from clients"):
        searches.middleware(asked.name)
    with pytest.raises(ValueError, match=f"no such.* {query.name}"):
        searches.middleware("no such")


def test_middleware_method_of_server_called_with_wrong_arguments_raises_and_shows_the_correct_call() -> None:
    server: Any = Server("s")
    for given in [("tools/call", tell), (["tools/call"],), (tell, "tools/call"), (5,)]:
        with pytest.raises(TypeError, match=r'right:  server.middleware\("tools/call"\)\(function\)'):
            server.middleware(*given)


class Counted:
    def __init__(self) -> None:
        self.requests = 0

    async def __call__(self, request: ServerRequest, next: Next) -> Any:
        self.requests += 1
        return await next(request)


async def test_callable_object_can_be_middleware() -> None:
    server = shop()
    counted = server.middleware("tools/call")(Counted())
    async with open_memory(server) as client:
        await client.call_tool("double", {"number": 2})
    assert counted.requests == 1


async def test_server_request_repr_in_middleware_omits_client_data() -> None:
    server, shown = shop(), list[str]()

    @server.middleware("tools/call")
    async def show(request: ServerRequest, next: Next) -> Any:
        shown.append(repr(request))
        return await next(request)

    async with open_memory(server) as client:
        await client.call_tool("double", {"number": 2})
    assert shown == ["ServerRequest(method='tools/call')"]


async def three(request: ServerRequest, next: Next, more: object) -> Any: ...
async def one(request: ServerRequest) -> Any: ...
def plain(request: ServerRequest, next: Next) -> Any: ...


@pytest.mark.parametrize("function", [three, one, plain, ServerRequest])
def test_middleware_with_a_wrong_signature_raises_at_registration(function: Any) -> None:
    with pytest.raises(TypeError, match="async def around"):
        Server("s").middleware("tools/call")(function)
    with pytest.raises(TypeError, match="async def around"):
        Server("s").middleware(function)


async def no_return(request: ServerRequest, next: Next) -> Any:
    await next(request)


async def no_request(request: ServerRequest, next: Next) -> Any:
    return await next(request.arguments)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("function", "words"),
    [(no_return, "no_return returned no result for"), (no_request, "next must be called with the request")],
)
async def test_middleware_that_forgets_to_return_or_forward_fails_the_call_and_logs_its_mistake(
    function: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = shop()
    server.middleware(function)
    async with open_memory(server) as client:
        assert (await client.call_tool("double", {"number": 2})).is_error
    assert words in caplog.text


async def test_mounting_a_server_with_middleware_fails_at_start() -> None:
    inner, outer = shop(), Server("outer")
    outer.mount(inner, prefix="shop")
    inner.middleware(mark)
    with pytest.raises(RuntimeError, match="has middleware, which would not run"):
        async with open_memory(outer):
            raise AssertionError("it does not start")


async def test_partial_of_an_async_function_can_be_middleware() -> None:
    server, seen = Server("s"), list[str]()
    server.tool(name="echo")(lambda text="hi": text)

    async def noted(word: str, request: ServerRequest, next: Next) -> Any:
        seen.append(word)
        return await next(request)

    server.middleware("tools/call")(partial(noted, "around"))
    async with open_memory(server) as client:
        await client.call_tool("echo")
    assert seen == ["around"]
