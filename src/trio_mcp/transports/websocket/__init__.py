"""WebSocket for clients and servers: the transport, the stream below trio-websocket, the handshake and the frames."""
