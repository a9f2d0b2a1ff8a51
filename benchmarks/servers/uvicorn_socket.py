"""A free port for uvicorn, and how it is run here."""

import socket
from contextlib import contextmanager

from marking import listening

OPTIONS = {"log_level": "error", "access_log": False, "timeout_graceful_shutdown": 1}
"""Handlers that never end would keep uvicorn from ending, too."""


@contextmanager
def listening_socket():
    """A socket on loopback, of which the driver is told."""
    # asyncio sets TCP_NODELAY on the connections of sockets that name their protocol, as those that it makes itself do.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(2048)
        listening(sock.getsockname()[1])
        yield sock
