"""How a server of a Python package is served: over stdio, or with the argument ``http`` over HTTP.

Over HTTP it says its port on standard output, and keeps events, so that clients may come back for an answer.
"""

import signal
import socket
import sys

import uvicorn
from journal import note
from mcp.server.streamable_http import EventMessage, EventStore

RETRY = 20
"""Milliseconds after which a client may come back for the rest of an answer."""


class Events(EventStore):
    """All that was ever sent, in one list; the id of an event is its place there."""

    def __init__(self):
        self._events = []

    async def store_event(self, stream_id, message):
        self._events.append((stream_id, message))
        return str(len(self._events) - 1)

    async def replay_events_after(self, last_event_id, send_callback):
        last = int(last_event_id)
        stream_id, _ = self._events[last]
        for place, (stream, message) in enumerate(self._events[last + 1 :], last + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, str(place)))
        return stream_id


class Announced(uvicorn.Server):
    """Says its port when it accepts connections."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(sockets[0].getsockname()[1], flush=True)


def over_http(app):
    """Serve ``app`` until SIGTERM, which uvicorn raises again when it has ended in good order."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2)
        Announced(config).run([listener])


def serve(over_stdio, app):
    """``over_stdio`` serves there; ``app`` makes an application of an event store and the time to come back after."""
    if sys.argv[1:] == ["http"]:
        over_http(app(event_store=Events(), retry_interval=RETRY))
    else:
        over_stdio()
    note("server ended")
