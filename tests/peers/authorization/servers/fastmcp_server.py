"""A protected server of the ``fastmcp`` package: ``python fastmcp_server.py ISSUER``."""

from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token
from tokens import ALGORITHM, ISSUER, JWKS, NEEDED, ORIGIN, URL, serve

verifier = JWTVerifier(jwks_uri=JWKS, issuer=ISSUER, audience=URL, algorithm=ALGORITHM, required_scopes=[NEEDED])
server = FastMCP("peer", auth=RemoteAuthProvider(verifier, [ISSUER], ORIGIN))


@server.tool
def whoami() -> dict[str, str]:
    token = get_access_token()
    return {"subject": token.claims["sub"], "scopes": " ".join(token.scopes)}


serve(server.http_app())
