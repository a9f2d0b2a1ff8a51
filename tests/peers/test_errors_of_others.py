"""The errors of `docs/errors-of-others.md`: each happens in the versions that the page names, and doesn't happen here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pages import Page
from tests.patience import PATIENCE
from tests.peers.installed import python_with

PAGE = Page("errors-of-others.md")
LEAVING = Path(__file__).parent / "servers" / "leaving.py"
SEEN = "1.30.0"
"""The newest 1.x of ``mcp``, with an ``anyio`` of its time."""


@pytest.fixture(scope="session")
def newest_1(request: pytest.FixtureRequest) -> str:
    """The interpreter of an environment with ``mcp`` 1.30.0."""
    return str(python_with(request.config, f"mcp-{SEEN}-anyio-4.14.0", f"mcp=={SEEN}", "anyio==4.14.0"))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    yield from PAGE.write(tmp_path, monkeypatch)


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
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def theirs(python: str) -> Child:
    return Child([python, "-W", "ignore", str(LEAVING)])


def ours(name: str) -> Child:
    return Child([sys.executable, f"{name}.py"])


def test_a_cancel_ends_a_server_of_mcp_1_whose_handler_returns(newest_1: str) -> None:
    with theirs(newest_1) as server:
        server.begin("answer_anyway")
        server.cancel()
        server.send("ping", 2)
        while message := server.receive():
            assert message["id"] == 1  # what its reader still waits for, the ping, gets no answer
        assert "AssertionError: Request already responded to" in server.stderr()
        assert server.process.returncode == 1


def test_a_cancel_leaves_our_server_running_whose_handler_returns(page: Page) -> None:
    with ours("answers_anyway") as server:
        server.begin("answer_anyway")
        server.cancel()
        server.send("ping", 2)
        assert server.receive() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        server.hang_up()
        assert server.receive() is None
        assert "Error" not in server.stderr()
        assert server.process.returncode == 0
