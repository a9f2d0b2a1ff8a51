"""A protected server of ours, at which peers call: ``python ours_server.py ISSUER bearer|dpop|dpop-nonce``."""

import os
import sys
from functools import partial
from pathlib import Path

import trio

from trio_mcp import RequestContext, Server, serve_http
from trio_mcp.auth import JWTVerifier, Protected

server = Server("ours", version="1.0")


@server.tool
async def whoami(ctx: RequestContext) -> dict[str, str]:
    assert ctx.auth is not None
    return {"subject": ctx.auth.claims["sub"], "scopes": " ".join(sorted(ctx.auth.scopes))}


@server.tool(scopes=["files:write"], visible=lambda _: True)
async def write(ctx: RequestContext) -> dict[str, str]:
    return await whoami(ctx)


async def main(issuer: str, scheme: str) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    auth = Protected(
        resource=f"http://127.0.0.1:{port}/mcp",
        authorization_servers=[issuer],
        verifier=JWTVerifier(),
        scopes=["files:read"],
        dpop="off" if scheme == "bearer" else "required",
        dpop_nonces=scheme == "dpop-nonce",
    )
    async with trio.open_nursery() as nursery:
        reached = {"listeners": listeners, "allowed_origins": [], "allowed_hosts": ["127.0.0.1"]}
        await nursery.start(partial(serve_http, server, auth=auth, **reached))
        print(port, flush=True)


trio.run(main, *sys.argv[1:3])
with Path(os.environ["JOURNAL"]).open("a") as journal:
    journal.write("server ended\n")
