"""Changes of a server, and what a handler says to its client, from any thread, over every transport."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from tests.interaction.websocket.raw_peer import port_of
from tests.patience import PATIENCE

from trio_mcp import (
    Client,
    Limits,
    Progress,
    RequestContext,
    Server,
    ToolError,
    WorkerContext,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_websocket,
    serve_http,
    serve_tcp,
    serve_websocket,
)
from trio_mcp.types import Extension

Run = Callable[[Callable[[], Any]], Any]


def in_the_handlers(call: Callable[[], Any]) -> Any:
    """Call in the thread of the handler itself."""
    return call()


def in_a_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def in_a_pool_with_the_context(call: Callable[[], Any]) -> Any:
    """As libraries do that carry context variables into their threads."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, call).result()


def in_another_run_of_trio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        await trio.lowlevel.checkpoint()
        return call()

    return trio.run(main)


def in_asyncio(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        await asyncio.sleep(0)
        return call()

    return asyncio.run(main())


def in_a_worker_of_another_run(call: Callable[[], Any]) -> Any:
    return trio.run(trio.to_thread.run_sync, call)


RUNS = [
    in_the_handlers,
    in_a_pool,
    in_a_pool_with_the_context,
    in_another_run_of_trio,
    in_asyncio,
    in_a_worker_of_another_run,
]


class Notes(Extension[dict[str, Any], dict[str, Any]]):
    """An extension with a notification for all clients."""


URI = "note://motto"


def changed_server() -> Server:
    """A server with a tool that changes the server, and one that tells its client, both in each kind of thread."""
    server = Server("changed", expose_errors=True, limits=Limits(progress_interval=0))

    @server.resource(URI)
    def motto() -> str:
        return "never block"

    @server.tool(tags=["often"])
    def often() -> str:
        return "often"

    def extra() -> str:
        return "extra"

    changes: dict[str, Callable[[], Any]] = {
        "resource_updated": lambda: server.resource_updated(URI),
        "tool": lambda: server.tool(extra),
        "remove_tool": lambda: server.remove_tool("extra"),
        "disable": lambda: server.disable("often"),
        "enable": lambda: server.enable("often"),
        "list_changed": lambda: server._observers.list_changed("notifications/tools/list_changed"),
        "everything_changed": server.everything_changed,
        "resource": lambda: server.resource("note://other")(motto),
        "remove_resource": lambda: server.remove_resource("note://other"),
        "prompt": lambda: server.prompt(extra),
        "remove_prompt": lambda: server.remove_prompt("extra"),
        "completion": lambda: server.completion(argument="a", prompt="often")(lambda value: [value]),
        "around": lambda: server.middleware(passing),
        "searchable": lambda: server.searchable(pinned=["change", "tell"]),
    }

    async def passing(request: Any, next: Any) -> Any:
        return await next(request)

    @server.tool
    def change(what: str, run: int) -> str:
        try:
            RUNS[run](changes[what])
        except Exception as error:
            raise ToolError(repr(error)) from error
        return what

    @server.tool
    def tell(run: int, ctx: WorkerContext) -> list[str]:
        told = [
            RUNS[run](partial(ctx.progress, 1, 3, "one")),
            RUNS[run](partial(ctx.log.info, "logged")),
            RUNS[run](ctx.close_stream),
            RUNS[run](ctx.check_cancelled),
            RUNS[run](lambda: ctx.is_cancelled),
            RUNS[run](lambda: ctx.cancelled.is_set()),
            RUNS[run](lambda: ctx.request_id is not None),
        ]
        return [repr(each) for each in told]

    @server.tool
    async def tell_async(run: int, ctx: RequestContext) -> str:
        await trio.to_thread.run_sync(RUNS[run], partial(ctx.progress, 1, 3, "one"))
        return "told"

    return server


CHANGES = [
    "resource_updated",
    "tool",
    "remove_tool",
    "disable",
    "enable",
    "list_changed",
    "everything_changed",
    "resource",
    "remove_resource",
    "prompt",
    "remove_prompt",
    "around",
    "searchable",
]

Era = Literal["modern", "legacy"]


@asynccontextmanager
async def opened(transport: str, era: Era, **options: Any) -> AsyncGenerator[Client]:
    """Open a client of `changed_server` over a transport."""
    server = changed_server()
    async with trio.open_nursery() as nursery:
        opening: AbstractAsyncContextManager[Client]
        match transport:
            case "memory":
                opening = open_memory(server, era=era, **options)
            case "stdio":
                code = (
                    "import trio\nfrom trio_mcp import serve_stdio\n"
                    "from tests.serving.test_any_thread import changed_server\n"
                    "trio.run(serve_stdio, changed_server())"
                )
                root = Path(__file__).parents[2]
                opening = open_stdio([sys.executable, "-c", code], cwd=root, era=era, **options)
            case "tcp":
                listeners = await nursery.start(partial(serve_tcp, server, port=0))
                opening = open_tcp("127.0.0.1", port_of(listeners), era=era, **options)
            case "websocket":
                listeners = await nursery.start(partial(serve_websocket, server, port=0))
                opening = open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp", era=era, **options)
            case _:
                listeners = await nursery.start(partial(serve_http, server, port=0))
                opening = open_http(f"http://127.0.0.1:{port_of(listeners)}/mcp", era=era, **options)
        async with opening as client:
            yield client
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("transport", ["stdio", "memory", "tcp", "websocket", "http"])
async def test_server_changes_from_any_thread_notify_clients_and_do_not_block_calls(transport: str, era: Era) -> None:
    news, take = trio.open_memory_channel[Any](1000)
    with trio.fail_after(PATIENCE):
        async with opened(
            transport, era, on_list_changed=news.send_nowait, on_resource_updated=news.send_nowait
        ) as client:
            await client.subscribe(URI)
            for run in range(len(RUNS)):
                for what in CHANGES[:-1]:
                    result = await client.call_tool("change", {"what": what, "run": run})
                    assert result.text == what, result
                    if what != "around":
                        await take.receive()
            assert (await client.call_tool("change", {"what": "searchable", "run": 1})).text == "searchable"
            assert (await client.call_tool("often")).text == "often"


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("transport", ["stdio", "memory", "tcp", "websocket", "http"])
async def test_progress_and_logs_can_be_sent_from_any_thread(transport: str, era: Era) -> None:
    heard, logged = list[Progress](), list[Any]()
    with trio.fail_after(PATIENCE):
        async with opened(transport, era, on_log=lambda log: logged.append(log.data)) as client:
            await client.set_log_level("debug")
            for run in range(len(RUNS)):
                result = await client.call_tool("tell", {"run": run}, on_progress=heard.append)
                assert not result.is_error, (RUNS[run], result.text)
                told = result.structured_content["result"]
                assert told[:2] + told[3:] == ["True", "None", "None", "False", "False", "True"], RUNS[run]
                assert heard == [Progress(1, 3, "one")], RUNS[run]
                assert logged == ["logged"], RUNS[run]
                heard.clear(), logged.clear()
                await client.call_tool("tell_async", {"run": run}, on_progress=heard.append)
                assert heard == [Progress(1, 3, "one")], RUNS[run]
                heard.clear()
