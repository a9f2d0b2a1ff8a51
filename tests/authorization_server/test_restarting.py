"""An authorization server that starts anew, and knows nothing of what it has granted: neither clients nor tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from examples.authorization.provider import authorization_server, press
from tests.authorization_server.protected import READ, SERVER, introspection, protected
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.auth import OAuth


async def test_client_registers_again_if_the_authorization_server_forgot_the_client(provider: Path) -> None:
    settings: dict[str, Any] = {"scopes": [READ], "opaque": True, "clients": [SERVER]}
    auth = OAuth(on_visit=press)
    with trio.fail_after(PATIENCE):
        async with authorization_server(provider, **settings) as server:
            issuer = server.issuer
        settings["port"] = int(issuer.rpartition(":")[2])
        async with protected(issuer, introspection(issuer, cache_for=0)) as url:
            for _ in range(2):
                async with (
                    authorization_server(provider, **settings) as server,
                    open_http(url, auth=auth) as client,
                ):
                    await client.call_tool("who")
    assert server.refused == ["grant: invalid_client"]
    assert server.done == {"registration": 1, "authorization": 1, "authorization_code": 1}
