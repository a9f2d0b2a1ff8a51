"""A stderr pipe that the host doesn't read never blocks the server."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interaction.harness import wait_until
from tests.interaction.raw_client import ERAS, FIXTURE, LATEST_LEGACY, RawClient, Start, serving

FAILING_CALLS = 400


@pytest.fixture
def unread() -> Iterator[int]:
    """The end to be written of a pipe that takes a page, and then nothing more."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield writing
    os.close(reading)
    os.close(writing)


def fill_log(client: RawClient, calls: int = FAILING_CALLS) -> None:
    for _ in range(calls):
        client.reply(client.call("fail", {"kind": "value_error"}))


@pytest.mark.parametrize("era", ERAS)
def test_server_continues_after_failed_calls_even_if_its_stderr_is_not_read(
    start: Start, unread: int, era: str
) -> None:
    with start(revision=era, stderr_to=unread) as client:
        fill_log(client)
        client.ping()
        client.started("sleep", {"ms": 60_000}, id="left")
        client.cancel("left")
        client.silent_about("left")
        client.journal.wait_for("cancelled", call="left")
        assert client.echo("on") == "on"
        assert client.finish() == 0
        assert client.journal.entries("end", tool="lifespan")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_whose_stderr_is_not_read_ends_after_a_signal(start: Start, unread: int, number: signal.Signals) -> None:
    with start(revision=LATEST_LEGACY, stderr_to=unread) as client:
        fill_log(client, 100)
        os.kill(client.pid, number)
        client.drain()
        assert client.wait() == 0
        assert client.journal.entries("end", tool="lifespan")


def test_application_logging_does_not_block_the_server_if_stderr_is_not_read(tmp_path: Path, unread: int) -> None:
    script = tmp_path / "configured.py"
    script.write_text(
        f"import logging, sys, trio; sys.path.insert(0, {str(FIXTURE.parent)!r})\n"
        "from fixture_server import serve_stdio, server\n"
        "logging.basicConfig(level=logging.DEBUG, format='%(asctime)s %(message)s')\n"
        "logging.getLogger('trio_mcp').addHandler(logging.StreamHandler(sys.stdout))\n"
        "trio.run(serve_stdio, server)\n"
    )
    command = [sys.executable, str(script)]
    with serving(tmp_path, command=command, revision=LATEST_LEGACY, stderr_to=unread) as client:
        fill_log(client, 100)
        client.ping()
        assert client.finish() == 0
        assert client.journal.entries("end", tool="lifespan")


def test_run_command_with_debug_logs_does_not_block_if_stderr_is_not_read(tmp_path: Path, unread: int) -> None:
    command = [sys.executable, "-m", "trio_mcp.cli.main", "run", "--log-level", "debug", str(FIXTURE)]
    with serving(tmp_path, command=command, revision=LATEST_LEGACY, stderr_to=unread) as client:
        fill_log(client, 100)
        client.ping()
        os.kill(client.pid, signal.SIGTERM)
        client.drain()
        assert client.wait() == 0
        assert client.journal.entries("end", tool="lifespan")


def test_thread_that_prints_to_stderr_does_not_block_the_server_if_stderr_is_not_read(
    tmp_path: Path, unread: int
) -> None:
    with serving(tmp_path, limits={"drain_timeout": 0.1}, revision=LATEST_LEGACY, stderr_to=unread) as client:
        client.started("print_much", id=1)
        client.silent_about(1)
        client.ping()
        assert client.finish() == 0
        assert client.journal.entries("end", tool="lifespan")


def test_buffered_log_lines_are_written_when_stderr_is_read_again(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with serving(tmp_path, revision=LATEST_LEGACY, stderr_to=writing) as client:
        os.close(writing)
        fill_log(client, 50)
        with open(reading, "rb", buffering=0) as stderr:
            os.set_blocking(reading, False)
            read = bytearray()

            def seen() -> bool:
                read.extend(stderr.read(1 << 16) or b"")
                return read.count(b"ValueError: the password is") == 10

            wait_until(seen)
            client.wire.close_input()
            client.drain()
            wait_until(lambda: read.extend(stderr.read(1 << 16) or b"") or b"and 40 more like it" in read)
            assert client.wait() == 0
