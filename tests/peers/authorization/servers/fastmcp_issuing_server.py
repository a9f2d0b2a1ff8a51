"""A server of the ``fastmcp`` package that is its own authorization server, by the endpoints of the ``mcp`` package."""

from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.server.dependencies import get_access_token
from tokens import NEEDED, ORIGIN, serve

registration = ClientRegistrationOptions(enabled=True, valid_scopes=[NEEDED])
auth = InMemoryOAuthProvider(base_url=ORIGIN, client_registration_options=registration, required_scopes=[NEEDED])
server = FastMCP("peer", auth=auth)


@server.tool
def whoami() -> dict[str, str]:
    token = get_access_token()
    return {"scopes": " ".join(token.scopes)}


serve(server.http_app())
