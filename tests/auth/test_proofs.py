"""Proofs of DPoP, as RFC 9449 has them, checked by joserfc and by hand."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import traceback
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey

from trio_mcp.auth.signing import ProofKey

URL = "https://mcp.example.com/mcp"
NOW = 1_700_000_000.75


def claims_of(proof: str) -> dict[str, Any]:
    """The claims of a proof, which is checked as a server would, by the key in its own header."""
    token = jws.extract_compact(proof.encode())
    header = token.headers()
    assert header["typ"] == "dpop+jwt"
    assert header["alg"] == "ES256"
    assert sorted(header["jwk"]) == ["crv", "kty", "x", "y"], "and no private part"
    return jwt.decode(proof, ECKey.import_key(header["jwk"]), ["ES256"]).claims


def test_dpop_proof_for_a_method_and_url_is_signed_by_the_key_in_the_proof() -> None:
    claims = claims_of(ProofKey.generate().proof("POST", URL, now=NOW))
    assert {**claims, "jti": ""} == {"jti": "", "htm": "POST", "htu": URL, "iat": 1_700_000_000}


def test_each_dpop_proof_has_a_different_id() -> None:
    key = ProofKey.generate()
    ids = {claims_of(key.proof("GET", URL, now=NOW))["jti"] for _ in range(100)}
    assert len(ids) == 100
    assert all(len(each) >= 16 for each in ids), "96 bits at least, RFC 9449 section 4.2"


def test_dpop_proof_contains_the_hash_of_its_token() -> None:
    # Token and hash are those of RFC 9449 section 7.1
    token = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
    claims = claims_of(ProofKey.generate().proof("GET", URL, token=token, now=NOW))
    assert claims["ath"] == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"


def test_dpop_proof_contains_the_nonce_of_the_server() -> None:
    assert claims_of(ProofKey.generate().proof("GET", URL, nonce="n-1", now=NOW))["nonce"] == "n-1"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("https://a.example/mcp?x=1", "https://a.example/mcp"),
        ("https://a.example/mcp?x=1#part", "https://a.example/mcp"),
        ("https://a.example/mcp#part?x", "https://a.example/mcp"),
        ("HTTPS://A.Example:443/Mcp", "https://a.example/Mcp"),
        ("http://[::1]:8000", "http://[::1]:8000/"),
    ],
)
def test_dpop_proof_url_has_no_query_and_fragment(url: str, named: str) -> None:
    assert claims_of(ProofKey.generate().proof("GET", url, now=NOW))["htu"] == named


@pytest.mark.parametrize("url", ["", "/mcp", "ftp://a/", "https://user:pass@a.example/"])
def test_dpop_proof_for_a_non_http_url_raises_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        ProofKey.generate().proof("GET", url, now=NOW)


def test_dpop_key_thumbprint_follows_rfc_7638() -> None:
    # The key of RFC 9449 section 4.1, whose thumbprint is in section 6.1; its private part is not known.
    public = {
        "kty": "EC",
        "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
        "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA",
        "crv": "P-256",
    }
    assert ProofKey(ECKey.import_key(public)).thumbprint == "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"


def test_dpop_key_loaded_from_its_jwk_equals_the_original_key() -> None:
    key = ProofKey.generate()
    stored = json.loads(json.dumps(key.to_jwk()))
    again = ProofKey.from_jwk({**stored, "kid": "mine", "use": "sig"})
    assert again.thumbprint == key.thumbprint
    assert again.to_jwk() == key.to_jwk()
    assert claims_of(again.proof("GET", URL, now=NOW))["htu"] == URL


def broken(**changes: object) -> dict[str, object]:
    return {**ProofKey.generate().to_jwk(), **changes}


@pytest.mark.parametrize(
    "jwk",
    [
        {},
        broken(d=None),
        broken(d=""),
        broken(d="!"),
        broken(d=7),
        broken(x="AAAA"),
        broken(y=None),
        broken(kty="RSA"),
        broken(crv="P-384"),
        broken(crv=[]),
        ECKey.generate_key("P-384").as_dict(private=True),
        {"kty": "oct", "k": "c2VjcmV0"},
    ],
)
def test_invalid_dpop_jwk_raises_value_error_that_does_not_quote_the_jwk(jwk: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the JWK of a private key on the curve P-256") as caught:
        ProofKey.from_jwk(jwk)
    told = "".join(traceback.format_exception(caught.value))
    assert not any(len(value) > 5 and value in told for value in jwk.values() if isinstance(value, str))
    assert caught.value.__context__ is None


def test_repr_of_a_dpop_key_shows_only_the_thumbprint() -> None:
    key = ProofKey.generate()
    assert repr(key) == f"<ProofKey {key.thumbprint}>"


@pytest.mark.commands
def test_missing_joserfc_raises_when_a_dpop_key_is_created() -> None:
    code = """
import sys
from trio_mcp.auth.signing import ProofKey
assert not [name for name in sys.modules if name.startswith(("joserfc", "cryptography"))]
sys.modules["joserfc"] = None
for made in (ProofKey.generate, lambda: ProofKey.from_jwk({})):
    try:
        made()
    except ImportError as error:
        assert "trio-mcp[auth]" in str(error) and error.__suppress_context__
    else:
        raise AssertionError("a key")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_dpop_proof_signature_has_the_jws_format() -> None:
    signature = ProofKey.generate().proof("GET", URL, now=NOW).split(".")[2]
    assert len(base64.urlsafe_b64decode(signature + "==")) == 64
