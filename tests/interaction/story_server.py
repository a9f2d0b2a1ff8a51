"""A server whose author knows nothing of eras: it asks, tells, waits, fails and cleans up.

Each tool counts its runs and how they end; ``counts`` tells them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from trio_mcp import InputRequired, RequestContext, Server, ToolError, serve_stdio
from trio_mcp.types import InputRequest

__all__ = ["server"]

server = Server("story", "1.0.0")
counts: Counter[str] = Counter()


@dataclass
class Address:
    street: str
    number: int = 1


@contextmanager
def counted(name: str) -> Iterator[None]:
    """One run of a tool, and its end."""
    counts[f"{name} begun"] += 1
    try:
        yield
    finally:
        counts[f"{name} ended"] += 1


@server.tool
async def order(item: str, ctx: RequestContext) -> str:
    """Ask several things in turn and at once, and tell how far it is."""
    with counted("order"):
        ctx.progress(1, 3, "taken")
        await ctx.log.info(f"order of {item}")
        roots = 0

        async def count_roots() -> None:
            nonlocal roots
            roots = len(await ctx.list_roots())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_roots)
            address = (await ctx.elicit("Where to?", Address)).as_(Address)
        if address is None:
            raise ToolError("no address, no order")
        ctx.progress(2, 3, "addressed")
        note = await ctx.sample(f"Wrap {item} nicely", max_tokens=20)
        await ctx.log.warning("wrapped")
        ctx.progress(3, 3, "wrapped")
        return f"{item} to {address.street} {address.number}, {note.model}, {roots} roots"


@server.tool
async def pay(ctx: RequestContext) -> str:
    """Send the user elsewhere."""
    with counted("pay"):
        return (await ctx.elicit_url("Pay, please", "https://example.org/pay", "p-1")).action


@server.tool
async def hang(ctx: RequestContext) -> None:
    """Ask something nobody ever answers."""
    with counted("hang"):
        await ctx.sample("never answered", max_tokens=1)


@server.tool(replay=True)
async def greet(ctx: RequestContext) -> str:
    """Safe to run again."""
    address = (await ctx.elicit("Where to?", Address)).as_(Address)
    said = await ctx.sample("Greet", max_tokens=20)
    return f"{said.model} of {address.street if address else 'nowhere'}"


@server.tool
async def returning(ctx: RequestContext) -> str | InputRequired:
    """Ask by returning."""
    if not ctx.is_resubmit:
        return InputRequired({"where": InputRequest("roots/list")}, state="begun")
    return f"{ctx.request_state}, {len(ctx.input_responses['where']['roots'])} roots"


@server.prompt
async def hello(ctx: RequestContext) -> str:
    """A prompt that asks."""
    return f"hello, {(await ctx.list_roots())[0].name}"


@server.resource("story:///home")
async def home(ctx: RequestContext) -> str:
    """A resource that asks."""
    return (await ctx.list_roots())[0].uri


@server.tool(name="counts")
async def tell_counts() -> dict[str, int]:
    """How often each tool began and ended."""
    return dict(counts)


if __name__ == "__main__":
    trio.run(serve_stdio, server)
