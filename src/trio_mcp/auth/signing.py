"""Creates the signed JWTs of a client: client assertions, which authenticate the client, and DPoP proofs.

`client_assertion` authenticates a client at an endpoint of an authorization server (RFC 7523), as `basic_credentials`
does with a secret. `ProofKey` makes DPoP proofs, which show that the sender of a token has its key (RFC 9449). joserfc
is imported when something is signed.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import quote_plus

from ..transports.http_client.origins import split_url

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, Key

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
"""The ``client_assertion_type`` of RFC 7523 section 2.2."""
_ASSERTION_SECONDS: Final = 60
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
"""The signature algorithms, by the curve of the key (RFC 7518 section 3.4, RFC 9864)."""
_ASSERTION_ALGORITHMS: Final = frozenset(
    ("ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519")
)


def basic_credentials(client_id: str, client_secret: str) -> str:
    """Return the value of the Authorization header that authenticates a client with its secret (HTTP Basic, RFC 6749
    section 2.3.1)."""
    # Form-encode the id and the secret first, so that a colon in one of them isn't read as the separator.
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def client_assertion(
    client_id: str,
    issuer: str,
    private_key: str | Mapping[str, Any],
    *,
    algorithm: str | None = None,
    key_id: str | None = None,
    supported: Collection[str] | None = None,
    now: float,
) -> str:
    """Return a new JWT that authenticates the client in one request to ``issuer`` (RFC 7523 section 2.2). It is signed
    with ``private_key``, a PEM or JWK.

    Args:
        algorithm: By default the usual one for the key among those that the server has listed as ``supported``.
        key_id: By default the ``kid`` of the JWK.
        now: The time in seconds since the epoch.

    Raises:
        ImportError: The extra ``trio-mcp[auth]`` isn't installed.
        ValueError: The key can't be used; the message contains nothing of the key.
    """
    try:
        from joserfc import jwt
    except ImportError:
        raise ImportError("private_key_jwt needs joserfc: install trio-mcp[auth]") from None
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "iat": int(now),
        "exp": int(now) + _ASSERTION_SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    try:
        key = _imported(private_key)
        chosen = algorithm or _usual_algorithm(key, supported)
        name = key_id or key.kid
        header = {"alg": chosen, **({} if name is None else {"kid": name})}
        if chosen in _ASSERTION_ALGORITHMS:
            return jwt.encode(header, claims, key, [chosen])
    except Exception:  # noqa: S110 -- invalid keys raise all kinds of errors, some of which contain the key
        pass
    raise ValueError("private_key must be the PEM or JWK of a private key for the signing algorithm")


def _imported(private_key: str | Mapping[str, Any]) -> Key:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

    if isinstance(private_key, Mapping):
        return import_key({**private_key})
    # Pass the type of the key: without it, a string that isn't a PEM would be read as a symmetric key.
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            return kind.import_key(private_key)
        except (ValueError, JoseError):
            continue
    raise ValueError("private_key is not the PEM of a private key")


def _usual_algorithm(key: Key, supported: Collection[str] | None) -> str:
    if key.key_type == "RSA":
        return "PS256" if supported is not None and "RS256" not in supported and "PS256" in supported else "RS256"
    usual = _CURVES[str(key.as_dict(private=False)["crv"])]
    if usual == "Ed25519" and supported is not None and "Ed25519" not in supported and "EdDSA" in supported:
        return "EdDSA"  # before RFC 9864, EdDSA was the name of Ed25519 signatures
    return usual


_PROOF_ALGORITHM: Final = "ES256"
_PROOF_CURVE: Final = "P-256"
_PROOF_KEY_KIND: Final = {"kty": "EC", "crv": _PROOF_CURVE}


@final
class ProofKey:
    """A private key for DPoP (ES256), which tokens can be bound to.

    Create it with `generate` or `from_jwk`; both need the extra ``trio-mcp[auth]``, and raise `ImportError` without it.
    """

    __slots__ = ("_key", "_public", "thumbprint")

    def __init__(self, key: ECKey) -> None:
        self._key = key
        public = key.as_dict(private=False)
        self._public = {name: str(public[name]) for name in ("kty", "crv", "x", "y")}
        self.thumbprint: Final = key.thumbprint()
        """The thumbprint of the key (RFC 7638), as in the ``cnf.jkt`` of tokens."""

    def __repr__(self) -> str:
        return f"<ProofKey {self.thumbprint}>"

    @classmethod
    def generate(cls) -> ProofKey:
        """Return a new random private key for DPoP."""
        return cls(_key_class().generate_key(_PROOF_CURVE))

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, object]) -> ProofKey:
        """Return the DPoP key in ``jwk``, a dict that `to_jwk` returned.

        Raises `ValueError` if ``jwk`` isn't a private key for ES256. The error's message contains no part of the key.
        """
        key_class = _key_class()
        members = {name: value for name in ("kty", "crv", "x", "y", "d") if isinstance(value := jwk.get(name), str)}
        if members.items() >= _PROOF_KEY_KIND.items() and "d" in members:
            try:
                return cls(key_class.import_key({**members}))
            except Exception:  # noqa: S110 -- invalid keys raise all kinds of errors, some of which contain the key
                pass
        raise ValueError("a DPoP key must be the JWK of a private key on the curve P-256")

    def to_jwk(self) -> dict[str, str]:
        """Return the DPoP key as a JWK for storage. The JWK contains the private key."""
        return {**self._public, "d": str(self._key.as_dict(private=True)["d"])}

    def proof(self, method: str, url: str, *, token: str | None = None, nonce: str | None = None, now: float) -> str:
        """Return a new DPoP proof for one request with the HTTP method ``method`` to ``url``.

        ``now`` is the current time in seconds since the epoch (RFC 9449 section 4.2).

        ``token`` is the access token of the request, if any; ``nonce`` is the last one that the server has sent. Raises
        `ValueError` unless ``url`` is an HTTP URL.
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
        header = {"typ": "dpop+jwt", "alg": _PROOF_ALGORITHM, "jwk": self._public}
        return jwt.encode(header, claims, self._key, [_PROOF_ALGORITHM])


def _key_class() -> type[ECKey]:
    try:
        from joserfc.jwk import ECKey
    except ImportError:
        raise ImportError("DPoP needs joserfc: install trio-mcp[auth]") from None
    return ECKey
