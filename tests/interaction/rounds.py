"""Calls with input-required results and their retries, as a raw in-memory client makes them."""

from __future__ import annotations

from typing import Any

from .memory_peer import MemoryPeer

__all__ = ["ALL", "NAME", "ask", "asked", "methods", "text"]

ALL: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def ask(
    peer: MemoryPeer, tool: str, arguments: dict[str, Any] | None = None, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call a tool that asks: the request, and the result that asks."""
    first = peer.call_message(tool, arguments, **options)
    await peer.send(first)
    return first, asked(await peer.reply(first["id"]))


def asked(reply: dict[str, Any]) -> dict[str, Any]:
    """A result that asks, and nothing else."""
    assert "result" in reply, reply
    result = reply["result"]
    assert result["resultType"] == "input_required", result
    assert result.keys() <= {"resultType", "inputRequests", "requestState", "_meta"}
    return result


def text(reply: dict[str, Any]) -> str:
    """What a tool came to."""
    assert "result" in reply, reply
    result = reply["result"]
    assert (result["resultType"], result.get("isError")) == ("complete", None), result
    return result["content"][0]["text"]


def methods(result: dict[str, Any]) -> list[str]:
    """What is asked, in order of the alphabet."""
    return sorted(question["method"] for question in result["inputRequests"].values())
