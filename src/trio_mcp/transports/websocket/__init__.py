"""WebSocket for either side: the transport, the stream below trio-websocket, the handshake and the frames."""
