"""Ctrl-C in a host at any moment leaves no process of the server's process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from tests.hosting.processes import running
from tests.interaction.client.raw import RawServer
from tests.patience import LONG, PATIENCE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")

STUBBORN = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
note("pid", pid=os.getpid()); note("pid", pid=child.pid)
handshake()
note("ready")
ended()
note("stays")
while True:
    time.sleep(1000)
"""
"""Ignores the end of its input and SIGTERM, as its child does, which inherits that."""

HOST = """
import os, signal, sys
import trio
from trio_mcp import open_stdio

def close_and_interrupt(fd, close=os.close):
    os.close = close
    close(fd)
    signal.raise_signal(signal.SIGINT)

async def use():
    async with open_stdio(sys.argv[3:], era="legacy", close_grace=float(sys.argv[2]), connect_timeout=1000):
        if sys.argv[1] == "interrupts itself":
            os.close = close_and_interrupt
        elif sys.argv[1] != "leaves at once":
            await trio.sleep_forever()

async def main():
    if sys.argv[1] == "uses it in a task":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
    else:
        await use()

trio.run(main)
"""


class Host:
    """A process that is a client of ``raw``."""

    def __init__(self, raw: RawServer, does: str, close_grace: float = LONG) -> None:
        self.raw = raw
        command = [sys.executable, "-c", HOST, does, str(close_grace), *raw.command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)

    def interrupt(self) -> None:
        """As Ctrl-C in its terminal; the server is no process of that."""
        self.process.send_signal(signal.SIGINT)

    async def interrupted_at(self, *events: str) -> None:
        """Interrupt it after each of these events."""
        for event in events:
            await self.raw.has(event)
            self.interrupt()

    async def gone(self) -> None:
        """Wait for its end, and see that nothing is left."""
        with trio.fail_after(PATIENCE):
            _, told = await trio.to_thread.run_sync(self.process.communicate, abandon_on_cancel=True)
        assert b"KeyboardInterrupt" in told
        pids = [entry["pid"] for entry in self.raw.of("pid")]
        assert len(pids) == 2
        with trio.fail_after(PATIENCE):
            while any(running(pid) for pid in pids):  # noqa: ASYNC110 - a killed process takes a moment
                await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("does", "events"),
    [
        ("leaves at once", ["stays"]),
        ("uses it", ["ready", "stays"]),
        ("leaves at once", ["stays", "stays"]),
    ],
    ids=["while it closes", "in the body and while it closes", "twice while it closes"],
)
async def test_keyboard_interrupt_while_client_closes_leaves_no_server_process(
    tmp_path: Path, does: str, events: list[str]
) -> None:
    host = Host(RawServer(tmp_path, STUBBORN), does)
    await host.interrupted_at(*events)
    await host.gone()


async def test_keyboard_interrupt_that_arrives_while_the_client_closes_the_stdin_of_a_server_is_raised(
    tmp_path: Path,
) -> None:
    await Host(RawServer(tmp_path, STUBBORN), "interrupts itself").gone()


async def test_keyboard_interrupt_while_client_connects_leaves_no_server_process(tmp_path: Path) -> None:
    host = Host(RawServer(tmp_path, STUBBORN.replace("handshake()", "read()")), "uses it")
    await host.interrupted_at("ready", "stays")
    await host.gone()


async def test_keyboard_interrupt_while_another_trio_task_uses_the_client_leaves_no_server_process(
    tmp_path: Path,
) -> None:
    host = Host(RawServer(tmp_path, STUBBORN), "uses it in a task", close_grace=0.2)
    await host.interrupted_at("ready", "stays")
    await host.gone()


@pytest.mark.parametrize("does", ["uses it", "uses it in a task"])
@pytest.mark.parametrize("pause", [0.002, 0.02])
async def test_repeated_keyboard_interrupts_leave_no_server_process(tmp_path: Path, does: str, pause: float) -> None:
    host = Host(RawServer(tmp_path, STUBBORN), does, close_grace=0.2)
    await host.raw.has("ready")
    with trio.fail_after(PATIENCE):
        while host.process.poll() is None:
            host.interrupt()
            await trio.sleep(pause)
    await host.gone()
