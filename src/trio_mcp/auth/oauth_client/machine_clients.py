"""OAuth clients without user interaction: programs with their own credentials, workloads, and enterprise-managed
clients.

Each configuration has its grant below: client credentials (RFC 6749 section 4.4; the extension
``io.modelcontextprotocol/oauth-client-credentials``), a signed statement about the caller (JWT bearer, RFC 7523 section
2.1), and the exchange of a user's token at the identity provider of an enterprise (the extension
``io.modelcontextprotocol/enterprise-managed-authorization``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import attrs
import msgspec

from ...classes import frozen
from ...jsonrpc.codec import decode_base64url
from ...protocol.authorization import ServerMetadata
from ..credentials import AuthorizationError, Credentials, Secret, UserIsAsked, current_secret
from ..storage.records import RegisteredClient
from .acquisition import RunMachine, TokenSource
from .discovery import AuthorizationServer, discover, known_issuer, metadata_of, scope_parameter, scopes_at
from .grants import AuthMethod, Grant, GrantContext, Machine, PreregisteredClient
from .token_keeper import OAuthClient
from .token_request import TokenClient, ask, granted, preregistered


@frozen(kw_only=True)
class _MachineClient(OAuthClient, TokenSource):
    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return a context manager that yields the OAuth `Credentials` for the server at ``server_url``. See
        `ClientAuth`."""
        return self._open_keeper(server_url, self)


@frozen
class ClientCredentials(_MachineClient):
    """Authorizes a program that acts on its own behalf (2026-07-28 ext-auth, OAuth Client Credentials).

    The authorization server identifies the client by ``client_id`` and either a secret or a private key. Raises
    `ValueError` if there is neither, since anybody could impersonate such a client.
    """

    client_id: str
    """The client id at the authorization server."""
    client_secret: str | None = attrs.field(default=None, repr=False, kw_only=True)
    """The client's secret at the authorization server, or an async function that returns it."""
    private_key: str | Mapping[str, Any] | None = attrs.field(default=None, repr=False, kw_only=True)
    """The private key that signs assertions (RFC 7523), as PEM or JWK. Needs ``trio-mcp[auth]``."""
    signing_algorithm: str | None = attrs.field(default=None, kw_only=True)
    """The algorithm of the key. `None` means the usual algorithm for the key."""
    key_id: str | None = attrs.field(default=None, kw_only=True)
    """The ``kid`` by which the authorization server finds the public key. `None` means the ``kid`` of the JWK, if it
    has one."""
    auth_method: AuthMethod | None = attrs.field(default=None, kw_only=True)
    """The method with which the client authenticates. `None` means the best method that the credentials allow and the
    authorization server supports."""
    issuer: str | None = attrs.field(default=None, kw_only=True)
    """The authorization server that the credentials belong to, compared character by character except for a trailing
    slash. `None` means the first authorization server that any server names. That choice is stored in ``storage``; if a
    server names another authorization server later, an error is raised."""

    def __attrs_post_init__(self) -> None:
        if self.client_secret is None and self.private_key is None:
            raise ValueError("ClientCredentials needs a client_secret or a private_key")

    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        """Get new tokens with the client's own credentials. See `TokenSource._acquire`."""
        client = PreregisteredClient(**{each: getattr(self, each) for each in attrs.fields_dict(PreregisteredClient)})
        await run(client_credentials(await context.bound(client), context, self.scopes), None)


@frozen
class WorkloadIdentity(_MachineClient):
    """Authorizes a program with a JWT (assertion) from the platform on which the program runs (RFC 7523 section 2.1).

    ``assertion`` is the JWT, with the authorization server as its audience, or an async function that returns the
    current one and is called for each new token.
    """

    assertion: Secret = attrs.field(repr=False)
    """The JWT of the platform, or an async function that returns the current one."""
    client_id: str | None = attrs.field(default=None, kw_only=True)
    """The client id at the authorization server; `None` if the assertion identifies the client."""
    issuer: str | None = attrs.field(default=None, kw_only=True)
    """The authorization server that may receive the assertion. `None` means any server that the assertion names as
    audience."""

    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        """Get new tokens with the JWT that the platform has issued for this program. See `TokenSource._acquire`."""
        assertion = await current_secret(self.assertion, "the function assertion")
        await run(workload_identity(attrs.evolve(self, assertion=assertion), context), None)


@frozen
class EnterpriseManaged(_MachineClient):
    """Authorizes a client whose enterprise decides which servers its employees may use (2026-07-28 ext-auth,
    Enterprise-Managed Authorization).

    ``subject_token`` is the ID token of the user who has signed in at the identity provider ``idp_issuer``, or an async
    function that returns the current one and is called for each new token.
    """

    idp_issuer: str = attrs.field(kw_only=True)
    """The issuer URL of the identity provider."""
    idp_client: PreregisteredClient = attrs.field(kw_only=True)
    """The client's registration at the identity provider."""
    subject_token: Secret = attrs.field(repr=False, kw_only=True)
    """The user's ID token from ``idp_issuer``, or an async function that returns the current one."""
    client: PreregisteredClient = attrs.field(kw_only=True)
    """The client's registration at the authorization server of the MCP server."""
    idp_token_endpoint: str | None = attrs.field(default=None, kw_only=True)
    """The token endpoint of the identity provider. `None` means the endpoint in the provider's metadata."""
    subject_token_type: str = attrs.field(default="urn:ietf:params:oauth:token-type:id_token", kw_only=True)
    """The type of ``subject_token`` (RFC 8693)."""

    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        """Get new tokens with a grant from the enterprise's identity provider. See `TokenSource._acquire`."""
        subject_token = await current_secret(self.subject_token, "the function subject_token")
        client = await context.bound(self.client)
        await run(enterprise_managed(attrs.evolve(self, subject_token=subject_token, client=client), context), None)


