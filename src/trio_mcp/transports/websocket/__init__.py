"""WebSocket for clients and servers: the transport, the stream under trio-websocket, the handshake, and frames."""
