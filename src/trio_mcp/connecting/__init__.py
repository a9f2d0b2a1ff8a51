"""Connecting: a client meets a transport."""

from .lines import open_tcp, open_unix
from .memory import open_memory
from .stdio import open_stdio
from .websocket import open_websocket

__all__ = ["open_memory", "open_stdio", "open_tcp", "open_unix", "open_websocket"]
