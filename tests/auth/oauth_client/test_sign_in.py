"""sign_in: the whole way from a refusal to tokens."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode

from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    REDIRECT,
    SERVER,
    answer,
    context,
    form_of,
    resource_metadata,
    settings,
    usual_web,
)

from trio_mcp.auth.credentials import Challenge
from trio_mcp.auth.oauth_client.authorization_code import refresh, sign_in
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization, Tokens


def test_first_sign_in_discovers_the_server_registers_the_client_and_exchanges_the_code() -> None:
    web = usual_web()
    grant = web.run(sign_in(settings(), context()))
    assert web.asked == [
        "https://mcp.example/.well-known/oauth-protected-resource/mcp",
        "https://as.example/.well-known/oauth-authorization-server",
        "https://as.example/register",
        "https://as.example/token",
    ]
    assert grant.issuer == ISSUER
    assert grant.record == IssuerRecord(
        client=RegisteredClient(client_id="client-1", redirect_uris=(REDIRECT,)),
        tokens=Tokens(access_token="access-1", expires_at=NOW + 3600, refresh_token="refresh-1"),
        resource=SERVER,
    )


def test_authorization_request_contains_resource_and_pkce_challenge() -> None:
    web = usual_web()
    web.run(sign_in(settings(), context()))
    visited, form = web.visited, form_of(web.sent_to(f"{ISSUER}/token"))
    verifier = form.pop("code_verifier")
    digest = hashlib.sha256(verifier.encode()).digest()
    assert visited.pop("code_challenge") == urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert len(visited.pop("state")) > 30
    assert visited == {
        "response_type": "code",
        "client_id": "client-1",
        "redirect_uri": REDIRECT,
        "code_challenge_method": "S256",
        "resource": SERVER,
    }
    assert form == {
        "grant_type": "authorization_code",
        "code": "c0de",
        "redirect_uri": REDIRECT,
        "client_id": "client-1",
        "resource": SERVER,
    }


def test_token_request_contains_the_resource_value_of_the_metadata_unchanged() -> None:
    origin = "https://mcp.example"
    web = usual_web()
    web.answers[f"{origin}/.well-known/oauth-protected-resource/mcp"] = answer(b"", 404)
    web.answers[f"{origin}/.well-known/oauth-protected-resource"] = answer(resource_metadata(resource=origin))
    grant = web.run(sign_in(settings(), context()))
    assert (web.visited["resource"], form_of(web.sent_to(f"{ISSUER}/token"))["resource"]) == (origin, origin)
    web.run(refresh(settings(), context(StoredAuthorization()._with_record(grant.issuer, grant.record))))
    form = form_of(web.sent_to(f"{ISSUER}/token"))
    assert (form["grant_type"], form["resource"]) == ("refresh_token", origin)


def test_second_sign_in_reuses_the_client_registration_of_the_first_sign_in() -> None:
    web = usual_web()
    grant = web.run(sign_in(settings(), context()))
    again = usual_web()
    again.run(sign_in(settings(), context(StoredAuthorization()._with_record(grant.issuer, grant.record))))
    assert f"{ISSUER}/register" not in again.asked
    assert again.visited["client_id"] == "client-1"


def test_client_registers_separately_at_a_second_authorization_server() -> None:
    first = usual_web("https://first.example")
    grant = first.run(sign_in(settings(), context()))
    second = usual_web("https://second.example")
    second.answers["https://second.example/register"] = answer({"client_id": "client-2"}, 201)
    stored = StoredAuthorization()._with_record(grant.issuer, grant.record)
    moved = second.run(sign_in(settings(), context(stored, challenge=Challenge("bearer", {"scope": "s"}))))
    assert moved.issuer == "https://second.example"
    assert "client-1" not in repr(second.steps) + str([step.url for step in second.steps])
    both = stored._with_record(moved.issuer, moved.record)
    assert [record.client and record.client.client_id for record in both.issuers.values()] == ["client-1", "client-2"]


def test_sign_in_after_a_scope_challenge_requests_the_earlier_scopes_and_the_scopes_of_the_challenge() -> None:
    web = usual_web()
    first = web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "read"}))))
    stored = StoredAuthorization()._with_record(first.issuer, first.record)
    challenge = Challenge("bearer", {"error": "insufficient_scope", "scope": "write"})
    again = usual_web()
    second = again.run(sign_in(settings(), context(stored, challenge=challenge)))
    assert again.visited["scope"] == "read write"
    assert second.record.requested_scopes == ("read", "write")
    assert form_of(again.sent_to(f"{ISSUER}/token")).get("scope") is None


def test_sign_in_requests_the_offline_access_scope_if_the_server_lists_it() -> None:
    web = usual_web(scopes_supported=["read", "offline_access"])
    grant = web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "read"}))))
    assert web.visited["scope"] == "read offline_access"
    assert web.visited["prompt"] == "consent"
    assert grant.record.requested_scopes == ("read",)
