"""uvicorn on a free port, as it comes with the peers."""

import socket

import anyio
import uvicorn
from marking import listening


def serve(app):
    """Serve ``app`` on loopback. Handlers that never end would keep uvicorn from ending, too."""
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    # asyncio sets TCP_NODELAY on the connections of sockets that name their protocol, as those that it makes itself do.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(2048)
        listening(sock.getsockname()[1])
        anyio.run(uvicorn.Server(config).serve, [sock])
