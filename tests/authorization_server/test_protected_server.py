"""Our protected server and tokens of a real authorization server, which a client got by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from examples.authorization.provider import authorization_server
from tests.authorization_server.protected import READ, SERVER, WRITE, introspection, protected
from tests.authorization_server.raw import RawClient, get, post

from trio_mcp import open_http, open_websocket
from trio_mcp.auth import AuthorizationError, Bearer, JWTVerifier
from trio_mcp.auth.credentials import parse_challenges

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


async def test_request_without_a_token_gets_status_401_with_resource_metadata(provider: Path) -> None:
    async with (
        authorization_server(provider) as server,
        protected(server.issuer, JWTVerifier()) as url,
    ):
        refused = await post(url, {})
        (challenge,) = parse_challenges(refused.headers["www-authenticate"])
        metadata = await get(challenge.params["resource_metadata"])
    assert refused.status == 401
    assert (challenge.scheme, challenge.params["scope"]) == ("bearer", READ)
    assert "error" not in challenge.params
    assert metadata.body["resource"] == url
    assert metadata.body["authorization_servers"] == [server.issuer]


@ERAS
@pytest.mark.parametrize("opaque", [False, True], ids=["signed", "opaque"])
async def test_request_with_a_valid_token_but_insufficient_scope_gets_status_403(
    provider: Path, era: Any, opaque: bool
) -> None:
    async with (
        authorization_server(provider, scopes=[READ, WRITE], opaque=opaque, clients=[SERVER]) as server,
        RawClient.registered(server.issuer) as client,
        protected(server.issuer, introspection(server.issuer) if opaque else JWTVerifier()) as url,
    ):
        token = (await client.tokens(url, READ))["access_token"]
        async with open_http(url, auth=Bearer(token), era=era) as ours:
            who = (await ours.call_tool("who")).structured_content
            with pytest.raises(AuthorizationError) as caught:
                await ours.call_tool("write")
    assert who == {"sub": "alice", "client": client.client_id, "scopes": [READ]}
    assert "403" in str(caught.value)


@pytest.mark.parametrize("opaque", [False, True], ids=["signed", "opaque"])
async def test_token_for_another_resource_gets_status_401(provider: Path, opaque: bool) -> None:
    async with (
        authorization_server(provider, scopes=[READ], opaque=opaque, clients=[SERVER]) as server,
        RawClient.registered(server.issuer) as client,
        protected(server.issuer, introspection(server.issuer) if opaque else JWTVerifier()) as url,
    ):
        token = (await client.tokens(f"{url}/other", READ))["access_token"]
        refused = await post(url, {}, (b"Authorization", f"Bearer {token}".encode()))
    (challenge,) = parse_challenges(refused.headers["www-authenticate"])
    assert (refused.status, challenge.params["error"]) == (401, "invalid_token")


async def test_token_of_another_authorization_server_gets_status_401(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=[READ]) as server,
        authorization_server(provider, scopes=[READ]) as foreign,
        RawClient.registered(foreign.issuer) as client,
        protected(server.issuer, JWTVerifier()) as url,
    ):
        token = (await client.tokens(url, READ))["access_token"]
        refused = await post(url, {}, (b"Authorization", f"Bearer {token}".encode()))
    assert refused.status == 401


async def test_id_token_sent_as_an_access_token_gets_status_401(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=[READ]) as server,
        RawClient.registered(server.issuer) as client,
        protected(server.issuer, JWTVerifier(audience=client.client_id)) as url,
    ):
        token = (await client.tokens(url, f"openid {READ}"))["id_token"]
        refused = await post(url, {}, (b"Authorization", f"Bearer {token}".encode()))
    assert refused.status == 401


async def test_token_revoked_at_the_issuer_is_rejected_by_introspection(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=[READ], opaque=True, clients=[SERVER]) as server,
        RawClient.registered(server.issuer) as client,
        protected(server.issuer, introspection(server.issuer, cache_for=0)) as url,
    ):
        token = (await client.tokens(url, READ))["access_token"]
        async with open_http(url, auth=Bearer(token)) as ours:
            await ours.call_tool("who")
            await post(client.metadata["revocation_endpoint"], {"token": token, "client_id": client.client_id})
            with pytest.raises(AuthorizationError, match="401"):
                await ours.call_tool("who")


async def test_websocket_server_accepts_the_same_bearer_token_as_the_http_server(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=[READ]) as server,
        RawClient.registered(server.issuer) as client,
        protected(server.issuer, JWTVerifier(), websocket=True) as url,
    ):
        token = (await client.tokens(url, READ))["access_token"]
        address = url.replace("http://", "ws://")
        async with open_websocket(address, auth=Bearer(token)) as ours:
            who = (await ours.call_tool("who")).structured_content
        with pytest.raises(AuthorizationError):
            async with open_websocket(address, auth=Bearer("wrong")):
                pass
    assert who["sub"] == "alice"
