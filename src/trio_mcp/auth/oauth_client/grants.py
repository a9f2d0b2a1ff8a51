"""Building blocks that all OAuth grants (ways to get a token) share.

Each way to get tokens is a `Machine`, a generator without I/O. A machine starts from settings, which the people who run
a client choose, and from a `GrantContext`. It yields a bounded number of steps to its driver, each a `Fetch` or a
`Visit`. It ends with a `Grant`, or raises only `AuthorizationError`. The machines: `sign_in` and `refresh`
(authorization_code), `client_credentials`, `workload_identity` and `enterprise_managed` (machine_clients).

The text of a refusal is written by the authorization server, which knows the secrets of the request. So `refused`
repeats only its error code: a registered one, or a short one that looks like these and contains no secret.
`ClientBindings` stores which authorization server the secret of a client belongs to.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs

from ...classes import frozen
from ...jsonrpc.codec import canonical_value
from ...protocol.authorization import InvalidDocument, OAuthErrorResponse
from ..credentials import AuthorizationError, Challenge, calling_user_code
from ..fetching import Fetch, same_issuer
from ..signing import ProofKey
from ..storage.records import BINDING, IssuerRecord, StoredAuthorization, TokenStorage

AuthMethod: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""The methods with which a client authenticates at a token endpoint (RFC 7591 section 2,
``token_endpoint_auth_method``)."""


@frozen(kw_only=True)
class PreregisteredClient:
    """A client that is already registered at one authorization server.

    A protected server may name any authorization server. ``issuer`` says which one may get the credentials. Without an
    issuer, a secret or key is sent to the first one that any server names, and to no other afterwards (2026-07-28
    authorization, Authorization Server Binding).
    """

    client_id: str
    """The client id at the authorization server."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The client's secret at the authorization server, if any."""
    private_key: str | Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The private key that signs assertions (RFC 7523), as PEM or JWK."""
    signing_algorithm: str | None = None
    """The algorithm of the key (RFC 7518). `None` means the usual algorithm for the key, such as ``ES256`` for a key on
    P-256."""
    key_id: str | None = None
    """The ``kid`` by which the authorization server finds the public key. `None` means the ``kid`` of the JWK."""
    auth_method: AuthMethod | None = None
    """The method with which the client authenticates. `None` means the best method that the credentials allow and the
    authorization server supports."""
    issuer: str | None = None
    """URL of the authorization server that gets the credentials; `None` for the first that is named."""


class ClientBindings:
    """Stores which issuer a client's secret or private key belongs to (2026-07-28 authorization, Authorization Server
    Binding).

    A secret or key belongs to the first issuer for which it is used, unless the client has a configured issuer.

    The bindings are kept in ``storage``, for all clients and processes that use the same secret there. A client without
    a secret or key isn't bound: its id isn't secret, and unrelated authorization servers may assign the same id.
    """

    def __init__(self, storage: TokenStorage) -> None:
        self._storage = storage
        self._claimed: dict[str, str] = {}
        """The issuers to which credentials are about to be bound, by the names of the bindings."""

    async def issuer_of(self, client: PreregisteredClient) -> str | None:
        """Return the issuer that the credentials of ``client`` are bound to; `None` if they haven't been used yet.

        Raises `AuthorizationError` if the stored binding can't be read.
        """
        name = _name_of_binding(client)
        if client.issuer is not None or name is None:
            return client.issuer
        with calling_user_code("the storage of tokens"):
            stored = await self._storage.load(name)
        return None if stored is None else stored.current

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Record that the credentials of ``client`` will be sent to ``issuer``. The next call of `settle` stores that
        the credentials belong to this issuer.

        Synchronous.
        """
        name = _name_of_binding(client)
        if name is not None:
            self._claimed[name] = issuer

    async def settle(self) -> None:
        """Store, for each OAuth client that was passed to `claim`, the issuer to which its credentials belong.

        Raises `AuthorizationError` if the credentials already belong to another issuer, or if the binding can't be
        stored. After such an error, don't send the credentials.
        """
        while self._claimed:
            name, issuer = next(iter(self._claimed.items()))
            with calling_user_code("the storage of tokens"):
                async with self._storage.lock(name):
                    stored = await self._storage.load(name) or StoredAuthorization()
                    if stored.current is None:
                        await self._storage.save(name, stored._with_record(issuer, IssuerRecord()))
            if stored.current is not None:
                check_belonging(stored.current, (issuer,))
            del self._claimed[name]


def _name_of_binding(client: PreregisteredClient) -> str | None:
    """Return the key under which the storage remembers which issuer ``client`` belongs to. Returns `None` if the client
    has neither a secret nor a private key.

    The key doesn't reveal the secret.
    """
    if client.client_secret is None and client.private_key is None:
        return None
    key = client.private_key if isinstance(client.private_key, str | None) else dict(client.private_key)
    credentials = canonical_value([client.client_id, client.client_secret, key])
    return BINDING + hashlib.sha256(credentials).hexdigest()[:32]


def check_belonging(issuer: str, named: Sequence[str]) -> None:
    """Check that ``issuer``, which the client's credentials belong to, is one of ``named``, the issuers that the MCP
    server has named.

    The credentials belong to ``issuer``. Raises `AuthorizationError` if ``named`` doesn't contain it.

    A trailing slash is ignored.
    """
    if not any(same_issuer(issuer, each) for each in named):
        raise AuthorizationError(
            f"the credentials of this client belong to {shown(issuer)}, but the server uses {shown(named[0])}:"
            " use a separate client, with its own issuer=, for each authorization server"
        )


