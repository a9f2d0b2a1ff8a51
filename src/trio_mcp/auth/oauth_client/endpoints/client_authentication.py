"""Client authentication: how a client names itself at a token endpoint."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import attrs

from ...assertions import ASSERTION_TYPE, basic_credentials, client_assertion
from ...errors import AuthorizationError
from ...storage.stored import RegisteredClient
from ..settings import AuthMethod, PreregisteredClient

SECRET_METHODS: Final[tuple[AuthMethod, ...]] = ("client_secret_post", "client_secret_basic")
"""Methods of clients with a secret, the better one first. All servers read a body alike. Beside a header some require
the ``client_id`` in the body, and others forbid that; some decode the parts of the header, and others do not."""
USUAL_METHODS: Final[tuple[AuthMethod, ...]] = ("client_secret_basic",)
"""Methods of a server that names none (RFC 8414 section 2)."""


@attrs.frozen(kw_only=True)
class TokenClient:
    """A client with all that a token endpoint is told of the client."""

    client_id: str
    auth_method: AuthMethod
    client_secret: str | None = attrs.field(default=None, repr=False)
    key: PreregisteredClient | None = attrs.field(default=None, repr=False)
    """The owner of the key that signs assertions; `None` without a key."""
    kept: RegisteredClient
    """The part that is stored. Secrets that the client's people gave are not."""


def preregistered(client: PreregisteredClient, supported: Collection[str] | None) -> TokenClient:
    """Return a client that the authorization server knows, by the first of its methods that are ``supported``: an
    assertion before a secret, and a secret in the body before one in a header."""
    able: tuple[AuthMethod, ...]
    if client.auth_method is not None:
        able = (client.auth_method,)
    elif client.private_key is not None:
        able = ("private_key_jwt",)
    elif client.client_secret is not None:
        able = SECRET_METHODS
    else:
        able = ("none",)
    listed = USUAL_METHODS if supported is None else supported
    method: AuthMethod = able[-1]
    for better in reversed(able):
        if better in listed:
            method = better
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
            return {"authorization": basic_credentials(client.client_id, client.client_secret or "")}, {}
        case "client_secret_post":
            return {}, {"client_id": client.client_id, "client_secret": client.client_secret or ""}
        case "private_key_jwt":
            assert client.key is not None
            assertion = _assertion(client.key, issuer, now, algorithms)
            return {}, {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
        case "none":
            return {}, {"client_id": client.client_id}


def _assertion(client: PreregisteredClient, issuer: str, now: float, algorithms: Collection[str] | None) -> str:
    """Return a new JWT for one request. The issuer alone is its audience, so nobody can use the JWT elsewhere."""
    assert client.private_key is not None
    try:
        return client_assertion(
            client.client_id,
            issuer,
            client.private_key,
            algorithm=client.signing_algorithm,
            key_id=client.key_id,
            supported=algorithms,
            now=now,
        )
    except (ImportError, ValueError) as error:
        failure = str(error)
    raise AuthorizationError(failure)
