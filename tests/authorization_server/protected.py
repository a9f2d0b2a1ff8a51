"""A server of ours that is protected, at a free port of this machine."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.interaction.websocket.raw_peer import port_of, serving

from trio_mcp import RequestContext, Server, serve_http
from trio_mcp.auth import IntrospectionVerifier, Protected

__all__ = ["BASIC", "READ", "SERVER", "WRITE", "introspection", "notes", "protected"]

READ = "notes:read"
"""The scope that each request to `notes` needs."""
WRITE = "notes:write"
"""The scope that one tool needs, too."""

SERVER: dict[str, Any] = {
    "client_id": "mcp-server",
    "client_secret": "not known to others",
    "grant_types": ["client_credentials"],
    "redirect_uris": [],
    "response_types": [],
}
"""The server as the authorization server knows it."""
BASIC = (b"Authorization", b"Basic " + base64.b64encode(b"mcp-server:not+known+to+others"))
"""How the server names itself there."""


def introspection(issuer: str, **settings: Any) -> IntrospectionVerifier:
    """The verifier of a server that asks about each token."""
    secret = SERVER["client_secret"]
    endpoint = f"{issuer}/token/introspection"
    return IntrospectionVerifier(endpoint=endpoint, client_id=SERVER["client_id"], client_secret=secret, **settings)


def notes() -> Server:
    """A server whose tools tell who calls, in the words of the token."""
    server = Server("notes")

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        assert ctx.auth is not None
        principal = ctx.auth.principal
        return {"sub": principal.subject, "client": principal.client_id, "scopes": sorted(principal.scopes)}

    @server.tool(scopes=[WRITE], visible=lambda _: True)
    async def write() -> str:
        return "written"

    return server


@asynccontextmanager
async def protected(issuer: str, verifier: Any, *, websocket: bool = False, **settings: Any) -> AsyncIterator[str]:
    """`notes`, served to those with tokens from ``issuer``; yields the URL, which is the resource."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{port_of(listeners)}/mcp"
    auth = Protected(resource=url, authorization_servers=[issuer], verifier=verifier, scopes=[READ], **settings)
    hosts = {"allowed_hosts": ["127.0.0.1"], "allowed_origins": []}
    async with serving(serve_http, notes(), listeners=listeners, auth=auth, websocket=websocket, **hosts):
        yield url
