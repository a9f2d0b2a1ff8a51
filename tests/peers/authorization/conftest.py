"""The authorization server of all these tests, and the servers that trust its tokens: one process each for a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.authorization_server import conftest as authorization_server
from tests.patience import PATIENCE
from tests.peers.http_servers import HttpServers
from tests.peers.reports import steps_in
from tests.peers.typescript import conftest as typescript

provider = authorization_server.provider
scripts = typescript.scripts

HERE = Path(__file__).parent
ROBOT = {"client_id": "robot", "client_secret": "beep beep", "grant_types": ["client_credentials"]}
CODE = {"application_type": "native", "grant_types": ["authorization_code", "refresh_token"]}
PROXY = {"client_id": "proxy", "client_secret": "hand it on", **CODE}
SETTINGS = {
    "scopes": ["files:read", "files:write"],
    "clients": [
        {**ROBOT, "redirect_uris": [], "response_types": []},
        # A loopback redirect is good with any port (RFC 8252 section 7.3).
        {**PROXY, "redirect_uris": ["http://127.0.0.1/auth/callback"]},
    ],
}


@pytest.fixture(scope="module")
def issuer(provider: Path) -> Iterator[str]:
    """The authorization server, which knows a robot, and at which alice allows whatever a client asks for."""
    command = ["node", provider / "server.js"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(SETTINGS)}\n")
        process.stdin.flush()
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.stdout.read()
        assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="session")
def typescript_peers(scripts: Path) -> Path:
    """The folder of all scripts that run on Node."""
    for script in (HERE / "typescript").glob("*.mjs"):
        shutil.copy(script, scripts)
    return scripts


@attrs.frozen
class Peers:
    """Protected servers and OAuth clients of all makes, each in a process of its own."""

    issuer: str
    request: pytest.FixtureRequest
    servers: HttpServers

    def server(self, make: str, *settings: str) -> str:
        """The URL of the protected server of a make, which is started when nobody has done so."""
        name = "-".join([make, *settings])
        return self.servers.get(name, [*self._script(make, "protected", "servers"), self.issuer, *settings]).url

    def client(self, make: str, era: str, url: str, *settings: str) -> dict[str, dict[str, Any]]:
        """What the client of a make saw, step by step, at the server at ``url``."""
        command = [*self._script(make, "authorized", "clients"), era, url, *settings]
        shared = {**os.environ, "PYTHONPATH": str(HERE.parent / "clients")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=shared, check=False)
        assert done.returncode == 0, done.stderr
        return steps_in(done.stdout.splitlines())

    def _script(self, make: str, how: str, folder: str) -> list[str]:
        if make.startswith("typescript"):
            scripts: Path = self.request.getfixturevalue("typescript_peers")
            return ["node", str(scripts / f"typescript_{how}.mjs"), *make.removeprefix("typescript")]
        return [sys.executable, "-W", "ignore", str(HERE / folder / f"{make}_{folder[:-1]}.py")]


@pytest.fixture(scope="module")
def peers(issuer: str, over_http: HttpServers, request: pytest.FixtureRequest) -> Peers:
    return Peers(issuer, request, over_http)
