"""Grants: the terms in which all ways to tokens are written.

A way to tokens is a `Machine`, a generator without I/O. A machine starts from settings, which the people who run a
client give, and from a `GrantContext`; asks its driver for a bounded number of steps, each a `Fetch` or a `Visit`; and
ends with a `Grant`, or raises `AuthorizationError` alone. The machines: `sign_in` and `refresh` (authorization_code),
`client_credentials`, `workload_identity` and `enterprise_managed` (machine_clients).

The words of a refusal are chosen by the authorization server, which knows the secrets of the request. So `refused`
repeats no text of an answer but a code: a registered one, or a short one that is like these and has no secret in it.
`ClientBindings` keeps the authorization server that the
secret of a client belongs to.
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
"""Method of a client at a token endpoint (RFC 7591 section 2, ``token_endpoint_auth_method``)."""


@frozen(kw_only=True)
class PreregisteredClient:
    """A client that the people of one authorization server know already.

    A protected server names whichever authorization server its people like. The ``issuer`` says which one may see the
    credentials; without an issuer, a secret or key goes to the first one that any server names, and to no other one
    afterwards (2026-07-28 authorization, Authorization Server Binding).
    """

    client_id: str
    """The client id at the authorization server."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The secret of the client there, if any."""
    private_key: str | Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The key that signs assertions (RFC 7523), as PEM or JWK."""
    signing_algorithm: str | None = None
    """The algorithm of the key (RFC 7518); `None`: the usual one of the key, ``ES256`` for a key on P-256."""
    key_id: str | None = None
    """The ``kid`` by which the authorization server finds the public key; `None`: that of the JWK."""
    auth_method: AuthMethod | None = None
    """`None`: the best that the credentials allow and the authorization server supports."""
    issuer: str | None = None


class ClientBindings:
    """Binds each secret or private key, of a client without a named issuer, to the first issuer that any server names
    (2026-07-28 authorization, Authorization Server Binding). The bindings are kept in ``storage``, for all clients and
    processes that use the same secret there.

    A client without a secret or key is bound to nobody here: its id is not secret, and authorization servers that do
    not know each other give the same one.
    """

    def __init__(self, storage: TokenStorage) -> None:
        self._storage = storage
        self._claimed: dict[str, str] = {}
        """Issuers to which clients are about to be bound, by the names of the bindings."""

    async def issuer_of(self, client: PreregisteredClient) -> str | None:
        """Return the issuer that the credentials of ``client`` belong to; `None` where the first use decides. Raises
        `AuthorizationError`."""
        name = _name_of_binding(client)
        if client.issuer is not None or name is None:
            return client.issuer
        with calling_user_code("the storage of tokens"):
            stored = await self._storage.load(name)
        return None if stored is None else stored.current

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Have `settle` bind the credentials of ``client`` to ``issuer``. Synchronous."""
        name = _name_of_binding(client)
        if name is not None:
            self._claimed[name] = issuer

    async def settle(self) -> None:
        """Keep the claimed bindings. Raises `AuthorizationError` where the credentials belong to another issuer
        already, or the binding cannot be kept: nothing must be sent then."""
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
    """Return the name of the binding of ``client``, which tells nothing of its secret; `None` for a client without
    any."""
    if client.client_secret is None and client.private_key is None:
        return None
    key = client.private_key if isinstance(client.private_key, str | None) else dict(client.private_key)
    credentials = canonical_value([client.client_id, client.client_secret, key])
    return BINDING + hashlib.sha256(credentials).hexdigest()[:32]


def check_belonging(issuer: str, named: Sequence[str]) -> None:
    """Raise `AuthorizationError` unless the ``issuer`` that the credentials of a client belong to is one of those that
    the server has ``named``, a slash at the end aside."""
    if not any(same_issuer(issuer, each) for each in named):
        raise AuthorizationError(
            f"the credentials of this client belong to {shown(issuer)}, and the server uses {shown(named[0])}:"
            " servers of different authorization servers need clients of their own, each with its issuer"
        )


def shown(text: str) -> str:
    """Return what an error says of ``text``, which a stranger has chosen."""
    return repr(text[:200])


