"""Refreshing: new tokens for a refresh token, from nobody but the server that has granted the refresh token."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    REDIRECT,
    SERVER,
    ScriptedWeb,
    answer,
    basic_of,
    context,
    form_of,
    server_metadata,
    settings,
)

from trio_mcp.auth.credentials import AuthorizationError
from trio_mcp.auth.oauth_client.authorization_code import refresh
from trio_mcp.auth.oauth_client.grants import PreregisteredClient
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization, Tokens

METADATA, TOKEN = f"{ISSUER}/.well-known/oauth-authorization-server", f"{ISSUER}/token"
REGISTERED = RegisteredClient(client_id="kept", redirect_uris=("http://127.0.0.1:1/other-port",))
OLD = Tokens(access_token="old", refresh_token="refresh-0", scopes=("read",), expires_at=NOW)
RECORD = IssuerRecord(
    client=REGISTERED, tokens=OLD, requested_scopes=("read", "write"), proof_key={"kty": "EC"}, resource=SERVER
)
NEW = {"access_token": "new", "token_type": "Bearer", "expires_in": 60}


def stored(record: IssuerRecord = RECORD, issuer: str = ISSUER) -> StoredAuthorization:
    return (
        StoredAuthorization()
        ._with_record("https://first.example", IssuerRecord(tokens=OLD))
        ._with_record(issuer, record)
    )


def web(answered: Any = NEW, **metadata: Any) -> ScriptedWeb:
    token = answered if callable(answered) or not isinstance(answered, dict) else answer(answered)
    return ScriptedWeb({METADATA: answer(server_metadata(**metadata)), TOKEN: token})


def test_token_refresh_fetches_metadata_and_requests_tokens_from_the_current_issuer() -> None:
    asked = web({**NEW, "refresh_token": "refresh-1"})
    grant = asked.run(refresh(settings(), context(stored())))
    assert asked.asked == [METADATA, TOKEN]
    assert form_of(asked.sent_to(TOKEN)) == {
        "grant_type": "refresh_token",
        "refresh_token": "refresh-0",
        "client_id": "kept",
        "resource": SERVER,
    }
    assert asked.sent_to(TOKEN).secrets_of == ISSUER
    new = Tokens(access_token="new", refresh_token="refresh-1", scopes=("read",), expires_at=NOW + 60)
    assert (grant.issuer, grant.record) == (ISSUER, attrs.evolve(RECORD, tokens=new))


@pytest.mark.parametrize("rotated", [{}, {"refresh_token": ""}, {"refresh_token": None}])
def test_client_keeps_its_refresh_token_if_the_token_response_contains_no_new_refresh_token(
    rotated: dict[str, object],
) -> None:
    grant = web({**NEW, **rotated}).run(refresh(settings(), context(stored())))
    assert grant.record.tokens is not None
    assert grant.record.tokens.refresh_token == "refresh-0"


def test_token_refresh_request_contains_the_resource_for_which_the_tokens_were_issued() -> None:
    asked = web()
    asked.run(refresh(settings(), context(stored(attrs.evolve(RECORD, resource="https://mcp.example/")))))
    assert form_of(asked.sent_to(TOKEN))["resource"] == "https://mcp.example/"


def test_refresh_token_is_not_sent_to_another_issuer() -> None:
    asked = web(issuer="https://evil.example")
    with pytest.raises(AuthorizationError, match="the metadata contains the wrong issuer"):
        asked.run(refresh(settings(), context(stored())))
    assert TOKEN not in asked.asked


@pytest.mark.parametrize(
    "kept",
    [
        StoredAuthorization(),
        StoredAuthorization(issuers={ISSUER: RECORD}),
        StoredAuthorization(current=ISSUER),
        stored(IssuerRecord()),
        stored(attrs.evolve(RECORD, tokens=attrs.evolve(OLD, refresh_token=None))),
    ],
)
def test_token_refresh_without_a_stored_refresh_token_raises_and_sends_no_request(kept: StoredAuthorization) -> None:
    asked = web()
    with pytest.raises(AuthorizationError, match="contains no refresh token") as caught:
        asked.run(refresh(settings(), context(kept)))
    assert caught.value.code == "invalid_grant"
    assert asked.asked == []


@pytest.mark.parametrize(
    ("client", "changes"),
    [
        (None, {}),
        (attrs.evolve(REGISTERED, client_secret="s", secret_expires_at=NOW), {}),
        (RegisteredClient(client_id="known"), {}),
        (RegisteredClient(client_id="known"), {"client": PreregisteredClient(client_id="other")}),
        (RegisteredClient(client_id="https://app.example/client.json"), {}),
    ],
    ids=["none", "secret over", "not preregistered any more", "another one", "no document any more"],
)
def test_refresh_token_issued_to_another_client_is_not_sent(
    client: RegisteredClient | None, changes: dict[str, Any]
) -> None:
    asked = web()
    with pytest.raises(AuthorizationError, match="was issued to a client other than the configured one") as caught:
        asked.run(refresh(settings(**changes), context(stored(attrs.evolve(RECORD, client=client)))))
    assert caught.value.code == "invalid_grant"
    assert TOKEN not in asked.asked


@pytest.mark.parametrize("issuer", [None, ISSUER, f"{ISSUER}/"])
def test_preregistered_client_refreshes_tokens_with_the_configured_secret(issuer: str | None) -> None:
    asked = web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    record = attrs.evolve(RECORD, client=RegisteredClient(client_id="known", auth_method="client_secret_basic"))
    client = PreregisteredClient(client_id="known", client_secret="s3cret", issuer=issuer)
    asked.run(refresh(settings(client=client), context(stored(record))))
    assert basic_of(asked.sent_to(TOKEN)) == ("known", "s3cret")


def test_client_with_a_metadata_document_refreshes_tokens_with_the_document_url_as_client_id() -> None:
    url = "https://app.example/client.json"
    asked = web()
    record = attrs.evolve(RECORD, client=RegisteredClient(client_id=url))
    asked.run(refresh(settings(client_metadata_url=url), context(stored(record))))
    assert form_of(asked.sent_to(TOKEN))["client_id"] == url


def test_rejected_token_refresh_raises_an_error_with_the_error_code() -> None:
    with pytest.raises(AuthorizationError) as caught:
        web(answer({"error": "invalid_grant"}, 400)).run(refresh(settings(), context(stored())))
    assert caught.value.code == "invalid_grant"
    assert "refresh-0" not in str(caught.value)


@pytest.mark.parametrize("answered", [answer(b"", 503), answer({"error": "temporarily_unavailable"}, 503)])
def test_token_refresh_answered_with_status_503_raises_an_error_other_than_invalid_grant(answered: Any) -> None:
    with pytest.raises(AuthorizationError) as caught:
        web(answered).run(refresh(settings(), context(stored())))
    assert caught.value.code != "invalid_grant"


def test_tokens_of_a_server_without_metadata_are_refreshed_at_the_default_token_path() -> None:
    asked = ScriptedWeb({"https://mcp.example/token": answer(NEW)})
    asked.run(refresh(settings(), context(stored(issuer="https://mcp.example"))))
    assert asked.asked[-1] == "https://mcp.example/token"


def test_tokens_of_a_remote_issuer_without_metadata_cannot_be_refreshed() -> None:
    asked = ScriptedWeb({TOKEN: answer(NEW)})
    with pytest.raises(AuthorizationError, match="publishes no metadata"):
        asked.run(refresh(settings(redirect_uri=REDIRECT), context(stored())))
    assert TOKEN not in asked.asked
