"""Relay standard input and output to the Unix socket of a scenario. A client under test starts this program as its
server: ``relay.py PATH``."""

from __future__ import annotations

import os
import socket
import sys
import threading


def forward_input(peer: socket.socket) -> None:
    """Copy standard input to the socket ``peer`` until the input ends."""
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(sys.argv[1])
        threading.Thread(target=forward_input, args=(peer,), daemon=True).start()
        while data := peer.recv(65536):
            os.write(1, data)
