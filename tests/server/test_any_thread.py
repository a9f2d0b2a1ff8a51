"""Every public method of a server, a context, a group, skills and a client, from any thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import wait_all_tasks_blocked

from trio_mcp import (
    CacheHints,
    Client,
    InMemory,
    Limits,
    Progress,
    RequestContext,
    ResponseCache,
    Server,
    Skills,
    WorkerContext,
    open_memory,
)
from trio_mcp.hosting import Catalogue, Group, MemberDescription, Watch, open_group
from trio_mcp.server.offering import Offering
from trio_mcp.server.server import share_secret, store_tasks_in
from trio_mcp.stores import HintQueues, MemoryTaskStore
from trio_mcp.testing import RecordingContext
from trio_mcp.types import Change, Changes, ConnectedClient, CreateMessageResult, RequestLog, TaskContext

READS = {"capabilities", "statistics", "tasks"}
"""Members of a server that change nothing."""


def echo(text: str) -> str:
    return text


async def passing(request: Any, next: Any) -> Any:
    return await next(request)


CHANGES: dict[str, Callable[[Server], object]] = {
    "tool": lambda server: server.tool(name="more")(echo),
    "resource": lambda server: server.resource("note://{text}")(echo),
    "prompt": lambda server: server.prompt(name="more")(echo),
    "completion": lambda server: server.completion(argument="text", prompt="echo")(lambda value: [value]),
    "on_roots_changed": lambda server: server.on_roots_changed(print),
    "middleware": lambda server: server.middleware(passing),
    "remove_tool": lambda server: server.remove_tool("echo"),
    "remove_resource": lambda server: server.remove_resource("note://motto"),
    "remove_prompt": lambda server: server.remove_prompt("echo"),
    "disable": lambda server: server.disable("tag"),
    "enable": lambda server: server.enable("tag"),
    "_list_changed": lambda server: server._observers.list_changed("notifications/tools/list_changed"),
    "resource_updated": lambda server: server.resource_updated("note://motto"),
    "everything_changed": lambda server: server.everything_changed(),
    "searchable": lambda server: server.searchable(pinned=["change", "probe"]),
    "share_secret": lambda server: share_secret(server, bytes(32)),
    "store_tasks_in": lambda server: store_tasks_in(server, MemoryTaskStore()),
}
OF_PACKAGE = {"_list_changed", "share_secret", "store_tasks_in"}
"""What the package itself does to a server."""
REFUSED = {"handles", "notify", "mount"}
"""Methods that such a server refuses, wherever they are called."""
REFUSALS: dict[str, Callable[[Server], object]] = {
    "handles": lambda server: server.handles(ROW),
    "notify": lambda server: server.notify(ROW, None),
    "mount": lambda server: server.mount(Server("other"), prefix="other"),
}
ROW: Any = type("Row", (), {"name": "none"})()


def members(kind: type) -> Iterator[str]:
    """The public methods of a class that are not async, and its properties."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        member = getattr(member, "__func__", member)
        is_method = inspect.isfunction(member) and not inspect.iscoroutinefunction(member)
        if name[0] != "_" and (is_method or isinstance(member, property)):
            yield name


def test_table_of_thread_safety_tests_contains_every_method_of_server() -> None:
    """A new method belongs in one of the tables: see `ActiveRuns.call_in_run` and `Observers`."""
    assert set(members(Server)) == READS | set(CHANGES) - OF_PACKAGE | REFUSED
    assert set(members(Offering)) <= set(members(Server))


OTHERS: dict[type, set[str]] = {
    # What changes is made in trio's thread, or refused; the rest reads.
    Group: {"add", "resume_task", "statuses", "watch"},
    Skills: {
        *("add_files", "add_folder", "add_folders", "remove"),
        *("method", "notification"),
    },
    Changes: {"take_all"},
    ConnectedClient: {"auth", "headers", "info", "lifespan", "revision", "session_id"},
    TaskContext: {"status", "attempt", "has_started", "id", "requested_ttl", "restored", "restored_as", "ttl"},
    RequestLog: {
        *("alert", "critical", "debug", "emergency", "error", "info", "notice", "warning"),  # which are awaited
        "log_nowait",
    },
    RequestContext: {
        *("progress", "close_stream", "cancelled", "nursery", "cancel_scope", "log", "task", "caller_tasks"),
        *("auth", "cancellation", "client_extension", "client_supports", "has_input_response", "headers"),
        *("input_response_as", "input_responses", "is_cancelled", "is_resubmit", "lifespan", "meta", "no_channel"),
        *("peer_user", "request_id", "request_state", "request_state_as", "revision", "session_id", "stateless"),
        *("state", "trace"),
    },
    Catalogue: {"held", "prompts", "resource_templates", "resources", "tools", "watch"},
    Watch: set(),
    Client: {
        *("capabilities", "discovery", "lost", "unreadable_messages", "server_extension", "resume_task"),
        *("list_directory", "list_prompts", "list_resource_templates", "list_resources", "list_skills", "list_tasks"),
        *("list_tools", "listen"),  # which are iterated over, entered or awaited
    },
}
"""Members that are not async. Whoever adds one sees to it that a thread may call it, and tests that below."""


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_table_of_thread_safety_tests_contains_every_attribute_that_handlers_can_use(kind: type) -> None:
    assert set(members(kind)) == OTHERS[kind]


