"""Tokens are revoked where they were granted, by the client that they were granted to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    ScriptedWeb,
    answer,
    basic_of,
    context,
    failed,
    form_of,
    server_metadata,
    settings,
)

from trio_mcp.auth import AuthorizationError
from trio_mcp.auth.oauth_client.authorization_code import revoke
from trio_mcp.auth.oauth_client.grants import PreregisteredClient
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization, Tokens

ENDPOINT = f"{ISSUER}/revoke"
METADATA = f"{ISSUER}/.well-known/oauth-authorization-server"
REGISTERED = RegisteredClient(client_id="client-1", redirect_uris=("http://127.0.0.1/",))
TOKENS = Tokens(access_token="access-1", refresh_token="refresh-1")


def signed_in(client: RegisteredClient | None = REGISTERED, tokens: Tokens | None = TOKENS) -> StoredAuthorization:
    return StoredAuthorization()._with_record(ISSUER, IssuerRecord(client=client, tokens=tokens))


def web(**metadata: Any) -> ScriptedWeb:
    document = server_metadata(**{"revocation_endpoint": ENDPOINT, **metadata})
    return ScriptedWeb({METADATA: answer(document), ENDPOINT: answer(b"", 200)})


def revoked_by(scripted: ScriptedWeb, stored: StoredAuthorization, **changes: Any) -> list[dict[str, str]]:
    scripted.run(revoke(settings(**changes), context(stored), ISSUER))
    return [form_of(step) for step in scripted.steps if step.url == ENDPOINT]


def test_refresh_token_is_revoked_before_the_access_token() -> None:
    scripted = web()
    assert revoked_by(scripted, signed_in()) == [
        {"token": "refresh-1", "token_type_hint": "refresh_token", "client_id": "client-1"},
        {"token": "access-1", "token_type_hint": "access_token", "client_id": "client-1"},
    ]
    assert {step.secrets_of for step in scripted.steps if step.url == ENDPOINT} == {ISSUER}
    assert scripted.asked == [METADATA, ENDPOINT, ENDPOINT]


def test_revocation_request_authenticates_the_client_in_the_same_way_as_a_token_request() -> None:
    stored = signed_in(RegisteredClient(client_id="known"))
    scripted = web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    (form, _) = revoked_by(scripted, stored, client=PreregisteredClient(client_id="known", client_secret="s3cret"))
    assert "client_id" not in form
    assert basic_of(scripted.sent_to(ENDPOINT)) == ("known", "s3cret")


def test_revocation_with_a_metadata_document_client_sends_only_the_client_id() -> None:
    (form, _) = revoked_by(web(), signed_in(RegisteredClient(client_id="https://app.example/client.json")))
    assert form["client_id"] == "https://app.example/client.json"


@pytest.mark.parametrize("tokens", [None, Tokens(access_token="access-1")])
def test_revocation_sends_one_request_for_an_access_token_without_a_refresh_token(tokens: Tokens | None) -> None:
    assert len(revoked_by(web(), signed_in(tokens=tokens))) == (0 if tokens is None else 1)


def test_revocation_without_stored_tokens_sends_nothing() -> None:
    scripted = web()
    scripted.run(revoke(settings(), context(signed_in()), "https://other.example"))
    assert scripted.steps == []


@pytest.mark.parametrize(
    ("scripted", "reason"),
    [
        (web(revocation_endpoint=None), "does not support revocation"),
        (web(revocation_endpoint=""), "does not support revocation"),
        (ScriptedWeb({}), "publishes no metadata"),
        (ScriptedWeb({**web().answers, ENDPOINT: failed()}), "endpoint failed"),
        (ScriptedWeb({**web().answers, ENDPOINT: answer(b"", 503)}), "refused the request: status 503"),
        (ScriptedWeb({**web().answers, ENDPOINT: answer({"error": "invalid_client"}, 401)}), "invalid_client"),
        (ScriptedWeb({**web().answers, ENDPOINT: answer({"error": "refresh-1"}, 400)}), "an unknown error"),
    ],
)
def test_error_for_a_failed_token_revocation_does_not_quote_the_tokens(scripted: ScriptedWeb, reason: str) -> None:
    with pytest.raises(AuthorizationError, match=reason) as raised:
        scripted.run(revoke(settings(), context(signed_in()), ISSUER))
    assert "refresh-1" not in str(raised.value)
    assert "access-1" not in str(raised.value)


def test_revocation_of_tokens_without_a_known_client_raises_authorization_error() -> None:
    with pytest.raises(AuthorizationError, match="does not name the client"):
        web().run(revoke(settings(), context(signed_in(client=None)), ISSUER))


def test_revocation_request_does_not_contain_an_expired_client_secret() -> None:
    over = RegisteredClient(
        client_id="client-1", client_secret="old", secret_expires_at=NOW - 1, auth_method="client_secret_post"
    )
    (form, _) = revoked_by(web(), signed_in(over))
    assert "client_secret" not in form
