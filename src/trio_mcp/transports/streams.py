"""Faster use of trio's streams: write without waiting, wait for sockets before reading them, and drop the tracebacks of
broken streams."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, Protocol, cast, runtime_checkable

import trio

from ..concurrency.contexts import contextmanager

IS_POSIX: Final = hasattr(os, "register_at_fork")
"""Whether a socket is a file descriptor for `os.read` and `os.write`. False on Windows, where this wasn't tested."""
_READ: Final = 64 * 1024

AT_ONCE: Final = 4
"""Number of messages that a transport may write at once before it has read anything or its writer has written."""


@runtime_checkable
class NowaitStream(Protocol):
    """A stream with a method that writes as much as possible without waiting."""

    def send_nowait(self, data: bytes | bytearray) -> int:
        """Write as much of ``data`` as possible without waiting, and return the number of bytes written.

        Return ``0`` if writing fails. ``send_all`` will then raise the error.
        """
        ...


def nowait_writer(stream: object) -> Callable[[bytes | bytearray], int]:
    """Return a function that writes to ``stream`` without waiting. See `NowaitStream.send_nowait`.

    It supports `NowaitStream`, and trio's streams over a non-blocking descriptor. For other streams, the function
    writes nothing.
    """
    match stream:
        case trio.StapledStream():
            return nowait_writer(stream.send_stream)
        case NowaitStream():
            return stream.send_nowait
        case trio.SocketStream() if IS_POSIX:
            return partial(_write_to, stream.socket.fileno)
        case _ if IS_POSIX and isinstance(stream, trio.lowlevel.FdStream):
            return partial(_write_to, stream.fileno)
        case _:
            return lambda _: 0


def _write_to(fileno: Callable[[], int], data: bytes | bytearray) -> int:
    try:
        return os.write(fileno(), data)  # the file descriptor of a closed stream is -1, for which os.write fails
    except OSError:
        return 0


def socket_below(stream: object) -> trio.SocketStream | None:
    """Return the socket stream under ``stream``, with or without TLS between them. Return `None` if there is no
    socket."""
    while isinstance(stream, trio.SSLStream):
        stream = cast("trio.SSLStream[trio.abc.Stream]", stream).transport_stream
    return stream if isinstance(stream, trio.SocketStream) else None


def is_readable(socket: int) -> bool:
    """Return whether there is anything to read from the socket whose `fileno` is ``socket``. Doesn't wait.

    This can be bytes, a connection to accept, the end of the stream, or an error.
    """
    if not IS_POSIX:  # on POSIX systems, use poll: `select.select` rejects descriptors above 1023
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


async def linger(stream: trio.abc.Stream) -> None:
    """Stop sending on ``stream``, and read until the peer also stops sending.

    Closing with unread bytes would reset the connection, and the bytes sent last might be lost.
    """
    if isinstance(stream, trio.abc.HalfCloseableStream):
        await stream.send_eof()
    while await stream.receive_some(_READ):
        pass


def unacknowledged(stream: object) -> int:
    """Return the number of sent bytes that the operating system of the peer hasn't acknowledged.

    ``stream`` is a socket, with or without TLS.

    Return 0 if the number is unknown, as on all systems other than Linux.
    """
    below, count = socket_below(stream), bytearray(4)
    if below is None:
        return 0
    try:
        import termios  # imported late: most servers don't need termios, and Windows lacks it
        from fcntl import ioctl

        ioctl(below.socket.fileno(), termios.TIOCOUTQ, count)
    except (ImportError, OSError, ValueError):  # the system lacks this ioctl, or the stream is closed
        return 0
    return int.from_bytes(count, sys.byteorder)


def receiver(stream: trio.abc.Stream) -> Callable[[], Awaitable[bytes]]:
    """Return a function that waits for the next bytes of ``stream``, and returns these bytes. Empty bytes mean the end
    of the stream."""
    if not IS_POSIX or not isinstance(stream, trio.SocketStream):

        async def receive_some() -> bytes:
            return bytes(await stream.receive_some(_READ))

        return receive_some
    fileno = stream.socket.fileno

    async def receive() -> bytes:
        # Wait before reading, because there is usually nothing to read between requests.
        # trio's streams try to read first, which costs a system call and an exception per request.
        while True:
            await trio.lowlevel.wait_readable(fileno())
            try:
                return os.read(fileno(), _READ)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from None

    return receive


def drop_tracebacks(error: trio.BrokenResourceError | trio.ClosedResourceError) -> None:
    """Remove the tracebacks of the errors that caused ``error``, without losing their messages.

    This is for callers that catch ``error``. trio's sockets translate errors in a generator whose frame, in CPython
    3.12 and later, leads to a frame that holds the original error, and to all frames that waited for the stream. Only
    the garbage collector could free such a cycle.
    """
    translated: BaseException = error
    while translated.__suppress_context__ and translated.__context__ is not None:
        translated = translated.__context__
        translated.__traceback__ = None


@contextmanager
def until_broken() -> Generator[None]:
    """Suppress the error if the block fails because a stream is broken or closed."""
    try:
        yield
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        drop_tracebacks(error)
