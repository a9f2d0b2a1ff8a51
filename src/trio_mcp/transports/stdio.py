"""The server side of stdio: sends and receives messages over this process's own standard input and output.

Both are shared with the process that started us, and with the terminal. Making the descriptors non-blocking would
affect every process, because the flag belongs to the open file, not to our descriptor. So `DescriptorStream` opens each
file again if the operating system allows it. Otherwise each descriptor is polled before each use, or used with calls
that don't block. The flags of the given descriptors stay unchanged. Pipes, sockets, terminals, regular files and
``/dev/null`` all work.
"""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import stat
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Final, Literal, TextIO, TypeVar

import trio

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..diagnostics.log import is_writable
from .lines import LineTransport


@contextmanager
def own_stdio(max_message_bytes: int) -> Generator[LineTransport]:
    """Reserve standard input and output for messages while inside the block.

    ``print`` and child processes get other file descriptors in the meantime.

    Inside the block, descriptor 1 is standard error and descriptor 0 is empty, for this process and its children. So a
    stray ``print``, ``os.write(1, …)`` or a child's output can't corrupt the wire, and no child consumes input
    (2025-11-25 stdio: MUST NOT write anything to stdout that is not a message). Printed text is written line by line.
    On exit, both descriptors are restored. But if standard error has no reader, text printed from then on is dropped,
    so that the process can end. Raises `OSError` if standard input or output isn't open.
    """
    _check_open()
    stream = DescriptorStream(0, 1)
    saved_input, saved_output = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, 0)
        os.dup2(null if sys.__stderr__ is None else 2, 1)
        with _printing_line_by_line():
            yield LineTransport(stream, max_message_bytes)
    finally:
        os.dup2(saved_input, 0)
        if is_writable(1):
            os.dup2(saved_output, 1)
        else:
            # Don't restore standard output: a blocked print would send the rest of its text to the peer.
            os.dup2(null, 1)
        for fd in (saved_input, saved_output, null):
            os.close(fd)
        stream.close()


@contextmanager
def _printing_line_by_line() -> Generator[None]:
    """While inside the block, flush standard output after each printed line, as Python does for a terminal."""
    printing = sys.stdout
    if not (isinstance(printing, io.TextIOWrapper) and _is_standard_output(sys.stdout)):
        yield
        return
    before = printing.line_buffering
    printing.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        if is_writable(1):
            # Before `reconfigure` changes the buffering, it writes buffered text to standard error (now descriptor 1).
            with suppress(OSError, ValueError):
                printing.reconfigure(line_buffering=before)


def _is_standard_output(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except ValueError:  # raised if the stream is closed or detached, or has no descriptor (`io.UnsupportedOperation`)
        return False


def _check_open() -> None:
    # Python sets a standard stream to `None` if its descriptor was closed at startup.
    # Don't check the descriptors now: another file, such as trio's epoll, may have reused a closed descriptor.
    for name, opened in (("input", sys.__stdin__), ("output", sys.__stdout__)):
        if opened is None:
            raise OSError(errno.EBADF, f"standard {name} is not open")


T = TypeVar("T")

_SMALL_WRITE: Final = select.PIPE_BUF
"""Number of bytes that a pipe accepts without blocking after it was polled as writable."""


@frozen
class _Descriptor:
    """A duplicate of a standard file descriptor, which this module closes.

    ``readiness`` says how to avoid blocking: ``waits`` (poll before each use, because it would block), ``never``
    (always ready, and can't be polled), or ``tries`` (a call fails if it isn't ready).
    """

    fd: int
    readiness: Literal["tries", "waits", "never"]
    read: Callable[[int], bytes]
    write: Callable[[memoryview], int]

    def close(self) -> None:
        trio.lowlevel.notify_closing(self.fd)
        os.close(self.fd)


def _own(fd: int, mode: Literal["r", "w"]) -> _Descriptor:
    """Return a new descriptor for the file of ``fd``. The new descriptor is non-blocking if the operating system allows
    that."""
    kind = os.fstat(fd).st_mode
    if stat.S_ISSOCK(kind):
        # A socket can't be reopened by name, so only individual calls on the socket can be non-blocking.
        ours = socket.socket(fileno=os.dup(fd))
        own_fd = ours.detach()
        return _Descriptor(
            own_fd,
            "tries",
            lambda count: _socket_call(own_fd, lambda sock: sock.recv(count, socket.MSG_DONTWAIT)),
            lambda data: _socket_call(own_fd, lambda sock: sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)),
        )
    if stat.S_ISREG(kind) or (stat.S_ISCHR(kind) and not os.isatty(fd)):
        return _plain(os.dup(fd), "never")
    flags = (os.O_RDONLY if mode == "r" else os.O_WRONLY) | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    for name in _names(fd):
        with suppress(OSError):  # `os.open` fails without /proc, or for a file of another user
            return _plain(os.open(name, flags), "tries")
    # The descriptor may block: poll it before each use, and read or write small pieces.
    return _plain(os.dup(fd), "waits")


