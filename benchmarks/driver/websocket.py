"""The raw client side of a WebSocket (RFC 6455): an upgrade, text frames, nothing else."""

from __future__ import annotations

import socket
import struct

__all__ = ["Frames", "upgraded"]

_TEXT = 0x81


def upgraded(port: int) -> socket.socket:
    """A connection to ``/mcp`` on this machine, upgraded."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(
        b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mcp\r\n\r\n" % port
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise EOFError(f"no upgrade, but {head!r}")
        head += byte
    if not head.startswith(b"HTTP/1.1 101"):
        raise ConnectionError(f"no upgrade, but {head!r}")
    return connection


class Frames:
    """One message per text frame. Ours are masked with zeros: as legal as any key, and no work for the driver."""

    def frame(self, message: bytes) -> bytes:
        size = len(message)
        if size < 126:
            head = struct.pack("!BBI", _TEXT, 0x80 | size, 0)
        elif size < 65536:
            head = struct.pack("!BBHI", _TEXT, 0x80 | 126, size, 0)
        else:
            head = struct.pack("!BBQI", _TEXT, 0x80 | 127, size, 0)
        return head + message

    def cut(self, buffer: bytearray) -> list[bytes]:
        messages: list[bytes] = []
        start, end = 0, len(buffer)
        while end - start >= 2:
            kind, size, head = buffer[start], buffer[start + 1], 2
            if size == 126:
                head = 4
                size = int.from_bytes(buffer[start + 2 : start + 4])
            elif size == 127:
                head = 10
                size = int.from_bytes(buffer[start + 2 : start + 10])
            if end - start < head + size:
                break
            if kind != _TEXT:
                raise ConnectionError(f"a frame that is no whole text: {kind:#x}")
            messages.append(bytes(memoryview(buffer)[start + head : start + head + size]))
            start += head + size
        del buffer[:start]
        return messages
