"""Session: one connection of the driver to a measured server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from . import messages
from .checks import check, within
from .child import Child
from .marks import PORT
from .websocket import Frames, upgraded
from .wire import Lines, Wire

__all__ = ["Session", "connected", "open_pipes", "open_socket"]

_PATIENCE = 120


@dataclass
class Session:
    """An initialized connection. ``port``: of a server that listens. ``scale``: what of the usual amounts the server
    is given to do, since some servers take a hundred times as long as others."""

    child: Child
    wire: Wire
    scale: float
    port: int | None = None
    opened: float = 0.0
    """When the reply to ``initialize`` was here, as `time.perf_counter` says."""
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def sized(self, amount: int, *, least: int = 20) -> int:
        """How many to measure with, where the fastest get ``amount``."""
        return max(least, int(amount * self.scale))

    def initialize(self) -> None:
        """The handshake."""
        with within(_PATIENCE, "the handshake"):
            self.wire.send(messages.initialize())
            (reply,) = self.receive()
            self.opened = time.perf_counter()
            check(reply.get("id"), 0, "the id of the reply to initialize")
            check("serverInfo" in reply.get("result", {}), True, "a reply to initialize")
            self.wire.send(messages.initialized())

    def receive(self) -> list[dict[str, Any]]:
        """All messages there are, at least one."""
        return [json.loads(message) for message in self.wire.receive()]

    def begin(self, tool: str, arguments: dict[str, Any], token: int | None = None) -> int:
        """Call a tool, and give the id of the request."""
        request_id = next(self.ids)
        self.wire.send(messages.tool_call(request_id, tool, arguments, token))
        return request_id

    def settle(self) -> list[dict[str, Any]]:
        """All messages that came before the reply to an echo, after which nothing is left of what was before."""
        text = messages.echo(request_id := next(self.ids))
        self.wire.send(messages.tool_call(request_id, "echo", {"text": text}))
        received: list[dict[str, Any]] = []
        while not received or received[-1].get("id") != request_id or "method" in received[-1]:
            received += self.receive()
        check(messages.text(received.pop(), request_id), text, "an echo")
        return received


@contextmanager
def open_pipes(command: list[str], scale: float) -> Iterator[Session]:
    """Start a server and talk to it over its standard input and output."""
    with Child(command) as child:
        session = Session(child, Wire(child.output, child.input, Lines(), child.marks), scale)
        session.initialize()
        yield session


@contextmanager
def open_socket(command: list[str], scale: float) -> Iterator[Session]:
    """Start a server and talk to it over a WebSocket."""
    with Child(command) as child:
        with within(_PATIENCE, "the port"):
            (port,) = child.marks.wait(PORT)
        with connected(child, port, scale) as session:
            yield session
        child.terminate()


@contextmanager
def connected(child: Child, port: int, scale: float) -> Iterator[Session]:
    """One more connection to a server that listens on ``port``."""
    with upgraded(port) as connection:
        fd = connection.fileno()
        session = Session(child, Wire(fd, fd, Frames(), child.marks), scale, port)
        session.initialize()
        yield session
