"""Clients of scripts and notebooks: `trio_mcp.blocking`."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bridging.seen import Seen, threads
from tests.patience import PATIENCE

from trio_mcp import BadTarget, CancelCause, ConnectionLost, Progress, RequestContext, Server, blocking
from trio_mcp.hosting import MemberDescription, MemberUnavailable
from trio_mcp.types import ElicitResult, Root


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == []


@pytest.fixture
def interrupt_soon() -> Iterator[Callable[[Seen], None]]:
    """Presses Ctrl-C once a handler runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressing: list[threading.Thread] = []

    def press(seen: Seen) -> None:
        def wait_and_press() -> None:
            assert seen.began.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)

        pressing.append(threading.Thread(target=wait_and_press))
        pressing[0].start()

    yield press
    for thread in pressing:
        thread.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_blocking_client_calls_tools_with_progress_and_elicitation(seen: Seen, era: Any) -> None:
    told: list[float] = []
    me = threading.current_thread()

    def on_progress(news: Progress) -> None:
        assert threading.current_thread() is me
        told.append(news.progress)

    def answer(_: object) -> ElicitResult:
        assert client.call_tool("echo", {"text": "from a handler"}).is_error is not True
        return ElicitResult("accept", {"name": "Ada"})

    with blocking.open_memory(seen.server, era=era, elicitation=answer) as client:
        assert [tool.name for tool in client.list_tools()] == ["echo", "wait", "count", "ask", "forget"]
        assert client.call_tool("count", {"to": 5}, on_progress=on_progress).structured_content == {"result": 5}
        assert told[-1] == 4
        assert "Ada" in str(client.call_tool("ask"))


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_ctrl_c_cancels_a_blocking_call_and_the_client_stays_usable(
    seen: Seen, era: Any, interrupt_soon: Callable[[Seen], None]
) -> None:
    with blocking.open_memory(seen.server, era=era) as client:
        interrupt_soon(seen)
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("wait")
        assert client.call_tool("echo", {"text": "on"}).is_error is not True
        (cancelled,) = seen.cancelled
        assert cancelled is not None
        assert (cancelled.cause, cancelled.reason) == (CancelCause.PEER, "the user pressed Ctrl-C")


def test_blocking_client_can_be_used_inside_a_running_event_loop(seen: Seen) -> None:
    async def cell() -> None:
        with blocking.open_memory(seen.server) as client:
            client.ping()

    asyncio.run(cell())


def test_blocking_call_raises_if_its_callback_fails_or_is_async(seen: Seen) -> None:
    def fail(_: Progress) -> None:
        raise ZeroDivisionError

    async def awaits(_: Progress) -> None: ...

    with blocking.open_memory(seen.server) as client:
        with pytest.raises(ZeroDivisionError):
            client.call_tool("count", {"to": 5}, on_progress=fail)
        with pytest.raises(TypeError, match="with def, not with async def"):
            client.call_tool("count", {"to": 5}, on_progress=awaits)


def test_blocking_client_raises_for_async_handlers_and_invalid_targets(seen: Seen, tmp_path: Path) -> None:
    async def answer(_: object) -> ElicitResult:
        return ElicitResult("cancel")

    with (
        pytest.raises(TypeError, match="write elicitation with def"),
        blocking.open_memory(seen.server, elicitation=answer),
    ):
        pass

    class Logging:
        async def __call__(self, _: object) -> None: ...

    with pytest.raises(TypeError, match="write on_log with def"), blocking.open_memory(seen.server, on_log=Logging()):
        pass
    with pytest.raises(BadTarget), blocking.open_tcp("", 0):
        pass
    with pytest.raises(ConnectionLost), blocking.open_unix(tmp_path / "nobody"):
        pass


async def test_blocking_client_in_a_trio_task_raises_runtime_error(seen: Seen) -> None:
    with pytest.raises(RuntimeError, match=r"use trio_mcp\.open_stdio"), blocking.open_memory(seen.server):
        pass


