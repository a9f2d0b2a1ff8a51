"""The examples in `docs/security` run as they stand, but for ports and for the names of hosts."""

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
from tests.pages import ROOT, Page, examples_in
from tests.patience import PATIENCE
from tests.test_http_pages import port, running
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
    Principal,
    Protected,
    WorkloadIdentity,
)
from trio_mcp.auth.fetching import HttpFetcher
from trio_mcp.cli.commands.options import sign_in_options
from trio_mcp.hosting import read_config
from trio_mcp.transports.http_client.client import HttpClient

__all__ = ["port"]

PAGES, SIGNING_IN = Page("security").text, Page("security/signing-in.md").text
[SHELL] = re.findall(r"```sh\n(.*?)```", SIGNING_IN, flags=re.DOTALL)
COMMANDS = SHELL.splitlines()
BLOCKS = {**examples_in(Page("get-started/quickstart.md").text), **examples_in(PAGES)}


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


async def test_protected_server_example_accepts_a_token_issued_by_its_authorization_server(
    tmp_path: Path, port: int
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_protected.py"], port):
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
async def test_protected_server_example_refuses_invalid_tokens_with_the_documented_challenge(
    tmp_path: Path, port: int, claims: dict[str, Any] | None, status: int, challenge: str
) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        headers = [] if claims is None else [(b"Authorization", b"Bearer " + login.token(url, **claims).encode())]
        async with (
            running(tmp_path, ["python", "serve_protected.py"], port),
            HttpClient(url, http_proxy=None) as client,
            client.request("POST", "/mcp", headers) as reply,
        ):
            assert reply.status == status
            said = reply.headers["www-authenticate"]
            assert said.startswith("Bearer ")
            assert f'resource_metadata="http://127.0.0.1:{port}/.well-known/oauth-protected-resource/mcp"' in said
            assert challenge in said
            assert 'scope="notes:read"' in said


async def test_introspection_example_sends_the_token_to_its_issuer(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_SECRET", "geheim")
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "introspected.py"], port):
            assert await told(url, url.encode().hex()) == "alice may notes:read"
        assert login.asked == ["POST /introspect"]


async def test_api_key_example_accepts_an_issued_key_and_refuses_other_keys(tmp_path: Path, port: int) -> None:
    written(tmp_path, port)
    with trio.fail_after(PATIENCE):
        issued = await trio.run_process([sys.executable, "api_keys.py", "alice"], cwd=tmp_path, capture_stdout=True)
    key = issued.stdout.decode().strip()
    assert key.partition(".")[2] not in (tmp_path / "api-keys.json").read_text()
    async with running(tmp_path, ["python", "serve_with_api_keys.py"], port):
        environ = {**os.environ, "NOTES_TOKEN": key}
        with trio.fail_after(PATIENCE):
            done = await trio.run_process(
                [sys.executable, "call_with_token.py"], cwd=tmp_path, env=environ, capture_stdout=True
            )
        assert done.stdout == b"alice may notes:read\n"
        for wrong in (key[:-1], f"{key}x", "unknown.key", key.partition(".")[0], "."):
            with pytest.raises(AuthorizationError):
                await told(f"http://127.0.0.1:{port}/mcp", wrong)


