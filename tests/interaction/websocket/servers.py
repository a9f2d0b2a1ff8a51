"""The server of these tests, in the test's own process, so that it can be looked into."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from trio_mcp import CancelCause, Limits, RequestContext, Server

__all__ = ["Watched", "watched_server"]


@attrs.define
class Watched:
    """A server and what its handlers went through. ``ended`` is set by the first that ends."""

    server: Server
    causes: list[tuple[CancelCause | None, str | None]] = attrs.field(factory=list[Any])
    """Why each `hang` was cancelled."""
    asked: list[Exception] = attrs.field(factory=list[Exception])
    """What each `ask` got instead of an answer."""
    started: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)


def watched_server(limits: Limits | None = None) -> Watched:
    """``echo``, ``hang``, ``nap``, ``flood``, ``ask`` and ``who``; the resource ``watched:thing``."""
    server = Server("watched", limits=limits or Limits())
    watched = Watched(server)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def size(text: str) -> int:
        return len(text)

    @server.tool
    async def hang(ctx: RequestContext) -> None:
        watched.started.set()
        try:
            await trio.sleep_forever()
        finally:
            why = ctx.cancellation
            watched.causes.append((None, None) if why is None else (why.cause, why.reason))
            watched.ended.set()

    @server.tool
    async def nap(milliseconds: int) -> str:
        watched.started.set()
        await trio.sleep(milliseconds / 1000)
        return "slept"

    @server.tool
    async def flood(count: int, ctx: RequestContext) -> str:
        watched.started.set()
        try:
            for number in range(count):
                await ctx.log.info({"number": number, "padding": "x" * 100})
            return "flooded"
        finally:
            watched.ended.set()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        watched.started.set()
        try:
            answer = await ctx.sample("well?", max_tokens=5)
        except Exception as error:
            watched.asked.append(error)
            raise
        finally:
            watched.ended.set()
        return str(answer)

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        return {"session": ctx.session_id, "headers": dict(ctx.headers or {})}

    @server.resource("watched:thing")
    async def thing() -> str:
        return "thing"

    return watched
