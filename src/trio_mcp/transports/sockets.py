"""Lines over sockets: TCP and Unix."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ..runtime.channel import ConnectionLost
from .lines import LineChannel

__all__ = ["SocketLineChannel", "unix_listener"]

_HTTP: Final = re.compile(rb"[A-Z]{3,20} \S+ HTTP/\d")
_LINGER: Final = 0.5
_BACKLOG: Final = 128


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
        line = await super().receive()
        if _HTTP.match(line):
            raise ConnectionLost("the peer speaks HTTP; this is a stream of lines")
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


@contextmanager
def unix_listener(path: str | os.PathLike[str]) -> Generator[trio.SocketListener]:
    """Listen on the Unix socket ``path``, mode 0600, and remove it afterwards. Raises `OSError`: see `serve_unix`."""
    name = os.fspath(path)
    _remove_stale(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        bound.bind(name)
        ours = os.stat(name)
        try:
            # Nobody can connect before it listens, so the mode is in force from the start.
            os.chmod(name, 0o600)
            bound.listen(_BACKLOG)
            yield trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(name), ours):
                    os.unlink(name)


def _remove_stale(name: str) -> None:
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
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