async def test_dpop_example_refuses_bearer_tokens(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_with_dpop.py"], port):
            with pytest.raises(AuthorizationError):
                await told(url, login.token(url))


async def test_allowed_origins_example_refuses_other_origins(tmp_path: Path, port: int) -> None:
    written(tmp_path, port)
    async with (
        running(tmp_path, ["python", "allowed_names.py"], port),
        HttpClient(f"http://127.0.0.1:{port}/mcp", http_proxy=None) as client,
    ):
        for origin, is_allowed in ((b"https://app.example.com", True), (b"https://other.example.com", False)):
            preflight = [(b"Origin", origin), (b"Access-Control-Request-Method", b"POST")]
            async with client.request("OPTIONS", "/mcp", preflight) as reply:
                assert (reply.status == 403) is not is_allowed


async def test_on_authenticated_example_returns_the_subscription_plan_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page("security/oauth-server.md")
    for example in page.write(tmp_path, monkeypatch):
        auth = example.load("caller_plan").auth
        assert await auth.on_authenticated(Principal(subject="alice"), {}) == {"plan": "free"}


async def test_scopes_example_refuses_a_token_without_the_scope(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_protected.py"], port):
            for scope, outcome in (("notes:read notes:write", "noted: milk"), ("notes:read", "HTTP status 403")):
                with trio.fail_after(PATIENCE):
                    async with open_http(url, auth=Bearer(login.token(url, scope=scope)), http_proxy=None) as client:
                        try:
                            told = (await client.call_tool("write", {"text": "milk"})).text
                        except AuthorizationError as error:
                            told = str(error)
                assert outcome in told


BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


async def test_sign_in_example_reuses_the_stored_tokens_in_a_second_run(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "BROWSER": f"{sys.executable} -c '{BROWSER}' %s"}
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_protected.py"], port):
            for _ in range(2):
                with trio.fail_after(PATIENCE):
                    done = await trio.run_process(
                        [sys.executable, "sign_in.py"], cwd=tmp_path, env=environ, capture_stdout=True
                    )
                assert done.stdout == b"registered may notes:read\n"
        assert login.asked == ["POST /register", "GET /authorize", "POST /token"]


async def test_client_credentials_example_gets_a_token_with_its_secret(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "NIGHTLY_SECRET": "geheim"}
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_protected.py"], port):
            with trio.fail_after(PATIENCE):
                done = await trio.run_process(
                    [sys.executable, "nightly_client.py"], cwd=tmp_path, env=environ, capture_stdout=True
                )
        assert done.stdout == b"nightly may notes:read\n"
        assert login.asked == ["POST /token"]


async def test_mounted_protected_example_serves_resource_metadata_at_the_root(tmp_path: Path, port: int) -> None:
    url = f"http://127.0.0.1:{port}/tools/mcp"
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        words = ["hypercorn", "--worker-class", "trio", "--bind", f"127.0.0.1:{port}", "mounted_protected:app"]
        async with running(tmp_path, words, port):
            assert await told(url, login.token(url)) == "alice may notes:read"
            async with (
                HttpClient(url, http_proxy=None) as client,
                client.request("GET", "/.well-known/oauth-protected-resource/tools/mcp") as reply,
            ):
                assert json.loads(await reply.read(4096))["resource"] == url


async def test_documented_commands_sign_in_and_log_out(tmp_path: Path, port: int) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "BROWSER": f"{sys.executable} -c '{BROWSER}' %s"}
    commands = [shlex.split(line) for line in COMMANDS]
    async with issuer() as login:
        written(tmp_path, port, **{"https://login.example.com": login.url})
        async with running(tmp_path, ["python", "serve_protected.py"], port):
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


def test_documented_config_file_entry_sets_oauth_options(tmp_path: Path) -> None:
    [text] = re.findall(r"```json\n(.*?)```", PAGES, flags=re.DOTALL)
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
    rows = PAGES.split(f"| argument of `{title}` | default | |\n")[1].split("\n\n")[0].splitlines()[1:]
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
def test_documented_table_of_auth_options_lists_each_default(kind: type[Any], described: dict[str, Any]) -> None:
    defaults = {name: described.get(name, meant(text)) for name, text in table(kind.__name__).items()}
    arguments = {each.alias or each.name: each.default for each in attrs.fields(kind) if each.init}
    assert defaults == {name: default for name, default in arguments.items() if not name.startswith("_")}


def test_documented_table_of_sign_in_options_is_complete() -> None:
    rows = SIGNING_IN.split("| option | |\n")[1].split("\n\n")[0]
    named = set(re.findall(r"`(--[\w-]+)", rows))
    own = list(sign_in_options(lambda **_: None).__click_params__)
    assert named == {opt for param in own for opt in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("kind", [ClientCredentials, WorkloadIdentity, EnterpriseManaged])
def test_documented_options_shared_with_oauth_are_complete(kind: type[Any]) -> None:
    sentence = " ".join(PAGES.split()).split(" except `Bearer` also accept ")[1].split(", as [`OAuth`]")[0]
    named = set(re.findall(r"`(\w+)`", sentence))
    assert named == {each.name for each in attrs.fields(kind)} & {each.name for each in attrs.fields(OAuth)} - {
        *("client_id", "client_secret", "issuer", "client")
    }


def test_url_checks_page_states_the_limits_in_the_code() -> None:
    bounds = attrs.fields(HttpFetcher)
    text = " ".join(Page("security/url-checks.md").text.split())
    assert f"accept responses of at most {bounds.max_bytes.default // 1024} KiB" in text
    assert f"to the last byte, the client waits at most {bounds.deadline.default:g} seconds" in text


FOLDERS = ("deployment", "security")


@pytest.mark.parametrize("page", [page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md"))])
def test_security_page_links_lead_to_existing_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for file, anchor in re.findall(r"\]\(([\w/.-]*)(?:#([\w-]+))?\)", text):
        target = page.parent / file if file else page
        assert target.exists(), file
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles}


def test_threat_model_cites_existing_tests() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", Page("security/threat-model.md").text)
    assert len(named) > 20
    assert [file for file in named if not (ROOT / file).is_file()] == []
