"""A protected server: notes, for callers that may read them, or write them, too.

The server is an ordinary one, and a fair example. Its arguments are the authorization server, where that answers
questions about tokens, and the name of this server there; the environment has the secret.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass

import trio

from trio_mcp import RequestContext, Server, serve_http
from trio_mcp.auth import IntrospectionVerifier, Protected

server = Server("notes", "1.0.0", instructions="Keeps notes.")
REMEMBERED = 0.5
"""Seconds for which a good token is taken for good, before the authorization server is asked again."""
notes = ["the cellar door sticks"]


@dataclass
class Caller:
    """What the server knows of its caller."""

    user: str
    client: str | None
    scopes: str
    seconds_left: int


@server.tool
async def who_am_i(ctx: RequestContext) -> Caller:
    """Tell what the server knows of the caller."""
    assert ctx.auth is not None
    principal = ctx.auth.principal
    left = int((principal.expires_at or 0) - time.time())
    return Caller(principal.subject or "nobody", principal.client_id, " ".join(sorted(principal.scopes)), left)


@server.tool
async def read_notes() -> list[str]:
    """Read all notes."""
    return notes


@server.tool(scopes=["notes:write"], visible=lambda auth: True)  # who may only read sees it, and is asked for more
async def write_note(text: str) -> str:
    """Write a note."""
    notes.append(text)
    return f"{len(notes)} notes"


async def main(issuer: str, endpoint: str, client_id: str) -> None:
    """Serve at any free port, and print the URL."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
    print(url, flush=True)
    verifier = IntrospectionVerifier(
        endpoint=endpoint,
        client_id=client_id,
        client_secret=os.environ["CLIENT_SECRET"],
        cache_for=REMEMBERED,
        leeway=0,  # both read the clock of this machine
    )
    auth = Protected(
        resource=url,
        authorization_servers=[issuer],
        verifier=verifier,
        scopes=["notes:read"],
    )
    await serve_http(server, listeners=listeners, allowed_hosts=["127.0.0.1"], allowed_origins=[], auth=auth)


if __name__ == "__main__":
    _, issuer, endpoint, client_id = sys.argv
    logging.basicConfig(level=logging.ERROR)  # that tokens are refused is what the demo shows
    trio.run(main, issuer, endpoint, client_id)
