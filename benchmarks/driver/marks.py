"""Marks: what a measured process tells beside the protocol, one system call each.

A mark is a letter, a number and a newline, written to the descriptor that the variable BENCHMARK_MARKS names:
``b17`` handler 17 began, ``e17`` it has ended and cleaned up, ``p8765`` the port that a server listens on.
"""

from __future__ import annotations

import os
from collections import defaultdict

__all__ = ["BEGAN", "ENDED", "PORT", "Marks"]

BEGAN = "b"
ENDED = "e"
PORT = "p"


class Marks:
    """The reading end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""
        self._seen: dict[str, list[int]] = defaultdict(list)

    def read(self) -> None:
        """Wait for some, and keep them."""
        data = os.read(self.fd, 65536)
        if not data:
            raise EOFError("the process has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._seen[chr(line[0])].append(int(line[1:]))

    def wait(self, kind: str, count: int = 1) -> list[int]:
        """Wait for ``count`` of a kind and take all there are, in their order."""
        while len(self._seen[kind]) < count:
            self.read()
        return self._seen.pop(kind)

    def close(self) -> None:
        """Read no more."""
        os.close(self.fd)
