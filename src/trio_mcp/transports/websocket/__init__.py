"""WebSocket: the transport, the stream below trio-websocket, the handshake and the frames, for either side."""
