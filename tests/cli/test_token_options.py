"""``trio-mcp run --issuer``: which tokens a server accepts, with keys in a file or from an issuer in a private
network.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import trio
from joserfc.jwk import RSAKey
from tests.auth.resource_server.minting import ec_key, jwk, minted, rsa_key
from tests.cli.commands import TRIO_MCP, run, running, written
from tests.patience import PATIENCE
from tests.transports.http_client.scripted import Visitor, scripted

from trio_mcp import open_http
from trio_mcp.auth import AuthorizationError, Bearer

SERVER = """
from trio_mcp import Server
server = Server("notes")

@server.tool()
async def whoami(ctx) -> str:
    return ctx.auth.principal.subject
"""
ISSUER, RESOURCE = "https://login.example.com", "https://mcp.example.com/mcp"
TOKENS = ["--issuer", ISSUER, "--resource", RESOURCE]


def token(key: object = None, *, header: dict[str, str | None] | None = None, issuer: str = ISSUER) -> str:
    return minted(key, header=header, iss=issuer, aud=RESOURCE, iat=time.time(), exp=time.time() + 600)


def key_set(folder: Path, *keys: object) -> str:
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": list(keys)}))
    return str(file)


async def subject(url: str, token: str) -> str:
    with trio.fail_after(PATIENCE):
        async with open_http(url, auth=Bearer(token)) as client:
            return (await client.call_tool("whoami")).text


async def refused(url: str, token: str) -> None:
    with pytest.raises(AuthorizationError, match="401"):
        await subject(url, token)


async def test_run_command_with_a_jwks_file_verifies_tokens_and_logs_why_a_token_is_refused(tmp_path: Path) -> None:
    file, keys = written(tmp_path / "server.py", SERVER), key_set(tmp_path, jwk(ec_key(), kid="1"))
    async with running("run", file, "--http", "0", *TOKENS, "--jwks", keys) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        assert await subject(url, token()) == "anna"
        foreign = token(issuer="https://elsewhere.example")
        await refused(url, foreign)
        reason = await server.line(r"(WARNING trio_mcp: an access token was refused: .*)")
        assert reason.endswith("the token is 'https://elsewhere.example', which this server does not accept")
        assert foreign.rpartition(".")[2] not in reason


async def test_run_command_options_select_token_type_and_algorithms(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    rsa: RSAKey = rsa_key()
    keys = key_set(tmp_path, jwk(ec_key(), kid="1"), jwk(rsa, kid="2"))
    options = ["--jwks", keys, "--no-require-typ", "--algorithms", "RS256, PS256"]
    async with running("run", file, "--http", "0", *TOKENS, *options) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        assert await subject(url, token(rsa, header={"alg": "RS256", "kid": "2", "typ": "JWT"})) == "anna"
        await refused(url, token())


async def test_run_command_with_trust_http_option_accepts_an_issuer_over_plain_http(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", f"import socket\n{SERVER}\n{NAMED_HERE}")
    issuers: list[str] = []

    async def script(visitor: Visitor) -> None:
        request = await visitor.request()
        if b"oauth-authorization-server" in request:
            document = {"issuer": issuers[0], "jwks_uri": f"{issuers[0]}/keys"}
        else:
            document = {"keys": [jwk(ec_key(), kid="1")]}
        body = json.dumps(document).encode()
        await visitor.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with scripted(script) as idp:
        issuers.append(f"http://idp:{idp.port}")
        options = ["--issuer", issuers[0], "--resource", "http://mcp:8000/mcp", "--trust-http", "mcp"]
        async with running("run", file, "--http", "0", *options, "--trust-http", "idp") as server:
            await server.line(r"(--trust-http: tokens and keys are sent in plain text to and from mcp, idp)")
            url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
            good = minted(iss=issuers[0], aud="http://mcp:8000/mcp", iat=time.time(), exp=time.time() + 600)
            assert await subject(url, good) == "anna"
        ended = await run([*TRIO_MCP, "run", file, "--http", "0", *options])
    assert ended.status == 2
    assert "trusted_http_hosts, not 'http://idp:" in ended.stderr


NAMED_HERE = """
find = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: find(b"127.0.0.1" if host == b"idp" else host, *rest, **more)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[]", "a JWK set must have"),
        ('{"keys": [1]}', "no key"),
    ],
)
async def test_run_command_reports_an_invalid_jwks_file_in_one_line(
    tmp_path: Path, text: str | None, told: str
) -> None:
    file, keys = written(tmp_path / "server.py", SERVER), tmp_path / "keys.json"
    if text is not None:
        keys.write_text(text)
    ended = await run([*TRIO_MCP, "run", file, "--http", "0", *TOKENS, "--jwks", str(keys)])
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert told in ended.stderr
