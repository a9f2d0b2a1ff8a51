"""Writing to a stream without waiting: bytes that the system takes at once need no task. And what became of bytes that
the system has taken."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from functools import partial
from typing import Final, Protocol, cast, runtime_checkable

import trio

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


def unacknowledged(stream: object) -> int:
    """Return how many bytes the system has taken for the peer of ``stream``, a socket, with or without TLS, and the
    peer's system has not acknowledged; 0 where nobody tells, which is for all streams but on Linux."""
    while isinstance(stream, trio.SSLStream):
        stream = cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream
    if not isinstance(stream, trio.SocketStream):
        return 0
    count = bytearray(4)
    try:
        ioctl(stream.socket.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):  # another system; -1 of a closed stream, which is no descriptor
        return 0
    return int.from_bytes(count, sys.byteorder)
