"""The messages of the driver."""

from __future__ import annotations

import json
from typing import Any

from .checks import check

__all__ = ["cancel", "echo", "initialize", "initialized", "notification", "request", "result", "text", "tool_call"]

_REVISION = "2025-11-25"


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode()


def request(request_id: int, method: str, params: dict[str, Any]) -> bytes:
    return _encode({"id": request_id, "method": method, "params": params})


def notification(method: str, params: dict[str, Any]) -> bytes:
    return _encode({"method": method, "params": params})


def result(request_id: int | str, value: dict[str, Any]) -> bytes:
    return _encode({"id": request_id, "result": value})


def initialize() -> bytes:
    """The first request, under id 0. All subjects speak the revision it names."""
    params = {
        "protocolVersion": _REVISION,
        "capabilities": {"sampling": {}},
        "clientInfo": {"name": "driver", "version": "1"},
    }
    return request(0, "initialize", params)


def initialized() -> bytes:
    return notification("notifications/initialized", {})


def tool_call(request_id: int, tool: str, arguments: dict[str, Any], token: int | None = None) -> bytes:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return request(request_id, "tools/call", {"name": tool, "arguments": arguments, **meta})


def cancel(request_id: int) -> bytes:
    return notification("notifications/cancelled", {"requestId": request_id, "reason": "measured"})


def echo(number: int) -> str:
    """What is echoed: messages of about 140 bytes, no two of them the same."""
    return f"{number:08} is echoed, and so is this text, to its end"


def text(message: dict[str, Any], request_id: int) -> str:
    """The text of the result of a tool that is the reply to ``request_id``."""
    check(message.get("id"), request_id, "the id of a reply")
    if "result" not in message or message["result"].get("isError"):
        check(message, "a result", f"the reply to {request_id}")
    (content,) = message["result"]["content"]
    return content["text"]
