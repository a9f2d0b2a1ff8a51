"""A protected server of the official ``mcp`` package: ``python official_server.py ISSUER``."""

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from tokens import ISSUER, NEEDED, URL, claims_of, serve


class Verifier:
    async def verify_token(self, token):
        claims = await anyio.to_thread.run_sync(claims_of, token)
        if claims is None:
            return None
        return AccessToken(
            token=token,
            client_id=claims["client_id"],
            scopes=claims.get("scope", "").split(),
            expires_at=claims["exp"],
            resource=claims["aud"],
            subject=claims["sub"],
        )


settings = AuthSettings(
    issuer_url=ISSUER, resource_server_url=URL, required_scopes=[NEEDED], validate_token_resource=True
)
server = MCPServer("peer", auth=settings, token_verifier=Verifier())


@server.tool()
def whoami() -> dict[str, str]:
    token = get_access_token()
    return {"subject": token.subject, "scopes": " ".join(token.scopes)}


serve(server.streamable_http_app())
