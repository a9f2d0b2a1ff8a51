"""A server on standard input and output that says hostile things wherever a server may say something."""

import json
import sys

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "</select></script><script>alert(1)</script><b>"
HIDDEN = "adm\u202eni\u200b"
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"enum": [SCRIPT, '">', HOSTILE], "title": SCRIPT, "description": HOSTILE},
        HOSTILE: {"type": "string", "default": HOSTILE, "format": SCRIPT},
        "__proto__": {"type": "object", "properties": {"constructor": {"type": "string", "default": "polluted"}}},
        "loop": {"$ref": "#/properties/loop"},
        "tree": {"$ref": "#/$defs/tree"},
        "percent": {"$ref": "#/%E0%A4%A"},
        "percent here": {"$ref": "#/$defs/100%"},
        "names": {"enum": ["a", "b", {"toString": 1}], "enumNames": [1, {"toString": 1}]},
        "one": {"oneOf": [{"const": {"toString": 1}}, {"const": {"valueOf": 1}, "title": 7}]},
        "format": {"type": "string", "format": "constructor"},
        "wrong": {"type": {"a": 1}, "enum": "no list", "items": 3, "properties": [], "required": 7},
    },
    "required": ["a", 3, None],
    "$defs": {
        "100%": {"type": "integer"},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "x": {"type": "integer"}}},
    },
}
TOOLS = [
    {"name": HOSTILE, "title": SCRIPT, "description": f"{HOSTILE} {SCRIPT}", "inputSchema": SCHEMA},
    {"name": "odd", "description": SCRIPT, "inputSchema": {"type": "object", "anyOf": [{"x": HOSTILE}]}},
]
RESULTS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}, "experimental": {HOSTILE: {}}},
        "serverInfo": {"name": HOSTILE, "version": SCRIPT, "websiteUrl": "javascript:alert(1)"},
        "instructions": f"{HOSTILE}{SCRIPT}",
    },
    "ping": {},
    "logging/setLevel": {},
    "tools/list": {"tools": TOOLS},
    "tools/call": {
        "content": [
            {"type": "text", "text": f"{HOSTILE} {HIDDEN}"},
            {"type": "resource_link", "uri": "javascript:alert(1)", "name": SCRIPT},
            {"type": "image", "data": "no base64 at all!", "mimeType": "image/png"},
            {"type": "image", "data": "PHN2Zz48L3N2Zz4=", "mimeType": "image/svg+xml"},
            {"type": "resource", "resource": {"uri": SCRIPT, "text": HOSTILE, "mimeType": "text/html"}},
        ],
        "structuredContent": {"__proto__": {"polluted": HOSTILE}, HOSTILE: SCRIPT},
    },
    "resources/list": {"resources": [{"uri": "javascript:alert(1)", "name": HOSTILE, "description": SCRIPT}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "javascript:{alert}", "name": HOSTILE}]},
    "resources/read": {"contents": [{"uri": "javascript:alert(1)", "text": HOSTILE, "mimeType": "text/html"}]},
    "prompts/list": {"prompts": [{"name": HOSTILE, "arguments": [{"name": SCRIPT, "description": HOSTILE}]}]},
    "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": HOSTILE}}]},
}


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, params = request["method"], request.get("params", {})
    if method == "tools/call":
        sys.stderr.write(f"{HOSTILE}\n")
        sys.stderr.flush()
        token = params.get("_meta", {}).get("progressToken")
        said = {"progressToken": token, "progress": 1, "total": -1, "message": HOSTILE}
        send({"method": "notifications/progress", "params": said})
        send({"method": "notifications/message", "params": {"level": "error", "logger": SCRIPT, "data": HOSTILE}})
    result = RESULTS.get(method)
    answer = {"error": {"code": -32601, "message": HOSTILE, "data": SCRIPT}} if result is None else {"result": result}
    send({"id": request["id"], **answer})
