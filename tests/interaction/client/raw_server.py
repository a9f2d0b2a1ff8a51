"""A server that is told, byte by byte, what to do: the RAW peer of the scenarios, as a child process.

    python -S raw_server.py JOURNAL WIRE PROGRAM

WIRE is ``stdio``, or ``websocket``: then standard input is the listening socket, and its first connection is served.
PROGRAM is a few lines of Python which see the names defined here. Each line read is written to JOURNAL before
anything else happens to it, so that a test can see exactly what arrived. When the program ends, the rest of the
input is read to its end. Standard library only: it has to start in no time.
"""

import json
import os
import signal
import sys
import time

from raw_wires import Pipes, WebSocket

__all__ = [
    "close",
    "discovered",
    "ended",
    "error",
    "frame",
    "handshake",
    "note",
    "notify",
    "opened",
    "progress",
    "read",
    "read_within",
    "request",
    "result",
    "send",
    "signal",
    "text",
    "until",
    "write",
]

INFO = {"name": "raw", "version": "1"}
if __name__ == "__main__":
    _journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    wire = {"stdio": Pipes, "websocket": WebSocket}[sys.argv[2]]()


def note(event, **more):
    """Add a line to the journal."""
    os.write(_journal, json.dumps({"event": event, "t": time.monotonic(), **more}).encode() + b"\n")


def read(deadline=None):
    """The next message, noted; `None` at the end of input."""
    line = wire.message(deadline)
    if line is None:
        note("eof", close_code=wire.close_code)
        return None
    if len(line) > 100_000:
        note("read", size=len(line))
    else:
        note("read", line=line.decode("utf-8", "backslashreplace"))
    return json.loads(line)


def read_within(seconds):
    """As `read`, but `None` as well when nothing comes in that time."""
    try:
        return read(time.monotonic() + seconds)
    except TimeoutError:
        return None


def until(method, tool=None):
    """Read up to the next message of ``method`` (and, for calls, of ``tool``), and give it. Ends the process at
    the end of input."""
    while (message := read()) is not None:
        if message.get("method") == method and (tool is None or message["params"]["name"] == tool):
            return message
    os._exit(0)


def ended():
    """Read to the end of input."""
    while read() is not None:
        pass


def write(data):
    """Write exactly these bytes; over WebSocket, each line of them as a text message."""
    wire.write(data.encode() if isinstance(data, str) else data)


def frame(opcode, payload):
    """Write exactly this WebSocket frame."""
    wire.frame(opcode, payload)


def close(code, reason=""):
    """Close the WebSocket."""
    wire.frame(8, code.to_bytes(2, "big") + reason.encode())


def send(message):
    """Write a message."""
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def result(request, value):
    """Answer a request with a result."""
    send({"id": request["id"], "result": value})


def text(request, value="done"):
    """Answer a tool call with a text."""
    result(request, {"content": [{"type": "text", "text": value}]})


def error(request, code, message="no", **more):
    """Answer a request with an error."""
    send({"id": request["id"], "error": {"code": code, "message": message, **more}})


def notify(method, params=None):
    """Write a notification."""
    send({"method": method} if params is None else {"method": method, "params": params})


def progress(request, value, **more):
    """Write a progress notification for a request."""
    notify(
        "notifications/progress",
        {"progressToken": request["params"]["_meta"]["progressToken"], "progress": value, **more},
    )


def request(request_id, method, params=None):
    """Write a request of ours."""
    send({"id": request_id, "method": method} | ({} if params is None else {"params": params}))


def handshake(version=None, capabilities=None):
    """Be opened by a legacy client: refuse ``server/discover``, answer ``initialize``, await ``initialized``."""
    while (message := read()) is not None:
        method = message.get("method")
        if method == "initialize":
            _initialized(message, version, capabilities)
            return
        if method is not None and "id" in message:
            error(message, -32601, "Method not found")
    os._exit(0)


def _initialized(initialize, version=None, capabilities=None):
    chosen = version or initialize["params"]["protocolVersion"]
    result(initialize, {"protocolVersion": chosen, "capabilities": capabilities or {}, "serverInfo": INFO})
    until("notifications/initialized")


def discovered(discover):
    """Be opened by a modern client, which asks ``discover``."""
    versions = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "private"}
    result(discover, {"resultType": "complete", **versions})


def opened():
    """Be opened by a client of either era, as its first request wants it."""
    first = read()
    {"server/discover": discovered, "initialize": _initialized}[first["method"]](first)


if __name__ == "__main__":
    exec(compile(sys.argv[3], "<program>", "exec"), globals())
    ended()
