"""Discovery: find the authorization server of a protected resource, its endpoints, and the scopes to request.

Which URL is fetched next depends only on the outcomes so far. No URL is fetched unnecessarily (2026-07-28
authorization, Authorization Server Discovery). The scopes follow from what was found, and from the challenge (Scope
Selection Strategy).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from ...classes import frozen
from ...protocol.authorization import InvalidDocument, ResourceMetadata, ServerMetadata
from ...transports.http_client.origins import split_url
from ..credentials import AuthorizationError
from ..fetching import Fetch, Fetched, FetchFailed, same_issuer, server_metadata_urls
from ..storage.records import IssuerRecord, StoredAuthorization
from .grants import GrantContext, Machine, PreregisteredClient, check_belonging, shown

T = TypeVar("T")

_RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The well-known path of the protected resource metadata (RFC 9728 section 3)."""

_LATER: Final = (408, 429)
"""HTTP statuses after which a metadata request is repeated."""
_JSON: Final = (("accept", "application/json"),)


@frozen(kw_only=True)
class AuthorizationServer:
    """The authorization server of a protected resource, with its metadata."""

    metadata: ServerMetadata
    """The metadata of the authorization server. If the server has no metadata (2025-03-26 only), this object has the
    endpoints at their default paths."""
    resource: str
    """The parameter ``resource`` of all token requests (RFC 8707 section 2)."""
    resource_scopes: tuple[str, ...] | None = None
    """The ``scopes_supported`` in the metadata of the resource."""

    @property
    def issuer(self) -> str:
        """The issuer URL of the authorization server, as in its metadata."""
        return self.metadata.issuer


def discover(context: GrantContext, only: str | None = None) -> Machine[AuthorizationServer]:
    """Find and return the authorization server of a protected resource. Fetches at most six URLs.

    The choice is: ``only``, if the credentials belong to that issuer alone; else one where the client is registered;
    else the first that is named.
    """
    resource = yield from _resource_metadata(context)
    if resource is None:
        # In revision 2025-03-26, the resource's origin is the authorization server (Authorization Base URL).
        origin = _origin(context.server_url)
        metadata = (yield from _metadata(origin)) or _fixed_paths(origin)
        _chosen((metadata.issuer,), only, context.stored)
        return AuthorizationServer(metadata=metadata, resource=context.server_url)
    if not _covers(resource.resource, context.server_url):  # RFC 9728 section 3.3
        raise AuthorizationError(f"the resource metadata belong to another server: {shown(resource.resource)}")
    if not resource.authorization_servers:
        raise AuthorizationError("the resource metadata name no authorization server")
    issuer = _chosen(resource.authorization_servers, only, context.stored)
    metadata = yield from _metadata(issuer)
    if metadata is None:
        raise AuthorizationError(f"the authorization server {shown(issuer)} publishes no metadata")
    # RFC 9728 section 7.3: request tokens for the resource exactly as its metadata names it.
    return AuthorizationServer(metadata=metadata, resource=resource.resource, resource_scopes=resource.scopes_supported)


def metadata_of(issuer: str, server_url: str | None = None) -> Machine[ServerMetadata]:
    """Return the metadata of the authorization server ``issuer``.

    The issuer is already known for ``server_url``, from the configuration or from earlier use. Fetches at most three
    URLs.
    """
    metadata = yield from _metadata(issuer)
    if metadata is None and server_url is not None and issuer == _origin(server_url):
        metadata = _fixed_paths(issuer)
    if metadata is None:
        raise AuthorizationError(f"the authorization server {shown(issuer)} publishes no metadata")
    return metadata


def known_issuer(client: PreregisteredClient, stored: StoredAuthorization) -> str | None:
    """Return the only issuer to which the credentials of ``client`` may be sent.

    Returns `None` if the credentials haven't been used yet, so that any issuer is allowed.
    """
    if client.issuer is not None:
        return client.issuer
    for issuer, record in stored.issuers.items():
        kept = record.client
        # Skip clients that registered themselves (with redirect URIs): a hostile server could have chosen their ids.
        if kept is not None and kept.client_id == client.client_id and not kept.redirect_uris:
            return issuer
    return None


