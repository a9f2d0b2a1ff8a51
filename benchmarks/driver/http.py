"""The raw client side of HTTP/1.1: one request at a time on a connection, and responses in the three forms that MCP
servers give them: nothing, one JSON value, and server-sent events."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

from .checks import check

__all__ = ["Connection", "Response", "request", "size_of"]

_CHUNK = 1 << 18
_LAST_CHUNK = b"\r\n0\r\n\r\n"


def request(port: int, method: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of a request for ``/mcp``."""
    lines = [f"{method} /mcp HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "\r\n"]).encode() + body


@lru_cache
def _length(head: bytes) -> int | None:
    """The length that a head gives for its body; `None` where that is chunked. Heads recur, but for their date."""
    names = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    if names.get(b"transfer-encoding", b"").strip() == b"chunked":
        return None
    return int(names.get(b"content-length", b"0"))


def size_of(buffer: bytes | bytearray) -> int:
    """The size of the response at the front of ``buffer``; 0 while some of that is still to come. Nothing follows a
    chunked one, since the next request is yet to be sent."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return 0
    length = _length(bytes(buffer[:end]))
    if length is None:
        return len(buffer) if buffer.endswith(_LAST_CHUNK, end + 2) else 0
    whole = end + 4 + length
    return whole if len(buffer) >= whole else 0


@dataclass(frozen=True)
class Response:
    """A response, or what has come of one. ``headers``: names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, data: bytes) -> Response:
        """Read ``data``, from the status line on."""
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = _unchunked(body)
        return cls(int(first.split(" ", 2)[1]), headers, body)

    def messages(self) -> list[dict[str, Any]]:
        """The messages in the body: of an event stream, those of all whole events with data."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return [json.loads(data) for event in self._events() if (data := _data(event))]
        return [json.loads(self.body)] if self.body else []

    def _events(self) -> list[bytes]:
        return self.body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]


def _unchunked(body: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0 and (size := int(body[at:end].split(b";")[0], 16)):
        parts.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)


def _data(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


class Connection:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        """What has come of the present response."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close, at once, whatever is under way."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write ``data``, a request."""
        self.socket.sendall(data)

    def receive(self) -> None:
        """Add what comes next to the buffer."""
        data = self.socket.recv(_CHUNK)
        if not data:
            raise EOFError(f"the server has closed the connection; the last it said: {bytes(self.buffer[-300:])!r}")
        self.buffer += data

    def take(self) -> bytes:
        """Empty the buffer."""
        data, self.buffer = bytes(self.buffer), bytearray()
        return data

    def whole(self) -> bytes:
        """Wait for a whole response and take it."""
        while not (size := size_of(self.buffer)):
            self.receive()
        check(size, len(self.buffer), "the size of a response")
        return self.take()

    def ask(self, data: bytes, status: int = 200) -> Response:
        """Send a request, and wait for its response, which has to have ``status``."""
        self.send(data)
        response = Response.of(self.whole())
        check(response.status, status, f"the status of the answer {response.body!r:.200}")
        return response

    def wait_for(self, mark: bytes) -> None:
        """Wait until ``mark`` has come."""
        while mark not in self.buffer:
            self.receive()
