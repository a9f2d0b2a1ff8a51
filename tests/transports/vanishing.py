"""A machine that vanishes without a word, played by a filter of the system that drops whatever comes for a socket."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys

import pytest
import trio

__all__ = ["needs_filters", "vanish"]

_SO_ATTACH_FILTER = 26
_DROP_EVERYTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""``return 0`` in the instructions of BPF."""

needs_filters = pytest.mark.skipif(sys.platform != "linux", reason="the filters of sockets are Linux's")


def vanish(stream: trio.SocketStream) -> None:
    """Let nothing more come to ``stream``, and so let no acknowledgement and no answer go out for what is sent there.
    To its peer that is a machine without power. The stream must be closed after its peer, or else says goodbye."""
    program = ctypes.create_string_buffer(_DROP_EVERYTHING)
    stream.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
