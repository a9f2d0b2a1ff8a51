"""Provided parameters: entered before the handler, left after it, whatever ends it, and seen by no caller."""

import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Annotated, Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    Client,
    InputRequired,
    Limits,
    PeerError,
    Provide,
    RequestContext,
    ResourceNotFound,
    Server,
    ToolError,
    WorkerContext,
    open_memory,
)
from trio_mcp.concurrency.time_limits import Graces
from trio_mcp.protocol.types.elicitation import ElicitFormParams
from trio_mcp.server.calling import provided
from trio_mcp.server.context.client_data import ElicitAnswer
from trio_mcp.testing import in_turn, provide_instead
from trio_mcp.types import PromptReference

EVENTS: list[str] = []
MAIN = threading.main_thread()


@pytest.fixture(autouse=True)
def events() -> list[str]:
    EVENTS.clear()
    return EVENTS


async def awaited() -> str:
    return "awaited"


def plain() -> str:
    assert threading.current_thread() is not MAIN
    return "plain"


async def opened() -> AsyncGenerator[str]:
    EVENTS.append("opened")
    try:
        yield "opened"
    finally:
        await trio.sleep(0.01)
        EVENTS.append("closed")


def opened_in_a_thread() -> Generator[str]:
    assert threading.current_thread() is not MAIN
    EVENTS.append("opened in a thread")
    try:
        yield "opened in a thread"
    finally:
        assert threading.current_thread() is not MAIN
        EVENTS.append("closed in a thread")


class Connection:
    async def __aenter__(self) -> "Connection":
        EVENTS.append("connected")
        return self

    async def __aexit__(self, *_: object) -> None:
        EVENTS.append("disconnected")

    def __str__(self) -> str:
        return "a connection"


class Shared:
    """What one function returns to all: entering it would end it for all."""

    def __enter__(self) -> None:
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        raise AssertionError

    def __str__(self) -> str:
        return "shared"


SHARED = Shared()


class Greeting:
    async def __call__(self, times: int = 2) -> str:
        return "called" * times


async def text_of(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    return getattr(result.content[0], "text", "")


def server_of(provider: Any, *, is_plain: bool = False, **options: Any) -> Server:
    """A server with one tool, ``show``, that returns what ``provider`` provides."""
    server = Server("s")

    if is_plain:

        @server.tool(name="show", **options)
        def show_in_a_thread(value: Annotated[Any, Provide(provider)], mark: str = "") -> str:
            assert threading.current_thread() is not MAIN
            EVENTS.append("handler")
            return f"{value}{mark}"
    else:

        @server.tool(**options)
        async def show(value: Annotated[Any, Provide(provider)], mark: str = "") -> str:
            EVENTS.append("handler")
            return f"{value}{mark}"

    return server


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("provider", "value", "before", "after"),
    [
        (awaited, "awaited", None, None),
        (plain, "plain", None, None),
        (lambda: awaited(), "awaited", None, None),
        (partial(str.upper, "made"), "MADE", None, None),
        (Greeting(), "calledcalled", None, None),
        (lambda: SHARED, "shared", None, None),
        (opened, "opened", "opened", "closed"),
        (asynccontextmanager(opened), "opened", "opened", "closed"),
        (lambda: asynccontextmanager(opened)(), "opened", "opened", "closed"),
        (opened_in_a_thread, "opened in a thread", "opened in a thread", "closed in a thread"),
        (contextmanager(opened_in_a_thread), "opened in a thread", "opened in a thread", "closed in a thread"),
        (Connection, "a connection", "connected", "disconnected"),
    ],
)
async def test_every_kind_of_function_can_provide_a_dependency(
    provider: Any, value: str, before: str | None, after: str | None, is_plain: bool, autojump_clock: MockClock
) -> None:
    async with open_memory(server_of(provider, is_plain=is_plain)) as client:
        assert await text_of(client, "show", mark="!") == f"{value}!"
    assert [event for event in (before, "handler", after) if event is not None] == EVENTS


async def test_dependency_parameter_is_hidden_from_clients_and_cannot_be_passed() -> None:
    async with open_memory(server_of(awaited)) as client:
        (tool,) = [tool async for tool in client.list_tools()]
        assert set(tool.input_schema["properties"]) == {"mark"}
        refused = await client.call_tool("show", {"value": "mine"})
        assert refused.is_error
    assert EVENTS == []


def logged(name: str, *needs: Callable[..., Any]) -> Callable[..., Any]:
    async def provider(ctx: RequestContext) -> AsyncGenerator[str]:
        EVENTS.append(f"+{name}")
        yield name
        EVENTS.append(f"-{name}")

    return provider


