"""A server of the ``fastmcp`` package that stands, as an authorization server, before one that registers nobody."""

from fastmcp import FastMCP
from fastmcp.server.auth import OAuthProxy
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token
from key_value.aio.stores.memory import MemoryStore
from tokens import ALGORITHM, ISSUER, JWKS, NEEDED, ORIGIN, URL, serve

auth = OAuthProxy(
    upstream_authorization_endpoint=f"{ISSUER}/auth",
    upstream_token_endpoint=f"{ISSUER}/token",
    upstream_client_id="proxy",
    upstream_client_secret="hand it on",
    token_verifier=JWTVerifier(
        jwks_uri=JWKS, issuer=ISSUER, audience=URL, algorithm=ALGORITHM, required_scopes=[NEEDED]
    ),
    base_url=ORIGIN,
    client_storage=MemoryStore(),
    jwt_signing_key="a key of the proxy alone, long enough",
    require_authorization_consent=False,
)
server = FastMCP("peer", auth=auth)


@server.tool
def whoami() -> dict[str, str]:
    token = get_access_token()
    return {"subject": token.claims["sub"], "scopes": " ".join(token.scopes)}


serve(server.http_app())