@frozen(kw_only=True)
class GrantContext:
    """The start of a machine."""

    server_url: str
    """The canonical URL of the MCP server (2026-07-28 authorization, Canonical Server URI)."""
    stored: StoredAuthorization
    """The record of the client's authorization at this server."""
    challenge: Challenge | None = None
    """The Bearer or DPoP challenge of the refusal; `None` where there was none, or no refusal at all."""
    now: Callable[[], float] = time.time
    """Returns the time in seconds since the epoch. A user may take minutes between two steps."""
    proof_key: ProofKey | None = attrs.field(default=None, repr=False)
    """The key of DPoP, proven at the token endpoint, too; `None` without DPoP."""
    bindings: ClientBindings | None = attrs.field(default=None, repr=False)
    """Binds credentials to the first issuer in use; `None` where nobody remembers."""

    async def bound(self, client: PreregisteredClient) -> PreregisteredClient:
        """Return ``client`` with its issuer, as far as known. Raises `AuthorizationError`."""
        if self.bindings is None:
            return client
        return attrs.evolve(client, issuer=await self.bindings.issuer_of(client))

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Note that the credentials of ``client`` are about to be used at ``issuer``: see `ClientBindings.claim`."""
        if self.bindings is not None and client.issuer is None:
            self.bindings.claim(client, issuer)


@frozen(kw_only=True)
class Grant:
    """The end of a machine, to be kept by ``stored._with_record(issuer, record)``."""

    issuer: str
    """The authorization server, as its metadata names it."""
    record: IssuerRecord
    """The record of that server from now on, tokens included. The proof key is the one that was stored before;
    the `TokenKeeper` adds a new one."""


T = TypeVar("T")


@frozen(kw_only=True)
class Visit:
    """Have the user visit ``url``, and wait until their browser is sent to ``redirect_uri``. The outcome is the URL
    that it was sent to, as `str`, query included."""

    url: str = attrs.field(repr=False)
    redirect_uri: str


Step: TypeAlias = Fetch | Visit
"""A `Fetch`, whose outcome is a `Fetched` (or `FetchFailed`, thrown into the machine), or a `Visit`."""

Machine: TypeAlias = Generator[Step, Any, T]
"""A machine that ends with a ``T``, or raises `AuthorizationError`."""


_CODES: Final = frozenset(
    (
        # RFC 6749 sections 4.1.2.1 and 5.2
        *("access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "server_error"),
        *("temporarily_unavailable", "unauthorized_client", "unsupported_grant_type", "unsupported_response_type"),
        # RFC 7009 section 2.2.1, RFC 7591 section 3.2.2, RFC 8707 section 2, RFC 9449 sections 5 and 8
        *("invalid_client_metadata", "invalid_redirect_uri", "invalid_software_statement", "invalid_target"),
        *("unapproved_software_statement", "unsupported_token_type", "invalid_dpop_proof", "use_dpop_nonce"),
        # RFC 6750 section 3.1 and RFC 9470 section 3; OpenID Connect Core section 3.1.2.6
        *("insufficient_scope", "insufficient_user_authentication", "invalid_token"),
        *("account_selection_required", "consent_required", "interaction_required", "login_required"),
    )
)


_LIKE_A_CODE: Final = re.compile(r"[A-Za-z]+[0-9]*(?:[ _.:-](?:[A-Za-z]+[0-9]*|[0-9]+[A-Za-z]*))*")
"""Words, as in ``bad_redirect_uri``: neither a URL nor the random letters and digits of a secret."""
_LONGEST_CODE: Final = 64


def error_code(body: bytes) -> str | None:
    """Return the ``error`` in an answer, whose word the server has chosen; `None` where the answer has none."""
    try:
        return OAuthErrorResponse.from_json(body).error
    except InvalidDocument:
        return None


def refused(
    what: str, error: str | None, status: int | None = None, secrets: Collection[str | None] = ()
) -> AuthorizationError:
    """Return the error for ``what``, a sentence, was refused with the OAuth error ``error`` and the HTTP status. The
    text has an unregistered ``error`` if it looks like a code, and unless it has one of the ``secrets`` in it."""
    known = error if error in _CODES else None
    word = f"status {status}" if status is not None and error is None else "an unknown error"
    if known is None and error is not None and len(error) <= _LONGEST_CODE and _LIKE_A_CODE.fullmatch(error):
        is_secret = any(secret and (error in secret or secret in error) for secret in secrets)
        word = word if is_secret else error
    return AuthorizationError(f"{what}: {known or word}", code=known)