first, second = logged("first"), logged("second")


async def third(
    a: Annotated[str, Provide(second)], b: Annotated[str, Provide(first)], ctx: RequestContext
) -> AsyncGenerator[str]:
    assert ctx.request_id
    EVENTS.append(f"+third of {a} and {b}")
    yield "third"
    EVENTS.append("-third")


async def test_dependencies_are_entered_once_in_parameter_order_and_closed_in_reverse() -> None:
    server = Server("s")

    @server.tool
    async def show(
        a: Annotated[str, Provide(first)],
        ctx: RequestContext,
        b: Annotated[str, Provide(third)],
        c: Annotated[str, Provide(second)],
        d: Annotated[str, Provide(first)],
    ) -> None:
        EVENTS.append(f"{a} {b} {c} {d} {ctx.revision.name}")

    async with open_memory(server) as client:
        for _ in range(2):
            await client.call_tool("show")
            steps = ["+first", "+second", "+third of second and first"]
            assert [*steps, f"first third second first {client.revision}", "-third", "-second", "-first"] == EVENTS
            EVENTS.clear()


async def test_resources_prompts_and_completers_can_have_dependencies() -> None:
    server = Server("s")

    @server.resource("note://{name}")
    async def note(name: str, value: Annotated[str, Provide(first)]) -> str:
        return f"{name} {value}"

    @server.prompt
    def greet(who: str, value: Annotated[str, Provide(second)]) -> str:
        return f"{who} {value}"

    @server.completion(prompt="greet", argument="who")
    async def complete(value: str, known: Annotated[str, Provide(first)]) -> list[str]:
        return [f"{value} {known}"]

    async with open_memory(server) as client:
        (prompt,) = [prompt async for prompt in client.list_prompts()]
        assert [argument.name for argument in prompt.arguments or ()] == ["who"]
        assert getattr((await client.read_resource("note://a")).contents[0], "text", "") == "a first"
        message = (await client.get_prompt("greet", {"who": "Ann"})).messages[0]
        assert getattr(message.content, "text", "") == "Ann second"
        completion = await client.complete(PromptReference("greet"), "who", "A")
        assert completion.values == ["A first"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_dependencies_of_a_task_stay_open_until_the_task_ends(era: Any, autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(task="required")
    async def work(value: Annotated[str, Provide(opened)], ctx: RequestContext) -> str:
        assert ctx.task is not None
        await trio.sleep(60)
        EVENTS.append(f"started: {ctx.task.has_started}")
        return value

    async with open_memory(server, era=era) as client:
        assert await text_of(client, "work") == "opened"
        EVENTS.append("answered")
        with trio.move_on_after(30):
            await client.call_tool("work")
        await trio.sleep(1)
    assert EVENTS == ["opened", "started: True", "closed", "answered", "opened", "closed"]


async def test_context_annotation_can_have_the_lifespan_type_as_type_argument() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[str]:
        yield "the lifespan"

    async def of_the_lifespan(context: RequestContext[str]) -> str:
        return context.lifespan

    server = Server("s", lifespan=lifespan)

    @server.tool
    def show(value: Annotated[str, Provide(of_the_lifespan)], context: WorkerContext[str]) -> str:
        return f"{value}, {context.lifespan}"

    async with open_memory(server) as client:
        assert await text_of(client, "show") == "the lifespan, the lifespan"


# What ends a request


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("provider", [opened, opened_in_a_thread])
async def test_dependency_cleanup_can_await_after_a_cancellation(provider: Any, era: Any) -> None:
    server, runs = Server("s"), trio.Event()

    @server.tool
    async def hang(value: Annotated[str, Provide(provider)]) -> None:
        runs.set()
        await trio.sleep_forever()

    async with open_memory(server, era=era) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "hang")
            await runs.wait()
            nursery.cancel_scope.cancel()
        await until_idle(server)
        assert len(EVENTS) == 2


async def until_idle(server: Server) -> None:
    with trio.fail_after(20):
        while server.statistics().in_flight:  # noqa: ASYNC110 - a thread may be at work
            await trio.sleep(0.001)


async def test_dependency_cleanup_is_cancelled_after_cleanup_grace(autojump_clock: MockClock) -> None:
    server = Server("s", limits=Limits(cleanup_grace=3))

    async def stubborn() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            try:
                await trio.sleep_forever()
            finally:
                EVENTS.append(f"given up at {trio.current_time() - start:g}")

    @server.tool(timeout=2)
    async def hang(
        one: Annotated[str, Provide(first)],
        two: Annotated[None, Provide(stubborn)],
        three: Annotated[None, Provide(asynccontextmanager(stubborn))],
    ) -> None:
        await trio.sleep_forever()

    async with open_memory(server) as client:
        start = trio.current_time()
        with trio.move_on_after(1):
            await client.call_tool("hang")
        await trio.sleep(10)
        assert EVENTS == ["+first", "given up at 4", "given up at 4"]
        start = trio.current_time()
        assert "limit of 2 seconds" in await text_of(client, "hang")
        assert EVENTS[3:] == ["+first", "given up at 5", "given up at 5"]
        assert server.statistics().in_flight == 0


async def test_all_dependency_cleanups_of_a_request_share_one_cleanup_grace(autojump_clock: MockClock) -> None:
    server = Server("s", limits=Limits(cleanup_grace=5))

    async def slow() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            try:
                await trio.sleep(3)
            finally:
                EVENTS.append(f"{trio.current_time() - start:g}")

    @server.tool
    async def hang(
        one: Annotated[None, Provide(slow)], two: Annotated[None, Provide(asynccontextmanager(slow))]
    ) -> None:
        await trio.sleep_forever()

    async with open_memory(server) as client:
        start = trio.current_time()
        with trio.move_on_after(1):
            await client.call_tool("hang")
        await trio.sleep(10)
    assert EVENTS == ["4", "6"]


async def test_server_shutdown_shortens_the_cleanup_grace_of_dependencies(autojump_clock: MockClock) -> None:
    server = Server("s", limits=Limits(cleanup_grace=100, shutdown_grace=1, drain_timeout=0))

    async def stubborn() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await trio.sleep_forever()

    @server.tool
    async def hang(value: Annotated[None, Provide(stubborn)]) -> None:
        await trio.sleep_forever()

    start = trio.current_time()
    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "hang")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - start < 10


