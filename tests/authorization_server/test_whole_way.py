"""The whole way: our client, our server, and a real authorization server between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from examples.authorization.provider import AuthorizationServer, authorization_server, press
from joserfc.jwk import ECKey
from tests.authorization_server.chromium import chromium
from tests.authorization_server.protected import BASIC, READ, SERVER, WRITE, introspection, protected
from tests.authorization_server.raw import post
from tests.interaction.browser.chromium import needs_chromium
from tests.patience import PATIENCE

from trio_mcp import Client, open_http, open_websocket
from trio_mcp.auth import (
    AuthorizationError,
    ClientCredentials,
    FileTokenStorage,
    JWTVerifier,
    MemoryTokenStorage,
    OAuth,
    Principal,
    TokenStorage,
)

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@attrs.frozen
class Parties:
    """An authorization server, and the URL of a server that it protects."""

    server: AuthorizationServer
    url: str


@asynccontextmanager
async def parties(
    provider: Path, *, server: dict[str, Any] | None = None, opaque: bool = False, clients: Any = (), **settings: Any
) -> AsyncIterator[Parties]:
    """Both at work. ``settings`` are those of the authorization server, ``server`` those of ours."""
    settings = {"scopes": [READ, WRITE], "opaque": opaque, "clients": [SERVER, *clients], **settings}
    with trio.fail_after(PATIENCE):
        async with authorization_server(provider, **settings) as issuer:
            verifier = introspection(issuer.issuer, cache_for=0) if opaque else JWTVerifier(leeway=0)
            async with protected(issuer.issuer, verifier, **(server or {})) as url:
                yield Parties(issuer, url)


async def revoke(at: Parties, storage: TokenStorage) -> None:
    """Have the tokens of a client revoked behind its back."""
    stored = await storage.load(at.url)
    assert stored is not None
    record = stored.issuers[at.server.issuer]
    assert record.client is not None
    assert record.tokens is not None
    form = {"token": record.tokens.refresh_token, "client_id": record.client.client_id}
    assert (await post(f"{at.server.issuer}/token/revocation", form)).status == 200


async def who(client: Client) -> Any:
    """What the server knows of its caller."""
    return (await client.call_tool("who")).structured_content


@ERAS
async def test_client_without_a_token_signs_its_user_in_and_then_completes_the_call(provider: Path, era: Any) -> None:
    async with parties(provider) as at, open_http(at.url, auth=OAuth(on_visit=press), era=era) as client:
        first, second = await who(client), await who(client)
    assert first == second
    assert (first["sub"], first["scopes"]) == ("alice", [READ])
    assert at.server.done == {"registration": 1, "authorization": 1, "authorization_code": 1}
    assert at.server.refused == []


@needs_chromium
async def test_user_signs_in_with_a_real_browser(provider: Path, tmp_path: Path) -> None:
    async with (
        parties(provider) as at,
        chromium(tmp_path) as browser,
        open_http(at.url, auth=OAuth(on_visit=browser.press)) as client,
    ):
        assert (await who(client))["sub"] == "alice"


@ERAS
async def test_call_that_requires_more_scopes_requests_them_and_succeeds(provider: Path, era: Any) -> None:
    async with parties(provider) as at, open_http(at.url, auth=OAuth(on_visit=press), era=era) as client:
        await who(client)
        written = await client.call_tool("write")
        knows = await who(client)
    assert written.text == "written"
    assert knows["scopes"] == [READ, WRITE]
    assert at.server.done == {"registration": 1, "authorization": 2, "authorization_code": 2}


@ERAS
async def test_tokens_are_refreshed_without_another_user_sign_in(provider: Path, era: Any) -> None:
    async with (
        parties(provider, lifetime=2) as at,
        open_http(at.url, auth=OAuth(on_visit=press), era=era) as client,
    ):
        while at.server.done["refresh_token"] < 2:
            await who(client)
    assert at.server.done["authorization"] == 1
    assert at.server.refused == []


async def test_fifty_concurrent_calls_with_a_rejected_token_cause_one_token_refresh(provider: Path) -> None:
    storage, refused = MemoryTokenStorage(), set[str]()

    async def verify(token: str) -> Principal | None:
        answer = await post(f"{server.issuer}/token/introspection", {"token": token}, BASIC)
        if token in refused or not answer.body["active"]:
            return None
        return Principal(issuer=server.issuer, subject=answer.body["sub"], scopes=answer.body["scope"])

    with trio.fail_after(PATIENCE):
        async with (
            authorization_server(provider, scopes=[READ], opaque=True, clients=[SERVER]) as server,
            protected(server.issuer, verify, cache_for=0.001) as url,
            open_http(url, auth=OAuth(on_visit=press, storage=storage)) as client,
        ):
            await who(client)
            kept = await storage.load(url)
            assert kept is not None
            assert kept.tokens is not None
            refused.add(kept.tokens.access_token)
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(who, client)
    assert server.done == {"registration": 1, "authorization": 1, "authorization_code": 1, "refresh_token": 1}
    assert server.refused == []


@ERAS
async def test_user_signs_in_again_after_all_tokens_were_revoked(provider: Path, era: Any) -> None:
    storage = MemoryTokenStorage()
    async with (
        parties(provider, opaque=True) as at,
        open_http(at.url, auth=OAuth(on_visit=press, storage=storage), era=era) as client,
    ):
        await who(client)
        await revoke(at, storage)
        await who(client)
    assert at.server.done["authorization"] == 2
    assert at.server.refused == ["grant: invalid_grant"]


async def test_denied_sign_in_fails_one_call_but_the_next_call_can_succeed(provider: Path) -> None:
    storage, buttons = MemoryTokenStorage(), iter(["allow", "deny", "allow"])

    async def visit(url: str) -> None:
        await press(url, next(buttons))

    async with (
        parties(provider, opaque=True) as at,
        open_http(at.url, auth=OAuth(on_visit=visit, storage=storage)) as client,
    ):
        await who(client)
        await revoke(at, storage)
        with pytest.raises(AuthorizationError) as caught:
            await who(client)
        assert (await who(client))["sub"] == "alice"
    assert caught.value.code == "access_denied"


async def test_denied_sign_in_fails_the_connection_with_access_denied(provider: Path) -> None:
    async with parties(provider) as at:
        with pytest.raises(AuthorizationError) as caught:
            async with open_http(at.url, auth=OAuth(on_visit=partial(press, button="deny"))):
                pass
    assert caught.value.code == "access_denied"


async def test_another_client_with_the_same_token_storage_needs_no_sign_in(provider: Path, tmp_path: Path) -> None:
    async with parties(provider) as at:
        async with open_http(
            at.url, auth=OAuth(on_visit=press, storage=FileTokenStorage(tmp_path / "tokens"))
        ) as client:
            await who(client)
        async with open_http(
            at.url, auth=OAuth(on_visit=press, storage=FileTokenStorage(tmp_path / "tokens"))
        ) as client:
            await who(client)
    assert at.server.done == {"registration": 1, "authorization": 1, "authorization_code": 1}


async def test_loopback_redirect_uri_in_a_client_metadata_document_matches_any_port(provider: Path) -> None:
    document = "https://client.example/mcp.json"
    metadata = {"client_id": document, "client_name": "documented", "redirect_uris": ["http://127.0.0.1/callback"]}
    metadata |= {"token_endpoint_auth_method": "none", "application_type": "native"}
    metadata |= {"grant_types": ["authorization_code", "refresh_token"]}
    async with parties(provider, documents={document: metadata}) as at:
        auth = OAuth(on_visit=press, client_metadata_url=document)
        async with open_http(at.url, auth=auth) as client:
            knows = await who(client)
    assert knows["client"] == document
    assert at.server.done == {"authorization": 1, "authorization_code": 1}


@ERAS
async def test_dpop_client_sends_the_nonces_of_authorization_and_resource_servers(provider: Path, era: Any) -> None:
    server = {"dpop": "required", "dpop_nonces": True}
    async with (
        parties(provider, server=server, dpop_nonces=True, lifetime=2) as at,
        open_http(at.url, auth=OAuth(on_visit=press, dpop=True), era=era) as client,
    ):
        await client.call_tool("write")
        while not at.server.done["refresh_token"]:
            await who(client)
    assert at.server.done["authorization"] == 2
    assert set(at.server.refused) == {"grant: use_dpop_nonce"}


async def test_bearer_token_is_rejected_if_dpop_is_required(provider: Path) -> None:
    async with parties(provider, server={"dpop": "required"}) as at:
        with pytest.raises(AuthorizationError):
            async with open_http(at.url, auth=OAuth(on_visit=press)):
                pass


async def test_websocket_is_opened_with_the_oauth_token_of_the_user(provider: Path) -> None:
    async with parties(provider, server={"websocket": True}) as at:
        address = at.url.replace("http://", "ws://")
        async with open_websocket(address, auth=OAuth(on_visit=press)) as client:
            assert (await who(client))["sub"] == "alice"


def program(**metadata: Any) -> dict[str, Any]:
    """A client that acts on its own behalf, as the authorization server knows it."""
    common = {"client_id": "program", "grant_types": ["client_credentials"], "redirect_uris": [], "response_types": []}
    return {**common, **metadata}


@ERAS
async def test_client_credentials_with_a_secret_can_call_tools(provider: Path, era: Any) -> None:
    async with parties(provider, clients=[program(client_secret="s3cret & more")]) as at:
        auth = ClientCredentials(client_id="program", client_secret="s3cret & more")
        async with open_http(at.url, auth=auth, era=era) as client:
            await client.call_tool("write")
            knows = await who(client)
    assert (knows["client"], knows["scopes"]) == ("program", [READ, WRITE])
    assert at.server.done == {"client_credentials": 2}


@pytest.mark.parametrize("dpop", [False, True])
async def test_client_credentials_with_a_private_key_can_call_tools(provider: Path, dpop: bool) -> None:
    key = ECKey.generate_key("P-256")
    public = {**key.as_dict(private=False), "use": "sig"}
    metadata = program(token_endpoint_auth_method="private_key_jwt", jwks={"keys": [public]})
    async with parties(provider, clients=[metadata], server={"dpop": "required" if dpop else "off"}) as at:
        auth = ClientCredentials(client_id="program", private_key=key.as_dict(private=True), dpop=dpop)
        async with open_http(at.url, auth=auth) as client:
            assert (await who(client))["client"] == "program"
