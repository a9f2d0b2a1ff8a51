"""What a raw server reads and writes: lines through standard input and output, or one WebSocket, frame by frame.

Standard library only, and nothing of trio-mcp.
"""

import base64
import hashlib
import os
import select
import socket
import time

__all__ = ["Pipes", "WebSocket"]

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class Pipes:
    """Standard input and output; each message is a line."""

    def __init__(self):
        self._in, self._out = 0, 1
        self._buffer = bytearray()
        self.close_code = None

    def message(self, deadline=None):
        """The next one, without its newline; `None` at the end of input; raises `TimeoutError`."""
        return self._up_to(b"\n", deadline)

    def write(self, data):
        """Exactly these bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._out, rest) :]

    def _up_to(self, mark, deadline):
        searched = 0
        while (end := self._buffer.find(mark, searched)) < 0:
            searched = max(len(self._buffer) - len(mark) + 1, 0)
            if not self._more(deadline):
                return None
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    def _more(self, deadline):
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self._in], [], [], left)[0]:
                raise TimeoutError
        chunk = os.read(self._in, 1 << 20)
        self._buffer += chunk
        return bool(chunk)


class WebSocket(Pipes):
    """The first connection to the listening socket that is standard input; each message is a text message."""

    def __init__(self):
        super().__init__()
        with socket.socket(fileno=os.dup(0)) as listener:
            self._in = self._out = listener.accept()[0].detach()
        _, *lines = self._up_to(b"\r\n\r\n", None).split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        accept = base64.b64encode(hashlib.sha1(headers[b"sec-websocket-key"] + _GUID).digest())
        super().write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    def message(self, deadline=None):
        """As `Pipes.message`. Pings are answered on the way, and a close frame is the end of input."""
        while self.close_code is None and (frame := self._frame(deadline)) is not None:
            opcode, payload = frame
            if opcode == _TEXT:
                return payload
            if opcode == _PING:
                self.frame(_PONG, payload)
            elif opcode == _CLOSE:
                self.close_code = int.from_bytes(payload[:2], "big")
        return None

    def write(self, data):
        """One text message for each line of ``data``."""
        *lines, rest = bytes(data).split(b"\n")
        assert not rest, "the last line is not whole"
        for line in lines:
            self.frame(_TEXT, line)

    def frame(self, opcode, payload):
        """Exactly this frame."""
        length = len(payload)
        if length < 126:
            head = bytes((0x80 | opcode, length))
        elif length < 1 << 16:
            head = bytes((0x80 | opcode, 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | opcode, 127)) + length.to_bytes(8, "big")
        super().write(head + payload)

    def _frame(self, deadline):
        head = self._bytes(2, deadline)
        if head is None:
            return None
        assert head[0] & 0x80, "clients of these tests send no fragments"
        assert head[1] & 0x80, "clients mask"
        length = head[1] & 0x7F
        if length > 125:
            length = int.from_bytes(self._bytes(2 if length == 126 else 8, None), "big")
        key, masked = self._bytes(4, None), self._bytes(length, None)
        pattern = (key * (length // 4 + 1))[:length]
        payload = int.from_bytes(masked, "big") ^ int.from_bytes(pattern, "big")
        return head[0] & 0x0F, payload.to_bytes(length, "big")

    def _bytes(self, count, deadline):
        while len(self._buffer) < count:
            if not self._more(deadline):
                return None
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found
