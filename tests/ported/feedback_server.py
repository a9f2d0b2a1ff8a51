"""A question to the user: a port of `interactive-feedback-mcp` (by Fábio Ferreira, Pau Oliva and others, written with
fastmcp; in its form that asks by elicitation), without its loop of heartbeats, which nothing here needs.

python feedback_server.py
"""

from __future__ import annotations

from typing import Annotated, Any

import trio
from pydantic import Field

from trio_mcp import MCPError, RequestContext, Server, serve_stdio

__all__ = ["server"]

server = Server("Interactive Feedback MCP")


def form_of(options: list[str]) -> dict[str, Any]:
    """A choice among ``options``, and room for words of the user's own."""
    if not options:
        return {"type": "object", "properties": {}}
    properties: dict[str, Any] = {
        "answer": {"type": "string", "enum": options, "description": "Choose one."},
        "other": {"type": "string", "default": "", "description": "Or say something else."},
    }
    return {"type": "object", "properties": properties, "required": ["answer"]}


@server.tool
async def interactive_feedback(
    ctx: RequestContext,
    message: Annotated[str, Field(description="What to ask.")],
    predefined_options: Annotated[list[Any] | None, Field(description="What the user may choose from.")] = None,
) -> dict[str, str]:
    """Ask the user, and return what the user says."""
    try:
        answer = await ctx.elicit(message, form_of([str(option) for option in predefined_options or []]))
    except MCPError as error:
        told = f"The user could not be asked ({error}): ask in the conversation."
        return {"interactive_feedback": "", "status": "error", "error": told}
    if answer.action == "accept":
        return {"interactive_feedback": "\n".join(str(value) for value in (answer.content or {}).values() if value)}
    return {"interactive_feedback": "", "status": "declined" if answer.action == "decline" else "cancelled"}


if __name__ == "__main__":
    trio.run(serve_stdio, server)
