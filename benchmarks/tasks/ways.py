"""The ways to a server with tasks that runs in another process: pipes and HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from ..driver.checks import check
from ..driver.child import Child
from ..driver.http import Connection
from ..driver.http_session import Requests
from ..driver.marks import PORT
from ..driver.messages import initialized
from ..driver.wire import Lines, Wire
from . import messages
from .messages import Form

__all__ = ["Server", "Way", "over_http", "over_pipes"]


_METHOD = b'"method":'
_HEAD = 50
"""Bytes of a line that tell what kind of message it is."""


class Way(Protocol):
    """One connection of a client."""

    def frame(self, body: bytes, method: str, name: str) -> bytes:
        """The bytes of a request on this way. ``name``: of the tool or the task."""
        ...

    def ask(self, framed: bytes) -> bytes:
        """Send a request, and wait for all of the reply."""
        ...

    def read(self, reply: bytes) -> dict[str, Any]:
        """The message that is the reply."""
        ...


@dataclass
class Pipes:
    """A `Way` of lines."""

    wire: Wire

    def frame(self, body: bytes, method: str, name: str) -> bytes:
        return self.wire.frame(body)

    def ask(self, framed: bytes) -> bytes:
        self.wire.write(framed)
        replies: list[bytes] = []
        while not replies:  # between the replies, a server of 2025-11-25 tells how its tasks are
            replies = [line for line in self.wire.receive() if _METHOD not in line[:_HEAD]]
        (reply,) = replies
        return reply

    def read(self, reply: bytes) -> dict[str, Any]:
        return json.loads(reply)


@dataclass
class Posts:
    """A `Way` of POSTs, all on one connection of HTTP."""

    connection: Connection
    requests: Requests

    def frame(self, body: bytes, method: str, name: str) -> bytes:
        return messages.post(self.requests, body, method, name)

    def ask(self, framed: bytes) -> bytes:
        self.connection.send(framed)
        return self.connection.whole()

    def read(self, reply: bytes) -> dict[str, Any]:
        check(reply[:12], b"HTTP/1.1 200", "the status of a reply")
        return json.loads(reply.partition(b"\r\n\r\n")[2])


@dataclass
class Server:
    """A server with tasks, and a way to it, on which requests have this form."""

    child: Child
    way: Way
    form: Form
    port: int | None = None
    ids: Iterator[int] = field(default_factory=lambda: count(1_000_000))
    """Ids have the same number of digits, and so have requests the same length."""

    def call(self, tool: str, text: str) -> bytes:
        """The bytes of a call."""
        asks = tool != "echo"
        body = messages.call(self.form, next(self.ids), tool, {"text": text}, task=asks)
        return self.way.frame(body, "tools/call", tool)

    def about(self, method: str, task_id: str) -> bytes:
        """The bytes of a request about a task."""
        body = messages.request(self.form, next(self.ids), method, {"taskId": task_id})
        return self.way.frame(body, method, task_id)

    def start(self, tool: str) -> str:
        """Start a task, and return its id."""
        return messages.task_id(self.way.read(self.way.ask(self.call(tool, "a text"))))

    def status(self, task_id: str) -> str:
        """The status of a task."""
        return self.way.read(self.way.ask(self.about("tasks/get", task_id)))["result"]["status"]


def _command(way: str, path: str | None) -> list[str]:
    return [sys.executable, "-m", "benchmarks.tasks.serving", way, *([] if path is None else [path])]


@contextmanager
def over_pipes(form: Form, path: str | None = None) -> Iterator[Server]:
    """A server on its standard input and output. ``path``: of the file where it keeps tasks; `None`: in memory."""
    with Child(_command("stdio", path)) as child:
        server = Server(child, Pipes(Wire(child.output, child.input, Lines(), child.marks)), form)
        if form == "core":
            server.way.ask(messages.initialize() + b"\n")
            child_input = server.way
            assert isinstance(child_input, Pipes)
            child_input.wire.send(initialized())
        yield server
        child.terminate()


@contextmanager
def over_http(path: str | None = None) -> Iterator[Server]:
    """A server over Streamable HTTP, in the modern era."""
    with Child(_command("http", path)) as child:
        (port,) = child.marks.wait(PORT)
        with Connection(port) as connection:
            yield Server(child, Posts(connection, Requests(port=port, era="modern")), "extension", port)
        child.terminate()
