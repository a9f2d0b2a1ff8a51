"""The shop's HTTP API, a program of its own: ``python -m benchmarks.quoted.api`` prints its port. One process and the
standard library alone, quick, so that the measured servers are what limits."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .catalog import priced, product, search

__all__ = ["api"]

_CHUNK = 1 << 16
_ROOT = Path(__file__).parent.parent.parent


def _response(status: str, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_NOT_FOUND = _response("404 Not Found", {"error": "there is nothing here"})


@lru_cache(maxsize=10_000)
def _got(target: str) -> bytes:
    parts = urlsplit(target)
    if parts.path == "/products/search":
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        prices = float(asked["min_price"]), float(asked["max_price"])
        return _response("200 OK", search(asked["category"], *prices, int(asked["limit"])))
    if parts.path.startswith("/products/"):
        return _response("200 OK", product(int(parts.path.rpartition("/")[2])))
    return _NOT_FOUND


def _answer(head: bytes, body: bytes) -> bytes:
    method, target, _ = head.split(b" ", 2)
    if method == b"GET":
        return _got(target.decode())
    if target != b"/cart/calculate":
        return _NOT_FOUND
    cart = json.loads(body)
    return _response("200 OK", priced(cart["user_id"], cart["items"]))


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n")[1:]:
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def _read(client: socket.socket, buffer: bytearray) -> bool:
    """Read what has come from a client, and answer what is whole. Whether the client is still there."""
    try:
        data = client.recv(_CHUNK)
        buffer += data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(buffer[:end])
            whole = end + 4 + _length(head)
            if len(buffer) < whole:
                break
            client.sendall(_answer(head, bytes(buffer[end + 4 : whole])))
            del buffer[:whole]
    except ConnectionError:
        return False
    return bool(data)


def _serve() -> None:
    clients: dict[int, tuple[socket.socket, bytearray]] = {}
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, select.epoll() as poll:
        poll.register(listener, select.EPOLLIN)
        print(listener.getsockname()[1], flush=True)
        while True:
            for fd, _ in poll.poll():
                if fd == listener.fileno():
                    client, _ = listener.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    clients[client.fileno()] = client, bytearray()
                    poll.register(client, select.EPOLLIN)
                elif not _read(*clients[fd]):
                    poll.unregister(fd)
                    clients.pop(fd)[0].close()


@contextmanager
def api() -> Iterator[str]:
    """Start the API, and kill it at the end: its address."""
    command = [sys.executable, "-m", f"{__package__}.api"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    _serve()