async def test_dependency_cleanup_that_times_out_leaves_time_for_the_other_cleanups(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    async def slow() -> AsyncGenerator[None]:
        try:
            yield
            await trio.sleep_forever()
        finally:
            EVENTS.append("slow is over")

    @server.tool
    async def short(one: Annotated[str, Provide(opened)], two: Annotated[None, Provide(slow)]) -> None: ...

    async with open_memory(server) as client:
        with trio.move_on_after(2):
            await client.call_tool("short")
        await trio.sleep(2)
    assert EVENTS == ["opened", "slow is over", "closed"]


async def test_call_cancelled_while_a_dependency_opens_closes_the_dependencies_that_are_already_open(
    autojump_clock: MockClock,
) -> None:
    async def never() -> None:
        await trio.sleep_forever()

    server = Server("s")

    @server.tool
    async def show(one: Annotated[str, Provide(opened)], two: Annotated[None, Provide(never)]) -> None:
        raise AssertionError

    async with open_memory(server) as client:
        with trio.move_on_after(2):
            await client.call_tool("show")
        await trio.sleep(2)
    assert EVENTS == ["opened", "closed"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_cancelled_at_any_checkpoint_closes_open_dependencies_in_reverse_order(
    era: Any, autojump_clock: MockClock
) -> None:
    def slowly(name: str) -> Callable[..., Any]:
        async def provider() -> AsyncGenerator[str]:
            await trio.sleep(1)
            EVENTS.append(f"+{name}")
            try:
                yield name
            finally:
                try:
                    await trio.sleep(1)
                finally:
                    EVENTS.append(f"-{name}")

        return provider

    a, b, c = slowly("a"), slowly("b"), slowly("c")
    server = Server("s")

    @server.tool
    async def work(a: Annotated[str, Provide(a)], b: Annotated[str, Provide(b)], c: Annotated[str, Provide(c)]) -> None:
        await trio.sleep(1)

    async with open_memory(server, era=era) as client:
        for step in range(8):
            EVENTS.clear()
            with trio.move_on_after(step + 0.5) as scope:
                await client.call_tool("work")
            assert scope.cancelled_caught == (step < 7)
            await trio.sleep(10)
            entered = [event[1:] for event in EVENTS if event[0] == "+"]
            assert entered == ["a", "b", "c"][:step]
            assert [event for event in EVENTS if event[0] == "-"] == [f"-{name}" for name in reversed(entered)]
            assert server.statistics().in_flight == 0


async def test_dependency_opened_in_a_thread_after_the_cancellation_is_closed() -> None:
    goes_on, is_there = threading.Event(), threading.Event()

    def slow() -> Generator[None]:
        is_there.set()
        goes_on.wait(10)
        EVENTS.append("opened")
        try:
            yield
        finally:
            EVENTS.append("closed")

    server = server_of(slow)
    async with open_memory(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "show")
            await trio.to_thread.run_sync(is_there.wait)
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        goes_on.set()
        await until_idle(server)
        assert EVENTS == ["opened", "closed"]


async def test_tool_timeout_cancels_the_handler_and_closes_dependencies(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(timeout=3)
    async def hang(value: Annotated[str, Provide(opened)]) -> None:
        await trio.sleep_forever()

    async with open_memory(server) as client:
        assert "limit of 3 seconds" in await text_of(client, "hang")
    assert EVENTS == ["opened", "closed"]


async def test_dependency_receives_the_exception_of_the_handler() -> None:
    async def transaction() -> AsyncGenerator[None]:
        async with trio.open_nursery() as nursery:  # which puts what leaves it into a group
            try:
                yield
            except ToolError as error:
                EVENTS.append(f"rolled back: {error}")
                raise
            nursery.cancel_scope.cancel()

    server = Server("s")

    @server.tool
    async def fail(it: Annotated[None, Provide(transaction)]) -> None:
        raise ToolError("no such row")

    async with open_memory(server) as client:
        assert await text_of(client, "fail") == "no such row"
    assert EVENTS == ["rolled back: no such row"]


async def test_resource_not_found_raised_inside_the_nursery_of_a_dependency_reaches_the_client() -> None:
    async def nursery() -> AsyncGenerator[trio.Nursery]:
        async with trio.open_nursery() as opened:
            yield opened

    server = Server("s")

    @server.resource("note://{name}")
    async def note(name: str, tasks: Annotated[trio.Nursery, Provide(nursery)]) -> str:
        tasks.start_soon(trio.sleep_forever)
        raise ResourceNotFound

    async with open_memory(server) as client:
        with pytest.raises(PeerError, match="Resource not found"):
            await client.read_resource("note://a")


async def test_dependency_that_failed_to_open_is_not_closed() -> None:
    class Broken:
        def __enter__(self) -> None:
            raise ToolError("no door")

        def __exit__(self, *_: object) -> None:
            EVENTS.append("left")

    async with open_memory(server_of(Broken)) as client:
        assert await text_of(client, "show") == "no door"
    assert EVENTS == []


async def test_dependency_that_is_closed_is_no_longer_referenced(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[trio.CancelScope] = []
    monkeypatch.setattr(Graces, "unshield", lambda _, scope: ended.append(scope))
    async with open_memory(server_of(opened)) as client:
        await client.call_tool("show")
        assert len(ended) == 1
    async with open_memory(server_of(connection)):
        assert len(vars(provided)["_server_values"]) == 1
    assert not vars(provided)["_server_values"]


async def test_exception_in_a_dependency_fails_the_tool_call() -> None:
    async def fails() -> None:
        raise ToolError("the database is away")

    async with open_memory(server_of(fails)) as client:
        assert await text_of(client, "show") == "the database is away"
    assert EVENTS == []


async def test_tool_call_fails_if_a_dependency_swallows_the_exception_of_the_handler() -> None:
    async def swallows() -> AsyncGenerator[None]:
        with suppress(ValueError):
            yield

    server = Server("s", expose_errors=True)

    @server.tool
    async def fail(it: Annotated[None, Provide(swallows)]) -> None:
        raise ValueError

    async with open_memory(server) as client:
        assert "swallowed" in await text_of(client, "fail")


# Asking


@attrs.frozen
class Form:
    name: str


def name_in(answer: ElicitAnswer) -> str:
    form = answer.as_(Form)
    assert form is not None
    return form.name


async def confirmed(ctx: RequestContext) -> AsyncGenerator[str]:
    EVENTS.append("asks")
    answer = await ctx.elicit("Sure?", Form)
    try:
        yield name_in(answer)
    finally:
        EVENTS.append("left")


def confirmed_in_a_thread(ctx: WorkerContext) -> str:
    return name_in(ctx.elicit("Sure?", Form))


def confirmed_on_the_way(ctx: WorkerContext) -> Generator[str]:
    yield confirmed_in_a_thread(ctx)
    ctx.check_cancelled()


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("provider", [confirmed, confirmed_in_a_thread, confirmed_on_the_way])
async def test_dependency_can_elicit_from_the_user(provider: Any, era: Any) -> None:
    async with open_memory(server_of(provider), era=era, elicitation=in_turn({"name": "Ann"})) as client:
        assert await text_of(client, "show") == "Ann"


async def test_handler_with_replay_enters_its_dependencies_again_in_each_run() -> None:
    server = server_of(confirmed, replay=True)
    async with open_memory(server, era="modern", elicitation=in_turn({"name": "Ann"})) as client:
        assert await text_of(client, "show") == "Ann"
    assert EVENTS == ["asks", "asks", "handler", "left"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_retry_after_input_required_enters_the_dependencies_again(era: Any) -> None:
    server = Server("s")

    @server.tool
    async def ask(value: Annotated[str, Provide(first)], ctx: RequestContext) -> str | InputRequired:
        if ctx.is_resubmit:
            return value
        return InputRequired({"sure": ElicitFormParams("Sure?", {"type": "object", "properties": {}})}, "asked")

    async with open_memory(server, era=era, elicitation=in_turn({})) as client:
        assert await text_of(client, "ask") == "first"
    assert EVENTS == ["+first", "-first"] * 2


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_dependency_can_be_a_client_of_another_server(era: Any, once: bool) -> None:
    other = server_of(first)

    def behind() -> Any:
        return open_memory(other)

    for provider in (partial(open_memory, other), behind):
        server = Server("s")

        @server.tool
        async def ask(client: Annotated[Client, Provide(provider, once=once)]) -> str:
            if not await text_of(client, "show"):
                raise ToolError("nothing came")
            raise ToolError("the client of a nursery tells errors as they are")

        async with open_memory(server, era=era) as client:
            for _ in range(2):
                assert await text_of(client, "ask") == "the client of a nursery tells errors as they are"
                assert other.statistics().connections == int(once)
        assert other.statistics().connections == 0


# Once for a server


async def settings() -> AsyncGenerator[str]:
    EVENTS.append("+settings")
    yield "settings"
    EVENTS.append("-settings")


async def pool(of: Annotated[str, Provide(settings, once=True)]) -> AsyncGenerator[str]:
    EVENTS.append("+pool")
    yield f"pool of {of}"
    EVENTS.append("-pool")


async def connection(of: Annotated[str, Provide(pool, once=True)]) -> str:
    return f"connection of {of}"


@pytest.mark.parametrize("is_plain", [False, True])
async def test_server_wide_dependency_stays_open_as_long_as_the_server_runs(is_plain: bool) -> None:
    async with open_memory(server_of(connection, is_plain=is_plain)) as client:
        assert EVENTS == ["+settings", "+pool"]
        for _ in range(2):
            assert await text_of(client, "show") == "connection of pool of settings"
    assert EVENTS == ["+settings", "+pool", "handler", "handler", "-pool", "-settings"]


async def test_server_wide_dependency_opens_after_the_lifespan_and_before_requests() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        EVENTS.append("+lifespan")
        yield
        EVENTS.append("-lifespan")

    server = Server("s", lifespan=lifespan)

    @server.prompt
    def greet(value: Annotated[str, Provide(settings, once=True)]) -> str:
        return value

    async with open_memory(server):
        pass
    assert EVENTS == ["+lifespan", "+settings", "-settings", "-lifespan"]


async def test_server_wide_dependency_of_a_mounted_server_stays_open_as_long_as_the_outer_server_runs() -> None:
    inner, server = server_of(connection), Server("outer")

    @inner.prompt
    def greet(who: str) -> str:
        return who

    @inner.completion(prompt="greet", argument="who")
    async def complete(value: str, known: Annotated[str, Provide(settings, once=True)]) -> list[str]:
        return [known]

    server.mount(inner, prefix="inner")
    async with open_memory(server) as client:
        assert await text_of(client, "inner_show") == "connection of pool of settings"
    assert EVENTS == ["+settings", "+pool", "handler", "-pool", "-settings"]


async def test_each_run_of_a_server_has_its_own_server_wide_dependencies() -> None:
    server = server_of(connection)
    async with open_memory(server) as one:
        async with open_memory(server) as other:
            assert EVENTS == ["+settings", "+pool"] * 2
            assert await text_of(other, "show") == "connection of pool of settings"
        assert await text_of(one, "show") == "connection of pool of settings"


async def test_server_wide_dependency_of_a_disabled_tool_is_entered_at_start() -> None:
    server = server_of(connection, tags=["more"])
    server.disable("more")
    async with open_memory(server) as client:
        assert EVENTS == ["+settings", "+pool"]
        server.enable("more")
        assert await text_of(client, "show") == "connection of pool of settings"


async def test_exception_in_a_server_wide_dependency_fails_the_server_start() -> None:
    async def fails(of: Annotated[str, Provide(settings, once=True)]) -> None:
        raise OSError("the database is away")

    server = Server("s")

    @server.tool
    async def show(value: Annotated[None, Provide(fails, once=True)]) -> None: ...

    with pytest.raises(OSError, match="the database is away"):
        async with open_memory(server):
            raise AssertionError
    assert EVENTS == ["+settings"]


async def test_server_wide_dependency_added_to_a_running_server_raises() -> None:
    server = Server("s", expose_errors=True)
    async with open_memory(server) as client:

        @server.tool
        async def show(value: Annotated[str, Provide(settings, once=True)]) -> None: ...

        assert "settings has once=True, so the server creates its value when it starts" in await text_of(client, "show")


# In tests


async def fake(value: Annotated[str, Provide(awaited)]) -> str:
    return f"fake, {value}"


async def test_function_provide_instead_replaces_a_dependency_in_tests() -> None:
    server = server_of(connection)
    with provide_instead({connection: fake}):
        async with open_memory(server) as client:
            assert await text_of(client, "show") == "fake, awaited"
            with provide_instead({awaited: lambda: "deeper"}):
                assert await text_of(client, "show") == "fake, deeper"
            assert await text_of(client, "show") == "fake, awaited"


async def test_function_provide_instead_replaces_a_server_wide_dependency_before_start_and_while_running() -> None:
    server = server_of(connection)
    with provide_instead({pool: first}):
        async with open_memory(server) as client:
            assert EVENTS == ["+first"]
            assert await text_of(client, "show") == "connection of first"
    EVENTS.clear()
    async with open_memory(server) as client:
        with provide_instead({pool: fake}):
            assert await text_of(client, "show") == "connection of fake, awaited"
        assert await text_of(client, "show") == "connection of pool of settings"


# At the author's line


class Depends:
    """As that of several packages."""

    def __init__(self, function: Any) -> None:
        self.function = function


class Security(Depends):
    """As that of FastAPI."""


def declare(annotation: Any, default: Any = ...) -> None:
    async def show(value: Any) -> None: ...

    show.__annotations__["value"] = annotation
    if default is not ...:
        show.__defaults__ = (default,)
    Server("s").tool(show)


async def lacks(table: str) -> str:
    return table


async def of_a_request(ctx: RequestContext) -> str:
    return str(ctx.request_id)


async def of_a_value(value: Annotated[str, Provide(awaited)]) -> str:
    return value


async def unresolved(value: "Nothing") -> None: ...  # type: ignore[name-defined] # noqa: F821 # pyright: ignore


async def itself(value: Any) -> str:
    return value


itself.__annotations__["value"] = Annotated[str, Provide(itself)]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (lambda: declare(str, Provide(awaited)), r"right:  value: Annotated\[Database, Provide\(connect\)\]"),
        (lambda: declare(Annotated[str, Provide]), "one Provide"),
        (lambda: declare(str, Depends(awaited)), r"right:  value: Annotated\[Database, Provide\(connect\)\]"),
        (lambda: declare(Annotated[str, Depends(awaited)]), "Depends of another package has no effect"),
        (lambda: declare(str, Security(awaited)), "Depends of another package has no effect"),
        (lambda: declare(list[Annotated[str, Provide(awaited)]]), "around its whole annotation"),
        (lambda: declare(Annotated[str, Provide(awaited), Provide(plain)]), "one Provide"),
        (lambda: declare(Annotated[str, Provide(lacks)]), "lacks: the parameter 'table' is not provided"),
        (lambda: declare(Annotated[str, Provide(itself)]), "itself → itself"),
        (lambda: declare(Annotated[str, Provide(unresolved)]), "unresolved: an annotation could not be resolved"),
        (lambda: declare(Annotated[str, Provide(of_a_request, once=True)]), "leave out once=True"),
        (lambda: declare(Annotated[str, Provide(of_a_value, once=True)]), "needs awaited, which has no once=True"),
        (lambda: Provide(awaited()), r"right:  Provide\(connect\)"),  # type: ignore[arg-type]
        (lambda: Provide("connect"), "not its result, str"),  # type: ignore[arg-type]
    ],
)
def test_invalid_dependency_declaration_raises_an_error_with_instructions(
    declared: Callable[[], None], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        declared()
