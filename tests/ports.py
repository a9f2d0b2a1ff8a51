"""Ports for servers whose port has to be known before they start, and the URLs of servers on Unix sockets."""

from __future__ import annotations

import os
import socket
from itertools import count
from pathlib import Path
from urllib.parse import quote

__all__ = ["free_port", "url_on_socket"]

_FIRST = 20_000
"""Below all ports that the system gives to whoever asks for any: those go to the other servers of a test."""
_OF_A_WORKER = 1000

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_numbers = count()


def free_port() -> int:
    """A port of this machine that nobody listens on, and that no other worker of the tests takes."""
    while True:
        port = _FIRST + _worker % 10 * _OF_A_WORKER + next(_numbers) % _OF_A_WORKER
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def url_on_socket(path: Path, target: str = "/mcp") -> str:
    """The URL of an HTTP server on the Unix socket ``path``."""
    return f"http+unix://{quote(str(path), safe='')}{target}"
