"""Serving: a server meets a transport."""

from .lines import serve_tcp, serve_unix
from .stdio import serve_stdio
from .websocket import serve_websocket

__all__ = ["serve_stdio", "serve_tcp", "serve_unix", "serve_websocket"]