def _names(fd: int) -> Iterator[str]:
    yield f"/proc/self/fd/{fd}"
    with suppress(OSError):
        yield os.ttyname(fd)


def _plain(fd: int, readiness: Literal["tries", "waits", "never"]) -> _Descriptor:
    def write(data: memoryview) -> int:
        return os.write(fd, data[:_SMALL_WRITE] if readiness == "waits" else data)

    return _Descriptor(fd, readiness, lambda count: os.read(fd, count), write)


def _socket_call(fd: int, call: Callable[[socket.socket], T]) -> T:
    borrowed = socket.socket(fileno=fd)
    try:
        return call(borrowed)
    finally:
        borrowed.detach()


class DescriptorStream:
    """A stream that reads from a duplicate of ``read_fd`` and writes to a duplicate of ``write_fd``.

    The given descriptors stay open and unchanged.

    Raises `OSError` if a descriptor isn't open.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        os.fstat(write_fd)  # check `write_fd` first: if it is closed, the new reader could get the same number
        self._reader = _own(read_fd, "r")
        try:
            self._writer = _own(write_fd, "w")
        except BaseException:
            self._reader.close()
            raise
        self._closed = False
        self._wait_first = self._reader.readiness == "waits"

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes, and return at most ``max_bytes`` (65,536 by default). Empty bytes mean the end of the file.

        This always lets other tasks run. A cancelled call has read nothing.
        """
        reader, waited, most = self._reader, self._wait_first, max_bytes or 65536
        if waited:
            await trio.lowlevel.wait_readable(reader.fd)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._check_open()
            try:
                data = reader.read(most)
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_readable(reader.fd)
                waited = True
            except OSError as error:
                if error.errno == errno.EIO:  # EIO: the other end of the terminal was closed
                    return b""
                raise trio.BrokenResourceError(str(error)) from error
            else:
                # After a short read, wait first: another attempt to read would usually find nothing.
                self._wait_first = reader.readiness != "never" and (reader.readiness == "waits" or len(data) < most)
                if not waited:  # not cancellable, so that bytes that were read aren't lost
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``. If the call is cancelled, a part may have been written.

        The call is a checkpoint only if it has to wait.
        """
        writer, rest = self._writer, memoryview(data)
        while rest:
            self._check_open()
            if writer.readiness == "waits":
                await trio.lowlevel.wait_writable(writer.fd)
            try:
                rest = rest[writer.write(rest) :]
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_writable(writer.fd)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    def send_nowait(self, data: bytes | bytearray) -> int:
        """Write as much of ``data`` as possible without waiting, and return the number of bytes written.

        Return ``0`` if the descriptor must be polled first, or if writing fails: `send_all` will then raise the error.
        """
        writer = self._writer
        if self._closed or writer.readiness == "waits":
            return 0
        try:
            return writer.write(memoryview(data))
        except OSError:
            return 0

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")

    def close(self) -> None:
        """Close the file descriptors that this stream has duplicated. Idempotent."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            self._writer.close()

    async def aclose(self) -> None:
        """Close the file descriptors that this stream has duplicated. See `close`."""
        self.close()
        await trio.lowlevel.checkpoint()
