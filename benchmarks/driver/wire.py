"""Wire: whole messages over raw descriptors."""

from __future__ import annotations

import fcntl
import os
import select
import termios
from array import array
from typing import Protocol

from .marks import Marks

__all__ = ["Framing", "Lines", "Wire"]

_CHUNK = 1 << 16


class Framing(Protocol):
    """How messages become bytes and bytes messages."""

    def frame(self, message: bytes) -> bytes:
        """The bytes of one message."""
        ...

    def cut(self, buffer: bytearray) -> list[bytes]:
        """Take all whole messages off the front of ``buffer``."""
        ...


class Lines:
    """One message per line."""

    def frame(self, message: bytes) -> bytes:
        return message + b"\n"

    def cut(self, buffer: bytearray) -> list[bytes]:
        end = buffer.rfind(b"\n")
        if end < 0:
            return []
        lines = bytes(memoryview(buffer)[:end]).split(b"\n")
        del buffer[: end + 1]
        return lines


class Wire:
    """Writes to one descriptor and reads from another. It never waits to write while there is something to read,
    so that both sides can have much to say at once."""

    def __init__(self, read_fd: int, write_fd: int, framing: Framing, marks: Marks) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._framing = framing
        self._marks = marks
        self._buffer = bytearray()
        self._searched = 0
        os.set_blocking(write_fd, False)

    def frame(self, *messages: bytes) -> bytes:
        """The bytes of ``messages``, for `write`."""
        return b"".join(map(self._framing.frame, messages))

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                readable, _, _ = select.select([self._read_fd, self._marks.fd], [self._write_fd], [])
                if self._read_fd in readable:
                    self._read()
                if self._marks.fd in readable:
                    self._marks.read()

    def send(self, *messages: bytes) -> None:
        """Frame and write ``messages``."""
        self.write(self.frame(*messages))

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, _CHUNK)
        except BlockingIOError:  # a socket has one mode for both directions
            select.select([self._read_fd], [], [])
            return
        if not data:
            raise EOFError("the process has closed its output")
        self._buffer += data

    def read_until(self, mark: bytes) -> None:
        """Read until ``mark`` has come, without a look at anything else; `receive` gives all of it afterwards."""
        while self._buffer.find(mark, self._searched) < 0:
            self._searched = max(0, len(self._buffer) - len(mark) + 1)
            self._read()

    def receive(self) -> list[bytes]:
        """All messages there are, at least one, in their order."""
        while not (messages := self._framing.cut(self._buffer)):
            self._read()
        self._searched = 0
        return messages

    def count_arrived(self, mark: bytes) -> int:
        """How often ``mark`` is in what has been written to us by now, what still lies in the pipe included, and was
        not given out."""
        waiting = array("i", [0])
        fcntl.ioctl(self._read_fd, termios.FIONREAD, waiting)
        end = len(self._buffer) + waiting[0]
        while len(self._buffer) < end:
            self._read()
        return self._buffer.count(mark, 0, end)
