"""The examples in `docs/security/identity-providers.md` work with stand-ins for the providers, which refuse what the
page says."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.auth.providers.identity_providers import Auth0, EntraID, Google, Keycloak, Okta, Provider, running
from tests.pages import ROOT, Page, examples_in
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import open_http, serve_http
from trio_mcp.auth import AuthorizationError, Bearer, ClientCredentials, OAuth

PAGE = Page("security/identity-providers.md").text
BLOCKS = examples_in(PAGE)
SAID = " ".join(PAGE.split())

PROVIDERS: dict[str, tuple[type[Provider], str, str]] = {
    "keycloak": (Keycloak, "https://login.example.com", "f3b4c1d2-0a11-4b6e-9a39-5d2a6c1f7b10 by editor"),
    "auth0": (Auth0, "https://acme.eu.auth0.com", "auth0|5f7c8ec7c33c6c004bbafe82 by editor"),
    "entra": (EntraID, "https://login.microsoftonline.com", "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ by editor"),
    "okta": (Okta, "https://acme.okta.com", "ann@acme.example by editor"),
    "google": (
        Google,
        "https://accounts.google.com",
        "110169484474386276334 by 407408718192.apps.googleusercontent.com",
    ),
}
"""The stand-in of each provider, its host on the page, and the user and client that its tokens are about."""


@attrs.define(eq=False)
class Scene:
    """A server that is protected as the page says, and the provider."""

    url: str
    provider: Any
    auth: OAuth
    """That of the client on the page."""

    async def whoami(self, auth: Any = None, **changes: Any) -> str:
        """What the server says of a client with the ``auth`` of the page and some ``changes``."""
        if auth is None:
            auth = attrs.evolve(self.auth, on_visit=self.provider.visit, **changes)
        with trio.fail_after(PATIENCE):
            async with open_http(self.url, auth=auth, http_proxy=None) as client:
                return (await client.call_tool("whoami")).text


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLIENT_SECRET", "GOCSPX-s3cret")
    monkeypatch.setenv("NOTES_SECRET", "s3cret")


@asynccontextmanager
async def scene(folder: Path, name: str, server: str | None = None, **behaviour: Any) -> AsyncGenerator[Scene]:
    """Run the example ``server`` with the provider ``name``, on ports of this machine."""
    kind, host, _ = PROVIDERS[name]
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    origin, callback = f"http://127.0.0.1:{port}", f"http://localhost:{free_port()}/callback"
    provider = kind(**{"resource": f"{origin}/mcp", "redirect_uris": [callback], **behaviour})
    async with running(provider), trio.open_nursery() as nursery:
        here = {
            "https://mcp.example.com": origin,
            "http://localhost:3118/callback": callback,
            host: provider.origin,
            "https://sts.windows.net": provider.origin,
            "https://oauth2.googleapis.com": provider.origin,
            "below\nfrom keycloak_server import auth": f"below\nfrom {server or name + '_server'} import auth",
        }
        modules = imported(folder, here, "signed_in_notes", f"{name}_client")
        options = {
            "auth": modules[0].auth,
            "allowed_origins": [],
            "allowed_hosts": ["127.0.0.1"],
            "listeners": listeners,
        }
        await nursery.start(lambda **more: serve_http(modules[0].server, **options, **more))
        yield Scene(f"{origin}/mcp", provider, modules[1].auth)
        nursery.cancel_scope.cancel(reason="the test is over")


def imported(folder: Path, changes: dict[str, str], *names: str) -> list[Any]:
    for file, code in BLOCKS.items():
        for before, after in changes.items():
            code = code.replace(before, after)
        (folder / file).write_text(code)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for file in BLOCKS:
            sys.modules.pop(file.removesuffix(".py"), None)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_user_signs_in_once_at_each_identity_provider(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name) as found:
        auth = attrs.evolve(found.auth, on_visit=found.provider.visit)
        assert [await found.whoami(auth) for _ in range(2)] == [PROVIDERS[name][2]] * 2
        tokens = [request for request in found.provider.requested if "grant_type" in request]
        assert [request["grant_type"] for request in tokens] == ["authorization_code"]


@pytest.mark.parametrize("name", PROVIDERS)
async def test_expired_token_of_each_identity_provider_is_refreshed(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path, name, expires_in=0) as found:
        assert await found.whoami() == PROVIDERS[name][2]
        assert found.provider.requested[-1]["grant_type"] == "refresh_token"


@pytest.mark.parametrize(
    ("name", "server", "behaviour"),
    [
        ("keycloak", "keycloak_introspected", {}),
        ("auth0", None, {"dialect": "rfc9068_profile"}),
        ("entra", "entra_v1_server", {"token_version": 1}),
    ],
)
async def test_documented_alternative_token_verifier_accepts_the_tokens(
    tmp_path: Path, name: str, server: str | None, behaviour: dict[str, Any]
) -> None:
    async with scene(tmp_path, name, server, **behaviour) as found:
        assert await found.whoami() == PROVIDERS[name][2]


@pytest.mark.parametrize(
    ("name", "behaviour", "reason"),
    [
        ("keycloak", {"has_mapper": False}, "the audience of the token is 'account'"),
        ("auth0", {"reads_resource": False}, "the token is not a signed JWT in compact form"),
        ("entra", {"token_version": 1}, "the issuer of the token is "),
        ("okta", {"audience": "api://default"}, "the audience of the token is 'api://default'"),
    ],
)
async def test_identity_provider_token_for_another_resource_is_refused(
    tmp_path: Path, name: str, behaviour: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_mcp")
    async with scene(tmp_path, name, **behaviour) as found:
        with pytest.raises(AuthorizationError):
            await found.whoami()
        assert len([1 for request in found.provider.requested if "response_type" in request]) == 1
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("keycloak", "the authorization server has not registered the client: insufficient_scope"),
        ("entra", "does not support dynamic registration: get a client id"),
        ("okta", "the authorization server has not registered the client: status 403"),
        ("google", "does not support dynamic registration: get a client id"),
    ],
)
async def test_missing_client_id_raises_the_documented_error(tmp_path: Path, name: str, words: str) -> None:
    async with scene(tmp_path, name) as found:
        with pytest.raises(AuthorizationError, match=re.escape(words)):
            await found.whoami(client_id=None, client_secret=None)
    assert words in SAID or words.partition(":")[0].partition(" by ")[0] in SAID


async def test_auth0_registers_a_client_that_has_no_client_id(tmp_path: Path) -> None:
    async with scene(tmp_path, "auth0") as found:
        assert await found.whoami(client_id=None) == "auth0|5f7c8ec7c33c6c004bbafe82 by tpc_1"


async def test_auth0_issuer_without_final_slash_refuses_all_tokens(tmp_path: Path) -> None:
    async with scene(tmp_path, "auth0", path="") as found:  # the page has the name with the slash
        with pytest.raises(AuthorizationError, match="HTTP status 401: the server refuses even the client's new token"):
            await found.whoami()
        assert found.provider.requested, "the client has signed in"


async def test_entra_id_sign_in_without_the_assume_pkce_option_raises_authorization_error(tmp_path: Path) -> None:
    async with scene(tmp_path, "entra") as found:
        with pytest.raises(AuthorizationError, match="does not support PKCE with S256"):
            await found.whoami(assume_pkce=False)
        assert found.provider.asked == []


async def test_entra_id_refuses_a_resource_other_than_the_application_id_uri(tmp_path: Path) -> None:
    async with scene(tmp_path, "entra", identifier_uris=["api://6e74172b"]) as found:
        with pytest.raises(AuthorizationError, match="denied the user access: invalid_target") as caught:
            await found.whoami()
        assert caught.value.code == "invalid_target"


async def test_okta_refuses_an_undefined_scope(tmp_path: Path) -> None:
    async with scene(tmp_path, "okta", scopes={"openid", "offline_access"}) as found:
        with pytest.raises(AuthorizationError, match="denied the user access: invalid_scope"):
            await found.whoami()


async def test_okta_client_credentials_token_has_the_client_as_subject(tmp_path: Path) -> None:
    async with scene(tmp_path, "okta") as found:
        auth = ClientCredentials("bot", client_secret="s3cret", issuer=found.provider.issuer, scopes=["notes:read"])
        assert await found.whoami(auth) == "bot by bot"


async def test_google_token_of_another_client_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path, "google") as found:
        theirs = {"client_id": "9.apps.googleusercontent.com", "scope": "openid"}
        for token in (found.provider.access_token(theirs), "ya29.invented"):
            with pytest.raises(AuthorizationError):
                await found.whoami(Bearer(token))
        ours = {**theirs, "client_id": "407408718192.apps.googleusercontent.com"}
        assert await found.whoami(Bearer(found.provider.access_token(ours))) == PROVIDERS["google"][2]


def test_identity_provider_troubleshooting_table_quotes_existing_errors() -> None:
    source = " ".join(
        re.sub(r'"\s*f?"', "", file.read_text()) for file in (ROOT / "src" / "trio_mcp" / "auth").rglob("*.py")
    )
    quoted = re.findall(r"`([^`]*)`", PAGE.split("| the client says | check |")[1].partition("\n\n")[0])
    words = [part.partition(":")[0] for part in quoted if " " in part]
    assert len(words) >= 5
    assert not [each for each in words if each not in source]
