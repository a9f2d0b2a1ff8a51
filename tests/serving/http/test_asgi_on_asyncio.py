"""http_app under ASGI servers that run asyncio: the server runs in trio's thread, beside the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount
from starlette.testclient import TestClient
from tests.patience import PATIENCE
from tests.serving.http.beside_asyncio import (
    OPEN,
    Journal,
    LoopExchange,
    OnAsyncio,
    behind_hypercorn_on_asyncio,
    behind_uvicorn,
    happened,
    happened_here,
    trio_threads,
    waiting_server,
)
from tests.serving.http.raw import modern

from trio_mcp import CancelCause, Limits, RequestContext, Server, http_app, open_http

user: ContextVar[str] = ContextVar("user", default="nobody")


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Any:
    yield
    for thread in threading.enumerate():
        if thread.name == "trio-mcp":
            thread.join(PATIENCE)
    assert not trio_threads()


# By hand, in an event loop of the test


def test_asyncio_asgi_app_without_a_lifespan_starts_at_the_first_request() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        steps.append("up")
        yield
        steps.append("down")

    server, _ = waiting_server(lifespan=lifespan)
    app = http_app(server, **OPEN)

    async def main() -> None:
        texts = await asyncio.gather(*(LoopExchange(app, "echo", {"text": text}).text() for text in "abc"))
        assert texts == ["a", "b", "c"]
        assert steps == ["up"]
        assert len(trio_threads()) == 1

    asyncio.run(main())
    assert steps == ["up", "down"]
    assert not trio_threads()


def test_asyncio_asgi_app_lifespan_starts_and_ends_the_trio_thread() -> None:
    server, _ = waiting_server()
    app = http_app(server, **OPEN)

    async def main() -> None:
        async with app.lifespan():
            assert await LoopExchange(app, "echo", {"text": "a"}).text() == "a"
        assert not trio_threads()

    asyncio.run(main())


def test_asyncio_asgi_app_releases_servers_that_ran_on_closed_event_loops() -> None:
    app = http_app(waiting_server()[0], **OPEN)

    async def main() -> None:
        assert await LoopExchange(app, "echo", {"text": "a"}).text() == "a"

    for _ in range(5):
        asyncio.run(main())
    assert app._loop_runs is not None
    assert len(app._loop_runs._runs) == 1


def test_asyncio_asgi_app_raises_if_its_lifespan_is_entered_twice_in_one_event_loop() -> None:
    app = http_app(waiting_server()[0], **OPEN)

    async def main() -> None:
        async with app.lifespan():
            with pytest.raises(RuntimeError, match="enter its lifespan once"):
                async with app.lifespan():
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True], ids=["a start that succeeds", "a start that fails"])
def test_asyncio_asgi_app_request_during_the_lifespan_start_waits_for_the_start(fails: bool) -> None:
    steps: list[str] = []
    starting, may_start = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        steps.append("up")
        starting.set()
        await trio.to_thread.run_sync(may_start.wait, PATIENCE)
        if fails:
            raise OSError("no database")
        yield
        steps.append("down")

    app = http_app(waiting_server(lifespan=lifespan)[0], **OPEN)

    async def live(may_end: asyncio.Event) -> None:
        async with app.lifespan():
            await may_end.wait()

    async def main() -> None:
        may_end = asyncio.Event()
        living = asyncio.create_task(live(may_end))
        await happened_here(starting)
        request = asyncio.create_task(LoopExchange(app, "echo", {"text": "a"}).text())
        for _ in range(10):
            await asyncio.sleep(0)
        may_start.set()
        if fails:
            with pytest.raises(RuntimeError, match="its server has failed"):
                await request
            with pytest.raises(OSError, match="no database"):
                await living
        else:
            assert await request == "a"
            may_end.set()
            await living
        assert not trio_threads()

    asyncio.run(main())
    assert steps == (["up"] if fails else ["up", "down"])


def test_asyncio_asgi_apps_of_one_event_loop_share_one_trio_thread() -> None:
    apps = [http_app(waiting_server()[0], **OPEN) for _ in range(3)]

    async def main() -> None:
        for app in apps:
            assert await LoopExchange(app, "echo", {"text": "a"}).text() == "a"
        assert len(trio_threads()) == 1

    asyncio.run(main())


def test_asyncio_asgi_app_restarts_a_failed_server_lifespan_at_the_next_request() -> None:
    failures = [OSError("no database"), None]

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        if (failure := failures.pop(0)) is not None:
            raise failure
        yield

    server, _ = waiting_server(lifespan=lifespan)
    app = http_app(server, **OPEN)

    async def main() -> None:
        with pytest.raises(OSError, match="no database"):
            await LoopExchange(app, "echo", {"text": "a"}).answer()
        assert await LoopExchange(app, "echo", {"text": "a"}).text() == "a"

    asyncio.run(main())


def test_asyncio_asgi_app_reports_a_failed_server_lifespan_to_the_asgi_server() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[None]:
        raise OSError("no database")
        yield

    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(event: Any) -> None:
        sent.append(event)

    app = http_app(waiting_server(lifespan=lifespan)[0], **OPEN)
    with pytest.raises(OSError, match="no database"):
        asyncio.run(app({"type": "lifespan"}, receive, send))
    assert sent[0]["type"] == "lifespan.startup.failed"


def test_asyncio_asgi_handler_sees_cancel_cause_disconnect_if_its_client_disconnects() -> None:
    server, journal = waiting_server()
    app = http_app(server, **OPEN)

    async def main() -> None:
        exchange = LoopExchange(app, "wait", {})
        exchange.give_body()
        serving = asyncio.create_task(exchange.run())
        await happened_here(journal.started)
        exchange.leave()
        await happened_here(journal.ended)
        await serving

    asyncio.run(main())
    assert journal.cancellation is not None
    assert journal.cancellation.cause is CancelCause.DISCONNECT


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
def test_cancelled_asyncio_task_of_an_asgi_request_cancels_the_handler_and_waits(speak: bool) -> None:
    server, journal = waiting_server()
    app = http_app(server, **OPEN)

    async def main() -> None:
        exchange = LoopExchange(app, "wait", {"speak": speak})
        exchange.give_body()
        serving = asyncio.create_task(exchange.run())
        await happened_here(journal.started)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await happened_here(journal.ended)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert journal.cancellation is not None
    assert journal.cancellation.cause is CancelCause.DISCONNECT


def test_asgi_request_cancelled_at_any_checkpoint_leaves_no_task_and_no_open_request() -> None:
    server, _ = waiting_server()
    app = http_app(server, **OPEN)

    async def interrupted(steps: int, *, leaves: bool) -> None:
        exchange = LoopExchange(app, "wait", {"speak": True})
        serving = asyncio.create_task(exchange.run())
        for step in range(steps):
            if step == 3:
                exchange.give_body()
            await asyncio.sleep(0 if step < 20 else 0.0005)
        if leaves:
            exchange.leave()
            await serving
        else:
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving

    async def main() -> None:
        async with app.lifespan():
            for steps in range(40):
                for leaves in (False, True):
                    await interrupted(steps, leaves=leaves)
            assert await LoopExchange(app, "echo", {"text": "a"}).text() == "a"
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert server.statistics().in_flight == 0


def test_slow_asgi_client_blocks_its_stream_but_not_the_event_loop() -> None:
    server = Server("talks")
    told, go_on = threading.Event(), threading.Event()

    @server.tool
    async def talk(ctx: RequestContext) -> str:
        for number in range(50):
            ctx.progress(number)
            await ctx.log.info("x" * 10_000)
            if number == 0:
                told.set()
        go_on.set()
        return "done"

    app = http_app(server, **OPEN, limits=Limits(high_water=20_000))

    async def main() -> None:
        exchange = LoopExchange(app, "talk", {})
        exchange.may_send.clear()
        exchange.give_body()
        serving = asyncio.create_task(exchange.run())
        await happened_here(told)
        await asyncio.to_thread(go_on.wait, 0.2)
        assert not go_on.is_set()
        assert len(exchange.sent) == 1, "the head waits, and what follows waits behind it"
        exchange.may_send.set()
        await serving
        assert b"done" in b"".join(event["body"] for event in exchange.sent[1:])

    asyncio.run(main())


def test_asyncio_asgi_app_rejects_a_body_beyond_the_size_limit() -> None:
    app = http_app(waiting_server()[0], **OPEN, limits=Limits(max_message_bytes=1000))

    async def main() -> None:
        exchange = LoopExchange(app, "echo", {"text": "a"}, length=False)
        for _ in range(100):
            exchange.bring.put_nowait({"type": "http.request", "body": b"x" * 400, "more_body": True})
        exchange.bring.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await exchange.run()
        assert exchange.sent[0]["status"] == 413

    asyncio.run(main())


def test_asyncio_asgi_handler_is_cancelled_if_send_raises_after_a_disconnect() -> None:
    server, journal = waiting_server()
    app = http_app(server, **OPEN)

    async def main() -> None:
        exchange = LoopExchange(app, "wait", {"speak": True})
        exchange.give_body()

        async def send(event: Any) -> None:
            raise OSError("gone")

        await app(exchange.scope, exchange.bring.get, send)
        await happened_here(journal.ended)

    asyncio.run(main())


@pytest.mark.parametrize("has_lifespan", [True, False])
def test_handler_runs_in_the_context_of_the_lifespan_and_asgi_send_in_the_context_of_the_request(
    has_lifespan: bool,
) -> None:
    server = Server("who")

    @server.tool
    async def whoami() -> str:
        return user.get()

    app = http_app(server, **OPEN)
    seen: list[str] = []

    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def sending(event: Any) -> None:
            seen.append(user.get())
            await send(event)

        user.set(scope["client"][0])
        await app(scope, receive, sending)

    async def main() -> list[str]:
        user.set("host")
        async with app.lifespan() if has_lifespan else nullcontext():
            return await asyncio.gather(
                *(LoopExchange(middleware, "whoami", {}, client=(name, 1)).text() for name in ("ann", "bob"))
            )

    assert asyncio.run(main()) == (["host"] * 2 if has_lifespan else ["nobody"] * 2)
    assert sorted(set(seen)) == ["ann", "bob"]


def test_asyncio_asgi_app_on_two_event_loops_runs_two_servers() -> None:
    app = http_app(waiting_server()[0], **OPEN)
    both = threading.Barrier(2, timeout=PATIENCE)
    texts: list[str] = []

    async def main(text: str) -> None:
        async with app.lifespan():
            await asyncio.to_thread(both.wait)
            texts.append(await LoopExchange(app, "echo", {"text": text}).text())
            if text == "a":
                await asyncio.to_thread(both.wait)
        if text == "b":  # ends before the other one does
            await asyncio.to_thread(both.wait)

    threads = [threading.Thread(target=asyncio.run, args=(main(text),)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(texts) == ["a", "b"]


def test_handler_ends_if_its_event_loop_is_closed_during_the_request() -> None:
    server, journal = waiting_server()
    app = http_app(server, **OPEN)
    loop = asyncio.new_event_loop()
    exchange = LoopExchange(app, "wait", {})
    exchange.give_body()

    async def receive() -> Any:
        if exchange.bring.empty():
            await loop.create_future()
        return await exchange.bring.get()

    serving = loop.create_task(app(exchange.scope, receive, exchange._send))
    loop.run_until_complete(happened_here(journal.started))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert journal.ended.wait(PATIENCE)

    async def collect() -> None:  # as the garbage collector does, in any thread
        serving.get_coro().close()

    asyncio.run(collect())


def test_asyncio_asgi_app_lets_running_requests_finish_when_its_lifespan_ends() -> None:
    server = Server("slow")
    started, go_on = threading.Event(), threading.Event()

    @server.tool
    async def slow() -> str:
        started.set()
        await trio.to_thread.run_sync(go_on.wait)
        return "done"

    app = http_app(server, **OPEN, limits=Limits(drain_timeout=PATIENCE))

    async def main() -> None:
        async with app.lifespan():
            answering = asyncio.create_task(LoopExchange(app, "slow", {}).text())
            await happened_here(started)
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        assert await answering == "done"

    asyncio.run(main())


# Behind ASGI servers


def mounted_in_starlette(app: Any) -> Any:
    return Starlette(routes=[Mount("/api", app)], lifespan=app.lifespan)


def mounted_in_fastapi(app: Any) -> Any:
    outer = FastAPI(lifespan=app.lifespan)
    outer.mount("/api", app)
    return outer


def mounted_without_lifespan(app: Any) -> Any:
    outer = FastAPI()
    outer.mount("/api", app)
    return outer


def mounted_behind_middleware(app: Any) -> Any:
    async def passes(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    outer = mounted_in_starlette(app)
    outer.add_middleware(BaseHTTPMiddleware, dispatch=passes)
    return outer


MOUNTS: dict[str, Callable[[Any], Any]] = {
    "Starlette": mounted_in_starlette,
    "FastAPI": mounted_in_fastapi,
    "no lifespan": mounted_without_lifespan,
    "middleware": mounted_behind_middleware,
}
SERVERS = {"uvicorn": behind_uvicorn, "hypercorn": behind_hypercorn_on_asyncio}


async def waits_until_left(endpoint: OnAsyncio, journal: Journal, path: str, *, speak: bool) -> None:
    connection = await endpoint.connect()
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"speak": speak}, "_meta": {"progressToken": 1}})
    await connection.send("POST", {**headers}, body, path)
    if speak:
        assert (await connection.head()).headers["content-type"] == "text/event-stream"
        assert (await connection.event()).data["method"] == "notifications/progress"
    await happened(journal.started)
    await connection.aclose()
    await happened(journal.ended)
    assert journal.cancellation is not None
    assert journal.cancellation.cause is CancelCause.DISCONNECT


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize("asgi_server", SERVERS)
async def test_client_that_disconnects_from_an_asgi_server_cancels_the_handler(
    asgi_server: str, mount: str, speak: bool
) -> None:
    server, journal = waiting_server()
    async with SERVERS[asgi_server](MOUNTS[mount](http_app(server, **OPEN))) as endpoint:
        await waits_until_left(endpoint, journal, "/api/mcp", speak=speak)


@pytest.mark.parametrize("asgi_server", SERVERS)
async def test_trio_mcp_client_can_call_elicit_and_cancel_through_uvicorn(asgi_server: str) -> None:
    server, journal = waiting_server()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer.content)

    async with (
        SERVERS[asgi_server](http_app(server, **OPEN)) as endpoint,
        open_http(f"http://127.0.0.1:{endpoint.port}/mcp", elicitation=lambda _: {"name": "Ann"}) as client,
    ):
        assert (await client.call_tool("echo", {"text": "a" * 300_000})).text == "a" * 300_000
        assert "Ann" in (await client.call_tool("ask")).text
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            await happened(journal.started)
            nursery.cancel_scope.cancel(reason="enough")
        await happened(journal.ended)


async def test_uvicorn_shutdown_cancels_running_requests() -> None:
    server, journal = waiting_server()
    async with behind_uvicorn(http_app(server, **OPEN), timeout_graceful_shutdown=0.1) as endpoint:
        connection = await endpoint.connect()
        headers, body = modern("tools/call", {"name": "wait", "arguments": {}})
        await connection.send("POST", {**headers}, body)
        await happened(journal.started)
    assert journal.ended.is_set()
    await connection.aclose()


def test_starlette_test_client_can_call_the_asgi_app_with_and_without_lifespan() -> None:
    app = Starlette(routes=[Mount("/", http_app(waiting_server()[0], **{**OPEN, "allowed_hosts": ["testserver"]}))])
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "a"}})
    headers["Host"] = "testserver"
    for _ in range(2):
        answer = TestClient(app).post("/mcp", headers=headers, content=json.dumps(body))
        assert answer.json()["result"]["content"][0]["text"] == "a"
