"""A server with one tool that sends a request to its client, and the shortest such requests."""

from __future__ import annotations

from typing import Any

from trio_mcp import CodedError, RequestContext, Server
from trio_mcp.types import Tool

from .memory_peer import MemoryPeer

ALL: dict[str, Any] = {
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
SAMPLED: dict[str, Any] = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
TOOL = Tool("t", {"type": "object"}, title="T", description="d", output_schema={"type": "object"})


class Asking:
    """A server whose one tool does what the test says, and the outcome: a value or an exception."""

    def __init__(self) -> None:
        self.server = Server("asking", "1.0.0")
        self.outcome: Any = None
        self.question: Any = None

        @self.server.tool
        async def ask(ctx: RequestContext) -> str:
            try:
                self.outcome = await self.question(ctx)
            except Exception as error:
                self.outcome = error
            return "asked"

    async def refused(self, peer: MemoryPeer, question: Any) -> CodedError:
        """The error of a question that must not reach the wire."""
        self.question = question
        before = len(peer.messages)
        assert await peer.text("ask") == "asked"
        assert len(peer.messages) == before + 1, "nothing was sent"
        assert isinstance(self.outcome, CodedError), self.outcome
        return self.outcome

    async def answered(self, peer: MemoryPeer, question: Any, method: str, result: Any) -> tuple[dict[str, Any], Any]:
        """The parameters of a question on the wire, and its outcome for this result."""
        self.question = question
        call = await peer.start("ask")
        sent = await peer.question(method)
        await peer.answer(sent, result)
        await peer.reply(call)
        return sent.get("params", {}), self.outcome


def sample(**options: Any) -> Any:
    return lambda ctx: ctx.sample("hello", max_tokens=5, **options)


def elicit(form: Any) -> Any:
    return lambda ctx: ctx.elicit("please", form)


FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTIONS: dict[str, Any] = {
    "sampling": sample(),
    "elicitation": elicit(FORM),
    "elicitation.url": lambda ctx: ctx.elicit_url("go", "https://example.org/", "e"),
    "roots": lambda ctx: ctx.list_roots(),
}
