"""SocketLineTransport: messages as lines over TCP and Unix sockets; the two ends of a connection by a Unix socket."""

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
"""The beginning of a message, also of a message that is too long."""
_LINGER: Final = 0.5
_PROBES: Final = 4
_LONGEST_WAIT: Final = 32767
"""Seconds that the system accepts at most for a keep-alive option."""
_KEEP_IDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE", 0x10)  # else TCP_KEEPALIVE, as macOS calls it
_BACKLOG: Final = 0xFFFF  # the system has a smaller bound
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
"""Bytes that the address of a Unix socket has room for: unix(7); elsewhere the systems descended from BSD."""
_ROOM_WAIT: Final = 0.01
_LONGEST_ROOM_WAIT: Final = 0.5
"""Seconds until a client tries again to connect to a listener without room: the first time, and at most."""
_LOCK_TRIES: Final = 100
_LOCK_WAIT: Final = 0.01


class SocketLineTransport(LineTransport):
    """Messages as lines over a socket.

    A first line that is no JSON message ends the connection. A web page can make a browser speak HTTP or TLS to any
    port of this machine; lines in the body of the HTTP request, or inside of the TLS hello, would be taken for
    messages.
    """

    def __init__(self, stream: trio.abc.Stream, max_message_bytes: int, unread: HeldBytes | None = None) -> None:
        super().__init__(stream, max_message_bytes, unread)
        self._socket = stream
        self._closed = False
        self._greeted = False
        """True once a message has come."""

    async def receive(self) -> bytes | bytearray:
        """Receive the next line: see `Transport.receive`. Raises `ConnectionLost` when the first line is no JSON
        message."""
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
        """Let the peer read what was sent, for half a second at most, and close. A cancel skips none of these steps."""
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
    error = ConnectionLost("the peer speaks another protocol: what it sent first is no JSON message on a line")
    logger.info("a connection ends: %s", error.reason)
    return error


def keep_alive(stream: trio.abc.Stream, interval: float, timeout: float) -> None:
    """Have the system detect that the machine at the other end of a TCP connection, with or without TLS, is gone, in
    about the seconds of `Limits.ping_interval` and `Limits.ping_timeout`: by probes while nothing is under way, and
    otherwise by bytes that the peer does not acknowledge, or has no room for, in both times together. A peer that is
    only frozen is detected when its system takes no more bytes.

    For an infinite ``interval``, and for a stream that is no TCP connection, nothing is done.
    """
    below = socket_below(stream)
    if below is None or below.socket.family == socket.AF_UNIX or math.isinf(interval):
        return
    with suppress(OSError):  # a connection that is broken already, as its reader will find
        below.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        below.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, _accepted(interval))
        below.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _accepted(timeout / _PROBES))
        below.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux alone: elsewhere lost bytes are sent again for minutes
            milliseconds = 1000 * (_accepted(interval) + _accepted(timeout))
            below.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _accepted(seconds: float) -> int:
    return math.ceil(min(max(seconds, 1), _LONGEST_WAIT))


def socket_path(path: str | os.PathLike[str]) -> str:
    """Return the name of a Unix socket. Raises `ValueError` for one that no file can have, and `OSError` for one that
    is too long for a socket."""
    name = os.fsdecode(path)
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ValueError(f"the path of a Unix socket has a character that no file name can have: {name!r}") from None
    if not name or "\0" in name:
        raise ValueError(f"the path of a Unix socket is not empty and has no NUL in it: {name!r}")
    if size > _LONGEST_PATH:
        words = f"the path of a Unix socket is too long, with {size} bytes; it has at most {_LONGEST_PATH}"
        raise OSError(errno.ENAMETOOLONG, words, name)
    return name


async def connect_unix(name: str) -> trio.SocketStream:
    """Connect to the Unix socket ``name``, and return the stream. Wait while the listener has no room for one more
    client that waits to be accepted. Raises `OSError`."""
    await trio.lowlevel.checkpoint()
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        for attempt in count(1):
            if _connected(connecting, name):
                break
            # No event tells of room, and `trio.open_unix_socket` takes the want for success.
            await trio.sleep(growing_delay(attempt, first=_ROOM_WAIT, longest=_LONGEST_ROOM_WAIT))
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(trio.socket.from_stdlib_socket(connecting))


def _connected(connecting: socket.socket, name: str) -> bool:
    """Connect, and return false where the listener has no room."""
    try:
        connecting.connect(name)
    except BlockingIOError:  # EAGAIN of connect(2)
        return False
    except ConnectionRefusedError:
        if os.path.exists(name) and not Path(name).is_socket():
            raise OSError(errno.ENOTSOCK, "this is no socket", name) from None
        raise
    return True


@contextmanager
def unix_listener(path: str | os.PathLike[str]) -> Generator[trio.SocketListener]:
    """Listen on the Unix socket ``path``, mode 0600, and remove the socket afterwards. Raises `OSError`, see
    `serve_unix`, and `ValueError` for a path that no file can have."""
    name = socket_path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        with _exclusive(name):
            _remove_stale(name)
            bound.bind(name)
            # No client can connect before the socket listens, so the mode is in force from the start.
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
    """Keep other servers of this user from looking for a stale socket at ``name`` while the block runs. Another server
    would take a socket that was bound a moment ago, and does not listen yet, for stale.

    The lock is on a file of its own, ``name`` with ``.lock`` behind it, which no other user can open. The directory
    itself could be locked for ever, by any user who may read the directory.
    """
    path = f"{name}.lock"
    fd = _locked(path)
    try:
        yield
    finally:
        os.unlink(path)  # while the lock is held: a waiting server notices, and makes a new file
        os.close(fd)


def _locked(path: str) -> int:
    """Return the descriptor of the lock file at ``path``, locked."""
    from fcntl import LOCK_EX, LOCK_NB, flock  # Windows has none

    # A lock is held only for a few system calls, so waiting for an event would gain nothing.
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
    raise OSError(errno.EAGAIN, "another server of this user keeps this file locked", path)


def _check_lock(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_size:  # our lock files are empty, and removed
        raise OSError(errno.EEXIST, "this is no lock file, so it is left alone", path)
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "this lock file is another user's, so it is left alone", path)


def _remove_stale(name: str) -> None:
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        if os.path.islink(name):
            raise OSError(errno.EEXIST, "this is a link to nothing, so it is left alone", name) from None
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "this is no socket, so it is left alone", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except ConnectionRefusedError:
            os.unlink(name)
            return
        except BlockingIOError:  # the backlog is full, so some server listens
            pass
    raise OSError(errno.EADDRINUSE, "another server listens here", name)
