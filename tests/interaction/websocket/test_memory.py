"""WSK-03: an unfinished message takes no more memory than the message limit, measured from outside."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.interaction.harness import descriptors_of, resident_bytes, wait_until
from tests.interaction.raw_client import RawClient, serving
from tests.interaction.websocket.raw_peer import masked_frame
from tests.patience import PATIENCE

MIB = 1 << 20
LIMIT = 4 * MIB
SPARE = 20 * MIB
"""What a process may take for other reasons."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RawClient]:
    """A server, and one client of it that has done nothing wrong."""
    limits = {"max_message_bytes": LIMIT, "max_connections": 200, "handshake_timeout": 1}
    with serving(tmp_path, "websocket", limits=limits, revision="2025-11-25") as client:
        client.echo("warm")
        yield client


def connect(server: RawClient, head: bytes) -> socket.socket:
    """One more connection to the server, which is sent ``head``."""
    assert server.wire.to_server is not None
    with socket.socket(fileno=os.dup(server.wire.to_server)) as known:
        connection = socket.create_connection(known.getpeername(), PATIENCE)
    connection.sendall(head)
    return connection


UPGRADE = (
    b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mcp\r\n"
)


def upgraded(server: RawClient) -> socket.socket:
    connection = connect(server, UPGRADE + b"\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
    return connection


def last_words(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    with suppress(ConnectionError):
        while data := connection.recv(65536):
            received += data
    return received


def fragments(size: int, count: int) -> bytes:
    """The beginning of a message that goes on for ever."""
    return masked_frame(1, b"x" * size, fin=False) + masked_frame(0, b"x" * size, fin=False) * (count - 1)


@pytest.mark.parametrize(
    "frames",
    [
        fragments(LIMIT // 4, 5),
        fragments(64, LIMIT // 64 + 1),
        fragments(0, 100_000),
        masked_frame(1, b"x" * LIMIT, fin=False) + masked_frame(9, b"?" * 125) * 2000 + masked_frame(0, b"x"),
    ],
    ids=["large fragments", "small fragments", "empty fragments", "pings within"],
)
def test_wsk_03_endless_websocket_message_uses_bounded_memory(server: RawClient, frames: bytes) -> None:
    before = resident_bytes(server.pid, peak=True)
    with closing(upgraded(server)) as peer:
        with suppress(ConnectionError):  # it is closed on before all is sent
            peer.sendall(frames)
        last_words(peer)
    assert server.echo("untouched") == "untouched"
    assert resident_bytes(server.pid, peak=True) - before < LIMIT + SPARE


def test_wsk_03_server_limits_and_closes_unfinished_websocket_handshakes(server: RawClient) -> None:
    before, descriptors = resident_bytes(server.pid, peak=True), descriptors_of(server.pid)
    half_open = [connect(server, UPGRADE + b"x: " + b"x" * 15_000) for _ in range(300)]
    assert server.echo("untouched") == "untouched"
    wait_until(lambda: descriptors_of(server.pid) <= descriptors)
    for connection in half_open:
        connection.close()
    assert resident_bytes(server.pid, peak=True) - before < SPARE
    upgraded(server).close()
    assert server.finish() == 0
    assert server.stderr() == ""