def shown(text: str) -> str:
    """Return ``text``, which comes from an untrusted source, in a form that is safe to quote in error messages."""
    return repr(text[:200])


@frozen(kw_only=True)
class GrantContext:
    """The data that each OAuth grant needs, such as the MCP server's URL, the stored record of the client's
    authorization, and the server's challenge."""

    server_url: str
    """The canonical URL of the MCP server (2026-07-28 authorization, Canonical Server URI)."""
    stored: StoredAuthorization
    """The stored record of the client's authorization at this server."""
    challenge: Challenge | None = None
    """The Bearer or DPoP challenge in the server's refusal; `None` if there was no challenge or no refusal."""
    now: Callable[[], float] = time.time
    """A function that returns the current time in seconds since the epoch. A user may take minutes between two
    steps."""
    proof_key: ProofKey | None = attrs.field(default=None, repr=False)
    """The DPoP key, which is also proven at the token endpoint; `None` without DPoP."""
    bindings: ClientBindings | None = attrs.field(default=None, repr=False)
    """Binds credentials to the first issuer at which they are used; `None` if no bindings are stored."""

    async def bound(self, client: PreregisteredClient) -> PreregisteredClient:
        """Return ``client`` with its field ``issuer`` set to the issuer that the client's credentials are bound to.

        If the credentials aren't bound, return ``client`` unchanged. Raises `AuthorizationError` if the stored binding
        can't be read.
        """
        if self.bindings is None:
            return client
        return attrs.evolve(client, issuer=await self.bindings.issuer_of(client))

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Record that the credentials of ``client`` are about to be sent to ``issuer``: see `ClientBindings.claim`."""
        if self.bindings is not None and client.issuer is None:
            self.bindings.claim(client, issuer)


@frozen(kw_only=True)
class Grant:
    """The result of an OAuth grant: the issuer, and a record to store that contains the issued tokens."""

    issuer: str
    """The issuer URL of the authorization server, as in its metadata."""
    record: IssuerRecord
    """The new record of that authorization server, including tokens. The record has the DPoP key that was stored
    before; the `TokenKeeper` adds a new key."""


T = TypeVar("T")


@frozen(kw_only=True)
class Visit:
    """A step of a sign-in: open ``url`` in the user's browser, and wait until the browser is redirected to
    ``redirect_uri``.

    The result of the step is the URL of the redirect as a `str`, including its query.
    """

    url: str = attrs.field(repr=False)
    redirect_uri: str


Step: TypeAlias = Fetch | Visit
"""A step of a grant: a `Fetch`, whose outcome is a `Fetched` (or `FetchFailed`, raised inside the generator), or a
`Visit`."""

Machine: TypeAlias = Generator[Step, Any, T]
"""A generator that yields the steps of an OAuth flow, and returns a ``T`` or raises `AuthorizationError`."""


_CODES: Final = frozenset(
    (
        # Error codes of RFC 6749, sections 4.1.2.1 and 5.2.
        *("access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "server_error"),
        *("temporarily_unavailable", "unauthorized_client", "unsupported_grant_type", "unsupported_response_type"),
        # Error codes of RFC 7009, RFC 7591, RFC 8707 and RFC 9449.
        *("invalid_client_metadata", "invalid_redirect_uri", "invalid_software_statement", "invalid_target"),
        *("unapproved_software_statement", "unsupported_token_type", "invalid_dpop_proof", "use_dpop_nonce"),
        # Error codes of RFC 6750, RFC 9470 and OpenID Connect Core.
        *("insufficient_scope", "insufficient_user_authentication", "invalid_token"),
        *("account_selection_required", "consent_required", "interaction_required", "login_required"),
    )
)


_LIKE_A_CODE: Final = re.compile(r"[A-Za-z]+[0-9]*(?:[ _.:-](?:[A-Za-z]+[0-9]*|[0-9]+[A-Za-z]*))*")
"""Matches error codes that consist of words, such as ``bad_redirect_uri``, but not URLs, and not the random letters and
digits of a secret."""
_LONGEST_CODE: Final = 64


def error_code(body: bytes) -> str | None:
    """Return the OAuth error code in ``body``, the JSON body of an HTTP response.

    Returns `None` if ``body`` has no field ``error``. The error code comes from an untrusted server, and may be any
    text.
    """
    try:
        return OAuthErrorResponse.from_json(body).error
    except InvalidDocument:
        return None


def refused(
    what: str, error: str | None, status: int | None = None, secrets: Collection[str | None] = ()
) -> AuthorizationError:
    """Return the exception for a request that an authorization server has refused. ``error`` is the OAuth error code in
    the response, and ``status`` is its HTTP status.

    ``what`` is a sentence that says what was refused. An unregistered ``error`` is quoted only if it looks like an
    error code and contains none of the ``secrets``.
    """
    known = error if error in _CODES else None
    word = f"status {status}" if status is not None and error is None else "an unknown error"
    if known is None and error is not None and len(error) <= _LONGEST_CODE and _LIKE_A_CODE.fullmatch(error):
        is_secret = any(secret and (error in secret or secret in error) for secret in secrets)
        word = word if is_secret else error
    return AuthorizationError(f"{what}: {known or word}", code=known)
