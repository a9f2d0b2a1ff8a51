"""The examples of `docs/authorization.md` run as they stand, but for ports and for the names of hosts."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import attrs
import pytest
import trio
from joserfc import jwt
from joserfc.jwk import ECKey
from tests.patience import PATIENCE
from tests.test_http_page import port, running
from tests.transports.http_client.scripted import Visitor, scripted

from trio_mcp import Address, open_http
from trio_mcp.auth import (
    AuthorizationError,
    Bearer,
    ClientCredentials,
    EnterpriseManaged,
    IntrospectionVerifier,
    JWTVerifier,
    OAuth,
    Protected,
    WorkloadIdentity,
)
from trio_mcp.auth.fetching import HttpFetcher
from trio_mcp.cli.commands.options import sign_in_options
from trio_mcp.hosting import read_config
from trio_mcp.transports.http_client.client import HttpClient

__all__ = ["port"]

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "authorization.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))


@attrs.define
class Issuer:
    """An authorization server whose users always say yes."""

    url: str
    key: ECKey = attrs.Factory(lambda: ECKey.generate_key("P-256"))
    asked: list[str] = attrs.Factory(list)
    """Requests, as method and path, but those for keys and metadata."""

    def token(self, resource: str, **changes: Any) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "sub": "alice", "client_id": "editor", "aud": resource, "scope": "notes:read"}
        times = {"iat": now, "exp": now + 600}
        return jwt.encode({"typ": "at+jwt", "alg": "ES256"}, {**claims, **times, **changes}, self.key, ["ES256"])

    @property
    def metadata(self) -> dict[str, Any]:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register"}
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            **{name: f"{self.url}/{path}" for name, path in places.items()},
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }

    async def serve(self, visitor: Visitor) -> None:
        while request := await visitor.request():
            head, _, body = request.decode().partition("\r\n\r\n")
            method, target, _ = head.split(" ", 2)
            path, _, query = target.partition("?")
            given = dict(parse_qsl(query if method == "GET" else body))
            await visitor.send(self.answer(method, path, given, body))

    def answer(self, method: str, path: str, given: dict[str, str], body: str) -> bytes:
        document: dict[str, Any] = self.metadata
        match method, path:
            case "GET", "/keys":
                document = {"keys": [self.key.as_dict(private=False)]}
            case "GET", "/authorize":
                self.asked.append(f"{method} {path}")
                answer = urlencode({"code": given["resource"], "state": given["state"]})
                where = f"{given['redirect_uri']}?{answer}"
                return f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
            case "POST", "/register":
                self.asked.append(f"{method} {path}")
                document = {**json.loads(body), "client_id": "registered"}
            case "POST", "/token":
                self.asked.append(f"{method} {path}")
                token = self.token(given["resource"], sub=given.get("client_id", "nightly"))
                document = {"access_token": token, "token_type": "Bearer", "expires_in": 600}
            case "POST", "/introspect":
                self.asked.append(f"{method} {path}")
                claims = {"sub": "alice", "scope": "notes:read", "aud": bytes.fromhex(given["token"]).decode()}
                document = {"active": True, **claims}
        text = json.dumps(document).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


@asynccontextmanager
async def issuer() -> AsyncGenerator[Issuer]:
    login = Issuer("")
    async with scripted(login.serve) as server:
        login.url = f"http://127.0.0.1:{server.port}"
        yield login


def written(folder: Path, port: int, **names: str) -> None:
    """Write the examples with other names of hosts, so that they are all on this machine."""
    here = {
        "https://mcp.example.com": f"http://127.0.0.1:{port}",
        '"mcp.example.com"': '"127.0.0.1"',
        "8000": str(port),
    }
    for name, code in BLOCKS.items():
        for before, after in {**here, **names}.items():
            code = code.replace(before, after)
        (folder / name).write_text(code)


async def told(url: str, token: str) -> str:
    with trio.fail_after(PATIENCE):
        async with open_http(url, auth=Bearer(token), http_proxy=None) as client:
            return (await client.call_tool("whoami")).text


async def test_a_server_lets_in_whom_the_authorization_server_has_given_a_token(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "protected.py"], port):
            assert await told(url, login.token(url)) == "alice may notes:read"


@pytest.mark.parametrize(
    ("claims", "status", "challenge"),
    [
        (None, 401, ""),
        ({"aud": "https://other.example.com/mcp"}, 401, 'error="invalid_token"'),
        ({"exp": 1}, 401, 'error="invalid_token"'),
        ({"scope": "notes:write"}, 403, 'error="insufficient_scope"'),
    ],
)
async def test_a_server_refuses_others_in_the_words_of_the_page(
    tmp_path: Path, port: int, claims: dict[str, Any] | None, status: int, challenge: str
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        headers = [] if claims is None else [(b"Authorization", b"Bearer " + login.token(url, **claims).encode())]
        async with (
            running(tmp_path, ["python", "protected.py"], port),
            HttpClient(url, http_proxy=None) as client,
            client.request("POST", "/mcp", headers) as reply,
        ):
            assert reply.status == status
            said = reply.headers["www-authenticate"]
            assert said.startswith("Bearer ")
            assert f'resource_metadata="http://127.0.0.1:{port}/.well-known/oauth-protected-resource/mcp"' in said
            assert challenge in said
            assert 'scope="notes:read"' in said


async def test_the_authorization_server_is_asked_about_tokens(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_SECRET", "geheim")
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "opaque.py"], port):
            assert await told(url, url.encode().hex()) == "alice may notes:read"
        assert login.asked == ["POST /introspect"]


async def test_a_function_is_a_verifier_and_a_token_at_hand_opens_the_server(tmp_path: Path, port: int) -> None:
    written(tmp_path, port)
    async with running(tmp_path, ["python", "table.py"], port):
        url = f"http://127.0.0.1:{port}/mcp"
        assert await told(url, "admin") == "alice may notes:read"
        with trio.fail_after(PATIENCE):
            done = await trio.run_process([sys.executable, "call.py"], cwd=tmp_path, capture_stdout=True)
    assert done.stdout == b"alice may notes:read\n"


async def test_a_tool_needs_its_own_scopes_beside_those_of_the_server(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "protected.py"], port):
            for scope, outcome in (("notes:read notes:write", "noted: milk"), ("notes:read", "HTTP status 403")):
                with trio.fail_after(PATIENCE):
                    async with open_http(url, auth=Bearer(login.token(url, scope=scope)), http_proxy=None) as client:
                        try:
                            told = (await client.call_tool("write", {"text": "milk"})).text
                        except AuthorizationError as error:
                            told = str(error)
                assert outcome in told


async def test_a_token_at_hand_lets_a_client_in(tmp_path: Path, port: int) -> None:
    written(tmp_path, port, **{"8791": str(port)})
    async with running(tmp_path, ["python", "guarded.py"], port):
        with trio.fail_after(PATIENCE):
            done = await trio.run_process([sys.executable, "ann.py"], cwd=tmp_path, capture_stdout=True)
    assert done.stdout == b"ann noted: buy milk\n"


BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


async def test_a_user_signs_in_once(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "BROWSER": f"{sys.executable} -c '{BROWSER}' %s"}
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "protected.py"], port):
            for _ in range(2):
                with trio.fail_after(PATIENCE):
                    done = await trio.run_process(
                        [sys.executable, "signed_in.py"], cwd=tmp_path, env=environ, capture_stdout=True
                    )
                assert done.stdout == b"registered may notes:read\n"
        assert login.asked == ["POST /register", "GET /authorize", "POST /token"]


async def test_a_program_gets_a_token_of_its_own(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "NIGHTLY_SECRET": "geheim"}
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "protected.py"], port):
            with trio.fail_after(PATIENCE):
                done = await trio.run_process(
                    [sys.executable, "program.py"], cwd=tmp_path, env=environ, capture_stdout=True
                )
        assert done.stdout == b"nightly may notes:read\n"
        assert login.asked == ["POST /token"]


async def test_a_mounted_server_has_its_metadata_at_the_root_of_the_host(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/tools/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        words = ["hypercorn", "--worker-class", "trio", "--bind", f"127.0.0.1:{port}", "mounted:app"]
        async with running(tmp_path, words, port):
            assert await told(url, login.token(url)) == "alice may notes:read"
            async with (
                HttpClient(url, http_proxy=None) as client,
                client.request("GET", "/.well-known/oauth-protected-resource/tools/mcp") as reply,
            ):
                assert json.loads(await reply.read(4096))["resource"] == url


async def test_commands_sign_in_and_out(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "BROWSER": f"{sys.executable} -c '{BROWSER}' %s"}
    commands = [words for words in map(shlex.split, COMMANDS) if words[0] == "trio-mcp"]
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "protected.py"], port):
            told = b""
            for _, command, url in commands:
                words = [command, url.replace("https://mcp.example.com", f"http://127.0.0.1:{port}")]
                signs_in = ["--sign-in"] if command == "inspect" else []
                with trio.fail_after(PATIENCE):
                    done = await trio.run_process(
                        [sys.executable, "-m", "trio_mcp.cli", *words, *signs_in],
                        cwd=tmp_path,
                        env=environ,
                        capture_stdout=True,
                        capture_stderr=True,
                    )
                told += done.stdout + done.stderr
    assert b"whoami" in told
    assert b"signed out of" in told
    assert login.asked == ["POST /register", "GET /authorize", "POST /token"]
    assert not list(tmp_path.glob("trio-mcp/tokens/*.json"))  # noqa: ASYNC240 -- of a few files


def test_an_entry_of_a_configuration_file_says_how_to_sign_in(tmp_path: Path) -> None:
    [text] = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    file = tmp_path / "mcp.json"
    file.write_text(text)
    config = read_config(file, auth=OAuth(client_name="My editor"))
    assert not config.problems
    target = config.members["notes"].target
    assert isinstance(target, Address)
    auth = target.auth
    assert isinstance(auth, OAuth)
    assert (auth.client_name, auth.client_id, auth.scopes) == ("My editor", "editor", ("notes:read",))
    assert auth.redirect_uri == "http://localhost:3118/callback"


# Tables


def table(title: str) -> dict[str, str]:
    """The defaults in a table of arguments, by the names of the arguments."""
    rows = PAGE.split(f"| argument of `{title}` | default | |\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.split("|")[1:3]] for row in rows]
    return {name.strip("`"): default for names, default in cells for name in names.split(", ")}


def meant(text: str) -> object:
    """The default that a cell of a table names; the text itself where the cell describes the default."""
    if text in ("", "none"):
        return frozenset[str]() if text else attrs.NOTHING
    try:
        return ast.literal_eval(text.strip("`").replace(",", ""))
    except (SyntaxError, ValueError):
        return text


@pytest.mark.parametrize(
    ("kind", "described"),
    [
        (Protected, {"scopes_supported": None}),
        (JWTVerifier, {"algorithms": attrs.fields(JWTVerifier).algorithms.default}),
        (IntrospectionVerifier, {}),
        (OAuth, {"storage": attrs.fields(OAuth).storage.default}),
    ],
)
def test_the_page_names_each_argument_with_its_default(kind: type[Any], described: dict[str, Any]) -> None:
    defaults = {name: described.get(name, meant(text)) for name, text in table(kind.__name__).items()}
    arguments = {each.alias or each.name: each.default for each in attrs.fields(kind) if each.init}
    assert defaults == {name: default for name, default in arguments.items() if not name.startswith("_")}


def test_the_page_names_the_options_of_commands() -> None:
    rows = PAGE.split("| option | |\n")[1].split("\n\n")[0]
    named = set(re.findall(r"`(--[\w-]+)", rows))
    own = list(sign_in_options(lambda **_: None).__click_params__)
    assert named == {opt for param in own for opt in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("kind", [ClientCredentials, WorkloadIdentity, EnterpriseManaged])
def test_the_page_names_the_options_that_programs_have_like_users(kind: type[Any]) -> None:
    sentence = PAGE.split("All but\n`Bearer` take ")[1].split(" like `OAuth`")[0]
    named = set(re.findall(r"`(\w+)`", sentence))
    assert named == {each.name for each in attrs.fields(kind)} & {each.name for each in attrs.fields(OAuth)} - {
        *("client_id", "client_secret", "issuer", "client")
    }


def test_the_page_names_the_bounds_of_fetching_as_they_are() -> None:
    bounds = attrs.fields(HttpFetcher)
    assert (
        f"An answer has at most {bounds.max_bytes.default // 1024} KiB, and {bounds.deadline.default:g} seconds" in PAGE
    )


def test_the_page_leads_to_places_that_there_are() -> None:
    places = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", PAGE, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= places
    for file in re.findall(r"\]\(([\w/.-]+)(?:#[\w-]+)?\)", PAGE):
        assert (ROOT / "docs" / file).exists(), file
