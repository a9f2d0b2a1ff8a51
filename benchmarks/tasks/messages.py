"""The messages about tasks, in the form of each protocol."""

from __future__ import annotations

from typing import Any, Literal

from ..driver import messages
from ..driver.checks import check
from ..driver.http_session import Requests

__all__ = ["Form", "call", "initialize", "post", "request", "task_id"]

Form = Literal["core", "extension"]
"""The utility of 2025-11-25, or the extension of 2026-07-28."""

_CAPABILITIES: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
_INFO = {"name": "driver", "version": "1"}
_KEY = "io.modelcontextprotocol/"
_META = {
    f"{_KEY}protocolVersion": "2026-07-28",
    f"{_KEY}clientInfo": _INFO,
    f"{_KEY}clientCapabilities": _CAPABILITIES,
}


def initialize() -> bytes:
    """The first request of a connection of 2025-11-25, under id 0."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": _INFO}
    return messages.request(0, "initialize", params)


def request(form: Form, request_id: int, method: str, params: dict[str, Any]) -> bytes:
    """A request in this form."""
    return messages.request(request_id, method, params if form == "core" else {**params, "_meta": _META})


def call(form: Form, request_id: int, tool: str, arguments: dict[str, Any], *, task: bool = True) -> bytes:
    """A call, which is run as a task if ``task`` says so, in 2025-11-25; elsewhere the server decides."""
    asked = {"task": {"ttl": 3_600_000}} if form == "core" and task else {}
    return request(form, request_id, "tools/call", {"name": tool, "arguments": arguments, **asked})


def post(requests: Requests, body: bytes, method: str, name: str) -> bytes:
    """The POST of a request of the extension, with the headers that repeat the body. ``name``: of the tool or task."""
    return requests.post(body, Mcp_Method=method, Mcp_Name=name)


def task_id(reply: dict[str, Any]) -> str:
    """The id of the task that a call was answered with."""
    check("result" in reply, True, "a result that is a task")
    result = reply["result"]
    return result.get("task", result)["taskId"]
