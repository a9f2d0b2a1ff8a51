"""Signals end a server whatever its handlers do: the first one within seconds, the second one at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.interaction.harness import wait_until
from tests.interaction.raw_client import LATEST_LEGACY, RawClient, serving
from tests.patience import PATIENCE

from trio_mcp.serving.process import shut_down_on_signals

PATIENT = {"drain_timeout": 3600, "cleanup_grace": 3600, "shutdown_grace": 3600}
"""Limits that end nothing."""
SERVER = """
import json, os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import trio
from trio_mcp import Limits, Server, serve_stdio
from trio_mcp.serving import process

journal = os.open(os.environ["TRIO_MCP_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event):
    os.write(journal, json.dumps({"event": event, "t": time.monotonic()}).encode() + b"\\n")

@asynccontextmanager
async def lifespan(_):
    try:
        yield
    finally:
        note("lifespan ended")

def note_what_can_be_left():
    # A process that ends by itself may take its time, on a machine that does much else.
    process._LAST_SECOND = 3600
    note("started")

limits = Limits(**json.loads(os.environ["TRIO_MCP_TEST_LIMITS"]))
server = Server("deaf", lifespan=lifespan, limits=limits)

@server.tool
def asleep() -> None:
    note_what_can_be_left()
    while True:
        time.sleep(1000)

@server.tool
def busy() -> None:
    note_what_can_be_left()
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

@server.tool
def printing() -> None:
    note_what_can_be_left()
    while True:
        print("x" * 10_000)

@server.tool
def pooled() -> None:
    note("started")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 1000).result()

@server.tool
async def blocking() -> None:
    note("started")
    time.sleep(1000)
"""
DEAF = ("asleep", "busy", "printing", "pooled")

Started = Callable[..., AbstractContextManager[RawClient]]


@contextmanager
def _started(directory: Path, command: list[str], stderr: int, tool: str, **limits: float) -> Iterator[RawClient]:
    options = {"revision": LATEST_LEGACY, "stderr_to": stderr, "limits": limits}
    with serving(directory, command=command, forked=True, **options) as client:
        client.call(tool, id=1)
        client.journal.wait_for("started")
        yield client


@pytest.fixture(params=["serve_stdio", "run"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """A server whose tool runs now; nobody reads its standard error."""
    script = tmp_path / "deaf.py"
    script.write_text(SERVER + "\nif __name__ == '__main__':\n    trio.run(serve_stdio, server)\n")
    run = ["-m", "trio_mcp.cli.main", "run"] if request.param == "run" else []
    reading, writing = os.pipe()
    yield partial(_started, tmp_path, [sys.executable, *run, str(script)], writing)
    os.close(reading)
    os.close(writing)


def has_been_told(client: RawClient) -> None:
    """Wait until the first signal was acted on."""
    wait_until(lambda: "error" in client.reply(client.request("tools/list")))


@pytest.mark.parametrize("tool", DEAF)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_closes_the_lifespan_and_exits_although_a_thread_runs(
    started: Started, tool: str, number: signal.Signals
) -> None:
    with started(tool, **PATIENT) as client:
        os.kill(client.pid, number)
        has_been_told(client)
        os.kill(client.pid, number)
        assert client.wait() == (-signal.SIGALRM if tool == "pooled" else 0)
        assert client.journal.entries("lifespan ended")


def test_second_signal_kills_server_that_blocks_the_event_loop(started: Started) -> None:
    with started("blocking", **PATIENT) as client:
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        assert client.wait() == -signal.SIGALRM


@pytest.mark.parametrize("tool", ["asleep", "printing"])
@pytest.mark.parametrize("how", ["end of input", "signal", "client gone"])
def test_first_signal_or_end_of_input_closes_the_lifespan_and_exits(started: Started, tool: str, how: str) -> None:
    with started(tool, cleanup_grace=3600, drain_timeout=0.1) as client:
        if how == "signal":
            os.kill(client.pid, signal.SIGTERM)
        else:
            client.wire.close_input()
            if how == "client gone":
                client.wire.close_output()
        assert client.wait() == 0
        assert client.journal.entries("lifespan ended")


def test_server_that_finishes_requests_after_end_of_input_treats_a_signal_as_its_first(started: Started) -> None:
    """Most clients end a server so: they close its input, wait for two seconds, and send SIGTERM."""
    with started("asleep", drain_timeout=3600) as client:
        client.wire.close_input()
        client.silent_about(1)
        os.kill(client.pid, signal.SIGTERM)
        assert client.wait() == 0
        assert client.journal.entries("lifespan ended")


async def test_server_restores_the_sigalrm_handler_and_timer_of_the_application() -> None:
    def own(number: int, frame: object) -> None: ...

    def shut_down(reason: str, *, hurry: bool) -> None:
        told.set()

    handler, (delay, interval) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    signal.signal(signal.SIGALRM, own)
    signal.setitimer(signal.ITIMER_REAL, 3600, 60)
    try:
        with shut_down_on_signals(shut_down):
            for _ in range(2):
                told = trio.Event()
                signal.raise_signal(signal.SIGTERM)
                await told.wait()
            assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
            assert signal.getitimer(signal.ITIMER_REAL)[0] < 1
        assert signal.getsignal(signal.SIGALRM) is own
        assert signal.getitimer(signal.ITIMER_REAL) == (pytest.approx(3600, abs=PATIENCE), pytest.approx(60))
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, delay, interval)
