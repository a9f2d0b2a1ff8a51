"""A server of ours that is protected, at a free port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.interaction.websocket.raw_peer import port_of, serving

from trio_mcp import Protected, RequestContext, Server, serve_http

__all__ = ["READ", "WRITE", "notes", "protected"]

READ = "notes:read"
"""The scope that each request to `notes` needs."""
WRITE = "notes:write"
"""The scope that one tool needs, too."""


def notes() -> Server:
    """A server whose tools tell who calls, in the words of the token."""
    server = Server("notes")

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        assert ctx.auth is not None
        principal = ctx.auth.principal
        return {"sub": principal.subject, "client": principal.client_id, "scopes": sorted(principal.scopes)}

    return server


@asynccontextmanager
async def protected(issuer: str, verifier: Any, *, websocket: bool = False, **settings: Any) -> AsyncIterator[str]:
    """`notes`, served to those with tokens from ``issuer``; yields the URL, which is the resource."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{port_of(listeners)}/mcp"
    auth = Protected(resource=url, authorization_servers=[issuer], verifier=verifier, scopes=[READ], **settings)
    hosts = {"hosts": ["127.0.0.1"], "origins": []}
    async with serving(serve_http, notes(), listeners=listeners, auth=auth, websocket=websocket, **hosts):
        yield url
