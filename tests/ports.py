"""Ports for servers whose port has to be known before they start, and the URLs of servers on Unix sockets."""

from __future__ import annotations

import socket
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import quote

__all__ = ["free_port", "url_on_socket"]

_PORTS = range(20_000, 32_000)
"""Below all ports that the system gives to whoever asks for any: those go to the other servers of a test."""
_OF_A_PROCESS = 250

_numbers = count()


@cache
def _first_of_block() -> int:
    """The first port of a block that is this process's own while the process runs: several runs of the tests may share
    the machine, as in ``.ci/run``. A socket that stays bound to the first port reserves the block."""
    for first in _PORTS[::_OF_A_PROCESS]:
        reservation = socket.socket()
        try:
            reservation.bind(("127.0.0.1", first))
        except OSError:  # another process has this block
            reservation.close()
        else:
            reservation.detach()
            return first
    raise RuntimeError(f"all blocks of {_OF_A_PROCESS} ports are in use")


def free_port() -> int:
    """A port of this machine that nobody listens on, and that no other process of tests takes."""
    first = _first_of_block()
    while True:
        port = first + 1 + next(_numbers) % (_OF_A_PROCESS - 1)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def url_on_socket(path: Path, target: str = "/mcp") -> str:
    """The URL of an HTTP server on the Unix socket ``path``."""
    return f"http+unix://{quote(str(path), safe='')}{target}"
