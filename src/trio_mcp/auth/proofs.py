"""Proofs of DPoP (RFC 9449): the sender of a token has the key that the token is bound to."""

from __future__ import annotations

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from ..transports.http_client.origin import split_url

if TYPE_CHECKING:
    from joserfc.jwk import ECKey

_ALGORITHM: Final = "ES256"
_CURVE: Final = "P-256"
_KIND: Final = {"kty": "EC", "crv": _CURVE}


@final
class ProofKey:
    """A private key that tokens are bound to, on the curve of ES256. Made by `generate` or `from_jwk`, which need the
    extra ``trio-mcp[auth]``, and raise `ImportError` without."""

    __slots__ = ("_key", "_public", "thumbprint")

    def __init__(self, key: ECKey) -> None:
        self._key = key
        public = key.as_dict(private=False)
        self._public = {name: str(public[name]) for name in ("kty", "crv", "x", "y")}
        self.thumbprint: Final = key.thumbprint()
        """The name of the key (RFC 7638), as in the ``cnf.jkt`` of tokens."""

    def __repr__(self) -> str:
        return f"<ProofKey {self.thumbprint}>"

    @classmethod
    def generate(cls) -> ProofKey:
        """Return a new key."""
        return cls(_key_class().generate_key(_CURVE))

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, object]) -> ProofKey:
        """Return the key that `to_jwk` has written. Raises `ValueError` for anything but a private key for ES256;
        nothing of the key is in the text."""
        key_class = _key_class()
        members = {name: value for name in ("kty", "crv", "x", "y", "d") if isinstance(value := jwk.get(name), str)}
        if members.items() >= _KIND.items() and "d" in members:
            try:
                return cls(key_class.import_key({**members}))
            except Exception:  # noqa: S110 -- as broken keys raise all kinds of errors, some with the key in them
                pass
        raise ValueError("a key of DPoP is the JWK of a private key on the curve P-256")

    def to_jwk(self) -> dict[str, str]:
        """Return the key as a JWK for storage, private part included."""
        return {**self._public, "d": str(self._key.as_dict(private=True)["d"])}

    def proof(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None, now: float) -> str:
        """Return a new proof for one request by ``method`` to ``url`` (RFC 9449 section 4.2), sent at ``now``, in
        seconds since the epoch.

        ``token`` is the access token of the request, if any; ``nonce`` the last one that the server has sent. Raises
        `ValueError` for what is no HTTP URL.
        """
        from joserfc import jwt

        origin, target = split_url(url.partition("#")[0])
        claims: dict[str, str | int] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": f"{origin}{target.partition('?')[0]}",
            "iat": int(now),
        }
        if token is not None:
            claims["ath"] = urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode("ascii")
        if nonce is not None:
            claims["nonce"] = nonce
        header = {"typ": "dpop+jwt", "alg": _ALGORITHM, "jwk": self._public}
        return jwt.encode(header, claims, self._key, [_ALGORITHM])


def _key_class() -> type[ECKey]:
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise ImportError("DPoP needs joserfc: install trio-mcp[auth]") from None
    return ECKey
