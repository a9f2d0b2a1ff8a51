"""The machines of OAuth, step by step, with a real authorization server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from examples.authorization.provider import AuthorizationServer, authorization_server, press
from joserfc.jwk import JWKRegistry
from tests.authorization_server.driving import drive
from tests.authorization_server.raw import claims_of, listening
from tests.interaction.websocket.raw_peer import port_of, serving

from trio_mcp.auth import Protected
from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.oauth_client.authorization_code import OAuth, OAuthSettings, refresh, revoke, sign_in
from trio_mcp.auth.oauth_client.grants import (
    Grant,
    GrantContext,
    PreregisteredClient,
)
from trio_mcp.auth.oauth_client.machine_clients import client_credentials
from trio_mcp.auth.signing import ProofKey
from trio_mcp.auth.storage.records import StoredAuthorization

READ, WRITE = "notes:read", "notes:write"


class Proofs:
    """The proofs of one key."""

    def __init__(self) -> None:
        self.key = ProofKey.generate()

    def proof(self, method: str, url: str, *, nonce: str | None = None, now: float) -> str:
        return self.key.proof(method, url, nonce=nonce, now=now)


@asynccontextmanager
async def resource_of(issuer: str) -> AsyncIterator[str]:
    """The URL of a server that has nothing but its metadata."""

    async def answer(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request and (data := await stream.receive_some()):
            request += data
        status, body = ("200 OK", metadata) if request.split(b" ")[1].decode() in paths else ("404 Not Found", b"")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        await stream.send_all(head.encode() + body)

    async def verify(token: str) -> None:
        return None

    async with serving(trio.serve_tcp, answer, 0, host="127.0.0.1") as listeners:
        url = f"http://127.0.0.1:{port_of(listeners)}/mcp"
        gate = Protected(resource=url, authorization_servers=[issuer], verifier=verify, scopes=[READ])._gate()
        metadata, paths = gate.metadata, gate.metadata_paths
        yield url


@asynccontextmanager
async def parties(provider: Path, **settings: Any) -> AsyncIterator[tuple[AuthorizationServer, str, str, Any]]:
    """The authorization server, the URL of the protected server, our redirect URI, and a driver."""
    async with (
        authorization_server(provider, scopes=[READ, WRITE], **settings) as server,
        resource_of(server.issuer) as url,
        listening() as (redirect_uri, callbacks),
    ):
        yield server, url, redirect_uri, partial(drive, callbacks=callbacks)


def after(context: GrantContext, grant: Grant, challenge: Challenge | None = None) -> GrantContext:
    """The context that ``grant`` leads to."""
    return GrantContext(
        server_url=context.server_url,
        stored=context.stored._with_record(grant.issuer, grant.record),
        challenge=challenge,
        proof_key=context.proof_key,
    )


def granted(grant: Grant) -> dict[str, Any]:
    assert grant.record.tokens is not None
    return claims_of(grant.record.tokens.access_token)


async def test_client_registers_signs_in_requests_more_scopes_and_refreshes_tokens(provider: Path) -> None:
    async with parties(provider) as (server, url, redirect_uri, run):
        settings = OAuthSettings(redirect_uri=redirect_uri)
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        first: Grant = await run(sign_in(settings, start))
        challenge = Challenge("bearer", {"error": "insufficient_scope", "scope": WRITE})
        second: Grant = await run(sign_in(settings, after(start, first, challenge)))
        third: Grant = await run(refresh(settings, after(start, second)))
    assert first.issuer == server.issuer
    assert (granted(first)["aud"], granted(first)["scope"]) == (url, READ)
    assert granted(second)["scope"].split() == [READ, WRITE]
    assert granted(third)["scope"].split() == [READ, WRITE]
    assert third.record.tokens != second.record.tokens
    assert third.record.tokens.refresh_token != second.record.tokens.refresh_token
    assert server.done == {"registration": 1, "authorization": 2, "authorization_code": 2, "refresh_token": 1}


async def test_reused_refresh_token_raises_invalid_grant(provider: Path) -> None:
    async with parties(provider) as (_, url, redirect_uri, run):
        settings = OAuthSettings(redirect_uri=redirect_uri)
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        grant = await run(sign_in(settings, start))
        await run(refresh(settings, after(start, grant)))
        with pytest.raises(AuthorizationError) as caught:
            await run(refresh(settings, after(start, grant)))
    assert caught.value.code == "invalid_grant"


async def test_denied_consent_raises_access_denied(provider: Path) -> None:
    async with parties(provider) as (_, url, redirect_uri, run):
        machine = sign_in(
            OAuthSettings(redirect_uri=redirect_uri), GrantContext(server_url=url, stored=StoredAuthorization())
        )
        with pytest.raises(AuthorizationError) as caught:
            await run(machine, visit=partial(press, button="deny"))
    assert caught.value.code == "access_denied"


async def test_client_with_a_metadata_document_needs_no_dynamic_registration(provider: Path) -> None:
    document = "https://client.example/mcp.json"
    async with listening() as (redirect_uri, callbacks):
        metadata = {"client_id": document, "client_name": "documented", "redirect_uris": [redirect_uri]}
        metadata |= {"token_endpoint_auth_method": "none", "application_type": "native"}
        metadata |= {"grant_types": ["authorization_code", "refresh_token"]}
        async with parties(provider, documents={document: metadata}) as (server, url, _, _):
            settings = OAuthSettings(auth=OAuth(client_metadata_url=document), redirect_uri=redirect_uri)
            start = GrantContext(server_url=url, stored=StoredAuthorization())
            grant = await drive(sign_in(settings, start), callbacks)
            await drive(refresh(settings, after(start, grant)))
    assert granted(grant)["client_id"] == document
    assert server.done["registration"] == 0


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_preregistered_client_authenticates_with_its_secret(provider: Path, method: Any) -> None:
    secret = "a secret: 100% & more"
    async with listening() as (redirect_uri, callbacks):
        client = {"client_id": "known", "client_secret": secret, "redirect_uris": [redirect_uri]}
        client |= {"token_endpoint_auth_method": method, "application_type": "native"}
        client |= {"grant_types": ["authorization_code", "refresh_token"]}
        async with parties(provider, clients=[client]) as (server, url, _, _):
            known = PreregisteredClient(client_id="known", client_secret=secret, auth_method=method)
            settings = OAuthSettings(redirect_uri=redirect_uri, client=known)
            start = GrantContext(server_url=url, stored=StoredAuthorization())
            grant = await drive(sign_in(settings, start), callbacks)
            await drive(refresh(settings, after(start, grant)))
    assert granted(grant)["client_id"] == "known"
    assert server.done == {"authorization": 1, "authorization_code": 1, "refresh_token": 1}


@pytest.mark.parametrize("nonces", [False, True])
async def test_dpop_tokens_are_bound_to_the_proof_key(provider: Path, nonces: bool) -> None:
    proofs = Proofs()
    async with parties(provider, dpop_nonces=nonces) as (_, url, redirect_uri, run):
        settings = OAuthSettings(redirect_uri=redirect_uri)
        start = GrantContext(server_url=url, stored=StoredAuthorization(), proof_key=proofs)
        grant = await run(sign_in(settings, start))
        again = await run(refresh(settings, after(start, grant)))
    for one in (grant, again):
        assert one.record.tokens.token_type == "DPoP"
        assert granted(one)["cnf"] == {"jkt": proofs.key.thumbprint}


def program(**metadata: Any) -> dict[str, Any]:
    """A client that acts on its own behalf, as the authorization server knows it."""
    common = {"client_id": "program", "grant_types": ["client_credentials"], "redirect_uris": [], "response_types": []}
    return {**common, **metadata}


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_client_credentials_grant_with_a_client_secret_returns_a_token(provider: Path, method: Any) -> None:
    secret = "a secret: 100% & more"
    known = PreregisteredClient(client_id="program", client_secret=secret, auth_method=method)
    clients = [program(client_secret=secret, token_endpoint_auth_method=method)]
    async with parties(provider, clients=clients) as (server, url, _, run):
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        grant = await run(client_credentials(known, start))
    assert (granted(grant)["client_id"], granted(grant)["aud"], granted(grant)["scope"]) == ("program", url, READ)
    assert server.done == {"client_credentials": 1}


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "PS256", "Ed25519"])
async def test_client_credentials_grant_with_private_key_jwt_returns_a_token(provider: Path, algorithm: str) -> None:
    kind: Any = {"ES256": ("EC", "P-256"), "Ed25519": ("OKP", "Ed25519")}.get(algorithm, ("RSA", 2048))
    key = JWKRegistry.generate_key(*kind)
    public = {**key.as_dict(private=False), "use": "sig", "kid": "1"}
    known = PreregisteredClient(
        client_id="program", private_key=key.as_dict(private=True), signing_algorithm=algorithm, key_id="1"
    )
    metadata = program(token_endpoint_auth_method="private_key_jwt", jwks={"keys": [public]})
    async with parties(provider, clients=[metadata]) as (_, url, _, run):
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        grant = await run(client_credentials(known, start))
    assert granted(grant)["client_id"] == "program"


async def test_revoked_tokens_cannot_be_refreshed(provider: Path) -> None:
    async with parties(provider, opaque=True) as (server, url, redirect_uri, run):
        settings = OAuthSettings(redirect_uri=redirect_uri)
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        now = after(start, await run(sign_in(settings, start)))
        await run(revoke(settings, now, server.issuer))
        with pytest.raises(AuthorizationError) as caught:
            await run(refresh(settings, now))
    assert caught.value.code == "invalid_grant"
    assert server.done["revocation"] == 1  # of the grant, and with it of its tokens


async def test_revocation_of_a_jwt_is_unsupported_but_its_refresh_token_is_revoked(provider: Path) -> None:
    async with parties(provider) as (server, url, redirect_uri, run):
        settings = OAuthSettings(redirect_uri=redirect_uri)
        start = GrantContext(server_url=url, stored=StoredAuthorization())
        now = after(start, await run(sign_in(settings, start)))
        with pytest.raises(AuthorizationError) as caught:
            await run(revoke(settings, now, server.issuer))
        with pytest.raises(AuthorizationError, match="invalid_grant"):
            await run(refresh(settings, now))
    assert caught.value.code == "unsupported_token_type"  # RFC 7009 section 2.2.1
