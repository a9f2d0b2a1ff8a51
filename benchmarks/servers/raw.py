"""A server that does nothing else: for the measures of clients. ``raw.py CORES`` runs on ``CORES``."""

import json
import os
import sys
from functools import cache

CAPABILITIES = {"tools": {}, "logging": {}}
INFO = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "raw", "version": "1"}}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "notify", "ask", "hang", "cancels")]
ROW = "row %d was read, checked and written"
UNKNOWN = {"code": -32601, "message": "Method not found"}


def encode(message):
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


@cache
def logs(count):
    """The same lines each time, so they are made once."""
    line = encode({"method": "notifications/message", "params": {"level": "info", "data": ROW}})
    return b"".join(line % number for number in range(count))


QUESTION = {"messages": [{"role": "user", "content": {"type": "text", "text": "question"}}], "maxTokens": 10}
open_calls = set()
"""The ids of calls that wait for their client, to answer or to cancel. A question has the id of its call."""
cancels = 0


def text_result(request_id, text):
    return encode({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


def called(request_id, params):
    """What a call is answered."""
    arguments = params["arguments"]
    match params["name"]:
        case "echo":
            return text_result(request_id, arguments["text"])
        case "notify":
            return logs(arguments["count"]) + text_result(request_id, f"{arguments['count']} rows")
        case "cancels":
            return text_result(request_id, f"{cancels} cancels, {len(open_calls)} open")
    open_calls.add(request_id)
    if params["name"] == "ask":
        return encode({"id": request_id, "method": "sampling/createMessage", "params": QUESTION})
    began = {"level": "info", "data": f"{arguments['number']} began"}
    return encode({"method": "notifications/message", "params": began})


def cancel(request_id):
    global cancels
    cancels += request_id in open_calls
    open_calls.discard(request_id)


def reply(message):
    """What one message is answered."""
    if "id" not in message:
        if message["method"] == "notifications/cancelled":
            cancel(message["params"]["requestId"])
        return b""
    result = None
    match message.get("method"):
        case None:  # the answer to a question
            open_calls.discard(message["id"])
            return text_result(message["id"], message["result"]["content"]["text"])
        case "tools/call":
            return called(message["id"], message["params"])
        case "initialize":
            result = INFO
        case "tools/list":
            result = {"tools": TOOLS}
        case "ping" | "logging/setLevel":
            result = {}
        case _:
            return encode({"id": message["id"], "error": UNKNOWN})
    return encode({"id": message["id"], "result": result})


def main():
    os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        out = memoryview(b"".join(reply(json.loads(line)) for line in lines))
        while out:
            out = out[os.write(1, out) :]


main()
