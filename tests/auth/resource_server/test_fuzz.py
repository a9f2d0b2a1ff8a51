"""Tokens, proofs and headers of clients that try everything: no crash, and nobody is let in."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest
from tests.examples import examples

from trio_mcp.auth import JWTVerifier
from trio_mcp.auth.credentials import parse_challenges
from trio_mcp.auth.resource_server.protected import Gate
from trio_mcp.auth.resource_server.refusals import Refusal
from trio_mcp.auth.signing import ProofKey

from .asking import ISSUER, NOW, RESOURCE, Head, Verifier, anna, asked, bearing, protected
from .minting import ec_key, jwk, minted, okp_key

BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ANYTHING = [*BASE64URL, *'=.+/ ,"\\%{}[]:\t~!()', "\x00", "\x7f", "é", "ÿ"]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1e308, 10**25, "", "none", "HS256", "ES256", "at+jwt", "dpop+jwt", RESOURCE, ISSUER),
    *([], {}, [RESOURCE], [[]], {"keys": []}, {"jkt": "a"}, "é", "a" * 300, jwk(okp_key()), jwk(ec_key(9))),
]
"""What the parts of a token may say, all at the wrong place."""

Mutation = Callable[[random.Random, str], str]


def other_character(chance: random.Random, text: str) -> str:
    place = chance.randrange(len(text))
    return text[:place] + chance.choice(BASE64URL if chance.random() < 0.8 else ANYTHING) + text[place + 1 :]


def more_or_less(chance: random.Random, text: str) -> str:
    first, last = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
    return text[:first] + (text[last:] if chance.random() < 0.5 else text[first:last] * 2 + text[first:])


def other_parts(chance: random.Random, text: str) -> str:
    parts = text.split(".")
    chance.shuffle(parts)
    return ".".join(parts[: chance.randrange(4)] + chance.choices(["", "e30", *parts], k=chance.randrange(3)))


def other_words(chance: random.Random, text: str) -> str:
    """The token with another header or other claims, and the old signature."""
    parts = text.split(".")
    place = chance.randrange(2)
    said = json.loads(_decoded(parts[place]))
    for _ in range(chance.randrange(1, 4)):
        names = [*said, "alg", "typ", "kid", "jwk", "jku", "x5c", "crit", "b64", "aud", "exp", "nbf", "cnf", "nonce"]
        said[chance.choice(names)] = chance.choice(VALUES)
    parts[place] = urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
    return ".".join(parts)


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


MUTATIONS: list[Mutation] = [other_character, more_or_less, other_parts, other_words]


def mutated(chance: random.Random, good: list[str], number: int) -> list[str]:
    texts = list[str]()
    while len(texts) < number:
        text = chance.choice(MUTATIONS)(chance, chance.choice(good))
        if text not in good:
            texts.append(text)
    return texts


async def test_mutated_jwts_are_refused() -> None:
    chance = random.Random(13)
    good = [minted(), minted(okp_key(), header={"alg": "Ed25519", "kid": None}), minted(aud=[RESOURCE], scope=["a"])]
    keys = {"keys": [jwk(ec_key(), kid="1"), jwk(okp_key())]}
    verify = JWTVerifier(keys=keys, require_typ=False)._at(RESOURCE, [ISSUER], lambda: NOW).verify
    assert all([await verify(token) for token in good])
    for token in mutated(chance, good, examples(100_000)):
        assert await verify(token) is None, token


async def test_mutated_dpop_proofs_are_refused() -> None:
    chance, key = random.Random(13), ProofKey.generate()
    verifier = Verifier(bound=anna(key_thumbprint=key.thumbprint))
    gate = protected(verifier, dpop="required")._gate(now=lambda: NOW)
    good = [key.proof("POST", RESOURCE, token="bound", now=NOW) for _ in range(3)]
    await asked(gate, Head({"authorization": "DPoP bound", "dpop": good[0]}))
    for proof in mutated(chance, good, examples(10_000)):
        refusal = gate.known(Head({"authorization": "DPoP bound", "dpop": proof}))
        check(refusal, proof)


def check(refusal: object, cause: str) -> None:
    assert isinstance(refusal, Refusal), cause
    for name, value in refusal.headers:
        assert value.isascii(), cause
        assert value.isprintable(), cause
        if name == "WWW-Authenticate":
            (challenge,) = parse_challenges(value)
            assert challenge.params["resource_metadata"].startswith("https://mcp.example.com/.well-known/"), cause


@pytest.fixture
def gates() -> list[Gate]:
    by_key = JWTVerifier(keys={"keys": [jwk(ec_key(), kid="1")]})
    return [
        protected(by_key, scopes=["a"])._gate(now=lambda: NOW),
        protected(by_key, dpop="accepted")._gate(now=lambda: NOW),
        protected(Verifier(), dpop="required", dpop_nonces=True)._gate(now=lambda: NOW),
    ]


async def test_random_authorization_headers_are_refused(gates: list[Gate]) -> None:
    chance = random.Random(13)
    starts = ["Bearer ", "bearer  ", "DPoP ", "Basic ", "Bearer", "", " ", "Bearer,", "Bearer =", "Bearer x=", ","]
    for _ in range(examples(10_000)):
        value = chance.choice(starts) + "".join(chance.choices(ANYTHING, k=chance.randrange(40)))
        headers = {"authorization": value}
        if chance.random() < 0.5:
            headers["dpop"] = "".join(chance.choices(ANYTHING, k=chance.randrange(40)))
        repeated = frozenset(chance.sample(["authorization", "dpop", "x"], chance.randrange(3)))
        for gate in gates:
            check(await asked(gate, Head(headers, repeated)), repr(headers))


@pytest.mark.parametrize("size", [10_000, 1_000_000])
async def test_long_authorization_and_dpop_headers_are_parsed_in_linear_time(gates: list[Gate], size: int) -> None:
    for text in ("a", "Bearer ", "Bearer" + " " * 10, "=", "a.", "DPoP a,"):
        check(await asked(gates[1], Head({"authorization": (text * size)[:size], "dpop": text})), text)
    check(await asked(gates[1], bearing("a" * size)), "a token")
