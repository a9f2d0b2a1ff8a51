"""A server that does nothing else: for the measures of clients. ``raw.py CORES`` runs on ``CORES``."""

import json
import os
import sys
from functools import cache

CAPABILITIES = {"tools": {}, "logging": {}}
INFO = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "raw", "version": "1"}}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "notify")]
ROW = "row %d was read, checked and written"
UNKNOWN = {"code": -32601, "message": "Method not found"}


def encode(message):
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


@cache
def logs(count):
    """The same lines each time, so they are made once."""
    line = encode({"method": "notifications/message", "params": {"level": "info", "data": ROW}})
    return b"".join(line % number for number in range(count))


def called(params):
    """The notifications and the text of a call."""
    if params["name"] == "echo":
        return b"", params["arguments"]["text"]
    count = params["arguments"]["count"]
    return logs(count), f"{count} rows"


def reply(message):
    """What one message is answered."""
    if "id" not in message:
        return b""
    before, result = b"", None
    match message["method"]:
        case "tools/call":
            before, text = called(message["params"])
            result = {"content": [{"type": "text", "text": text}]}
        case "initialize":
            result = INFO
        case "tools/list":
            result = {"tools": TOOLS}
        case "ping" | "logging/setLevel":
            result = {}
        case _:
            return encode({"id": message["id"], "error": UNKNOWN})
    return before + encode({"id": message["id"], "result": result})


def main():
    os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        out = memoryview(b"".join(reply(json.loads(line)) for line in lines))
        while out:
            out = out[os.write(1, out) :]


main()
