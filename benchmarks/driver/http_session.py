"""HttpSession: a measured server over Streamable HTTP, in one era, and the requests for it."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from . import messages
from .checks import check, within
from .child import Child
from .http import Connection, Response, request
from .marks import PORT

__all__ = ["Era", "HttpSession", "Requests", "open_legacy", "open_modern", "open_sessionless"]

Era = Literal["modern", "legacy"]

_PATIENCE = 120
_META = "io.modelcontextprotocol/"
_MODERN = "2026-07-28"
_SESSION = "Mcp-Session-Id"
_BOTH = "application/json, text/event-stream"
_FIRST_ID = 1_000_000
"""Ids have the same number of digits, and so have answers the same length."""


@dataclass(kw_only=True)
class Requests:
    """The requests of one client of a server: of the modern era, or of the legacy one, there of one session."""

    port: int
    era: Era
    session_id: str | None = None
    token: str | None = None
    """What each request is authorized by."""
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    """What each modern request says that its client can."""

    def _headers(self) -> dict[str, str]:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if self.session_id is not None:
            return {**headers, _SESSION: self.session_id, "MCP-Protocol-Version": "2025-11-25"}
        return {**headers, "MCP-Protocol-Version": _MODERN} if self.era == "modern" else headers

    def post(self, body: bytes, **headers: str) -> bytes:
        """The bytes of a POST of ``body``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        both = {"Content-Type": "application/json", "Accept": _BOTH, **self._headers(), **named}
        return request(self.port, "POST", both, body)

    def get(self) -> bytes:
        """The bytes of a GET, for the stream of the session."""
        return request(self.port, "GET", {"Accept": "text/event-stream", **self._headers()})

    def delete(self) -> bytes:
        """The bytes of the DELETE that ends the session."""
        return request(self.port, "DELETE", self._headers())

    def ask(self, request_id: int, method: str) -> bytes:
        """The bytes of a POST that asks for something without parameters."""
        if self.era == "legacy":
            return self.post(messages.request(request_id, method, {}))
        return self._modern(request_id, method, {})

    def call(self, request_id: int, tool: str, arguments: dict[str, Any], **retry: Any) -> bytes:
        """The bytes of a POST that calls a tool. ``retry``: more parameters, of a modern client that has been asked."""
        if self.era == "legacy":
            return self.post(messages.tool_call(request_id, tool, arguments))
        return self._modern(request_id, "tools/call", {"name": tool, "arguments": arguments, **retry}, Mcp_Name=tool)

    def listen(self, request_id: int, uri: str) -> bytes:
        """The bytes of a POST that opens a stream for the changes of one resource."""
        return self._modern(request_id, "subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri]}})

    def _modern(self, request_id: int, method: str, params: dict[str, Any], **headers: str) -> bytes:
        meta = {
            f"{_META}protocolVersion": _MODERN,
            f"{_META}clientInfo": {"name": "driver", "version": "1"},
            f"{_META}clientCapabilities": self.capabilities,
            f"{_META}logLevel": "info",
        }
        return self.post(messages.request(request_id, method, {**params, "_meta": meta}), Mcp_Method=method, **headers)


@dataclass(kw_only=True)
class HttpSession(Requests):
    """A server, and in the legacy era a session there. ``scale``: see `Session`."""

    child: Child
    scale: float
    opened: float = 0.0
    """When the first answer was here, as `time.perf_counter` says."""
    ids: Iterator[int] = field(default_factory=lambda: count(_FIRST_ID))

    def sized(self, amount: int, *, least: int = 20) -> int:
        """How many to measure with, where the fastest get ``amount``."""
        return max(least, int(amount * self.scale))

    def connect(self) -> Connection:
        """One more connection."""
        return Connection(self.port)

    def echo(self, connection: Connection) -> None:
        """Call once, and check the answer."""
        text = messages.echo(request_id := next(self.ids))
        response = connection.ask(self.call(request_id, "echo", {"text": text}))
        check(messages.text(response.messages()[-1], request_id), text, "an echo")

    def new_session(self, connection: Connection) -> HttpSession:
        """One more session, initialized."""
        session = HttpSession(port=self.port, era="legacy", child=self.child, scale=self.scale, ids=self.ids)
        response: Response = connection.ask(session.post(messages.initialize()))
        check("serverInfo" in response.messages()[-1].get("result", {}), True, "a reply to initialize")
        session.session_id = response.headers["mcp-session-id"]
        connection.ask(session.post(messages.initialized()), 202)
        return session


@contextmanager
def _served(command: list[str]) -> Iterator[tuple[Child, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # thousands of streams, here and in the child
    try:
        with Child(command) as child:
            with within(_PATIENCE, "the port"):
                (port,) = child.marks.wait(PORT)
            yield child, port
            child.terminate()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def open_modern(command: list[str], scale: float) -> Iterator[HttpSession]:
    """Start a server and talk to it in the modern era; with the token behind ``--token``, if there is one."""
    token = command[command.index("--token") + 1] if "--token" in command else None
    with _served(command) as (child, port):
        session = HttpSession(port=port, era="modern", child=child, scale=scale, token=token)
        with session.connect() as connection, within(_PATIENCE, "the first answer"):
            session.echo(connection)
        session.opened = time.perf_counter()
        yield session


@contextmanager
def open_legacy(command: list[str], scale: float) -> Iterator[HttpSession]:
    """Start a server and talk to it in one legacy session."""
    with _served(command) as (child, port):
        outside = HttpSession(port=port, era="legacy", child=child, scale=scale)
        with outside.connect() as connection, within(_PATIENCE, "the handshake"):
            session = outside.new_session(connection)
        session.opened = time.perf_counter()
        yield session


@contextmanager
def open_sessionless(command: list[str], era: Era) -> Iterator[HttpSession]:
    """Start a server that keeps no sessions, and ask it nothing yet."""
    with _served(command) as (child, port):
        yield HttpSession(port=port, era=era, child=child, scale=1.0)
