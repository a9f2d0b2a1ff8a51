"""Lines over sockets: TCP and Unix."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import socket
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ..runtime.channel import ConnectionLost, UnreadableFrame
from .lines import LineChannel

__all__ = ["SocketLineChannel", "keep_alive", "unix_listener"]

_HTTP: Final = re.compile(rb"[A-Z]{3,20} \S+ HTTP/\d")
_TOO_LONG_HTTP: Final = re.compile(rb"[A-Z]{3,20} ")
"""All that is known of a request whose address is longer than a message may be. No message begins like this."""
_LINGER: Final = 0.5
_PROBES: Final = 4
_LONGEST_WAIT: Final = 32767
"""What the system takes."""
_BACKLOG: Final = 128
_LOCK_TRIES: Final = 100
_LOCK_WAIT: Final = 0.01


class SocketLineChannel(LineChannel):
    """Lines over a socket.

    A line that begins an HTTP request ends the connection: a web page can make a browser send one to any port of
    this machine, and what follows it in the body would be taken for messages.
    """

    def __init__(self, stream: trio.abc.Stream, max_message_bytes: int) -> None:
        super().__init__(stream, max_message_bytes)
        self._socket = stream
        self._closed = False

    async def receive(self) -> bytes | bytearray:
        """See `MessageChannel.receive`."""
        try:
            line = await super().receive()
        except UnreadableFrame as error:
            if _TOO_LONG_HTTP.match(error.head):
                raise _speaks_http() from None
            raise
        if _HTTP.match(line):
            raise _speaks_http()
        return line

    async def aclose(self) -> None:
        """Let the peer read what was sent, for a moment, and close. When cancelled, it still does."""
        if self._closed:
            return
        self._closed = True
        stream = self._socket
        try:
            with (
                trio.CancelScope(shield=True, deadline=trio.current_time() + _LINGER),
                suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            ):
                if isinstance(stream, trio.abc.HalfCloseableStream):
                    await stream.send_eof()
                # Closing with unread bytes would reset the connection, and the last answers might be lost.
                while await stream.receive_some(65536):
                    pass
        finally:
            await trio.aclose_forcefully(stream)


def _speaks_http() -> ConnectionLost:
    return ConnectionLost("the peer speaks HTTP; this is a stream of lines")


def keep_alive(stream: trio.abc.Stream, interval: float, timeout: float) -> None:
    """Have the system find out that the machine at the other end of a TCP connection is gone, in about the seconds of
    `Limits.ping_interval` and `Limits.ping_timeout`. Lines have no pings; a peer that is only frozen is not found."""
    if not isinstance(stream, trio.SocketStream) or stream.socket.family == socket.AF_UNIX or math.isinf(interval):
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in ((socket.TCP_KEEPIDLE, interval), (socket.TCP_KEEPINTVL, timeout / _PROBES)):
        stream.setsockopt(socket.IPPROTO_TCP, option, math.ceil(min(max(seconds, 1), _LONGEST_WAIT)))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


@contextmanager
def unix_listener(path: str | os.PathLike[str]) -> Generator[trio.SocketListener]:
    """Listen on the Unix socket ``path``, mode 0600, and remove it afterwards. Raises `OSError`: see `serve_unix`."""
    name = os.fspath(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        with _alone_in(os.path.dirname(name) or os.curdir):
            _remove_stale(name)
            bound.bind(name)
            # Nobody can connect before it listens, so the mode is in force from the start.
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
def _alone_in(directory: str) -> Generator[None]:
    """Inside, no other server looks for stale sockets in ``directory``: one that was bound a moment ago, and does not
    listen yet, would be taken for that."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(fd, directory)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, directory: str) -> None:
    # It is held for as long as a few system calls take, so an event for it would be no gain.
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_WAIT)
    raise OSError(errno.EAGAIN, "somebody keeps this directory locked", directory)


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
        except BlockingIOError:  # its backlog is full, so somebody listens
            pass
    raise OSError(errno.EADDRINUSE, "another server listens here", name)
