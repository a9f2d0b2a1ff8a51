"""Issuers of signed tokens, and a stand-in for the network that has their keys."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import attrs
import trio
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed

from .asking import ISSUER, NOW, RESOURCE

CLAIMS: Mapping[str, Any] = {
    "iss": ISSUER,
    "aud": RESOURCE,
    "sub": "anna",
    "client_id": "app",
    "scope": "read write",
    "iat": NOW,
    "exp": NOW + 300,
    "jti": "1",
}


@cache
def _ec_key(number: int, curve: Any) -> ECKey:
    return ECKey.generate_key(curve)


def ec_key(number: int = 1, curve: str = "P-256") -> ECKey:
    return _ec_key(number, curve)


@cache
def rsa_key(bits: int = 2048) -> RSAKey:
    return RSAKey.generate_key(bits)


@cache
def okp_key() -> OKPKey:
    return OKPKey.generate_key("Ed25519")


def jwk(key: ECKey | RSAKey | OKPKey, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), **more}


def minted(
    key: Any = None, *, header: Mapping[str, Any] | None = None, without: str | None = None, **claims: Any
) -> str:
    """A token of `CLAIMS`, some of them other."""
    heading = {"typ": "at+jwt", "alg": "ES256", "kid": "1", **(header or {})}
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if name != without}
    return signed_text({name: value for name, value in heading.items() if value is not None}, said, key or ec_key())


def signed_text(header: Mapping[str, Any], claims: Any, key: Any, algorithm: str | None = None) -> str:
    """A token whose header is written as it is, whatever it says, and signed by ``algorithm``."""
    said = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
    sign = JWSRegistry.algorithms[algorithm or header["alg"]].sign
    return f"{said}.{base64url(sign(said.encode(), key))}"


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@attrs.define
class Network:
    """Answers by URL, counted."""

    answers: dict[str, Any] = attrs.field(factory=dict[str, Any])
    asked: list[str] = attrs.field(factory=list[str])
    before_answer: Callable[[], Any] | None = None

    def publish(self, *keys: Mapping[str, Any], issuer: str = ISSUER) -> None:
        self.answers[f"{issuer}/.well-known/oauth-authorization-server"] = {
            "issuer": issuer,
            "jwks_uri": f"{issuer}/keys",
        }
        self.answers[f"{issuer}/keys"] = {"keys": list(keys)}

    async def fetch(self, request: Fetch) -> Fetched:
        self.asked.append(request.url)
        if self.before_answer is not None:
            await self.before_answer()
        else:
            await trio.lowlevel.checkpoint()
        answer = self.answers.get(request.url)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return Fetched(status=404, headers={}, body=b"<html>")
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return Fetched(status=200, headers={}, body=body)

    def is_down(self) -> None:
        self.answers = {url: FetchFailed("refused") for url in self.answers}
