"""SocketLineTransport: sends and receives messages as lines over TCP and Unix sockets. This module also connects to
Unix sockets, and listens on them."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import stat
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.fair_share import HeldBytes
from ..concurrency.time_limits import growing_delay
from ..jsonrpc.codec import decode
from ..jsonrpc.errors import PARSE_ERROR
from ..jsonrpc.messages import Unreadable
from ..lazy import lazy_pattern
from ..runtime.transport import ConnectionLost, UnreadableFrame
from .lines import LineTransport
from .streams import linger, socket_below, until_broken

logger = logging.getLogger("trio_mcp")

_MESSAGE: Final = lazy_pattern(rb"\s*+[{\[]")
"""Pattern of the beginning of a JSON message, even of a message that is too long."""
_LINGER: Final = 0.5
_PROBES: Final = 4
_LONGEST_WAIT: Final = 32767
"""Maximum number of seconds that the operating system accepts for a keep-alive option."""
_KEEP_IDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE", 0x10)  # macOS calls it TCP_KEEPALIVE
_BACKLOG: Final = 0xFFFF  # The longest backlog, which the operating system may reduce
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
"""Maximum number of bytes of a Unix socket's address: unix(7) on Linux; other systems have the limit of BSD."""
_ROOM_WAIT: Final = 0.01
_LONGEST_ROOM_WAIT: Final = 0.5
"""The first and the longest pause, in seconds, before a client tries again to connect to a listener whose backlog is
full."""
_LOCK_TRIES: Final = 100
_LOCK_WAIT: Final = 0.01


class SocketLineTransport(LineTransport):
    """A transport that sends and receives messages as lines over a TCP or Unix socket.

    If the first line isn't a JSON message, the connection ends. A web page can make a browser send HTTP or TLS to any
    port of this machine. Lines in the body of the HTTP request, or inside the TLS hello, could otherwise be taken for
    messages.
    """

    def __init__(self, stream: trio.abc.Stream, max_message_bytes: int, unread: HeldBytes | None = None) -> None:
        super().__init__(stream, max_message_bytes, unread)
        self._socket = stream
        self._closed = False
        self._greeted = False
        """Whether the peer has sent a message."""

    async def receive(self) -> bytes | bytearray:
        """Receive and return the message in the next line: see `Transport.receive`.

        Raises `ConnectionLost` if the first line isn't a JSON message.
        """
        try:
            line = await super().receive()
        except UnreadableFrame as error:
            if not self._greeted and not _MESSAGE.match(error.head):
                raise _wrong_protocol() from None
            self._greeted = True
            raise
        if not self._greeted:
            message = decode(line) if _MESSAGE.match(line) else None
            reply = message.reply if isinstance(message, Unreadable) else None
            if message is None or (reply is not None and reply.code == PARSE_ERROR):
                raise _wrong_protocol()
            self._greeted = True
        return line

    async def aclose(self) -> None:
        """Close the socket. Before that, wait up to half a second until the peer has read everything.

        Cancellation doesn't skip these steps.
        """
        if self._closed:
            return
        self._closed = True
        stream = self._socket
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LINGER), until_broken():
                await linger(stream)
        finally:
            await trio.aclose_forcefully(stream)


def _wrong_protocol() -> ConnectionLost:
    error = ConnectionLost("the peer speaks another protocol: its first line is not a JSON message")
    logger.info("a connection ends: %s", error.reason)
    return error


def keep_alive(stream: trio.abc.Stream, interval: float, timeout: float) -> None:
    """Enable TCP keep-alive on ``stream``, with or without TLS.

    The operating system then detects when the peer's machine has vanished.

    This takes about `Limits.ping_interval` plus `Limits.ping_timeout` seconds. While the connection is idle, the system
    sends probes. Otherwise it checks that the peer acknowledges bytes, or has room for them, within both times
    together. A peer that is only frozen is detected when its system accepts no more bytes.

    For an infinite ``interval``, and for a stream that isn't a TCP connection, this does nothing.
    """
    below = socket_below(stream)
    if below is None or below.socket.family == socket.AF_UNIX or math.isinf(interval):
        return
    with suppress(OSError):  # ignore a broken connection, because the next read will raise its error
        below.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        below.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, _accepted(interval))
        below.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _accepted(timeout / _PROBES))
        below.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        # Only Linux can limit how long lost bytes are resent. Other systems resend them for minutes.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = 1000 * (_accepted(interval) + _accepted(timeout))
            below.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _accepted(seconds: float) -> int:
    return math.ceil(min(max(seconds, 1), _LONGEST_WAIT))


