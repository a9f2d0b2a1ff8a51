"""Assertions and secrets: how a client names itself in a request to an endpoint of an authorization server."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

if TYPE_CHECKING:
    from joserfc.jwk import Key

ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
"""The ``client_assertion_type`` of RFC 7523 section 2.2."""
_SECONDS: Final = 60
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
"""Algorithms by curve: RFC 7518 section 3.4, RFC 9864."""
_ALGORITHMS: Final = frozenset(
    ("ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519")
)


def basic_credentials(client_id: str, client_secret: str) -> str:
    """Return the value of Authorization for a client with a secret (RFC 6749 section 2.3.1)."""
    # Both parts are form-encoded first, so that a colon in one of them is no end.
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
    """Return a new JWT for one request to ``issuer``, signed with ``private_key``, a PEM or JWK (RFC 7523 section 2.2).

    ``algorithm`` is by default the usual one of the key, of those that are ``supported`` there, and ``key_id`` that of
    the JWK. ``now`` is in seconds since the epoch. Raises `ImportError` without the extra ``trio-mcp[auth]``, and
    `ValueError` for a key that is of no use; nothing of the key is in the text.
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
        "exp": int(now) + _SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    try:
        key = _imported(private_key)
        chosen = algorithm or _usual_algorithm(key, supported)
        name = key_id or key.kid
        header = {"alg": chosen, **({} if name is None else {"kid": name})}
        if chosen in _ALGORITHMS:
            return jwt.encode(header, claims, key, [chosen])
    except Exception:  # noqa: S110 -- as broken keys raise all kinds of errors, some with the key in them
        pass
    raise ValueError("the private key of the client is no PEM or JWK of a key for its signing algorithm")


def _imported(private_key: str | Mapping[str, Any]) -> Key:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

    if isinstance(private_key, Mapping):
        return import_key({**private_key})
    # Without its type, a text that is no PEM would be taken for a symmetric key.
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            return kind.import_key(private_key)
        except (ValueError, JoseError):
            continue
    raise ValueError("no PEM of a private key")


def _usual_algorithm(key: Key, supported: Collection[str] | None) -> str:
    if key.key_type == "RSA":
        return "PS256" if supported is not None and "RS256" not in supported and "PS256" in supported else "RS256"
    usual = _CURVES[str(key.as_dict(private=False)["crv"])]
    if usual == "Ed25519" and supported is not None and "Ed25519" not in supported and "EdDSA" in supported:
        return "EdDSA"  # the name before RFC 9864
    return usual
