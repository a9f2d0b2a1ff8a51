"""Client authentication: how a client names itself at a token endpoint."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import attrs

from ...errors import AuthorizationError
from ...storage.stored import RegisteredClient
from ..settings import AuthMethod, PreregisteredClient

if TYPE_CHECKING:
    from joserfc.jwk import Key

__all__ = ["SECRET_METHODS", "TokenClient", "authentication", "preregistered"]

SECRET_METHODS: Final[tuple[AuthMethod, ...]] = ("client_secret_basic", "client_secret_post")
"""Methods of clients with a secret, the better one first (RFC 6749 section 2.3.1)."""
_JWT_BEARER: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS: Final = 60
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
"""Algorithms by curve: RFC 7518 section 3.4, RFC 9864."""
_ALGORITHMS: Final = frozenset(
    ("ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519")
)


@attrs.frozen(kw_only=True)
class TokenClient:
    """A client with all by which it names itself at one authorization server."""

    client_id: str
    auth_method: AuthMethod
    client_secret: str | None = attrs.field(default=None, repr=False)
    key: PreregisteredClient | None = attrs.field(default=None, repr=False)
    """The owner of the key that signs assertions; `None` without a key."""
    kept: RegisteredClient
    """The part that is stored. Secrets that the client's people gave are not."""


def preregistered(client: PreregisteredClient, supported: Collection[str] | None) -> TokenClient:
    """Return a client that the authorization server knows, by the first of its methods that are ``supported``: an
    assertion before a secret, and a secret in a header before one in the body (RFC 6749 section 2.3.1)."""
    able: tuple[AuthMethod, ...]
    if client.auth_method is not None:
        able = (client.auth_method,)
    elif client.private_key is not None:
        able = ("private_key_jwt",)
    elif client.client_secret is not None:
        able = SECRET_METHODS
    else:
        able = ("none",)
    method = able[0]
    for other in able:
        if supported is not None and method not in supported and other in supported:
            method = other
    if method == "private_key_jwt" and client.private_key is None:
        raise AuthorizationError("private_key_jwt needs the private key of the client")
    if method in SECRET_METHODS and client.client_secret is None:
        raise AuthorizationError(f"{method} needs the secret of the client")
    return TokenClient(
        client_id=client.client_id,
        auth_method=method,
        client_secret=client.client_secret,
        key=client,
        kept=RegisteredClient(client_id=client.client_id, auth_method=method),
    )


def authentication(
    client: TokenClient, issuer: str, now: float, algorithms: Collection[str] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and the form parameters by which ``client`` names itself in one request to the token endpoint
    of ``issuer``, which takes signatures by ``algorithms``. Raises `AuthorizationError` for a key that is of no use.

    RFC 6749 sections 2.3.1 and 3.2.1, RFC 7523 section 2.2.
    """
    match client.auth_method:
        case "client_secret_basic":
            # Both parts are form-encoded first, so that a colon in one of them is no end.
            pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret or '')}"
            return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}, {}
        case "client_secret_post":
            return {}, {"client_id": client.client_id, "client_secret": client.client_secret or ""}
        case "private_key_jwt":
            assert client.key is not None
            assertion = _assertion(client.key, issuer, now, algorithms)
            return {}, {"client_assertion_type": _JWT_BEARER, "client_assertion": assertion}
        case "none":
            return {}, {"client_id": client.client_id}


def _assertion(client: PreregisteredClient, issuer: str, now: float, algorithms: Collection[str] | None) -> str:
    """Return a new JWT for one request. The issuer alone is its audience, so nobody can use the JWT elsewhere."""
    try:
        from joserfc import jwt
    except ImportError:
        raise AuthorizationError("private_key_jwt needs joserfc: install trio-mcp[auth]") from None
    claims = {
        "iss": client.client_id,
        "sub": client.client_id,
        "aud": issuer,
        "iat": int(now),
        "exp": int(now) + _ASSERTION_SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    try:
        key = _imported(client.private_key)
        algorithm = client.signing_algorithm or _usual_algorithm(key, algorithms)
        key_id = client.key_id or key.kid
        header = {"alg": algorithm, **({} if key_id is None else {"kid": key_id})}
        if algorithm in _ALGORITHMS:
            return jwt.encode(header, claims, key, [algorithm])
    except Exception:  # noqa: S110 -- as broken keys raise all kinds of errors, some with the key in them
        pass
    raise AuthorizationError("the private key of the client is no PEM or JWK of a key for its signing algorithm")


def _imported(private_key: str | Mapping[str, Any] | None) -> Key:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

    if isinstance(private_key, Mapping):
        return import_key({**private_key})
    assert private_key is not None
    # Without its type, a text that is no PEM would be taken for a symmetric key.
    for kind in (ECKey, RSAKey, OKPKey):
        try:
            return kind.import_key(private_key)
        except (ValueError, JoseError):
            continue
    raise ValueError("no PEM of a private key")


def _usual_algorithm(key: Key, algorithms: Collection[str] | None) -> str:
    if key.key_type == "RSA":
        return "PS256" if algorithms is not None and "RS256" not in algorithms and "PS256" in algorithms else "RS256"
    usual = _CURVES[str(key.as_dict(private=False)["crv"])]
    if usual == "Ed25519" and algorithms is not None and "Ed25519" not in algorithms and "EdDSA" in algorithms:
        return "EdDSA"  # the name before RFC 9864
    return usual
