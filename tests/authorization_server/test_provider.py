"""The authorization server does what the ways of the other tests rely on: so it is seen where each of them fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
from examples.authorization.provider import DoesNotStart, NoSuchPage, authorization_server, press
from tests.authorization_server.chromium import chromium
from tests.authorization_server.protected import BASIC, SERVER
from tests.authorization_server.raw import Heard, RawClient, claims_of, get, listening, post
from tests.interaction.browser.chromium import needs_chromium
from tests.patience import PATIENCE

from trio_mcp.auth.signing import ProofKey

RESOURCE = "http://127.0.0.1:1/mcp"

ROOT = Path(__file__).parent.parent.parent


async def test_signed_token_contains_the_requested_resource_and_scopes(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=["files:read", "files:write"], lifetime=50) as server,
        RawClient.registered(server.issuer) as client,
    ):
        tokens = await client.tokens(RESOURCE, "files:read files:write")
        claims = claims_of(tokens["access_token"])
        assert (claims["iss"], claims["aud"], claims["sub"]) == (server.issuer, RESOURCE, "alice")
        assert claims["scope"] == "files:read files:write"
        assert (claims["client_id"], claims["exp"] - claims["iat"]) == (client.client_id, 50)
    assert server.done == {"registration": 1, "authorization": 1, "authorization_code": 1}


async def test_client_can_request_scopes_beyond_its_registration(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=["files:read", "files:write"]) as server,
        RawClient.registered(server.issuer, scope="files:read") as client,
    ):
        tokens = await client.tokens(RESOURCE, "files:read files:write")
        assert claims_of(tokens["access_token"])["scope"] == "files:read files:write"


async def test_refresh_token_can_be_used_only_once(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=["files:read"]) as server,
        RawClient.registered(server.issuer) as client,
    ):
        refresh = (await client.tokens(RESOURCE, "files:read"))["refresh_token"]
        first = await client.token(grant_type="refresh_token", refresh_token=refresh, resource=RESOURCE)
        second = await client.token(grant_type="refresh_token", refresh_token=refresh, resource=RESOURCE)
    assert (first.status, second.status) == (200, 400)
    assert first.body["refresh_token"] != refresh
    assert second.body["error"] == "invalid_grant"
    assert server.refused == ["grant: invalid_grant"]


async def test_introspection_reports_an_opaque_token_as_active_until_the_token_is_revoked(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=["files:read"], opaque=True, clients=[SERVER]) as server,
        RawClient.registered(server.issuer) as client,
    ):
        token = (await client.tokens(RESOURCE, "files:read"))["access_token"]
        before = await post(client.metadata["introspection_endpoint"], {"token": token}, BASIC)
        revoked = await post(client.metadata["revocation_endpoint"], {"token": token, "client_id": client.client_id})
        after = await post(client.metadata["introspection_endpoint"], {"token": token}, BASIC)
    assert "." not in token
    assert (before.body["active"], before.body["aud"], before.body["sub"]) == (True, RESOURCE, "alice")
    assert revoked.status == 200
    assert after.body == {"active": False}


async def test_jwks_contains_only_public_signing_keys(provider: Path) -> None:
    async with authorization_server(provider) as server:
        keys = (await get(f"{server.issuer}/jwks")).body["keys"]
    assert [(key["alg"], key["use"]) for key in keys] == [("ES256", "sig")]
    assert "d" not in keys[0]


async def test_authorization_server_redirects_with_access_denied_if_the_user_denies_consent(provider: Path) -> None:
    async with (
        authorization_server(provider, scopes=["files:read"]) as server,
        RawClient.registered(server.issuer) as client,
    ):
        query = f"response_type=code&client_id={client.client_id}&redirect_uri={client.redirect_uri}"
        pkce = "code_challenge_method=S256&code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        await press(f"{server.issuer}/auth?{query}&{pkce}&state=s&scope=openid", "deny")
        callback = await client.callbacks.receive()
    assert (callback["error"], callback["iss"]) == ("access_denied", server.issuer)


async def test_consent_page_error_does_not_quote_the_page_url(provider: Path) -> None:
    async with authorization_server(provider) as server:
        with pytest.raises(NoSuchPage, match=r"^a page answered with status 400$"):
            await press(f"{server.issuer}/auth?state=secret")


async def test_authorization_server_process_ends_when_the_with_block_ends(provider: Path) -> None:
    async with authorization_server(provider) as server:
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_authorization_server_process_ends_when_its_parent_is_killed(provider: Path) -> None:
    code = """if True:
        import sys, trio
        from pathlib import Path
        from examples.authorization.provider import authorization_server

        async def main():
            async with authorization_server(Path(sys.argv[1])) as server:
                print(server.issuer.rpartition(":")[2], flush=True)
                await trio.sleep_forever()

        trio.run(main)
    """
    with trio.fail_after(PATIENCE):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", code, str(provider)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        async with process.stdout:
            port = int(await process.stdout.receive_some())
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            process.kill()
            await process.wait()
            async with stream:
                with contextlib.suppress(trio.BrokenResourceError):
                    assert await stream.receive_some() == b"", "closed by whoever has served it"


async def test_authorization_server_that_cannot_listen_raises_an_error_with_the_reason(provider: Path) -> None:
    async with authorization_server(provider) as server:
        port = int(server.issuer.rpartition(":")[2])
        with trio.fail_after(PATIENCE), pytest.raises(DoesNotStart, match="EADDRINUSE"):
            async with authorization_server(provider, port=port):
                pass


@needs_chromium
async def test_browser_submits_the_consent_page_without_scripts(provider: Path, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with (
            authorization_server(provider, scopes=["files:read"]) as server,
            RawClient.registered(server.issuer) as client,
            chromium(tmp_path) as browser,
        ):
            first = await client.tokens(RESOURCE, "files:read", browser.press)
            second = await client.tokens(RESOURCE, "files:read", browser.press)  # the browser has a session now
    assert claims_of(first["access_token"])["sub"] == claims_of(second["access_token"])["sub"] == "alice"
    assert server.done["authorization"] == 2


async def test_authorization_server_requires_a_dpop_nonce_and_binds_the_token_to_the_proof_key(provider: Path) -> None:
    key = ProofKey.generate()
    async with authorization_server(provider, scopes=["files:read"], clients=[SERVER], dpop_nonces=True) as server:
        url = f"{server.issuer}/token"
        form = {"grant_type": "client_credentials", "resource": RESOURCE, "scope": "files:read"}

        async def ask(nonce: str | None) -> Heard:
            proof = key.proof("POST", url, nonce=nonce, now=time.time())
            return await post(url, form, BASIC, (b"DPoP", proof.encode()))

        refused = await ask(None)
        granted = await ask(refused.headers["dpop-nonce"])
    assert (refused.status, refused.body["error"]) == (400, "use_dpop_nonce")
    assert granted.body["token_type"] == "DPoP"
    assert claims_of(granted.body["access_token"])["cnf"] == {"jkt": key.thumbprint}


async def test_client_can_be_identified_by_its_metadata_document_url(provider: Path) -> None:
    url = "https://client.example/mcp.json"
    async with listening() as (redirect_uri, callbacks):
        document = {"client_id": url, "client_name": "documented", "redirect_uris": [redirect_uri]}
        document |= {"token_endpoint_auth_method": "none", "application_type": "native"}
        async with authorization_server(provider, scopes=["files:read"], documents={url: document}) as server:
            metadata = (await get(f"{server.issuer}/.well-known/oauth-authorization-server")).body
            client = RawClient(server.issuer, url, redirect_uri, callbacks, metadata)
            claims = claims_of((await client.tokens(RESOURCE, "files:read"))["access_token"])
    assert metadata["client_id_metadata_document_supported"] is True
    assert claims["client_id"] == url
    assert server.done["registration"] == 0
