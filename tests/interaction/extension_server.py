"""A server with an extension of its author, for every wire: what each side may send, and what can be waited for."""

from __future__ import annotations

from collections import Counter

import attrs
import trio

from trio_mcp import InputRequired, RequestContext, Server, serve_stdio
from trio_mcp.types import ConnectedClient, Extension, InputRequest

__all__ = [
    *("Done", "Work", "added", "ask", "confirm", "count", "did", "ended", "grown", "hang", "run", "server", "work"),
]


@attrs.frozen
class Work:
    name: str
    count: int = 1


@attrs.frozen
class Done:
    names: list[str]


@attrs.frozen
class Settings:
    most: int = 5


work = Extension("com.example/work", server=Settings(7), client=Settings(3))
run = work.method("com.example/work/run", Work, Done)
hang = work.method("com.example/work/hang", Work, Done)
ask = work.method("com.example/work/ask", Work, Done, may_ask=True)
ended = work.method("com.example/work/ended", Work, Done, requires_client=False)
count = work.method("com.example/work/count", Work, Done, requires_client=False)
confirm = work.method("com.example/work/confirm", Work, Done, sender="server", until="2025-11-25")
did = work.notification("notifications/com.example/work/did", Work, of_request=True)
grown = work.notification("notifications/com.example/work/grown", Work)
added = work.notification("notifications/com.example/work/added", Work, sender="client")


def server() -> Server:
    """Return a new server."""
    server = Server("work", extensions=[work])
    ends, news = Counter[str](), trio.lowlevel.ParkingLot()

    def end(name: str) -> None:
        ends[name] += 1
        news.unpark_all()

    @server.handles(run)
    async def running(params: Work, ctx: RequestContext) -> Done:
        for number in range(params.count):
            await ctx.send_notification(did, Work(params.name, number))
        settings = ctx.client_extension(work)
        return Done([params.name] * params.count + [str(settings and settings.most)])

    @server.handles(hang)
    async def hanging(params: Work, ctx: RequestContext) -> Done:
        try:
            await ctx.send_notification(did, params)
            await trio.sleep_forever()
        finally:
            end(params.name)

    @server.handles(ask)
    async def asking(params: Work, ctx: RequestContext) -> Done | InputRequired:
        try:
            if ctx.revision.server_requests:
                return await ctx.send_request(confirm, params)
            if not ctx.is_resubmit:
                return InputRequired({"roots": InputRequest("roots/list")})
            return Done(["roots"])
        finally:
            end(params.name)

    @server.handles(ended)
    async def waiting(params: Work) -> Done:
        while ends[params.name] < params.count:
            await news.park()
        return Done([])

    @server.handles(count)
    async def counting(params: Work) -> Done:
        return Done(["ended"] * ends[params.name])

    @server.handles(added)
    async def adding(params: Work, client: ConnectedClient) -> None:
        server.notify(grown, params)
        end(params.name)

    return server


if __name__ == "__main__":
    trio.run(serve_stdio, server())