def test_blocking_client_raises_connection_lost_after_it_is_closed_or_garbage_collected(seen: Seen) -> None:
    with blocking.open_memory(seen.server) as client:
        pass
    with pytest.raises(ConnectionLost, match="closed"):
        client.ping()
    client = blocking.open_memory(seen.server).__enter__()
    client.ping()
    (thread,) = threads()
    del client
    gc.collect()
    thread.join(PATIENCE)


def test_entering_a_blocking_client_twice_raises_runtime_error(seen: Seen) -> None:
    opened = blocking.open_memory(seen.server)
    with opened as client:
        with pytest.raises(RuntimeError, match="entered once"):
            opened.__enter__()
        assert client.call_tool("echo", {"text": "here"}).text == "here"
    with pytest.raises(RuntimeError, match="entered once"):
        opened.__enter__()


def test_blocking_client_can_iterate_over_change_notifications(seen: Seen) -> None:
    with blocking.open_memory(seen.server, era="modern") as client, client.listen(tools=True) as changes:
        assert changes.acknowledged.tools_list_changed
        client.call_tool("forget", {"tool": "echo"})
        assert next(changes).kind == "tools"


def test_blocking_group_calls_and_removes_its_servers(seen: Seen) -> None:
    with blocking.open_group({"a": MemberDescription(seen.server)}) as group:
        group.settled()
        assert group.call_tool("a__echo", {"text": "hi"}).content[0].text == "hi"  # pyright: ignore
        group.remove("a")
        with pytest.raises(MemberUnavailable):
            group.client("a")


_SCRIPT = """
import sys, threading
from trio_mcp import ConnectionLost, blocking

def forever():
    try:
        client.call_tool("forever")
    except ConnectionLost:
        pass

client = blocking.open_stdio([sys.executable, sys.argv[1]]).__enter__()
threading.Thread(target=forever, daemon=True).start()
print(client.call_tool("pid").content[0].text)
"""
_SERVER = """
import os
import trio
from trio_mcp import Server, serve_stdio
server = Server("child")

@server.tool
async def pid() -> int:
    return os.getpid()

@server.tool
async def forever() -> None:
    await trio.sleep_forever()

trio.run(serve_stdio, server)
"""


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_blocking_client_accepts_roots_as_a_list(era: Any) -> None:
    server = Server("lists roots")

    @server.tool
    async def list_roots(ctx: RequestContext) -> str:
        return ", ".join(root.uri for root in await ctx.list_roots())

    with blocking.open_memory(server, era=era, roots=[Root("file:///a"), Root("file:///b")]) as client:
        assert client.call_tool("list_roots").text == "file:///a, file:///b"


def logger_of_a_script() -> Server:
    server = Server("logs")

    @server.tool
    async def log(ctx: RequestContext) -> str:
        await ctx.log.error("something")
        return "logged"

    return server


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_handler_passed_to_a_blocking_call_runs_in_a_separate_thread(era: Any) -> None:
    ran = queue.SimpleQueue[threading.Thread]()

    def on_log(_: object) -> None:
        ran.put(threading.current_thread())

    async def awaits(_: object) -> None: ...

    with blocking.open_memory(logger_of_a_script(), era=era) as client:
        client.set_log_level("error")
        client.call_tool("log", on_log=on_log)
        assert ran.get(timeout=PATIENCE) not in (threading.current_thread(), *threads())
        with pytest.raises(TypeError, match="write on_log with def"):
            client.call_tool("log", on_log=awaits)


def test_blocking_client_closes_while_a_callback_hangs() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def on_log(_: object) -> None:
        began.set()
        may_end.wait(PATIENCE)
        ended.set()

    with blocking.open_memory(logger_of_a_script(), era="legacy", on_log=on_log) as client:
        client.call_tool("log")
        assert began.wait(PATIENCE)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)


def test_blocking_clients_that_are_open_are_closed_at_interpreter_exit(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(_SERVER)
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT, tmp_path / "server.py"], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 0
    assert ended.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