def with_offers() -> Server:
    server = Server("s", expose_errors=True)
    server.tool(tags=["tag"])(echo)
    server.resource("note://motto")(lambda: "never block")
    server.prompt(echo)
    return server


def under_trio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        await trio.lowlevel.checkpoint()
        return call()

    return trio.run(main)


@pytest.mark.parametrize("run", [lambda call: call(), under_trio], ids=["thread", "run of trio"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("name", CHANGES)
async def test_change_made_to_a_server_from_a_thread_is_visible_to_clients_while_calls_continue(
    name: str, era: Any, run: Any
) -> None:
    server = with_offers()
    server.tool(name="probe")(echo)
    threads = list[int]()
    with trio.fail_after(PATIENCE), ThreadPoolExecutor(1) as pool:
        async with open_memory(server, era=era) as client, open_memory(server, era=era) as other:
            await client.subscribe("note://motto")
            done = trio.Event()
            token = trio.lowlevel.current_trio_token()
            change = pool.submit(run, partial(CHANGES[name], server))
            change.add_done_callback(lambda _: token.run_sync_soon(done.set))
            await done.wait()
            change.result()
            for each in (client, other):
                assert (await each.call_tool("probe", {"text": "hi"})).text == "hi"
            threads.append(1)


@pytest.mark.parametrize("name", REFUSALS)
async def test_rejected_server_change_raises_in_the_calling_thread_while_calls_continue(name: str) -> None:
    server = with_offers()
    async with open_memory(server) as client:
        with pytest.raises((ValueError, RuntimeError)):
            await trio.to_thread.run_sync(REFUSALS[name], server)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_duplicate_tool_name_raises_in_the_thread_that_registers_the_tool() -> None:
    server = with_offers()
    async with open_memory(server) as client:
        with pytest.raises(ValueError, match="there is already a tool named 'echo'"):
            await trio.to_thread.run_sync(server.tool, echo)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_mounted_server_changed_from_a_thread_notifies_all_clients() -> None:
    whole, part, news = Server("whole"), Server("part"), list[object]()
    part.tool(echo)
    whole.mount(part, prefix="part")
    async with open_memory(whole, on_list_changed=news.append) as client:
        await trio.to_thread.run_sync(part.tool(name="more"), echo)
        assert (await client.call_tool("part_more", {"text": "hi"})).text == "hi"
        await trio.to_thread.run_sync(part.remove_tool, "more")
        assert [tool.name async for tool in client.list_tools()] == ["part_echo"]


async def test_skills_can_be_added_and_removed_from_threads(tmp_path: Path) -> None:
    skills = Skills()
    server = Server("s", extensions=[skills])
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "SKILL.md").write_text("---\nname: two\ndescription: d\n---\n")
    one = {"SKILL.md": "---\nname: one\ndescription: d\n---\n"}
    async with open_memory(server) as client:
        await trio.to_thread.run_sync(skills.add_files, "one", one)
        await trio.to_thread.run_sync(skills.add_folder, tmp_path / "two")
        assert [skill.name async for skill in client.list_skills()] == ["one", "two"]
        await trio.to_thread.run_sync(skills.remove, "one")
        assert [skill.name async for skill in client.list_skills()] == ["two"]


async def test_concurrent_server_changes_from_many_threads_are_all_applied() -> None:
    server, news = with_offers(), list[object]()

    def work(number: int) -> None:
        for _ in range(20):
            server.tool(name=f"tool{number}")(echo)
            server.resource_updated("note://motto")
            server.disable("tag")
            server.enable("tag")
            server.remove_tool(f"tool{number}")
        server.tool(name=f"tool{number}")(echo)

    with trio.fail_after(PATIENCE):
        async with open_memory(server, on_resource_updated=news.append) as client, trio.open_nursery() as nursery:
            await client.subscribe("note://motto")
            for number in range(8):
                nursery.start_soon(trio.to_thread.run_sync, work, number)
            for _ in range(50):
                async for _ in client.list_tools():
                    pass
        async with open_memory(server) as client:
            names = {tool.name async for tool in client.list_tools()}
    assert names == {"echo", *(f"tool{number}" for number in range(8))}
    assert news


# What a handler says


async def test_progress_reports_from_threads_succeed_while_a_handler_blocks_the_trio_thread() -> None:
    server, heard = Server("s", limits=Limits(progress_interval=0)), list[float]()
    server.resource("note://motto")(lambda: "never block")

    @server.tool
    async def work(ctx: RequestContext) -> list[bool]:
        def step(number: int) -> bool:
            server.resource_updated("note://motto")
            return ctx.progress(number)

        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(step, range(1, 4)))

    async with open_memory(server) as client:
        result = await client.call_tool("work", on_progress=lambda progress: heard.append(progress.progress))
    assert result.structured_content == {"result": [True, True, True]}
    assert heard[-1] == 3, "a later report takes the place of one that was not read yet"


