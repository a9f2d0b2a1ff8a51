"""Relay standard input and output to the Unix socket of a scenario. A client under test starts this program as its
server: ``python -m trio_mcp.torture.relay PATH``."""

from __future__ import annotations

import os
import socket
import sys
import threading


def main(path: str) -> None:
    """Relay bytes in both directions until both sides have ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(path)

        def forward() -> None:
            while data := os.read(0, 65536):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)

        threading.Thread(target=forward, daemon=True).start()
        while data := peer.recv(65536):
            os.write(1, data)


if __name__ == "__main__":
    main(sys.argv[1])
