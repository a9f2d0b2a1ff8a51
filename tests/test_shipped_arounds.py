"""The arounds that are ready for use: limits of time, rate and concurrency, and the log of who did what (AR-04)."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest
import trio
from tests.fleet.fleet import Fleet, Member, call, fleet
from tests.serving.http.protection import issued, protected
from tests.serving.http.raw import Answer
from tests.tasks.callers import calling, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    CancelCause,
    Client,
    CodedError,
    Limits,
    PeerError,
    RequestContext,
    Server,
    ServerRequest,
    ToolError,
    WorkerContext,
    audit_log,
    concurrency_limit,
    open_http,
    open_memory,
    rate_limit,
    serve_http,
    time_limit,
)
from trio_mcp.auth.resource_server.protected import Protected
from trio_mcp.client.opening import open_client
from trio_mcp.middleware import _Buckets
from trio_mcp.runtime.peer import Peer, PrincipalId
from trio_mcp.server.servable import connection_to
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.testing import open_scripted_client
from trio_mcp.transports.lines import memory_transport_pair
from trio_mcp.types import ElicitResult

Era = Literal["legacy", "modern"]
ERAS: list[Era] = ["legacy", "modern"]
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.fixture
def server() -> Server:
    server = Server("s")

    @server.tool
    async def sleep(seconds: float = 0) -> str:
        await trio.sleep(seconds)
        return "slept"

    @server.tool
    async def other() -> str:
        return "other"

    @server.resource("slow://{seconds}")
    async def slow(seconds: float) -> str:
        await trio.sleep(seconds)
        return "slept"

    return server


@asynccontextmanager
async def clients_of(server: Server, *callers: str) -> AsyncGenerator[list[Client]]:
    """A client for each of the principals ``callers``."""
    async with server._running() as running, trio.open_nursery() as nursery:
        clients: list[Client] = []

        async def serve(name: str, task_status: trio.TaskStatus[Any]) -> None:
            ours, theirs = memory_transport_pair()
            principal = PrincipalId("https://issuer", name)
            caller = running.callers.of_principal(principal)
            connection = connection_to(running, theirs, Peer(principal=principal, caller=caller))
            async with trio.open_nursery() as inner:
                inner.start_soon(connection.run)
                async with open_client(ours) as client:
                    task_status.started(client)
                    await trio.sleep_forever()

        for name in callers:
            clients.append(await nursery.start(serve, name))
        yield clients
        nursery.cancel_scope.cancel()


async def busy(call: Any) -> dict[str, Any]:
    """The data of the error of a call that was refused."""
    with pytest.raises(PeerError) as caught:
        await call
    assert caught.value.code == -31000
    return caught.value.data


# Time


@pytest.mark.parametrize("era", ERAS)
async def test_time_limit_middleware_cancels_a_slow_request_with_an_error(
    server: Server, era: Era, autojump_clock: MockClock
) -> None:
    server.middleware("tools/call", "resources/read")(time_limit(5))
    async with open_memory(server, era=era) as client:
        assert (await client.call_tool("sleep", {"seconds": 4})).text == "slept"
        result = await client.call_tool("sleep", {"seconds": 6})
        assert (result.is_error, result.text) == (True, "sleep took longer than its limit of 5 seconds")
        with pytest.raises(PeerError, match="took longer than its limit of 5 seconds"):
            await client.read_resource("slow://6")


@pytest.mark.parametrize(("inner", "words"), [(3, "3 seconds"), (9, "5 seconds")])
async def test_shorter_of_a_tool_timeout_and_a_time_limit_middleware_cancels_the_handler(
    inner: float, words: str, autojump_clock: MockClock
) -> None:
    server, causes = Server("s"), list[Any]()
    server.middleware("tools/call")(time_limit(5))

    @server.tool(timeout=inner)
    async def wait(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancellation and ctx.cancellation.cause)

    async with open_memory(server) as client:
        assert words in (await client.call_tool("wait")).text
    assert causes == [CancelCause.DEADLINE]


@pytest.mark.parametrize("timeout", [None, 4.0])
@pytest.mark.parametrize("era", ERAS)
async def test_time_limit_middleware_is_paused_during_elicitation(
    era: Era, timeout: float | None, autojump_clock: MockClock
) -> None:
    server = Server("s")
    server.middleware("tools/call")(time_limit(5))

    @server.tool(timeout=timeout)
    async def ask(ctx: RequestContext, seconds: float) -> str:
        await ctx.elicit("Who?", NAME)
        await trio.sleep(seconds)
        return "done"

    async def think(_: object) -> ElicitResult:
        await trio.sleep(60)
        return ElicitResult("accept", {"name": "Ada"})

    async with open_memory(server, era=era, elicitation=think) as client:
        assert (await client.call_tool("ask", {"seconds": 3})).text == "done"
        assert (await client.call_tool("ask", {"seconds": 7})).is_error


async def test_time_limit_middleware_cancels_a_handler_in_a_thread(autojump_clock: MockClock) -> None:
    server, seen = Server("s"), list[Any]()
    server.middleware("tools/call")(time_limit(5))

    @server.tool
    def work(ctx: WorkerContext) -> None:
        ctx.cancelled.wait(100)
        seen.append(ctx.cancellation and ctx.cancellation.cause)

    autojump_clock.autojump_threshold = 0.05
    async with open_memory(server) as client:
        assert (await client.call_tool("work")).is_error
        await trio.sleep(1)
    assert seen == [CancelCause.DEADLINE]


async def test_middleware_that_limits_time_rate_or_concurrency_does_not_apply_to_listen_streams(
    server: Server, autojump_clock: MockClock
) -> None:
    server.middleware(time_limit(5))
    server.middleware(rate_limit(3, period=1000))
    server.middleware(concurrency_limit(1))
    async with open_memory(server, era="modern") as client, client.listen(tools=True) as changes:
        await trio.sleep(100)
        server.remove_tool("other")
        with trio.fail_after(1):
            assert await anext(aiter(changes))


@pytest.mark.parametrize("limit", [time_limit(5), rate_limit(1, period=1e6), concurrency_limit(1)])
async def test_limit_middleware_does_not_apply_to_task_polling_requests(limit: Any, autojump_clock: MockClock) -> None:
    server = Server("s")
    server.middleware("tasks/get", "tasks/result", "tasks/cancel")(limit)

    @server.tool(task="optional")
    async def work() -> str:
        await trio.sleep(20)
        return "done"

    async with open_scripted_client(server, "2025-11-25") as client:

        async def ask(method: str, **params: Any) -> Any:
            request = await client.request(method, params)
            return (await client.until({"id": request, "result": ...}))["result"]

        client.patience = 100
        task = (await ask("tools/call", name="work", task={}))["task"]["taskId"]
        waiting = await client.request("tasks/result", {"taskId": task})
        for _ in range(3):
            assert (await ask("tasks/get", taskId=task))["status"] == "working"
        result = (await client.until({"id": waiting, "result": ...}))["result"]
    assert result["content"][0]["text"] == "done"


# Rate


@pytest.mark.parametrize("era", ERAS)
async def test_call_refused_by_the_rate_limit_returns_the_seconds_to_wait_before_a_retry(
    server: Server, era: Era, autojump_clock: MockClock
) -> None:
    server.middleware("tools/call")(rate_limit(2, period=10))
    async with open_memory(server, era=era) as client:
        await client.call_tool("other")
        await client.call_tool("other")
        assert await busy(client.call_tool("other")) == {"retryAfter": 5.0}
        await trio.sleep(4)
        assert await busy(client.call_tool("other")) == {"retryAfter": 1.0}
        await trio.sleep(1)
        assert (await client.call_tool("other")).text == "other"
        assert await busy(client.call_tool("other")) == {"retryAfter": 5.0}
        assert [tool.name async for tool in client.list_tools()] == ["sleep", "other"]


async def test_rate_limited_call_succeeds_if_it_is_retried_after_the_returned_seconds(
    server: Server, autojump_clock: MockClock
) -> None:
    server.middleware("tools/call")(rate_limit(7, period=3, burst=2))
    async with open_memory(server) as client:
        for _ in range(2):
            await client.call_tool("other")
        for _ in range(20):
            await trio.sleep((await busy(client.call_tool("other")))["retryAfter"])
            await client.call_tool("other")


async def test_rate_limit_of_a_caller_applies_across_connections(server: Server, autojump_clock: MockClock) -> None:
    server.middleware("tools/call")(rate_limit(2, period=10))
    async with clients_of(server, "ann", "ann", "bob") as (first, second, bob):
        await first.call_tool("other")
        await second.call_tool("other")
        await busy(first.call_tool("other"))
        await busy(second.call_tool("other"))
        await bob.call_tool("other")


async def test_rate_limit_of_a_caller_continues_after_a_reconnect(server: Server, autojump_clock: MockClock) -> None:
    server.middleware("tools/call")(rate_limit(1, period=10))
    async with clients_of(server, "ann") as (ann,):
        await ann.call_tool("other")
    async with clients_of(server, "ann") as (ann,):
        await busy(ann.call_tool("other"))


async def test_rate_limit_by_tool_counts_calls_of_all_callers_together(
    server: Server, autojump_clock: MockClock
) -> None:
    keys: list[Any] = []

    def by_tool(request: ServerRequest) -> Any:
        keys.append(request.offer)
        return request.offer

    server.middleware("tools/call", "resources/read")(rate_limit(1, period=10, key=by_tool))
    async with clients_of(server, "ann", "bob") as (ann, bob):
        await ann.call_tool("other")
        await busy(bob.call_tool("other"))
        await bob.call_tool("sleep")
        with pytest.raises(PeerError, match="Unknown tool"):
            await bob.call_tool("guess-1")
        await busy(bob.call_tool("guess-2"))
        await bob.read_resource("slow://0")
        await busy(bob.read_resource("slow://0.0"))
    assert keys == ["other", "other", "sleep", None, None, "slow://{seconds}", "slow://{seconds}"]


async def test_request_refused_by_the_rate_limit_does_not_count_towards_the_limit(
    server: Server, autojump_clock: MockClock
) -> None:
    server.middleware("tools/call")(rate_limit(1, period=10))
    async with open_memory(server) as client:
        await client.call_tool("other")
        for _ in range(10):
            await trio.sleep(0.9)
            await busy(client.call_tool("other"))
        await trio.sleep(1)
        await client.call_tool("other")


def limited(*limits: Any) -> Callable[[Server, Fleet, int], None]:
    """Return what adds a tool to each replica, and ``limits``, of which each process makes its own."""

    def add(server: Server, _: Fleet, __: int) -> None:
        @server.tool
        async def work() -> str:
            return "done"

        for make in limits:
            server.middleware("tools/call")(make())

    return add


def guarded(_: int) -> Protected:
    return protected(issued())


async def ask_as(member: Member, token: str = "alice-1") -> Answer:
    return await member.endpoint.modern("tools/call", call("work"), Authorization=f"Bearer {token}")


async def test_replicas_share_the_rate_limit_of_a_caller(autojump_clock: MockClock) -> None:
    async with fleet(limited(partial(rate_limit, 2, period=10)), auth=guarded) as (one, two):
        for member in (one, two):
            assert "result" in (await ask_as(member)).json
        for member in (one, two):
            answer = await ask_as(member, "alice-2")
            assert answer.code == -31000
            assert answer.json["error"]["data"] == {"retryAfter": 5.0}
        assert "result" in (await ask_as(two, "bob-1")).json
        await trio.sleep(5)
        assert "result" in (await ask_as(one)).json
        assert (await ask_as(two)).code == -31000
        assert one.ways.uses["rate_limits.acquire"] == 3


async def test_replicas_count_two_equal_rate_limits_of_a_server_separately(autojump_clock: MockClock) -> None:
    both = limited(partial(rate_limit, 5, period=10), partial(rate_limit, 5, period=10))
    async with fleet(both, auth=guarded) as (one, two):
        for number in range(5):
            assert "result" in (await ask_as((one, two)[number % 2])).json
        assert (await ask_as(one)).code == -31000


async def test_replicas_distinguish_rate_limits_by_their_names(autojump_clock: MockClock) -> None:
    def add(server: Server, members: Fleet, number: int) -> None:
        if number:  # a newer version of the program
            server.middleware("tools/call")(rate_limit(1000, period=1))
        limited(partial(rate_limit, 2, period=10, name="calls"))(server, members, number)

    async with fleet(add, auth=guarded) as (one, two):
        await ask_as(one)
        await ask_as(two)
        assert (await ask_as(one)).code == (await ask_as(two)).code == -31000


@pytest.mark.parametrize("key", ["text", b"bytes", 7, -(2**70), None, ("a", PrincipalId("i", "s"), ("b",)), "\udc80"])
async def test_rate_limit_keys_of_supported_types_are_shared_by_replicas(key: Any, autojump_clock: MockClock) -> None:
    async with fleet(limited(partial(rate_limit, 1, period=10, key=lambda _: key)), auth=guarded) as (one, two):
        assert "result" in (await ask_as(one)).json
        assert (await ask_as(two, "bob-1")).code == -31000


async def test_different_rate_limit_keys_have_separate_limits(autojump_clock: MockClock) -> None:
    different = ["1", b"1", 1, ("1",), ("1", "1"), ("11",), (("1",), "1"), "", b"", (), None, "n"]
    keys = iter(different)
    async with fleet(limited(partial(rate_limit, 1, period=1e6, key=lambda _: next(keys))), 1, auth=guarded) as (one,):
        for _ in different:
            assert "result" in (await ask_as(one)).json


async def test_rate_limit_with_a_key_of_an_unsupported_type_counts_per_process_and_logs_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    limit = partial(rate_limit, 1, period=10, key=lambda _: 1.5)
    async with fleet(limited(limit), auth=guarded) as (one, two):
        for member in (one, two):
            assert "result" in (await ask_as(member)).json
            assert (await ask_as(member)).code == -31000
        assert not one.ways.uses["rate_limits.acquire"]
    warnings = [each for each in caplog.messages if "counts some requests in each process separately" in each]
    assert len(warnings) == 2  # one of each replica
    assert "not float" in warnings[0]


async def test_rate_limit_counts_per_process_during_a_storage_outage(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(limited(partial(rate_limit, 1, period=10)), auth=guarded) as (one, two):
        await ask_as(one)
        one.ways.are_cut = True
        assert "result" in (await ask_as(one)).json
        assert (await ask_as(one)).code == -31000
        one.ways.are_cut = False
        assert (await ask_as(one)).code == (await ask_as(two)).code == -31000
    assert len([each for each in caplog.messages if "counts in each process separately until the storage" in each]) == 1


async def test_rate_limit_that_another_middleware_calls_counts_per_process(autojump_clock: MockClock) -> None:
    def add(server: Server, members: Fleet, number: int) -> None:
        limited()(server, members, number)
        limit = rate_limit(1, period=10)

        @server.middleware("tools/call")
        async def some(request: ServerRequest, next: Any) -> Any:
            return await limit(request, next)

    async with fleet(add, auth=guarded) as (one, two):
        for member in (one, two):
            assert "result" in (await ask_as(member)).json
            assert (await ask_as(member)).code == -31000


async def test_rate_limit_middleware_registered_twice_consumes_two_tokens_per_request(
    autojump_clock: MockClock,
) -> None:
    def add(server: Server, members: Fleet, number: int) -> None:
        limited()(server, members, number)
        limit = rate_limit(3, period=10)
        server.middleware("tools/call")(limit)
        server.middleware("tools/call")(limit)

    async with fleet(add, 1, auth=guarded) as (one,):
        assert "result" in (await ask_as(one)).json
        assert (await ask_as(one)).code == -31000


def test_number_of_rate_limit_buckets_is_limited_and_the_oldest_is_dropped() -> None:
    buckets = _Buckets(1.0, 1, 100)
    for key in range(1000):
        assert buckets.acquire(key, 0) == 0
    assert len(buckets._full_at) == 100
    assert buckets.acquire(999, 0) == 1
    assert buckets.acquire(0, 0) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rate_limit(0, period=1), "limit must be greater than 0"),
        (lambda: rate_limit(1, period=float("nan")), "period must be greater than 0"),
        (lambda: rate_limit(1, period=1, burst=0), "burst must be greater than 0"),
        (lambda: time_limit(0), "seconds must be greater than 0"),
        (lambda: concurrency_limit(-1), "limit must be greater than 0"),
    ],
)
def test_rate_or_time_or_concurrency_limit_that_is_not_positive_raises_value_error(
    make: Callable[[], Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_concurrency_limit_that_is_not_an_integer_raises_type_error() -> None:
    with pytest.raises(TypeError, match="int"):
        concurrency_limit(2.5)  # type: ignore[arg-type]


async def test_restarted_task_is_not_rate_limited_again(autojump_clock: MockClock) -> None:
    store = MemoryTaskStore()

    def made() -> Server:
        server = Server("s", tasks=settings(store), limits=Limits(drain_timeout=0.01))
        server.middleware("tools/call")(rate_limit(1, period=1e6))
        server.middleware("tools/call")(concurrency_limit(1))

        @server.tool(task="required", on_restart="again")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            await trio.sleep(20)
            return "done"

        return server

    async with calling(made()) as caller:
        first = await caller.start("work")
    async with calling(made()) as caller:
        await trio.sleep(5)  # it runs again
        second = await caller.start("work")
        for task in (first, second):
            assert (await caller.final(task))["status"] == "completed"


async def test_rate_limit_counts_anonymous_http_callers_by_address(server: Server) -> None:
    keys: list[Any] = []

    def by_caller(request: ServerRequest) -> Any:
        keys.append((request.caller, request.caller_name))
        return request.caller

    server.middleware("tools/call")(rate_limit(1, period=1e6, key=by_caller))
    async with trio.open_nursery() as nursery:
        (listener, *_) = await nursery.start(partial(serve_http, server, port=0))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        for era in ERAS:
            async with open_http(url, era=era) as client:
                if era == "legacy":
                    await client.call_tool("other")
                else:
                    await busy(client.call_tool("other"))
        nursery.cancel_scope.cancel()
    assert keys == [(("address", "127.0.0.1"), "127.0.0.1")] * 2


# Concurrency


@pytest.mark.parametrize("era", ERAS)
async def test_requests_that_exceed_the_concurrency_limit_wait_in_order(era: Era, autojump_clock: MockClock) -> None:
    server, running, most, order = Server("s"), 0, 0, list[int]()
    server.middleware("tools/call")(concurrency_limit(2))

    @server.tool
    async def work(number: int) -> None:
        nonlocal running, most
        order.append(number)
        running += 1
        most = max(most, running)
        await trio.sleep(1.5 if number == 1 else 1)  # so that no two end at once
        running -= 1

    async with open_memory(server, era=era) as client, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(client.call_tool, "work", {"number": number})
            await wait_all_tasks_blocked()
    assert most == 2
    assert order == list(range(6))


async def test_cancelled_call_no_longer_counts_towards_the_concurrency_limit_of_the_caller(
    server: Server, autojump_clock: MockClock
) -> None:
    limit = concurrency_limit(1)
    server.middleware("tools/call")(limit)
    async with clients_of(server, "ann", "bob") as (ann, bob):
        with trio.move_on_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ann.call_tool, "sleep", {"seconds": 1000})
                await wait_all_tasks_blocked()
                nursery.start_soon(ann.call_tool, "other")  # waits, and is left while it waits
                assert (await bob.call_tool("other")).text == "other"
        with trio.fail_after(1):
            assert (await ann.call_tool("other")).text == "other"
    (kept,) = [cell.cell_contents for cell in limit.__closure__ if isinstance(cell.cell_contents, dict)]  # type: ignore
    assert kept == {}, "nothing is kept of callers without requests"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("era", ERAS)
async def test_concurrency_limit_frees_the_slot_of_a_call_however_the_call_ends(
    era: Era, seed: int, server: Server, audited: Callable[[], list[Any]], autojump_clock: MockClock
) -> None:
    chance, ended = random.Random(seed), 0
    server.middleware("tools/call")(audit_log())
    server.middleware("tools/call")(concurrency_limit(3))
    server.middleware("tools/call")(time_limit(6))

    async with open_memory(server, era=era) as client:

        async def leave() -> None:
            nonlocal ended
            await trio.sleep(chance.uniform(0, 20))
            with trio.move_on_after(chance.uniform(0, 10)):
                await client.call_tool("sleep", {"seconds": chance.uniform(0, 8)})
            ended += 1

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(leave)
        await trio.sleep(20)
        async with trio.open_nursery() as nursery:
            start = trio.current_time()
            for _ in range(3):
                nursery.start_soon(client.call_tool, "sleep", {"seconds": 1})
        assert trio.current_time() - start == pytest.approx(1)
    assert ended == 100
    outcomes = {record.outcome for record in audited()}
    assert outcomes == {"ok", "failed", "cancelled"}


# Audit


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    """A function that returns the records of the audit log."""
    caplog.set_level(logging.INFO, "trio_mcp.audit")
    return lambda: [record for record in caplog.records if record.name == "trio_mcp.audit"]


@pytest.mark.parametrize("era", ERAS)
async def test_audit_log_records_the_end_of_each_request(
    era: Era, audited: Callable[[], list[Any]], autojump_clock: MockClock
) -> None:
    server = Server("s")
    server.middleware("tools/call", "tools/list")(audit_log())
    failures = {
        "told": ToolError("my secret"),
        "coded": CodedError(-32050, "my secret"),
        "defect": OSError("my secret"),
    }

    @server.tool
    async def end(how: str) -> str:
        await trio.sleep(2)
        if how in failures:
            raise failures[how]
        return "my secret"

    async with open_memory(server, era=era) as client:
        for how in ("well", "told", "defect"):
            await client.call_tool("end", {"how": how})
        with pytest.raises(PeerError):
            await client.call_tool("end", {"how": "coded"})
        with trio.move_on_after(1):
            await client.call_tool("end", {"how": "well"})
        await wait_all_tasks_blocked()
        with pytest.raises(PeerError):
            await client.call_tool("my secret\nname")
        _ = [tool async for tool in client.list_tools()]
        await wait_all_tasks_blocked()
    records = audited()
    assert [(each.method, each.offer, each.outcome, each.cause, each.duration) for each in records] == [
        ("tools/call", "end", "ok", None, 2),
        ("tools/call", "end", "failed", None, 2),
        ("tools/call", "end", "error", "OSError", 2),
        ("tools/call", "end", "error", "-32050", 2),
        ("tools/call", "end", "cancelled", "peer", 1),
        ("tools/call", None, "error", "-32602", 0),
        ("tools/list", None, "ok", None, 0),
    ]
    assert records[0].getMessage() == "tools/call end: ok after 2.000 s"
    assert records[4].getMessage() == "tools/call end: cancelled (peer) after 1.000 s"
    assert not any("secret" in record.getMessage() for record in records)


async def test_audit_log_contains_only_the_selected_arguments_without_control_characters(
    audited: Callable[[], list[Any]],
) -> None:
    server = Server("s")
    server.middleware("tools/call")(audit_log(arguments=["path", "deep", "number", "absent"]))

    @server.tool
    async def put(path: str, password: str, deep: list[str], number: int) -> None: ...

    arguments = {"path": "/tmp\nroot: ok " + "x" * 1000, "password": "secret", "deep": ["secret"], "number": 5}
    async with clients_of(server, "a\x1bnn") as (client,):
        await client.call_tool("put", arguments)
        await client.call_tool("put", {**arguments, "number": 10**4000})
    record, strange = audited()
    assert record.arguments == {"path": ("/tmp root: ok " + "x" * 1000)[:200], "deep": "<list>", "number": 5}
    assert record.getMessage().startswith("tools/call put for a\N{REPLACEMENT CHARACTER}nn: ok after")
    assert "secret" not in record.getMessage()
    assert strange.arguments["number"] == "<int>"


async def test_audit_log_records_an_input_required_result(audited: Callable[[], list[Any]]) -> None:
    server = Server("s")
    server.middleware("tools/call")(audit_log())

    @server.tool(replay=True)
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("Who?", NAME)).content)

    async def answer(_: object) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ada"})

    async with open_memory(server, era="modern", elicitation=answer) as client:
        await client.call_tool("ask")
    assert [(each.outcome, each.cause) for each in audited()] == [("asked", None), ("ok", None)]


def test_audit_log_arguments_given_as_a_string_raise_type_error() -> None:
    with pytest.raises(TypeError, match="arguments must be a list"):
        audit_log(arguments="path")


async def test_audit_log_uses_the_given_logger(caplog: pytest.LogCaptureFixture, server: Server) -> None:
    caplog.set_level(logging.INFO, "billing")
    server.middleware("tools/call")(audit_log(logging.getLogger("billing")))
    async with open_memory(server) as client:
        await client.call_tool("other")
    assert [record.name for record in caplog.records] == ["billing"]
