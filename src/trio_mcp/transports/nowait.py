"""Writing to a stream without waiting: bytes that the system takes at once need no task."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, runtime_checkable

import trio

__all__ = ["AT_ONCE", "nowait_writer"]

AT_ONCE: Final = 4
"""Messages that a channel may write at once before anything is read or the writer has written."""


@runtime_checkable
class NowaitStream(Protocol):
    """A stream that can be written to without waiting."""

    def send_nowait(self, data: bytes | bytearray) -> int:
        """Write as much of ``data`` as goes without waiting, and return the number of bytes written; ``0`` where
        writing fails, which ``send_all`` reports."""
        ...


def nowait_writer(stream: object) -> Callable[[bytes | bytearray], int]:
    """Return the `NowaitStream.send_nowait` of ``stream``, or an equivalent for the streams of trio that write straight
    to a descriptor that never blocks; for all other streams a function that writes nothing."""
    match stream:
        case trio.StapledStream():
            return nowait_writer(stream.send_stream)
        case NowaitStream():
            return stream.send_nowait
        case trio.SocketStream():
            return partial(_write_to, stream.socket.fileno)
        case trio.lowlevel.FdStream():
            return partial(_write_to, stream.fileno)
        case _:
            return lambda _: 0


def _write_to(fileno: Callable[[], int], data: bytes | bytearray) -> int:
    try:
        return os.write(fileno(), data)  # -1 for a closed stream, which is no descriptor
    except OSError:
        return 0
