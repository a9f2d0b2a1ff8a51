"""Tokens about which the issuer is asked."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import attrs
import pytest
from joserfc import jwt

from trio_mcp.auth import Auth, IntrospectionVerifier, Principal, VerifierUnavailable
from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed

from .asking import ISSUER, NOW, RESOURCE, Clock, bearing, let_in, protected, refused
from .minting import ec_key

ENDPOINT = f"{ISSUER}/introspect"
ACTIVE = {"active": True, "sub": "anna", "client_id": "app", "scope": "a b", "aud": RESOURCE, "exp": NOW + 300}


@attrs.define
class Issuer:
    """Answers questions, and keeps them."""

    answer: Any = attrs.field(factory=lambda: dict(ACTIVE))
    status: int = 200
    asked: list[Fetch] = attrs.field(factory=list[Fetch])

    async def fetch(self, request: Fetch) -> Fetched:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return Fetched(status=self.status, headers={}, body=body)

    @property
    def form(self) -> dict[str, str]:
        return {name: value for name, (value,) in parse_qs(self.asked[-1].body.decode()).items()}


def verifier(issuer: Issuer, /, **options: Any) -> IntrospectionVerifier:
    credentials = {} if "private_key" in options else {"client_secret": "s3cret"}
    return IntrospectionVerifier(
        **{"endpoint": ENDPOINT, "client_id": "server", "_fetcher": issuer, **credentials, **options}
    )


async def verified(issuer: Issuer, token: str = "abc", **options: Any) -> Principal | None:
    return await verifier(issuer, **options)._at(RESOURCE, (ISSUER,), lambda: NOW).verify(token)


async def test_introspection_of_an_active_token_returns_its_subject() -> None:
    principal = await verified(Issuer())
    assert principal == Principal(
        issuer=ISSUER, subject="anna", client_id="app", scopes="a b", expires_at=NOW + 360, claims={}
    )
    assert principal is not None
    assert principal.claims["sub"] == "anna"


async def test_introspection_request_authenticates_with_the_client_secret_of_the_resource_server() -> None:
    issuer = Issuer()
    await verified(issuer, "a+b/c==", client_id="our server", client_secret="a:b")
    (request,) = issuer.asked
    assert (request.method, request.url, request.secrets_of) == ("POST", ENDPOINT, ISSUER)
    assert request.content_type == "application/x-www-form-urlencoded"
    assert dict(request.headers)["authorization"] == "Basic b3VyK3NlcnZlcjphJTNBYg=="
    assert issuer.form == {"token": "a+b/c==", "token_type_hint": "access_token"}


async def test_introspection_request_can_send_its_secret_in_the_body() -> None:
    issuer = Issuer()
    await verified(issuer, secret_in="body")
    assert "authorization" not in dict(issuer.asked[0].headers)
    assert issuer.form == {
        "token": "abc",
        "token_type_hint": "access_token",
        "client_id": "server",
        "client_secret": "s3cret",
    }


async def test_introspection_request_can_authenticate_with_a_private_key() -> None:
    issuer = Issuer()
    await verified(issuer, private_key=ec_key().as_dict(private=True))
    assertion = jwt.decode(issuer.form["client_assertion"], ec_key(), ["ES256"]).claims
    assert (assertion["iss"], assertion["sub"], assertion["aud"]) == ("server", "server", ISSUER)
    assert issuer.form["client_assertion_type"].endswith("jwt-bearer")


BAD: dict[str, Any] = {
    "not active": {"active": False},
    "nothing said": {},
    "active in other words": {**ACTIVE, "active": "true"},
    "a refresh token": {**ACTIVE, "token_type": "refresh_token"},
    "of a strange type": {**ACTIVE, "token_type": 7},
    "for another resource": {**ACTIVE, "aud": "https://other.example"},
    "for nobody in particular": {name: value for name, value in ACTIVE.items() if name != "aud"},
    "of another issuer": {**ACTIVE, "iss": "https://evil.example"},
    "expired": {**ACTIVE, "exp": NOW - 61},
    "not yet good": {**ACTIVE, "nbf": NOW + 61},
    "of nobody": {**ACTIVE, "sub": None, "client_id": None},
    "bound to an unknown key": {**ACTIVE, "token_type": "DPoP"},
    "bound to a certificate": {**ACTIVE, "cnf": {"x5t#S256": "abc"}},
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_introspected_token_with_wrong_claims_is_refused(answer: Any) -> None:
    assert await verified(Issuer(answer)) is None


@pytest.mark.parametrize("more", [{"token_type": "Bearer"}, {"token_type": "bearer"}, {"iss": ISSUER}, {"exp": None}])
async def test_introspection_response_with_optional_fields_is_accepted(more: dict[str, Any]) -> None:
    assert await verified(Issuer({**ACTIVE, **more}))


async def test_introspection_of_a_dpop_bound_token_returns_its_key_thumbprint() -> None:
    principal = await verified(Issuer({**ACTIVE, "token_type": "DPoP", "cnf": {"jkt": "abc"}}))
    assert principal is not None
    assert principal.key_thumbprint == "abc"


async def test_introspection_with_require_audience_false_accepts_a_token_without_audience() -> None:
    answer = {name: value for name, value in ACTIVE.items() if name != "aud"}
    assert await verified(Issuer(answer), require_audience=False)
    assert await verified(Issuer({**ACTIVE, "aud": "other"}), require_audience=False) is None
    assert await verified(Issuer({**ACTIVE, "aud": "other"}), audience="other")


async def test_too_long_token_is_refused_without_introspection() -> None:
    issuer = Issuer()
    assert await verified(issuer, "a" * 8193) is None
    assert issuer.asked == []


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 429, 500, 503])
async def test_refused_introspection_request_is_not_treated_as_an_invalid_token(status: int) -> None:
    with pytest.raises(VerifierUnavailable, match=str(status)):
        await verified(Issuer(status=status))


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"\xff", b"[" * 9000, FetchFailed("refused")], ids=range(6))
async def test_malformed_introspection_response_is_not_treated_as_an_invalid_token(answer: Any) -> None:
    with pytest.raises(VerifierUnavailable) as raised:
        await verified(Issuer(answer))
    assert "html" not in str(raised.value)


async def test_cached_introspection_response_is_used_while_the_authorization_server_is_down() -> None:
    clock, issuer = Clock(), Issuer()
    gate = protected(verifier(issuer, cache_for=20))._gate(now=clock)
    await let_in(gate, bearing("abc"))
    issuer.answer = FetchFailed("refused")
    clock.now += 19
    assert isinstance(gate.known(bearing("abc")), Auth)
    clock.now += 1
    assert (await refused(gate, bearing("abc"))).status == HTTPStatus.SERVICE_UNAVAILABLE
    issuer.answer = {"active": False}
    assert (await refused(gate, bearing("abc"))).status == HTTPStatus.UNAUTHORIZED


async def test_introspection_without_caching_runs_for_each_request() -> None:
    issuer = Issuer()
    gate = protected(verifier(issuer, cache_for=0))._gate(now=lambda: NOW)
    for _ in range(3):
        await let_in(gate, bearing("abc"))
    assert len(issuer.asked) == 3


async def test_unavailable_issuer_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    gate = protected(verifier(Issuer(b"the token was abcdef")))._gate()
    await refused(gate, bearing("abcdef"))
    assert caplog.messages == [f"tokens cannot be verified: {ENDPOINT}: the response must be a JSON object"]


def test_repr_of_an_introspection_verifier_hides_secrets() -> None:
    assert "s3cret" not in repr(verifier(Issuer()))
    assert "s3cret" not in repr(verifier(Issuer(), private_key="s3cret"))


# Mistakes of authors


@pytest.mark.parametrize("credentials", [{"client_secret": None}, {"private_key": "key", "client_secret": "word"}])
def test_introspection_verifier_raises_value_error_without_exactly_one_authentication_method(
    credentials: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="client_secret"):
        verifier(Issuer(), **credentials)


@pytest.mark.parametrize("key", ["s3cret", {"kty": "EC", "crv": "P-256", "d": "s3cret"}], ids=["text", "jwk"])
def test_introspection_verifier_created_with_an_unusable_private_key_raises(key: Any) -> None:
    with pytest.raises(ValueError, match="private_key must be the PEM or JWK") as raised:
        protected(verifier(Issuer(), private_key=key))._gate()
    assert "s3cret" not in repr(raised.value)


@pytest.mark.parametrize("endpoint", ["http://login.example.com/introspect", "/introspect", "https://a@b/"])
def test_introspection_endpoint_must_use_https(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        verifier(Issuer(), endpoint=endpoint)


def test_introspection_verifier_without_issuer_raises_if_there_are_two_authorization_servers() -> None:
    two = [ISSUER, "https://other.example"]
    with pytest.raises(ValueError, match="pass issuer="):
        protected(verifier(Issuer()), authorization_servers=two)._gate()
    assert protected(verifier(Issuer(), issuer=ISSUER), authorization_servers=two)._gate()


@pytest.mark.parametrize("options", [{"cache_for": -1}, {"leeway": -1}, {"secret_in": "query"}])
def test_invalid_options_of_an_introspection_verifier_raise_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        verifier(Issuer(), **options)
