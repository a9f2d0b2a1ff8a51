"""Ports for servers whose port has to be known before they start."""

from __future__ import annotations

import os
import socket
from itertools import count

__all__ = ["free_port"]

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