def _resource_metadata(context: GrantContext) -> Machine[ResourceMetadata | None]:
    """Return the protected resource metadata of the server; `None` if there is none, as in revision 2025-03-26."""
    named = None if context.challenge is None else context.challenge.params.get("resource_metadata")
    origin, target = split_url(context.server_url)
    path = target.partition("?")[0].rstrip("/")
    # RFC 9728 sections 5.1 and 3.1: try the URL in the challenge first, then the well-known URLs.
    urls = (
        *([] if named is None else [named]),
        *([f"{origin}{_RESOURCE_METADATA}{path}"] if path else []),
        f"{origin}{_RESOURCE_METADATA}",
    )
    found = yield from _first(urls, ResourceMetadata.from_json)
    if found is None and named is not None:
        raise AuthorizationError(f"no resource metadata found at the URL in the server's challenge: {shown(named)}")
    return found


def _metadata(issuer: str) -> Machine[ServerMetadata | None]:
    """Return the metadata of the authorization server ``issuer``; `None` if the server publishes no metadata."""

    def read(body: bytes) -> ServerMetadata:
        metadata = ServerMetadata.from_json(body)
        # RFC 8414 section 3.3: the issuer in the metadata must be identical, except for a trailing slash.
        if not same_issuer(metadata.issuer, issuer):
            raise InvalidDocument(f"the metadata contains the wrong issuer, {shown(metadata.issuer)}")
        return metadata

    return (yield from _first(_metadata_urls(issuer), read))


def _metadata_urls(issuer: str) -> tuple[str, ...]:
    try:
        urls = server_metadata_urls(issuer)
    except ValueError:
        raise AuthorizationError(f"the URL of the authorization server is invalid: {shown(issuer)}") from None
    if "?" in issuer:  # RFC 8414 section 2
        raise AuthorizationError(f"the URL of the authorization server must not have a query: {shown(issuer)}")
    return urls


def _first(urls: Sequence[str], read: Callable[[bytes], T]) -> Machine[T | None]:
    """Fetch the ``urls`` in order until one of them has a metadata document, and return this document. Returns `None`
    if no URL has one.

    Raises `AuthorizationError` if a URL can't be read, so that a failure isn't mistaken for an old server without
    metadata.
    """
    failures: list[str] = []
    for url in urls:
        try:
            answer: Fetched = yield Fetch(method="GET", url=url, headers=_JSON)
        except FetchFailed as error:
            failures.append(f"{shown(url)}: {error}")
            continue
        if answer.status == 200 and answer.body.removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
            try:
                return read(answer.body)
            except InvalidDocument as error:
                failures.append(f"{shown(url)}: {error}")
        # Ignore a response that isn't metadata, such as an HTML page or status 401: another URL may have the metadata.
        elif answer.status != 200 and (not 400 <= answer.status < 500 or answer.status in _LATER):
            failures.append(f"{shown(url)}: status {answer.status}")
    if failures:
        raise AuthorizationError(f"cannot find the authorization server: {failures[0]}")
    return None


def _chosen(named: Sequence[str], only: str | None, stored: StoredAuthorization) -> str:
    """Choose one of the ``named`` authorization servers, and return its URL (RFC 9728 section 7.6; 2026-07-28
    authorization, Authorization Server Binding).

    Raises `AuthorizationError` if the client's credentials belong to none of these servers.
    """
    if only is not None:
        check_belonging(only, named)
        return only
    used = [] if stored.current is None else [stored.current]
    used += [issuer for issuer, record in stored.issuers.items() if record.client is not None]
    return next((issuer for issuer in used if any(same_issuer(issuer, each) for each in named)), named[0])