def socket_path(path: str | os.PathLike[str]) -> str:
    """Convert ``name``, the path of a Unix socket, to the form that the operating system needs.

    Raises `ValueError` if a file can't have this name, and `OSError` if the name is too long for a socket.
    """
    name = os.fsdecode(path)
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ValueError(f"the path of a Unix socket must be a valid file name, not {name!r}") from None
    if not name or "\0" in name:
        raise ValueError(f"the path of a Unix socket must not be empty or contain NUL: {name!r}")
    if size > _LONGEST_PATH:
        words = f"the path of a Unix socket is too long, with {size} bytes; at most {_LONGEST_PATH} are allowed"
        raise OSError(errno.ENAMETOOLONG, words, name)
    return name


async def connect_unix(name: str) -> trio.SocketStream:
    """Connect to the Unix socket ``name``, and return the stream.

    While the listener's backlog is full, this waits. Raises `OSError` if the connection fails.
    """
    await trio.lowlevel.checkpoint()
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        for attempt in count(1):
            if _connected(connecting, name):
                break
            # Poll, because trio can't wait until the backlog has free places.
            # `trio.open_unix_socket` mistakes a full backlog for success.
            await trio.sleep(growing_delay(attempt, first=_ROOM_WAIT, longest=_LONGEST_ROOM_WAIT))
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(connecting))


def _connected(connecting: socket.socket, name: str) -> bool:
    """Try to connect to a Unix socket. Return false if the listener's backlog is full, and true on success."""
    try:
        connecting.connect(name)
    except BlockingIOError:  # EAGAIN of connect(2)
        return False
    except ConnectionRefusedError:
        if os.path.exists(name) and not Path(name).is_socket():
            raise OSError(errno.ENOTSOCK, "the path does not name a socket", name) from None
        raise
    return True


@contextmanager
def unix_listener(path: str | os.PathLike[str]) -> Generator[trio.SocketListener]:
    """Listen on the Unix socket ``path`` while inside the block, and remove the socket file afterwards.

    The socket file has mode 0600.

    Raises `OSError` for the same reasons as `serve_unix`, and `ValueError` if no file can have this path.
    """
    name = socket_path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        with _exclusive(name):
            _remove_stale(name)
            bound.bind(name)
            # Set the mode before the socket listens, so that no other user can connect first.
            os.chmod(name, 0o600)
            bound.listen(_BACKLOG)
        ours = os.stat(name)
        try:
            yield trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(name), ours):
                    os.unlink(name)


@contextmanager
def _exclusive(name: str) -> Generator[None]:
    """Hold a lock while inside the block, so that other servers of this user don't remove the socket at ``name``.

    They would mistake a socket that is bound, but doesn't listen yet, for a stale one.

    The lock is on a separate file, ``name`` + ``.lock``, which other users can't open. A lock on the directory could be
    held for ever by any user who may read the directory.
    """
    path = f"{name}.lock"
    fd = _locked(path)
    try:
        yield
    finally:
        os.unlink(path)  # delete the locked file: a server that waits for this lock notices that the file is gone
        os.close(fd)


def _locked(path: str) -> int:
    """Lock the lock file at ``path``, and return its descriptor."""
    from fcntl import LOCK_EX, LOCK_NB, flock  # Windows has none

    # Poll for the lock, because it is held only during a few system calls.
    for _ in range(_LOCK_TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            _check_lock(path, os.fstat(fd))
            with suppress(BlockingIOError, FileNotFoundError):
                flock(fd, LOCK_EX | LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.lstat(path)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(_LOCK_WAIT)
    raise OSError(errno.EAGAIN, "another server of this user has locked this file", path)


def _check_lock(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size:  # a lock file of this package is a regular and empty file
        raise OSError(errno.EEXIST, "the file is not a lock file of this package, so it is not removed", path)
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "the lock file belongs to another user, so it is not removed", path)


def _remove_stale(name: str) -> None:
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        if os.path.islink(name):
            raise OSError(errno.EEXIST, "the path is a broken symbolic link, so it is not replaced", name) from None
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the path does not name a socket, so the file is not replaced", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            os.unlink(name)
            return
        except BlockingIOError:  # the backlog is full, so a server must be listening
            pass
    raise OSError(errno.EADDRINUSE, "another server is already listening on this address", name)
