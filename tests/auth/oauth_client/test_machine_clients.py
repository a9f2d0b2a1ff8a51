"""Machine clients: client credentials, workload identity, and authorization that an enterprise manages."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    NOW,
    SERVER,
    ScriptedWeb,
    answer,
    basic_of,
    context,
    form_of,
    server_metadata,
    usual_web,
)

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.oauth_client.grants import (
    PreregisteredClient,
)
from trio_mcp.auth.oauth_client.machine_clients import (
    EnterpriseManaged,
    WorkloadIdentity,
    client_credentials,
    enterprise_managed,
    workload_identity,
)
from trio_mcp.auth.storage.records import RegisteredClient, StoredAuthorization

TOKEN = f"{ISSUER}/token"
IDP = "https://idp.example"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def credentials(**client: Any) -> PreregisteredClient:
    return PreregisteredClient(**{"client_id": "robot", **client})


def test_client_credentials_request_has_the_secret_in_the_authorization_header() -> None:
    web = usual_web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    challenge = Challenge("bearer", {"scope": "read"})
    grant = web.run(client_credentials(credentials(client_secret="s:3/c"), context(challenge=challenge)))
    assert basic_of(web.sent_to(TOKEN)) == ("robot", "s:3/c")
    assert form_of(web.sent_to(TOKEN)) == {"grant_type": "client_credentials", "resource": SERVER, "scope": "read"}
    assert grant.record.tokens is not None
    assert grant.record.tokens.access_token == "access-1"


def test_stored_registration_does_not_contain_the_secret_of_a_preregistered_client() -> None:
    web = usual_web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    grant = web.run(client_credentials(credentials(client_secret="s3cret"), context()))
    assert grant.record.client == RegisteredClient(client_id="robot", auth_method="client_secret_basic")


KEYS = {
    "ES256": ECKey.generate_key("P-256"),
    "ES384": ECKey.generate_key("P-384"),
    "Ed25519": OKPKey.generate_key("Ed25519"),
    "RS256": RSAKey.generate_key(2048),
}


@pytest.mark.parametrize("form", ["PEM", "JWK"])
@pytest.mark.parametrize(("algorithm", "key"), KEYS.items(), ids=KEYS)
def test_private_key_jwt_assertion_has_the_issuer_as_audience(algorithm: str, key: Key, form: str) -> None:
    private = key.as_pem(private=True).decode() if form == "PEM" else key.as_dict(private=True)  # type: ignore[union-attr]
    web = usual_web(token_endpoint_auth_methods_supported=["private_key_jwt"])
    web.run(client_credentials(credentials(private_key=private), context()))
    sent = form_of(web.sent_to(TOKEN))
    assertion = jwt.decode(sent.pop("client_assertion"), key, [algorithm])
    claims = dict(assertion.claims)
    assert len(claims.pop("jti")) > 16
    assert claims == {"iss": "robot", "sub": "robot", "aud": ISSUER, "iat": NOW, "exp": NOW + 60}
    assert sent == {
        "grant_type": "client_credentials",
        "resource": SERVER,
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }


@pytest.mark.parametrize(
    "client",
    [
        {"private_key": "s3cret, which is no PEM"},
        {"private_key": {"kty": "oct", "k": "c2VjcmV0"}},
        {"private_key": {"kty": "EC", "crv": "P-256", "d": "s3cret"}},
        {"private_key": KEYS["ES256"].as_pem(private=False).decode()},
        {"private_key": KEYS["ES256"].as_pem(private=True).decode(), "signing_algorithm": "HS256"},
        {"private_key": KEYS["ES256"].as_pem(private=True).decode(), "signing_algorithm": "RS256"},
        {"private_key": KEYS["ES256"].as_pem(private=True).decode(), "signing_algorithm": "none"},
    ],
    ids=["text", "symmetric", "broken", "public", "symmetric algorithm", "other algorithm", "none"],
)
def test_error_for_an_invalid_signing_key_does_not_quote_the_key(client: dict[str, Any]) -> None:
    web = usual_web()
    with pytest.raises(AuthorizationError, match="private_key must be the PEM or JWK") as caught:
        web.run(client_credentials(credentials(**client), context()))
    assert "s3cret" not in repr(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert TOKEN not in web.asked


def test_client_credentials_of_another_issuer_are_not_sent() -> None:
    web = usual_web()
    with pytest.raises(AuthorizationError, match=r"belong to 'https://honest\.example'"):
        web.run(client_credentials(credentials(client_secret="s", issuer="https://honest.example"), context()))
    assert web.asked == ["https://mcp.example/.well-known/oauth-protected-resource/mcp"]


def test_client_credentials_without_a_configured_issuer_are_sent_only_to_the_issuer_used_first() -> None:
    first = usual_web("https://first.example")
    grant = first.run(client_credentials(credentials(client_secret="s"), context()))
    stored = StoredAuthorization()._with_record(grant.issuer, grant.record)
    second = usual_web("https://second.example")
    with pytest.raises(AuthorizationError, match=r"belong to 'https://first\.example'"):
        second.run(client_credentials(credentials(client_secret="s"), context(stored)))
    assert second.asked == ["https://mcp.example/.well-known/oauth-protected-resource/mcp"]


def assertion_for(*audience: str) -> str:
    claims = urlsafe_b64encode(json.dumps({"aud": audience[0] if len(audience) == 1 else audience}).encode())
    return f"e30.{claims.rstrip(b'=').decode()}.c2ln"


def test_workload_identity_client_sends_the_given_assertion_to_the_token_endpoint() -> None:
    web = usual_web()
    assertion = assertion_for(ISSUER)
    grant = web.run(workload_identity(WorkloadIdentity(assertion=assertion, client_id="wl"), context()))
    assert form_of(web.sent_to(TOKEN)) == {
        "grant_type": JWT_BEARER,
        "assertion": assertion,
        "resource": SERVER,
        "client_id": "wl",
    }
    assert grant.record.client == RegisteredClient(client_id="wl")


def test_workload_identity_client_without_a_client_id_sends_no_client_id() -> None:
    web = usual_web()
    grant = web.run(workload_identity(WorkloadIdentity(assertion=assertion_for(ISSUER)), context()))
    assert set(form_of(web.sent_to(TOKEN))) == {"grant_type", "assertion", "resource"}
    assert grant.record.client is None


@pytest.mark.parametrize("audience", [(ISSUER,), (f"{ISSUER}/",), (TOKEN,), ("https://other.example", ISSUER)])
def test_workload_assertion_is_sent_if_its_audience_is_the_issuer_or_token_endpoint(audience: tuple[str, ...]) -> None:
    web = usual_web()
    web.run(workload_identity(WorkloadIdentity(assertion=assertion_for(*audience)), context()))
    assert TOKEN in web.asked


@pytest.mark.parametrize(
    "assertion",
    [assertion_for("https://honest.example"), "opaque", "a.!!.c", "a.e30.c", "a.W10.c", "", "a." + "W" * 9999],
)
def test_workload_assertion_for_an_audience_other_than_the_issuer_is_not_sent(assertion: str) -> None:
    web = usual_web()
    with pytest.raises(
        AuthorizationError, match="the audience of the assertion must be the server's authorization server"
    ):
        web.run(workload_identity(WorkloadIdentity(assertion=assertion), context()))
    assert TOKEN not in web.asked


def test_workload_assertion_of_any_format_is_sent_to_a_configured_issuer() -> None:
    web = usual_web()
    web.run(workload_identity(WorkloadIdentity(assertion="opaque", issuer=ISSUER), context()))
    assert form_of(web.sent_to(TOKEN))["assertion"] == "opaque"


@pytest.mark.parametrize("code", ["invalid_grant", "invalid_scope", "unauthorized_client"])
def test_workload_assertion_refused_by_the_token_endpoint_is_not_sent_again(code: str) -> None:
    web = usual_web()
    web.answers[TOKEN] = answer({"error": code, "error_description": assertion_for(ISSUER)}, 400)
    with pytest.raises(AuthorizationError) as caught:
        web.run(workload_identity(WorkloadIdentity(assertion=assertion_for(ISSUER)), context()))
    assert caught.value.code == code
    assert assertion_for(ISSUER) not in str(caught.value)
    assert web.asked.count(TOKEN) == 1


def enterprise(**changes: Any) -> EnterpriseManaged:
    return EnterpriseManaged(
        **{
            "idp_issuer": IDP,
            "idp_client": PreregisteredClient(client_id="at-idp"),
            "subject_token": "id-token",
            "client": PreregisteredClient(client_id="at-as", client_secret="s3cret"),
            **changes,
        }
    )


ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


def enterprise_web() -> ScriptedWeb:
    web = usual_web(token_endpoint_auth_methods_supported=["client_secret_basic"])
    web.answers[f"{IDP}/.well-known/openid-configuration"] = answer(server_metadata(IDP))
    web.answers[f"{IDP}/token"] = answer({"access_token": "jag", "issued_token_type": ID_JAG, "token_type": "N_A"})
    return web


def test_enterprise_client_exchanges_an_id_token_for_a_jwt_grant_and_the_grant_for_tokens() -> None:
    web = enterprise_web()
    challenge = Challenge("bearer", {"scope": "read"})
    grant = web.run(enterprise_managed(enterprise(), context(challenge=challenge)))
    assert form_of(web.sent_to(f"{IDP}/token")) == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": ID_JAG,
        "audience": ISSUER,
        "resource": SERVER,
        "scope": "read",
        "subject_token": "id-token",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "client_id": "at-idp",
    }
    assert web.sent_to(f"{IDP}/token").secrets_of == IDP
    assert basic_of(web.sent_to(TOKEN)) == ("at-as", "s3cret")
    assert form_of(web.sent_to(TOKEN)) == {
        "grant_type": JWT_BEARER,
        "assertion": "jag",
        "resource": SERVER,
        "scope": "read",
    }
    assert web.sent_to(TOKEN).secrets_of == ISSUER
    assert grant.issuer == ISSUER


def test_identity_provider_token_endpoint_can_be_configured() -> None:
    web = enterprise_web()
    web.run(enterprise_managed(enterprise(idp_token_endpoint=f"{IDP}/token"), context()))
    assert [url for url in web.asked if url.startswith(IDP)] == [f"{IDP}/token"]


@pytest.mark.parametrize("kind", [None, "urn:ietf:params:oauth:token-type:access_token"])
def test_identity_provider_token_that_is_not_a_jwt_grant_is_not_sent_to_the_issuer(kind: str | None) -> None:
    web = enterprise_web()
    web.answers[f"{IDP}/token"] = answer(
        {"access_token": "idp-access", "issued_token_type": kind, "token_type": "Bearer"}
    )
    with pytest.raises(AuthorizationError, match="a token that is not an authorization grant"):
        web.run(enterprise_managed(enterprise(), context()))
    assert TOKEN not in web.asked


def test_identity_provider_error_raises_authorization_error() -> None:
    web = enterprise_web()
    web.answers[f"{IDP}/token"] = answer({"error": "access_denied"}, 403)
    with pytest.raises(
        AuthorizationError, match=r"'https://idp\.example' refused the request: access_denied"
    ) as caught:
        web.run(enterprise_managed(enterprise(), context()))
    assert caught.value.code == "access_denied"
    assert TOKEN not in web.asked