def _covers(resource: str, server_url: str) -> bool:
    """Return whether the protected resource at the URL ``resource`` includes the server at ``server_url``.

    It does if both URLs have the same origin, and the path of ``resource`` equals the path of the server's URL or is a
    prefix of it.
    """
    try:
        (origin, path), (own_origin, own_target) = split_url(resource), split_url(server_url)
    except ValueError:
        return False
    if origin != own_origin or "?" in path:
        return resource == server_url
    own_path, prefix = own_target.partition("?")[0], path.rstrip("/")
    return own_path.rstrip("/") == prefix or own_path.startswith(f"{prefix}/")


def _fixed_paths(origin: str) -> ServerMetadata:
    """Return metadata with the default endpoint paths, for an authorization server that publishes no metadata
    (2025-03-26 authorization, Fallbacks for Servers without Metadata Discovery)."""
    return ServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=("S256",),  # in revision 2025-03-26, all clients use PKCE
    )


def _origin(url: str) -> str:
    return str(split_url(url)[0])


OFFLINE_ACCESS: Final = "offline_access"
"""The scope with which some authorization servers issue a refresh token (OpenID Connect Core section 11)."""

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""Matches one scope (RFC 6749 section 3.3)."""
_LONGEST_SCOPES: Final = 4096
"""The maximum length of all scopes together, in characters, since they are part of a URL."""


def scopes_in(text: str) -> tuple[str, ...]:
    """Return the OAuth scopes in ``text``, a space-separated list, in order and without duplicates. Invalid scopes are
    left out."""
    return _each_once(text.split())


def scopes_at(found: AuthorizationServer, configured: tuple[str, ...] | None, context: GrantContext) -> tuple[str, ...]:
    """Return the OAuth scopes to request at the authorization server ``found``. If there are none, requests must not
    have the parameter ``scope``.

    The result includes the scopes that were requested there before, so that a step-up loses none. It also includes the
    ``configured`` scopes or, without them, what the server suggests: the challenge, else the ``scopes_supported`` of
    the resource. A challenge for ``insufficient_scope`` is always added (Step-Up Authorization Flow). Raises
    `AuthorizationError` if these are too many for a request.
    """
    challenge = context.challenge
    challenged = () if challenge is None else scopes_in(challenge.params.get("scope", ""))
    steps_up = challenge is not None and challenge.params.get("error") == "insufficient_scope"
    if configured is not None:
        wanted = (*configured, *challenged) if steps_up else configured
    else:
        wanted = challenged or found.resource_scopes or ()
    requested = context.stored.issuers.get(found.issuer, IssuerRecord()).requested_scopes
    scopes = _each_once((*requested, *wanted))
    if len(" ".join(scopes)) > _LONGEST_SCOPES:
        raise AuthorizationError(
            f"the server requires too many scopes: together they may have at most {_LONGEST_SCOPES} characters"
        )
    return scopes


def scopes_to_register(found: AuthorizationServer, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the OAuth scopes with which a client registers at an authorization server.

    These are the scopes of the client's next request, and the resource's other scopes, which the client may request
    later.

    Returns none if the authorization server that was ``found`` doesn't list all scopes to request, since many servers
    refuse to register such a client.
    """
    listed = found.metadata.scopes_supported
    if not asked or not (listed is None or set(asked) <= set(listed)):
        return ()
    others = (scope for scope in found.resource_scopes or () if listed is None or scope in listed)
    scopes = _each_once((*asked, *others))
    return scopes if len(" ".join(scopes)) <= _LONGEST_SCOPES else asked


def scope_parameter(scopes: tuple[str, ...]) -> dict[str, str]:
    """Return a dict with the request parameter ``scope``, which contains the OAuth ``scopes``. The dict is empty if
    there are no scopes."""
    return {"scope": " ".join(scopes)} if scopes else {}


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if _SCOPE.fullmatch(word)))