async def test_progress_reports_from_a_thread_are_rate_limited_but_the_last_report_is_always_sent() -> None:
    server, heard = Server("s", limits=Limits(progress_interval=1000)), list[Progress]()

    @server.tool
    def work(ctx: WorkerContext) -> list[bool]:
        with ThreadPoolExecutor(1) as pool:
            return [pool.submit(ctx.progress, number).result() for number in range(1, 5)]

    async with open_memory(server) as client:
        result = await client.call_tool("work", on_progress=heard.append)
    assert result.structured_content == {"result": [True, False, False, False]}
    assert heard == [Progress(1), Progress(4)]


async def test_elicitation_from_an_executor_thread_returns_the_answer() -> None:
    server = Server("s")

    @server.tool
    def work(ctx: WorkerContext) -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ctx.elicit, "name?", str).result().value

    async with open_memory(server, elicitation=lambda _: {"value": "Ann"}) as client:
        assert (await client.call_tool("work")).text == "Ann"


async def test_cancelled_call_ends_an_executor_thread_that_waits_for_an_elicitation() -> None:
    server, asked, ended = Server("s"), trio.Event(), threading.Event()

    @server.tool
    def work(ctx: WorkerContext) -> None:
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(ctx.sample, "?", max_tokens=1).result()
            except trio.Cancelled:
                with pytest.raises(trio.Cancelled):
                    ctx.check_cancelled()
                with pytest.raises((trio.Cancelled, RuntimeError)):
                    pool.submit(ctx.check_cancelled).result()
                ended.set()
                raise

    async def sampling(_: object) -> CreateMessageResult:
        asked.set()
        await trio.sleep_forever()
        raise AssertionError

    with trio.fail_after(PATIENCE):
        async with open_memory(server, era="legacy", sampling=sampling) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "work")
            await asked.wait()
            nursery.cancel_scope.cancel()
    assert ended.is_set()


async def test_context_used_in_a_thread_after_its_request_ended_raises_runtime_error() -> None:
    server, kept = Server("s"), list[WorkerContext]()

    @server.tool
    def work(ctx: WorkerContext) -> None:
        kept.append(ctx)

    async with open_memory(server) as client:
        await client.call_tool("work")
        assert await trio.to_thread.run_sync(kept[0].progress, 1) is False
        with pytest.raises(RuntimeError, match="the request is over"):
            await trio.to_thread.run_sync(kept[0].log.info, "late")
        await client.ping()


# Groups and clients


async def test_server_can_be_added_to_a_client_group_from_a_thread() -> None:
    description = MemberDescription(InMemory(with_offers()))
    with trio.fail_after(PATIENCE):
        async with open_group() as group:
            await trio.to_thread.run_sync(group.add, "one", description)
            with pytest.raises(ValueError, match="the group already has a member 'one'"):
                await trio.to_thread.run_sync(group.add, "one", description)
            await group.settled()
            assert (await group.call_tool("one__echo", {"text": "hi"})).text == "hi"
            watch = await trio.to_thread.run_sync(group.catalogue.watch)
            assert await watch.__anext__() in ("tools", "resources", "prompts", "resource_templates")
            await trio.to_thread.run_sync(group._reconnect_as_legacy, "one")
            assert (await group.client("one")).revision.handshake
        with pytest.raises(trio.ClosedResourceError):
            await trio.to_thread.run_sync(group.add, "two", description)


