"""Settings of the grants, as the people who run a client give: each class with the credentials of its grant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How a client names itself at a token endpoint (RFC 7591 section 2, ``token_endpoint_auth_method``)."""


@attrs.frozen(kw_only=True)
class PreregisteredClient:
    """A client that the people of one authorization server know already.

    A protected server names whichever authorization server its people like. The ``issuer`` says which one may see the
    credentials; without an issuer, a secret or key goes to the first one that any server names, and to no other one
    afterwards (2026-07-28 authorization, Authorization Server Binding).
    """

    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    private_key: str | Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The key that signs assertions (RFC 7523), as PEM or JWK."""
    signing_algorithm: str | None = None
    """The algorithm of the key (RFC 7518); `None`: the usual one of the key, ``ES256`` for a key on P-256."""
    key_id: str | None = None
    """The ``kid`` by which the authorization server finds the public key; `None`: that of the JWK."""
    auth_method: AuthMethod | None = None
    """`None`: the best that the credentials allow and the authorization server supports."""
    issuer: str | None = None


@attrs.frozen(kw_only=True)
class OAuthSettings:
    """For a user who signs in with a browser (authorization code with PKCE)."""

    redirect_uri: str
    """Where the browser is sent after the user has decided; for a listener on loopback, with its port."""
    client: PreregisteredClient | None = None
    client_metadata_url: str | None = None
    """The client id metadata document of this client: https, with a path. Used where the authorization server
    supports such documents, and no client is preregistered."""
    client_name: str = "trio-mcp"
    """The name that the user reads at an authorization server where the client registers itself."""
    scopes: tuple[str, ...] | None = None
    """Scopes to ask for in place of the ones that the server suggests; `None`: the latter. A step-up adds to either."""
    refreshable: bool = True
    """Whether refresh tokens are wanted, ``offline_access`` included where the authorization server lists it."""


@attrs.frozen(kw_only=True)
class ClientCredentialsSettings:
    """For a program that acts on its own behalf."""

    client: PreregisteredClient
    scopes: tuple[str, ...] | None = None
    """Scopes to ask for in place of the ones that the server suggests; `None`: the latter."""


@attrs.frozen(kw_only=True)
class WorkloadIdentitySettings:
    """For a program with a platform that vouches for the program by a JWT (RFC 7523 section 2.1)."""

    assertion: str = attrs.field(repr=False)
    """The JWT of the platform; its audience is the authorization server, and nobody else is shown the JWT."""
    client_id: str | None = None
    """The client id at the authorization server; `None` where the assertion says enough."""
    issuer: str | None = None
    """The authorization server that may see the assertion; `None`: any that the assertion names as audience."""
    scopes: tuple[str, ...] | None = None
    """Scopes to ask for in place of the ones that the server suggests; `None`: the latter."""


@attrs.frozen(kw_only=True)
class EnterpriseManagedSettings:
    """For a client whose enterprise decides, by its identity provider, which servers its people may use."""

    idp_issuer: str
    """The identity provider."""
    idp_token_endpoint: str | None = None
    """`None`: the one in the metadata of the identity provider."""
    idp_client: PreregisteredClient
    """The client at the identity provider; its ``issuer`` is not looked at."""
    subject_token: str = attrs.field(repr=False)
    """The ID token that the user's sign-in at the identity provider has brought. Nobody else is shown the token."""
    subject_token_type: str = "urn:ietf:params:oauth:token-type:id_token"
    client: PreregisteredClient
    """The client at the authorization server of the MCP server."""
    scopes: tuple[str, ...] | None = None
    """Scopes to ask for in place of the ones that the server suggests; `None`: the latter."""