def client_credentials(
    known: PreregisteredClient, context: GrantContext, configured: tuple[str, ...] | None = None
) -> Machine[Grant]:
    """Find the authorization server, and return the tokens that it issues for the client's own credentials
    (``client_credentials`` grant).

    If the challenge says ``insufficient_scope``, all scopes that were requested before are requested as well.
    ``configured``: see `scopes_at`. Fetches at most seven URLs, besides the repeated request that a DPoP nonce demands.
    """
    found = yield from discover(context, known_issuer(known, context.stored))
    context.claim(known, found.issuer)
    client = preregistered(known, found.metadata)
    scopes = scopes_at(found, configured, context)
    return (yield from granted({"grant_type": "client_credentials"}, found, client, scopes, context))


_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class _AudienceClaim(msgspec.Struct):
    aud: str | list[str]


def workload_identity(settings: WorkloadIdentity, context: GrantContext) -> Machine[Grant]:
    """Find the authorization server, and return the tokens that it issues for ``assertion``, the JWT from the client's
    platform.

    Fetches at most seven URLs, besides the repeated request that a DPoP nonce demands. A refusal is final: another
    assertion may help, the same one won't (``"invalid_grant"``, ``"invalid_scope"``, ``"unauthorized_client"``).
    """
    assert isinstance(settings.assertion, str), "the function was called"
    found = yield from discover(context, settings.issuer)
    if settings.issuer is None and not _is_audience(found, settings.assertion):
        # Check the audience: a hostile server could name another authorization server, and use the JWT there.
        raise AuthorizationError(
            f"the audience of the assertion must be the server's authorization server, {found.issuer[:200]!r}: use an"
            " assertion for that server or, if you trust that server, pass its issuer URL as issuer="
        )
    client_id = settings.client_id
    client = None
    if client_id is not None:
        client = TokenClient(
            client_id=client_id, auth_method="none", registration=RegisteredClient(client_id=client_id)
        )
    scopes = scopes_at(found, settings.scopes, context)
    return (yield from granted(assertion_form(settings.assertion), found, client, scopes, context))


def assertion_form(assertion: str) -> dict[str, str]:
    """Return the form parameters of a token request that exchanges the JWT ``assertion`` for tokens (RFC 7523)."""
    return {"grant_type": _JWT_BEARER, "assertion": assertion}


def _is_audience(found: AuthorizationServer, assertion: str) -> bool:
    """Return whether the JWT ``assertion`` has the authorization server ``found`` as audience: its issuer URL or token
    endpoint (RFC 7523 section 3).

    The JWT's signature isn't verified here, since the authorization server verifies the signature.
    """
    try:
        claims = assertion.split(".")[1]
        audience = msgspec.json.decode(decode_base64url(claims, padded=False), type=_AudienceClaim).aud
    except (IndexError, ValueError, RecursionError):
        return False
    named = [audience] if isinstance(audience, str) else audience
    names = (found.issuer, f"{found.issuer}/", found.issuer.rstrip("/"), found.metadata.token_endpoint)
    return any(name in named for name in names)


_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"


def enterprise_managed(settings: EnterpriseManaged, context: GrantContext) -> Machine[Grant]:
    """Return the tokens that the authorization server issues for a grant by the identity provider of the enterprise.

    Finds the authorization server, exchanges the user's token (``subject_token``) at the identity provider for an
    authorization grant, and exchanges this grant for the tokens.

    Fetches at most eleven URLs, besides the repeated request that a DPoP nonce demands.
    """
    found = yield from discover(context, known_issuer(settings.client, context.stored))
    context.claim(settings.client, found.issuer)
    scopes = scopes_at(found, settings.scopes, context)
    if settings.idp_token_endpoint is None:
        provider = yield from metadata_of(settings.idp_issuer)
    else:
        provider = ServerMetadata(issuer=settings.idp_issuer, token_endpoint=settings.idp_token_endpoint)
    # RFC 8693 section 2: the identity provider issues an authorization grant for the authorization server.
    assert isinstance(settings.subject_token, str), "the function was called"
    form = {
        "grant_type": _EXCHANGE,
        "requested_token_type": _ID_JAG,
        "audience": found.issuer,
        "resource": found.resource,
        **scope_parameter(scopes),
        "subject_token": settings.subject_token,
        "subject_token_type": settings.subject_token_type,
    }
    client = preregistered(settings.idp_client, provider)
    # The identity provider's grant isn't bound to a key, so send no DPoP proof.
    answer = yield from ask(form, provider, client, attrs.evolve(context, proof_key=None))
    # RFC 8693 section 2.2.1: only pass on an authorization grant. Other tokens are for this client alone.
    if answer.issued_token_type != _ID_JAG:
        raise AuthorizationError(
            "the identity provider returned a token that is not an authorization grant (type id-jag)"
        )
    client = preregistered(settings.client, found.metadata)
    return (yield from granted(assertion_form(answer.access_token), found, client, scopes, context))
