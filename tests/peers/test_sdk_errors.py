"""The errors of `docs/get-started/sdk-errors.md`: each happens in the versions that the page names, and not here."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.pages import Page
from tests.patience import PATIENCE
from tests.peers.installed import python_with

from trio_mcp import aio

PAGE = Page("get-started/sdk-errors.md")
LEAVING = Path(__file__).parent / "servers" / "leaving.py"
CLOSING = Path(__file__).parent / "clients" / "closing_elsewhere.py"
IDLE = 20
"""Passes of an event loop that waits for one timer: a few of them, where one that spins makes thousands."""
SEEN = "1.30.0"
"""The newest 1.x of ``mcp``, with an ``anyio`` of its time."""


@pytest.fixture(scope="session")
def newest_1(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with ``mcp`` 1.30.0."""
    return str(python_with(request.config, f"mcp-{SEEN}-anyio-4.14.0", f"mcp=={SEEN}", "anyio==4.14.0"))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its passes."""

    passes = 0

    def _run_once(self) -> None:
        self.passes += 1
        super()._run_once()  # type: ignore[misc]


class Child:
    """A server in a process, spoken to line by line."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.errors: list[str] = []
        self.begun = threading.Event()
        self.reads_errors = threading.Thread(target=self.read_errors)
        self.reads_errors.start()
        self.send(
            "initialize", 0, protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "a", "version": "1"}
        )
        assert self.receive(), self.stderr()
        self.send("notifications/initialized")

    def read_errors(self) -> None:
        for line in self.process.stderr or ():
            self.errors.append(line)
            if line == "begun\n":
                self.begun.set()

    def send(self, method: str, id: int | None = None, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of output."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def begin(self, tool: str) -> None:
        """Call a tool as request 1, and wait until it runs."""
        self.send("tools/call", 1, name=tool, arguments={})
        assert self.begun.wait(PATIENCE)

    def cancel(self) -> None:
        self.send("notifications/cancelled", requestId=1, reason="the user left")

    def hang_up(self) -> None:
        """Close the server's input, as the system does when a client has died."""
        assert self.process.stdin
        self.process.stdin.close()

    def stderr(self) -> str:
        """Return all of standard error, once the process has ended."""
        self.process.wait(PATIENCE)
        self.reads_errors.join()
        return "".join(self.errors)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.reads_errors.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream and not stream.closed:
                with suppress(BrokenPipeError):
                    stream.close()


def theirs(python: str) -> Child:
    return Child([python, "-W", "ignore", str(LEAVING)])


def ours(name: str) -> Child:
    return Child([sys.executable, f"{name}.py"])


def test_server_process_of_mcp_1_crashes_if_a_cancelled_handler_returns_a_result(newest_1: str) -> None:
    with theirs(newest_1) as server:
        server.begin("answer_anyway")
        server.cancel()
        server.send("ping", 2)
        while message := server.receive():
            assert message["id"] == 1  # what its reader still waits for, the ping, gets no answer
        assert "AssertionError: Request already responded to" in server.stderr()
        assert server.process.returncode == 1


def test_trio_mcp_server_continues_if_a_cancelled_handler_returns_a_result(page: Page) -> None:
    with ours("answers_anyway") as server:
        server.begin("answer_anyway")
        server.cancel()
        server.send("ping", 2)
        assert server.receive() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        server.hang_up()
        assert server.receive() is None
        assert "Error" not in server.stderr()
        assert server.process.returncode == 0


async def connect_and_close_elsewhere(command: list[str]) -> int:
    """Connect in one task, close in another, and return how often the event loop ran while the program slept."""
    loop, stack = asyncio.get_running_loop(), AsyncExitStack()
    assert isinstance(loop, CountingLoop)
    await loop.create_task(stack.enter_async_context(aio.open_stdio(command)))
    await loop.create_task(stack.aclose())
    before = loop.passes
    await asyncio.sleep(0.5)
    return loop.passes - before


def closed_elsewhere(python: str) -> tuple[str, int]:
    """What a host of theirs tells that connects in one task and closes in another."""
    command = [python, "-W", "ignore", str(CLOSING), python, "-W", "ignore", str(LEAVING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    error, passes = json.loads(done.stdout)
    return error, passes


@pytest.mark.parametrize("release", ["1", "2"])
def test_client_of_the_mcp_package_raises_runtime_error_if_it_is_closed_in_another_task(
    release: str, newest_1: str
) -> None:
    error, _ = closed_elsewhere(newest_1 if release == "1" else sys.executable)
    assert error == "Attempted to exit cancel scope in a different task than it was entered in"


def test_trio_mcp_asyncio_client_can_be_closed_in_another_task(page: Page) -> None:
    command = [sys.executable, "answers_anyway.py"]
    loop = CountingLoop()
    try:
        assert loop.run_until_complete(connect_and_close_elsewhere(command)) < IDLE
    finally:
        loop.close()


def test_event_loop_never_becomes_idle_after_an_mcp_1_client_is_closed_in_another_task(newest_1: str) -> None:
    _, passes = closed_elsewhere(newest_1)
    assert passes > 100 * IDLE


def test_event_loop_is_idle_after_a_trio_mcp_asyncio_client_is_closed(page: Page) -> None:
    loop = CountingLoop()
    try:
        loop.run_until_complete(page.load("disconnect").main())
        before = loop.passes
        loop.run_until_complete(asyncio.sleep(0.5))
        assert loop.passes - before < IDLE
    finally:
        loop.close()


@pytest.fixture(scope="session")
def older_1(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with ``mcp`` 1.26.0."""
    return str(python_with(request.config, "mcp-1.26.0", "mcp==1.26.0"))


@pytest.mark.parametrize(("release", "tool"), [("1.26.0", "wait"), (SEEN, "block"), ("2", "block")])
def test_only_the_trio_mcp_server_exits_if_the_client_disconnects_during_a_blocking_call(
    page: Page, newest_1: str, older_1: str, release: str, tool: str
) -> None:
    python = {"1.26.0": older_1, SEEN: newest_1, "2": sys.executable}[release]
    with theirs(python) as other, ours("blocks") as server:
        other.begin(tool)
        server.begin("block")
        other.hang_up()
        server.hang_up()
        server.process.wait(PATIENCE)
        assert server.process.returncode == 0
        assert other.process.poll() is None


@pytest.mark.parametrize("whose", ["mcp 1", "ours"])
def test_only_the_mcp_1_server_sends_an_error_response_to_a_cancelled_request(
    page: Page, newest_1: str, whose: str
) -> None:
    with theirs(newest_1) if whose == "mcp 1" else ours("answers_anyway") as server:
        server.begin("wait" if whose == "mcp 1" else "answer_anyway")
        server.cancel()
        server.send("ping", 2)
        first = server.receive()
        if whose == "mcp 1":
            assert first == {"jsonrpc": "2.0", "id": 1, "error": {"code": 0, "message": "Request cancelled"}}
            first = server.receive()
        assert first == {"jsonrpc": "2.0", "id": 2, "result": {}}
        server.hang_up()
        assert server.receive() is None
