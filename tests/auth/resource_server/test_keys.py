"""Public keys: which are used, and which are refused."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from trio_mcp.auth.resource_server.keys import ASYMMETRIC, UnusableKey, read_key, read_key_set
from trio_mcp.auth.resource_server.verification import Signed

from .minting import ec_key, jwk, okp_key, rsa_key


def number(value: int) -> str:
    return urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()


EC, RSA, OKP = jwk(ec_key()), jwk(rsa_key()), jwk(okp_key())


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (EC, {"ES256"}),
        (RSA, {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (OKP, {"Ed25519", "EdDSA"}),
        ({**RSA, "alg": "RS256"}, {"RS256"}),
        ({**EC, "use": "sig", "key_ops": ["verify"], "x5c": ["ignored"]}, {"ES256"}),
    ],
    ids=["EC", "RSA", "OKP", "RSA for one algorithm", "EC with other members"],  # the keys themselves are new each time
)
def test_public_key_verifies_only_the_algorithms_of_its_key_type(key: dict[str, Any], algorithms: set[str]) -> None:
    assert read_key(key).algorithms == algorithms


BAD: dict[str, dict[str, Any]] = {
    "no type": {},
    "a type that is no text": {"kty": ["EC"]},
    "a secret": {"kty": "oct", "k": "abc"},
    "a private key": ec_key().as_dict(private=True),
    "a private RSA key": rsa_key().as_dict(private=True),
    "for encryption": {**RSA, "use": "enc"},
    "for other operations": {**RSA, "key_ops": ["encrypt"]},
    "operations that are no list": {**RSA, "key_ops": "verify"},
    "for an algorithm that is not used": {**RSA, "alg": "RSA-OAEP"},
    "for an algorithm of another type": {**RSA, "alg": "ES256"},
    "an algorithm that is no text": {**RSA, "alg": 7},
    "a kid that is no text": {**RSA, "kid": 7},
    "another curve": {**EC, "crv": "secp256k1"},
    "no curve": {**EC, "crv": None},
    "a curve of another size": {**EC, "crv": "P-384"},
    "a point that is not on the curve": {**EC, "x": EC["y"]},
    "no point": {"kty": "EC", "crv": "P-256"},
    "a number that is none": {**EC, "x": 7},
    "a number with padding": {**EC, "x": EC["x"] + "="},
    "an edwards curve of no use": {**OKP, "crv": "X25519"},
    "a short edwards key": {**OKP, "x": "abcd"},
    "a short modulus": {**RSA, "n": number((1 << 1023) + 1)},
    "a long modulus": {**RSA, "n": number((1 << 8192) + 1)},
    "a very long modulus": {**RSA, "n": number((1 << 131072) + 1)},
    "a modulus of a length that no number has": {**RSA, "n": RSA["n"][:-1]},
    "a long exponent": {**RSA, "e": number((1 << 64) + 1)},
    "an exponent of one": {**RSA, "e": number(1)},
    "an even exponent": {**RSA, "e": number(4)},
    "no exponent": {**RSA, "e": ""},
}


@pytest.mark.parametrize("key", BAD.values(), ids=BAD)
def test_unusable_public_key_raises_an_error_that_does_not_quote_the_key(key: dict[str, Any]) -> None:
    with pytest.raises(UnusableKey) as raised:
        read_key(key)
    assert not [
        value for value in key.values() if isinstance(value, str) and len(value) > 9 and value in str(raised.value)
    ]


def test_huge_public_key_is_rejected_quickly() -> None:
    began = time.process_time()
    for _ in range(100):
        with pytest.raises(UnusableKey):
            read_key({**RSA, "n": "A" * 100_000})
    assert time.process_time() - began < 1, "a number of that length takes minutes to check"


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_forged_signature_of_any_length_is_refused(algorithm: str) -> None:
    for key in map(read_key, (EC, RSA, OKP)):
        for length in (0, 1, 63, 64, 65, 255, 256, 257, 5000):
            for byte in (b"\x00", b"\xff"):
                assert not key.has_signed(Signed({}, {}, algorithm, None, b"a.b", byte * length))


def test_jwks_keys_that_cannot_verify_signatures_are_skipped() -> None:
    keys = read_key_set({"keys": [{"kty": "oct", "k": "abc"}, {**EC, "kid": "1"}, "text", None, {**RSA, "use": "enc"}]})
    assert [key.kid for key in keys] == ["1"]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"null", b'{"keys":{}}', b'{"keys":[]}', b"\xff", b"[" * 9000, "ä"]
)
def test_malformed_jwks_is_refused(text: bytes | str) -> None:
    with pytest.raises(UnusableKey):
        read_key_set(text)


def test_jwks_that_is_too_large_is_refused() -> None:
    with pytest.raises(UnusableKey, match="1 to 100"):
        read_key_set({"keys": [EC] * 101})
    assert len(read_key_set({"keys": [EC] * 100})) == 100


def test_repr_of_a_public_key_hides_its_contents() -> None:
    assert EC["x"] not in repr(read_key(EC))
