"""Wire: a TCP connection that counts the bytes that the system took, and closes without waiting."""

from __future__ import annotations

import os
import select
from typing import Final

import trio

_READ: Final = 65536


class Wire(trio.abc.Stream):
    """The socket of ``stream``, which belongs to the wire from now on. One task sends, one task receives."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        self._fd = stream.socket.fileno()
        self.taken = 0
        """Number of bytes that the system took."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``. A checkpoint only where the system does not take all bytes at once. Raises
        `trio.BrokenResourceError`; `trio.ClosedResourceError` when `close` is called meanwhile."""
        rest = memoryview(data)
        while rest:
            try:
                taken = os.write(self._fd, rest)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._fd)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from None
            else:
                self.taken += taken
                rest = rest[taken:]

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system takes some bytes."""
        await trio.lowlevel.wait_writable(self._fd)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes, and return up to ``max_bytes``; empty at the end. Raises as `send_all`."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                return os.read(self._fd, max_bytes or _READ)
            except BlockingIOError:
                pass  # Linux reports a socket as readable, and finds that a checksum is wrong: select(2)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from None

    def is_readable(self) -> bool:
        """Return whether bytes, the end or an error have come."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close at once, without a word to the peer. Who sends or receives fails. Idempotent."""
        self._fd = -1
        self._socket.close()

    async def aclose(self) -> None:
        """Close as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()
