"""What a token of the authorization server says, for the servers of Python packages, and how those are served."""

import os
import signal
import socket
import sys
from pathlib import Path

import jwt
import uvicorn

ISSUER = sys.argv[1]
ALGORITHM = "ES256"
JWKS = f"{ISSUER}/jwks"
NEEDED = "files:read"
"""The scope that every request needs."""

listener = socket.create_server(("127.0.0.1", 0))
ORIGIN = f"http://127.0.0.1:{listener.getsockname()[1]}"
URL = f"{ORIGIN}/mcp"

_keys = jwt.PyJWKClient(JWKS)


def claims_of(token):
    """The claims of a good token for this server; ``None`` for another."""
    try:
        key = _keys.get_signing_key_from_jwt(token)
        return jwt.decode(token, key, [ALGORITHM], issuer=ISSUER, audience=URL)
    except jwt.PyJWTError:
        return None


class Announced(uvicorn.Server):
    """Says its port when it accepts connections."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(listener.getsockname()[1], flush=True)


def serve(app):
    """Serve ``app`` until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    Announced(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2)).run([listener])
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write("server ended\n")
