"""Signed tokens: which are good for this server, and whom they speak for."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from joserfc.jwk import OctKey
from tests.long_names import ODD, given_to_codecs

from trio_mcp.auth import JWTVerifier, Principal

from .asking import ISSUER, NOW, RESOURCE, bearing, let_in, protected
from .minting import CLAIMS, Network, base64url, ec_key, jwk, minted, okp_key, rsa_key, signed_text

KEYS = {"keys": [jwk(ec_key(), kid="1")]}
RSA = jwk(rsa_key())


def verifier(resource: str = RESOURCE, servers: tuple[str, ...] = (ISSUER,), **options: Any) -> Any:
    return JWTVerifier(**{"keys": KEYS, **options})._at(resource, servers, lambda: NOW)


async def verified(token: str, **options: Any) -> Principal | None:
    return await verifier(**options).verify(token)


async def test_jwt_signed_by_the_issuer_is_accepted_with_its_subject_as_principal() -> None:
    assert await verified(minted()) == Principal(
        issuer=ISSUER, subject="anna", client_id="app", scopes="read write", expires_at=NOW + 360
    )


async def test_application_can_read_the_claims_of_a_verified_jwt() -> None:
    principal = await verified(minted(tenant={"id": 7}))
    assert principal is not None
    assert dict(principal.claims) == {**CLAIMS, "tenant": {"id": 7}}


async def test_jwt_verifier_accepts_tokens_of_the_authorization_server_of_the_resource_by_default() -> None:
    gate = protected(JWTVerifier(keys=KEYS))._gate(now=lambda: NOW)
    assert (await let_in(gate, bearing(minted()))).principal.id == (ISSUER, "anna", False)


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a  b"}, {"a", "b"}),
        ({"scope": ["a", "b c"]}, {"a", "b", "c"}),
        ({"scope": None, "scp": "a b"}, {"a", "b"}),
        ({"scope": None, "scp": ["a"]}, {"a"}),
        ({"scope": None}, set()),
    ],
)
async def test_jwt_scopes_are_read_from_strings_and_lists(claims: dict[str, Any], scopes: set[str]) -> None:
    principal = await verified(minted(**claims))
    assert principal is not None
    assert principal.scopes == scopes


@pytest.mark.parametrize(
    ("claims", "identity", "client"),
    [
        ({}, (ISSUER, "anna", False), "app"),
        ({"client_id": None, "azp": "web"}, (ISSUER, "anna", False), "web"),
        ({"azp": "web"}, (ISSUER, "anna", False), "app"),
        ({"client_id": None, "sub": "bot", "cid": "bot"}, (ISSUER, "bot", True), "bot"),  # as Okta writes it
        ({"client_id": None, "sub": "bot", "appid": "bot"}, (ISSUER, "bot", True), "bot"),  # as Entra ID v1
        ({"sub": None}, (ISSUER, "app", True), "app"),
        ({"sub": "app"}, (ISSUER, "app", True), "app"),
        ({"sub": None, "client_id": "anna"}, (ISSUER, "anna", True), "anna"),
        ({"client_id": None}, (ISSUER, "anna", False), None),
    ],
)
async def test_jwt_principal_is_the_subject_or_the_client_if_there_is_no_subject(
    claims: dict[str, Any], identity: Any, client: Any
) -> None:
    principal = await verified(minted(**claims))
    assert principal is not None
    assert (principal.id, principal.client_id) == (identity, client)


@pytest.mark.parametrize("aud", [RESOURCE, [RESOURCE], ["other", RESOURCE], "HTTPS://MCP.example.com:443/mcp"])
async def test_jwt_with_the_resource_as_audience_is_accepted(aud: Any) -> None:
    assert await verified(minted(aud=aud))


BAD: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://evil.example"},
    "an issuer with a slash more": {"iss": f"{ISSUER}/"},
    "no issuer": {"iss": None},
    "an issuer that is no text": {"iss": [ISSUER]},
    "another audience": {"aud": "https://other.example/mcp"},
    "the origin as audience": {"aud": "https://mcp.example.com"},
    "a slash more": {"aud": f"{RESOURCE}/"},
    "no audience": {"aud": None},
    "audiences of other types": {"aud": [RESOURCE, 7]},
    "an audience that is an object": {"aud": {RESOURCE: 1}},
    "expired": {"exp": NOW - 60},
    "expired long ago": {"exp": -(10**300)},
    "no end": {"exp": None},
    "an end that is text": {"exp": str(NOW + 300)},
    "an end that is true": {"exp": True},
    "an end of hundreds of digits": {"exp": 10**400},
    "not yet": {"nbf": NOW + 61},
    "issued in the future": {"iat": NOW + 61},
    "nobody": {"sub": None, "client_id": None},
    "an empty name": {"sub": "", "client_id": ""},
    "a subject that is no text": {"sub": 7},
    "scopes that are no texts": {"scope": [7]},
    "bound to a certificate": {"cnf": {"x5t#S256": "abc"}},
    "bound in a strange way": {"cnf": "abc"},
    "bound to an empty key": {"cnf": {"jkt": ""}},
}


@pytest.mark.parametrize("claims", BAD.values(), ids=BAD)
async def test_jwt_with_invalid_claims_is_refused(claims: dict[str, Any]) -> None:
    assert await verified(minted(**claims)) is None


@pytest.mark.parametrize("aud", [f" {RESOURCE}", f"{RESOURCE} ", f"\t{RESOURCE}", "https://mcp.\nexample.com/mcp"])
async def test_jwt_with_a_different_audience_is_refused(aud: str) -> None:
    assert await verified(minted(aud=aud)) is None


FORGED: dict[str, dict[str, Any]] = {
    "for another resource": {"aud": "https://other.example/mcp"},
    "for odd letters": {"aud": f"https://{ODD * 300}/"},
    "expired": {"exp": NOW - 1000},
    "of nobody": {"sub": 7},
}


@pytest.mark.parametrize("claims", FORGED.values(), ids=FORGED)
async def test_claims_of_a_jwt_with_an_invalid_signature_are_not_evaluated(
    claims: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = given_to_codecs(monkeypatch)
    caplog.set_level(logging.INFO)
    assert await verified(minted(ec_key(2), **claims)) is None
    assert f"an access token was refused: the token is not signed by a key of {ISSUER}" in caplog.messages
    assert lengths == []


@pytest.mark.parametrize("letters", ["\u00fc" * 700, ODD * 300])
async def test_jwt_audience_with_long_or_many_non_ascii_names_is_compared_without_idna_encoding(
    letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = given_to_codecs(monkeypatch)
    assert await verified(minted(aud=[f"https://{letters}/", RESOURCE])) is not None
    assert await verified(minted(aud=[*(["https://\u00fc.example/"] * 200), RESOURCE])) is not None
    assert lengths == []


@pytest.mark.parametrize("aud", ["https://b\u00fccher.example/mcp", "https://XN--bcher-kva.example:443/mcp"])
async def test_non_ascii_resource_url_matches_a_token_audience_in_its_given_or_ascii_form(aud: str) -> None:
    given = verifier("https://b\u00fccher.example/mcp")
    assert await given.verify(minted(aud=aud)) is not None
    assert await given.verify(minted(aud=f"{aud}2")) is None


@pytest.mark.parametrize("aud", ["https://[0:0:0:0:0:0:0:1]/mcp", "HTTPS://[::0001]:443/mcp", "https://[::1]/mcp"])
async def test_jwt_audience_with_an_ipv6_address_matches_in_every_spelling(aud: str) -> None:
    given = verifier("https://[::1]/mcp")
    assert await given.verify(minted(aud=["https://[::2]/mcp", aud])) is not None
    assert await given.verify(minted(aud=aud.replace("mcp", "mcp2"))) is None


@pytest.mark.parametrize("name", ["iss", "aud", "exp"])
async def test_jwt_without_a_required_claim_is_refused(name: str) -> None:
    assert await verified(minted(without=name)) is None


@pytest.mark.parametrize("claims", [{"exp": NOW - 59}, {"nbf": NOW + 59}, {"iat": NOW + 59}])
async def test_jwt_time_claims_are_checked_with_a_leeway(claims: dict[str, Any]) -> None:
    assert await verified(minted(**claims))
    assert await verified(minted(**claims), leeway=0) is None


async def test_dpop_bound_jwt_is_accepted_with_the_thumbprint_of_its_key() -> None:
    principal = await verified(minted(cnf={"jkt": "abc"}))
    assert principal is not None
    assert principal.key_thumbprint == "abc"


@pytest.mark.parametrize("aud", ["api://default", "other"])
async def test_jwt_verifier_accepts_a_configured_audience(aud: str) -> None:
    assert await verified(minted(aud=aud), audience=["api://default", "other"])
    assert await verified(minted(), audience=aud) is None


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
async def test_jwt_with_an_access_token_type_is_accepted(typ: str) -> None:
    assert await verified(minted(header={"typ": typ}))


@pytest.mark.parametrize("typ", [None, "JWT", "jwt", "application/jwt"])
async def test_jwt_without_the_access_token_type_is_accepted_only_if_require_typ_is_false(typ: str | None) -> None:
    assert await verified(minted(header={"typ": typ})) is None
    assert await verified(minted(header={"typ": typ}), require_typ=False)


@pytest.mark.parametrize("typ", ["dpop+jwt", "oauth-id-jag+jwt", "logout+jwt", "", 7, ["at+jwt"]])
async def test_jwt_with_another_type_header_than_access_token_is_always_refused(typ: Any) -> None:
    assert await verified(with_header(typ=typ), require_typ=False) is None


def with_header(**header: Any) -> str:
    return signed_text({"typ": "at+jwt", "alg": "ES256", "kid": "1", **header}, CLAIMS, ec_key(), "ES256")


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "RS256"},
        {"alg": None},
        {"alg": ["ES256"]},
        {"crit": ["b64"], "b64": False},
        {"crit": []},
        {"kid": 1},
        {"kid": "2"},
    ],
    ids=str,
)
async def test_jwt_with_an_unsupported_header_is_refused(header: dict[str, Any]) -> None:
    assert await verified(with_header(**header)) is None


async def test_jwt_verifier_ignores_a_key_embedded_in_the_jwt_header() -> None:
    other = ec_key(2)
    mine = {"jwk": jwk(other), "jku": "https://evil.example/keys", "x5u": "https://evil.example/key", "x5c": ["a"]}
    network = Network()
    network.publish(jwk(ec_key(), kid="1"))
    assert await verified(minted(other, header=mine), keys=None, _fetcher=network) is None
    assert not any("evil" in url for url in network.asked)


async def test_jwt_signed_by_an_unknown_key_is_refused() -> None:
    assert await verified(minted(ec_key(2))) is None


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", rsa_key()),
        ("RS512", rsa_key()),
        ("PS256", rsa_key()),
        ("PS384", rsa_key()),
        ("ES384", ec_key(1, "P-384")),
        ("ES512", ec_key(1, "P-521")),
        ("Ed25519", okp_key()),
    ],
)
async def test_jwt_verifier_accepts_current_signature_algorithms(algorithm: str, key: Any) -> None:
    token = minted(key, header={"alg": algorithm})
    assert await verified(token, keys={"keys": [jwk(key)]})
    assert await verified(token, keys={"keys": [jwk(key)]}, algorithms=["ES256"]) is None


async def test_jwt_verifier_accepts_the_algorithm_name_eddsa() -> None:
    token = signed_text({"typ": "at+jwt", "alg": "EdDSA"}, CLAIMS, okp_key())
    assert await verified(token, keys={"keys": [jwk(okp_key())]})


async def test_public_key_is_not_accepted_as_an_hmac_secret() -> None:
    token = signed_text({"typ": "at+jwt", "alg": "HS256"}, CLAIMS, OctKey.import_key({"kty": "oct", "k": RSA["n"]}))
    assert await verified(token, keys={"keys": [RSA]}) is None


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "....", "a.b.c.d.e", "..", "ä.ö.ü"])
async def test_malformed_jwt_is_refused(text: str) -> None:
    assert await verified(text) is None


async def test_jwt_with_noncanonical_encoding_is_refused() -> None:
    token = minted()
    assert await verified(token)
    last = token[-1]
    others = [token + "=", token + "A", token[:-1]]
    others += [token[:-1] + chr(ord(last) + step) for step in (-1, 1, 2)]
    assert [await verified(other) for other in others] == [None] * len(others)


async def test_too_long_jwt_is_refused_without_being_parsed() -> None:
    assert await verified(minted(more="a" * 8 * 1024)) is None
    assert await verified(minted(more="a" * 4 * 1024))


@pytest.mark.parametrize("part", [b"[]", b"null", b'"text"', b"7"])
async def test_jwt_whose_header_or_claims_are_not_json_objects_is_refused(part: bytes) -> None:
    header, claims, signature = minted().split(".")
    assert await verified(f"{base64url(part)}.{claims}.{signature}") is None
    assert await verified(f"{header}.{base64url(part)}.{signature}") is None


async def test_jwt_with_deeply_nested_json_is_refused() -> None:
    deep = base64url(b"[" * 5000)
    parts = minted().split(".")
    assert await verified(f"{deep}.{parts[1]}.{parts[2]}") is None
    assert await verified(f"{parts[0]}.{deep}.{parts[2]}") is None


async def test_refused_jwt_is_logged_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trio_mcp")
    token = minted(header={"typ": "JWT"})
    assert await verified(token) is None
    assert caplog.messages == [
        "an access token was refused: the type (typ) of the token must be at+jwt, not 'JWT'"
        " (see JWTVerifier.require_typ)"
    ]


# Several issuers


async def test_token_signed_by_the_key_of_another_issuer_is_refused() -> None:
    other = "https://other.example"
    network = Network()
    network.publish(jwk(ec_key(1), kid="1"))
    network.publish(jwk(ec_key(2), kid="1"), issuer=other)
    both = verifier(servers=(ISSUER, other), keys=None, _fetcher=network)
    assert await both.verify(minted(ec_key(1)))
    assert await both.verify(minted(ec_key(2), iss=other))
    assert await both.verify(minted(ec_key(2))) is None
    assert await both.verify(minted(ec_key(1), iss=other)) is None


async def test_jwt_verifier_accepts_only_its_configured_issuers() -> None:
    assert await verified(minted(), servers=("https://other.example",), issuer=ISSUER)
    assert await verified(minted(), issuer="https://other.example") is None


# Tokens that name a client in place of an audience


@pytest.mark.parametrize(
    ("claims", "is_good"),
    [
        ({"aud": None}, True),
        ({"aud": None, "client_id": "cli"}, True),
        ({"aud": RESOURCE, "client_id": "other"}, True),
        ({"aud": None, "client_id": "other"}, False),
        ({"aud": None, "client_id": None, "azp": "app"}, False),
        ({"aud": None, "client_id": ["app"]}, False),
        ({"aud": None, "client_id": {}}, False),
        ({"aud": "app"}, False),
        ({"aud": []}, False),
        ({"aud": "https://other.example/mcp"}, False),
    ],
)
async def test_jwt_without_an_audience_is_accepted_if_the_client_ids_option_lists_its_client(
    claims: dict[str, Any], is_good: bool
) -> None:
    token = minted(**claims)
    assert (await verified(token, client_ids=["app", "cli"]) is not None) is is_good
    assert (await verified(token) is not None) is (claims["aud"] == RESOURCE)


# Mistakes of authors


@pytest.mark.parametrize("url", ["http://keycloak:8080/certs", "http://10.0.0.1/keys", "http://login.example.com/jwks"])
async def test_jwks_uri_with_http_raises_an_error_with_instructions(url: str) -> None:
    with pytest.raises(ValueError, match=f"must begin with https.*{url}.*JWTVerifier\\(keys="):
        JWTVerifier(jwks_uri=url)
    assert await verified(minted(), keys=KEYS)


@pytest.mark.parametrize("algorithms", [[], ["none"], ["HS256"], ["ES256", "HS512"], ["ES256K"]])
def test_jwt_verifier_raises_for_symmetric_algorithms(algorithms: list[str]) -> None:
    with pytest.raises(ValueError, match="algorithms must be one or more of"):
        JWTVerifier(algorithms=algorithms)


def test_jwt_verifier_raises_if_it_gets_no_or_several_key_sources() -> None:
    with pytest.raises(ValueError, match="not both"):
        JWTVerifier(keys=KEYS, jwks_uri="https://login.example.com/keys")


@pytest.mark.parametrize("keys", [{}, {"keys": []}, {"keys": [{"kty": "oct", "k": "abc"}]}])
def test_jwt_verifier_raises_for_unusable_keys(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"JWK set|no key"):
        JWTVerifier(keys=keys)


def test_jwt_verifier_with_a_jwks_uri_and_no_issuer_raises_if_there_are_two_authorization_servers() -> None:
    with pytest.raises(ValueError, match="pass one issuer="):
        protected(JWTVerifier(jwks_uri="https://a.example/keys"), authorization_servers=[ISSUER, "https://b"])._gate()


def test_jwt_verifier_raises_for_an_issuer_without_https() -> None:
    with pytest.raises(ValueError, match="https"):
        JWTVerifier(issuer="http://login.example.com")._at(RESOURCE, ())


@pytest.mark.commands
def test_resource_protection_without_a_jwt_verifier_does_not_import_joserfc() -> None:
    script = (
        "import sys, trio_mcp; trio_mcp.auth.Protected(resource='https://a/', authorization_servers=['https://b'],"
        "verifier=print)._gate(); assert not [name for name in sys.modules if name.startswith('joserfc')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.commands
def test_error_for_missing_joserfc_names_the_extra_to_install() -> None:
    script = "import sys; sys.modules['joserfc.jwk'] = None; import trio_mcp; trio_mcp.auth.JWTVerifier()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "install trio-mcp[auth]" in done.stderr
