"""A server that is told, byte by byte, what to do: the RAW peer of the scenarios, as a child process.

    python -S raw_server.py JOURNAL PROGRAM

PROGRAM is a few lines of Python which see the names defined here. Each line read is written to JOURNAL before
anything else happens to it, so that a test can see exactly what arrived. When the program ends, the rest of the
input is read to its end. Standard library only: it has to start in no time.
"""

import json
import os
import select
import signal
import sys
import time

__all__ = [
    "ended",
    "error",
    "handshake",
    "note",
    "notify",
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
_journal = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if __name__ == "__main__" else -1
_buffer = bytearray()
_unanswered = []


def note(event, **more):
    """Add a line to the journal."""
    os.write(_journal, json.dumps({"event": event, "t": time.monotonic(), **more}).encode() + b"\n")


def _line(deadline=None):
    """The next line without its newline; `None` at the end of input; raises `TimeoutError`."""
    searched = 0
    while (end := _buffer.find(b"\n", searched)) < 0:
        searched = len(_buffer)
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([0], [], [], left)[0]:
                raise TimeoutError
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return None
        _buffer.extend(chunk)
    line = bytes(_buffer[:end])
    del _buffer[: end + 1]
    return line


def read(deadline=None):
    """The next message, noted; `None` at the end of input."""
    line = _line(deadline)
    if line is None:
        note("eof")
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
    """Write exactly these bytes."""
    rest = memoryview(data.encode() if isinstance(data, str) else data)
    while rest:
        rest = rest[os.write(1, rest) :]


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
            chosen = version or message["params"]["protocolVersion"]
            result(message, {"protocolVersion": chosen, "capabilities": capabilities or {}, "serverInfo": INFO})
        elif method == "notifications/initialized":
            return
        elif method is not None and "id" in message:
            error(message, -32601, "Method not found")
    os._exit(0)


if __name__ == "__main__":
    exec(compile(sys.argv[2], "<program>", "exec"), globals())
    ended()
