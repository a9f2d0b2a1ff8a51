"""Registration: who a client is at an authorization server (2026-07-28 authorization, Client Registration)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from ...protocol.authorization import ClientInformation, ClientMetadata, InvalidDocument, ServerMetadata
from ..credentials import AuthorizationError
from ..fetching import Fetch, Fetched, FetchFailed
from ..storage.records import IssuerRecord, RegisteredClient
from .discovery import scopes_in
from .grants import AuthMethod, Machine, OAuthSettings, error_code, refused
from .token_request import SECRET_METHODS, USUAL_METHODS, TokenClient, preregistered

_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))


def client_at(
    server: ServerMetadata, record: IssuerRecord, settings: OAuthSettings, scopes: tuple[str, ...], now: float
) -> Machine[TokenClient]:
    """Return the client of ``settings`` at ``server``, of which ``record`` is kept: the preregistered one; else its
    metadata document, where the server reads such documents; else the one that has registered itself, now if need be:
    for ``scopes``, since some servers let a client ask for no others. Asks once at most.

    Raises `AuthorizationError` where the server takes no such client.
    """
    url = settings.client_metadata_url
    if settings.client is not None:
        return preregistered(settings.client, server.token_endpoint_auth_methods_supported)
    if url is not None and server.client_id_metadata_document_supported:
        return _documented(url)
    kept = record.client
    if kept is not None and settings.redirect_uri in kept.redirect_uris and not _is_over(kept, now):
        suffices = kept.scopes is None or set(scopes) <= set(kept.scopes)
        if suffices or server.registration_endpoint is None:
            return _registered(kept)
    if server.registration_endpoint is None:
        raise AuthorizationError(
            f"the authorization server {server.issuer[:200]!r} registers no clients by itself: ask its people for a"
            " client id, and give that to this client"
        )
    return (yield from _register(server.registration_endpoint, server, settings, scopes))


def client_of(server: ServerMetadata, record: IssuerRecord, settings: OAuthSettings, now: float) -> TokenClient | None:
    """Return the client that holds the tokens of ``record``; `None` where ``settings`` are of another client now."""
    kept = record.client
    if kept is None or _is_over(kept, now):
        return None
    if kept.redirect_uris:
        return _registered(kept)
    if settings.client is not None and settings.client.client_id == kept.client_id:
        if settings.client.issuer not in (None, server.issuer):
            return None
        return preregistered(settings.client, server.token_endpoint_auth_methods_supported)
    return _documented(kept.client_id) if kept.client_id == settings.client_metadata_url else None


def _register(
    url: str, server: ServerMetadata, settings: OAuthSettings, scopes: tuple[str, ...]
) -> Machine[TokenClient]:
    """Register the client for ``scopes``, and return the client (RFC 7591 section 3)."""
    wanted = _wanted_method(server.token_endpoint_auth_methods_supported)
    native = urlsplit(settings.redirect_uri).hostname in _LOOPBACK
    metadata = ClientMetadata(
        client_name=settings.client_name,
        redirect_uris=(settings.redirect_uri,),
        grant_types=("authorization_code", "refresh_token") if settings.refreshable else ("authorization_code",),
        response_types=("code",),
        token_endpoint_auth_method=wanted,
        # Otherwise OpenID Connect takes the client for a web server, which has no loopback redirects.
        application_type="native" if native else "web",
        scope=" ".join(scopes) or None,
    )
    try:
        answer: Fetched = yield Fetch(
            method="POST",
            url=url,
            headers=(("accept", "application/json"),),
            body=metadata.to_json(),
            content_type="application/json",
        )
    except FetchFailed as error:
        raise AuthorizationError(f"the client could not be registered: {error}") from None
    if answer.status not in (200, 201):  # RFC 7591 section 3.2.1 says 201
        raise refused("the authorization server has not registered the client", error_code(answer.body), answer.status)
    try:
        made = ClientInformation.from_json(answer.body)
    except InvalidDocument:
        raise refused("the authorization server has not registered the client", error_code(answer.body)) from None
    if not made.client_id:
        raise AuthorizationError("the authorization server has registered the client without an id")
    kept = RegisteredClient(
        client_id=made.client_id,
        client_secret=made.client_secret,
        secret_expires_at=made.client_secret_expires_at or None,  # 0 means never
        auth_method=made.token_endpoint_auth_method or wanted,
        redirect_uris=(settings.redirect_uri,),
        # RFC 7591 section 3.2.1: the answer has all that is registered. What was asked for in vain is not again.
        scopes=None if made.scope is None else tuple(dict.fromkeys((*scopes, *scopes_in(made.scope)))),
    )
    return _registered(kept)


def _wanted_method(supported: Collection[str] | None) -> AuthMethod:
    """Return the method to register with: a program on the user's machine keeps no secret from the user, so none is
    best. A server that says nothing takes a secret in the header (RFC 8414 section 2)."""
    listed = USUAL_METHODS if supported is None else supported
    if "none" not in listed:
        for method in SECRET_METHODS:
            if method in listed:
                return method
    return "none"


def _documented(url: str) -> TokenClient:
    """Return the client whose metadata document is at ``url``."""
    if not url.startswith("https://") or not urlsplit(url).path.strip("/"):
        raise AuthorizationError("the URL of a client id metadata document is https, and has a path")
    return TokenClient(client_id=url, auth_method="none", kept=RegisteredClient(client_id=url))


def _registered(kept: RegisteredClient) -> TokenClient:
    """Return the client that has registered itself. Without a secret there is nothing but the id."""
    method: AuthMethod = "none"
    for other in SECRET_METHODS:
        if kept.client_secret is not None and kept.auth_method == other:
            method = other
    return TokenClient(client_id=kept.client_id, auth_method=method, client_secret=kept.client_secret, kept=kept)


def _is_over(kept: RegisteredClient, now: float) -> bool:
    return kept.secret_expires_at is not None and kept.secret_expires_at <= now