async def test_client_used_in_another_trio_run_raises_runtime_error_but_stays_usable_in_its_own_run() -> None:
    members = {"one": MemberDescription(InMemory(Server("o")))}
    async with open_memory(with_offers()) as client, open_group(members) as group:
        for call in (
            client.ping,
            client.until_lost,
            client.roots_changed,
            partial(client.send_notification, "example/notification"),
            partial(client.call_tool, "echo", {"text": "hi"}),
            group.settled,
            partial(group.client, "one"),
            partial(group.remove, "one"),
            partial(group.call_tool, "one__echo"),
            group.watch().__anext__,
        ):
            with pytest.raises(RuntimeError, match=r"belongs to a trio\.run in another thread"):
                await trio.to_thread.run_sync(trio.run, call)
        assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        assert "one" in group.statuses


# What authors test with, and what stores and caches share


async def test_recording_context_records_progress_from_an_executor_thread() -> None:
    ctx = RecordingContext()

    def work(context: WorkerContext) -> bool:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(context.progress, 1).result()

    assert await trio.to_thread.run_sync(work, WorkerContext(ctx))
    assert ctx.progress_reports == [Progress(1)]


async def test_custom_task_store_can_notify_watchers_from_a_thread() -> None:
    watchers = HintQueues[str]()
    with trio.fail_after(PATIENCE), watchers.watch() as hints:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, watchers.notify, ["a", "b"])
            assert [await hints.__anext__(), await hints.__anext__()] == ["a", "b"]


async def test_client_cache_can_be_invalidated_from_a_thread_during_list_requests() -> None:
    server = Server("s", cache=CacheHints(60_000, "public"))
    server.tool(echo)
    partition, over = ResponseCache().partition("s"), threading.Event()

    def outdate() -> None:
        while not over.is_set():
            partition._changed(Change("tools"))

    with trio.fail_after(PATIENCE):
        async with open_memory(server, cache=partition) as client, trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, outdate)
            for _ in range(100):
                assert [tool.name async for tool in client.list_tools()] == ["echo"]
            over.set()


# Two runs


def test_server_that_runs_in_two_threads_rejects_changes() -> None:
    server, barrier = with_offers(), threading.Barrier(2)
    told, refused = list[str](), list[str]()

    async def main(name: str) -> None:
        heard = trio.Event()

        def updated(_: object) -> None:
            told.append(name)
            heard.set()

        with trio.fail_after(PATIENCE):
            async with open_memory(server, on_resource_updated=updated) as client:
                await client.subscribe("note://motto")
                await trio.to_thread.run_sync(barrier.wait)
                if name == "one":
                    try:
                        server.remove_tool("echo")
                    except RuntimeError as error:
                        refused.append(str(error))
                    server.resource_updated("note://motto")
                await heard.wait()
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
                await trio.to_thread.run_sync(barrier.wait)

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for future in [pool.submit(trio.run, main, name) for name in ("one", "two")]:
            future.result()
    assert sorted(told) == ["one", "two"]
    assert len(refused) == 1
    assert "create one server for each thread" in refused[0]
    server.remove_tool("echo")


def test_server_can_be_changed_without_trio_before_and_after_serving() -> None:
    server = with_offers()

    async def main() -> None:
        async with open_memory(server) as client:
            await client.call_tool("echo", {"text": "hi"})

    trio.run(main)
    server.tool(name="later")(echo)
    server.disable("tag")
    server.resource_updated("note://motto")
    assert server._tools.registry.known("later") is not None


async def test_stopped_server_can_be_changed_from_a_thread() -> None:
    server = with_offers()
    async with open_memory(server):
        await wait_all_tasks_blocked()
    await trio.to_thread.run_sync(server.remove_tool, "echo")
    assert not len(server._tools.registry)


def test_log_message_after_the_end_of_the_trio_run_is_dropped() -> None:
    server, logs = Server("logging"), list[RequestLog]()

    @server.tool
    async def keep(ctx: RequestContext) -> None:
        logs.append(ctx.log)

    async def call() -> None:
        async with open_memory(server) as client:
            await client.call_tool("keep")

    trio.run(call)
    assert not logs[0].log_nowait("info", "late")
