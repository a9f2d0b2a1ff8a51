"""SystemExit and similar exceptions end one request or call, and no other client. Clients don't work after a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import trio
from tests.bridging.seen import Seen, run, threads
from tests.patience import PATIENCE

from trio_mcp import RequestContext, Server, aio, blocking
from trio_mcp.bridging.calls import TrioPortal, run_blocking
from trio_mcp.types import ElicitResult

# From 3.12 on, Python warns of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")

ENDS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]
ERAS: Any = ["legacy", "modern"]


def asking() -> Server:
    """A server whose tools make their client run each of its handlers, and go on whatever comes of that."""
    server = Server("asking")

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str(await ctx.elicit("Name?", {"type": "object", "properties": {}}))

    @server.tool
    async def list_roots(ctx: RequestContext) -> str:
        return str(await ctx.list_roots())

    @server.tool
    async def log(ctx: RequestContext) -> str:
        await ctx.log.error("something")
        return "logged"

    @server.tool
    def leave(word: str) -> str:
        raise {end.__name__: end for end in ENDS}[word](word)

    @server.tool
    def echo() -> str:
        return "here"

    return server


def raising(end: type[BaseException]) -> Callable[..., Any]:
    def handler(*_: Any) -> Any:
        raise end("out of a handler")

    return handler


def options(end: type[BaseException], era: Any) -> dict[str, Any]:
    return {
        "era": era,
        "elicitation": raising(end),
        "roots": raising(end),
        "on_log": raising(end),
    }


def fails(end: type[BaseException], era: Any) -> AbstractContextManager[object]:
    """Expect a failure: modern servers ask in the call, which raises it; legacy servers get an error reply."""
    if era == "legacy":
        return pytest.raises(AssertionError)
    return pytest.raises(RuntimeError, match=f"the handler raised {end.__name__}: ")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("end", ENDS)
def test_base_exception_in_a_handler_of_a_blocking_client_fails_only_the_request_to_the_handler(
    end: type[BaseException], era: Any
) -> None:
    with (
        blocking.open_memory(asking(), era=era, elicitation=lambda _: ElicitResult("cancel")) as other,
        blocking.open_memory(asking(), **options(end, era)) as client,
    ):
        for tool in ("ask", "list_roots"):
            with fails(end, era):
                assert client.call_tool(tool).is_error is not True
        assert client.call_tool("log").is_error is not True
        assert client.call_tool("echo").is_error is not True
        assert other.call_tool("ask").is_error is not True
    assert threads() == []


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("end", ENDS)
def test_base_exception_in_a_handler_of_an_asyncio_client_fails_only_the_request_to_the_handler(
    end: type[BaseException], era: Any
) -> None:
    given = options(end, era)
    del given["on_log"]  # runs in the event loop, and ends what runs the loop

    async def main() -> None:
        async with (
            aio.open_memory(asking(), era=era, elicitation=lambda _: ElicitResult("cancel")) as other,
            aio.open_memory(asking(), **given) as client,
        ):
            for tool in ("ask", "list_roots"):
                with fails(end, era):
                    assert (await client.call_tool(tool)).is_error is not True
            assert (await client.call_tool("echo")).is_error is not True
            assert (await other.call_tool("ask")).is_error is not True

    run(main)


@pytest.mark.parametrize("end", ENDS)
def test_base_exception_in_an_in_memory_server_does_not_end_clients_of_another_server(end: type[BaseException]) -> None:
    """It runs in trio's thread. What ends the server is raised where its client is used, or is the answer."""
    with blocking.open_memory(asking()) as other:
        try:
            with blocking.open_memory(asking()) as client:
                assert client.call_tool("leave", {"word": end.__name__}).is_error is True
        except BaseException as error:
            assert not isinstance(error, (trio.Cancelled, AssertionError))  # noqa: PT017 - it need not be raised
        assert other.call_tool("echo").is_error is not True
    assert threads() == []


def test_base_exception_in_an_asyncio_or_blocking_call_is_raised_in_its_caller() -> None:
    async def leave(_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise SystemExit(3)

    with blocking.open_memory(asking()) as client:
        with pytest.raises(BaseExceptionGroup) as caught:
            run_blocking(TrioPortal.start, leave)
        assert caught.group_contains(SystemExit)
        assert not caught.group_contains(trio.Cancelled)
        assert client.call_tool("echo").is_error is not True
    assert threads() == []


def in_fork(work: Callable[[], None]) -> None:
    """Run ``work`` in a fork of this process."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            signal.alarm(int(PATIENCE))  # a fork that hangs ends
            work()
            os.write(writer, b"ok")
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        words = told.read().decode()
    os.waitpid(process, 0)
    assert words == "ok"


CALLS: list[Callable[[Any], Any]] = [
    lambda client: client.call_tool("echo", {"text": "a"}),
    lambda client: next(client.list_tools()),
    lambda client: client.ping(),
    lambda client: client.listen().__enter__(),
    lambda client: client.server_extension("a.b/c"),
]


@pytest.mark.parametrize("call", CALLS)
def test_blocking_client_raises_runtime_error_if_a_forked_process_uses_the_client(
    seen: Seen, call: Callable[[Any], Any]
) -> None:
    with blocking.open_memory(seen.server) as client:

        def use() -> None:
            with pytest.raises(
                RuntimeError, match=r"was opened in process \d+ and .* open a client in the new process"
            ):
                call(client)

        in_fork(use)
        assert client.call_tool("echo", {"text": "a"}).is_error is not True


def test_asyncio_client_raises_runtime_error_if_a_forked_process_uses_the_client(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server) as client:
            # The loop of the fork is the one that runs here; a new one is what a program would use.
            def use() -> None:
                asyncio._set_running_loop(None)

                async def call() -> None:
                    with pytest.raises(RuntimeError, match=r"was opened in process \d+"):
                        await client.call_tool("echo", {"text": "a"})
                    async with aio.open_memory(Seen().server) as own:
                        assert (await own.call_tool("echo", {"text": "a"})).is_error is not True

                asyncio.run(call())

            in_fork(use)
            assert (await client.call_tool("echo", {"text": "a"})).is_error is not True

    run(main)


def test_forked_process_can_open_its_own_clients(seen: Seen) -> None:
    opened: AbstractContextManager[Any] = blocking.open_memory(seen.server)
    client = opened.__enter__()

    def use() -> None:
        with blocking.open_memory(Seen().server) as own:
            assert own.call_tool("echo", {"text": "a"}).is_error is not True
        opened.__exit__(None, None, None)

    in_fork(use)
    in_fork(use)
    assert client.call_tool("echo", {"text": "a"}).is_error is not True
    opened.__exit__(None, None, None)
    assert threads() == []
