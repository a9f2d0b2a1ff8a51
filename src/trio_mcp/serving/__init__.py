"""Functions that serve a server over stdio, TCP, Unix sockets, HTTP and WebSocket."""
