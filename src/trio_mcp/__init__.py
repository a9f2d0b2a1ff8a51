"""trio-mcp: a trio-native runtime for the Model Context Protocol."""

from .server.context import RequestContext
from .server.server import Server
from .serving import serve_stdio

__all__ = ["RequestContext", "Server", "serve_stdio"]
