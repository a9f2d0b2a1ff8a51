"""Sends requests to a token endpoint, for every OAuth grant (RFC 6749 section 5), authenticated as the client.

`authentication` says how a client authenticates there: by its id alone, with a secret, or with a signed assertion.
`client_at` finds or registers the client at an authorization server (2026-07-28 authorization, Client Registration).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs

from ...classes import frozen
from ...protocol.authorization import ClientInformation, ClientMetadata, InvalidDocument, ServerMetadata, TokenResponse
from ..credentials import AuthorizationError
from ..fetching import Fetch, Fetched, FetchFailed, same_issuer
from ..signing import ASSERTION_TYPE, basic_credentials, client_assertion
from ..storage.records import IssuerRecord, RegisteredClient, Tokens
from .discovery import AuthorizationServer, scope_parameter, scopes_in
from .grants import AuthMethod, Grant, GrantContext, Machine, PreregisteredClient, error_code, refused, shown

if TYPE_CHECKING:
    from .authorization_code import OAuthSettings

_FORM: Final = "application/x-www-form-urlencoded"
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,16384}")
"""Matches strings that are valid in a header and in a form. RFC 6749 appendix A.12 also allows a space."""
NONCE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")
"""Matches a DPoP nonce (RFC 9449 section 8.1)."""
_LONGEST_SECONDS: Final = 10 * 365 * 24 * 60 * 60.0
_SECRETS: Final = ("code", "code_verifier", "refresh_token", "assertion", "subject_token")
"""Parameters of token requests that error messages never quote."""
_FORM_TEXT: Final = re.compile(rb"[\w.~%+*&=/:@,!$'()-]+\s*")
_MOST_PARAMETERS: Final = 50
"""The maximum number of parameters in a form-encoded response."""
_OTHER_TYPES: Final = frozenset(("dpop", "mac", "pop", "n_a"))
"""Types of tokens that must not be sent as bearer tokens. Any other type is a provider's own name for a bearer token,
such as ``user`` and ``bot`` at Slack."""


def granted(
    form: Mapping[str, str],
    found: AuthorizationServer,
    client: TokenClient | None,
    scopes: tuple[str, ...],
    context: GrantContext,
) -> Machine[Grant]:
    """Send ``form`` to the token endpoint of the authorization server ``found``, and return a `Grant` with the issued
    tokens and ``scopes``."""
    tokens = yield from tokens_by({**form, **scope_parameter(scopes)}, found, client, scopes, context)
    record = context.stored.issuers.get(found.issuer, IssuerRecord())
    kept = None if client is None else client.registration
    record = attrs.evolve(record, client=kept, tokens=tokens, requested_scopes=scopes, resource=found.resource)
    return Grant(issuer=found.issuer, record=record)


def tokens_by(
    form: Mapping[str, str],
    found: AuthorizationServer,
    client: TokenClient | None,
    scopes: tuple[str, ...],
    context: GrantContext,
) -> Machine[Tokens]:
    """Send the token request ``form`` to the authorization server ``found``, and return the issued tokens.

    ``scopes`` are the scopes that ``form`` requests.

    Sends one request, and a second one if the endpoint demands a nonce (RFC 9449 section 8). Raises
    `AuthorizationError` with the error code of the endpoint, and no other text of its response: see `refused`.
    """
    # RFC 8707 section 2: send the resource even if the server may not support it
    form = {**form, "resource": found.resource}
    answer = yield from ask(form, found.metadata, client, context)
    kind = answer.token_type.strip().lower()
    if kind in _OTHER_TYPES and not (kind == "dpop" and context.proof_key is not None):  # RFC 6749 section 7.1
        raise AuthorizationError("the authorization server granted a token of a type that was not requested")
    expires_at = None
    if answer.expires_in is not None and answer.expires_in >= 0:
        expires_at = context.now() + min(answer.expires_in, _LONGEST_SECONDS)
    return Tokens(
        access_token=answer.access_token,
        token_type="DPoP" if kind == "dpop" else "Bearer",
        # RFC 6749 section 5.1: if the response has no parameter scope, all requested scopes are granted.
        scopes=scopes if answer.scope is None else scopes_in(answer.scope),
        expires_at=expires_at,
        # Ignore an empty refresh token: many servers send one when they issue no refresh token.
        refresh_token=answer.refresh_token if _TOKEN.fullmatch(answer.refresh_token or "") else None,
    )


def ask(
    form: Mapping[str, str], server: ServerMetadata, client: TokenClient | None, context: GrantContext
) -> Machine[TokenResponse]:
    """Send ``form`` to the token endpoint of ``server``, and return the response.

    Only the characters of the token have been checked, so the caller must validate the rest of the response.
    """
    url = server.token_endpoint
    if url is None:
        raise AuthorizationError("the metadata of the authorization server contains no token_endpoint")

    def headers(nonce: str | None = None) -> dict[str, str]:
        accept = {"accept": "application/json"}
        if context.proof_key is None:
            return accept
        try:
            return {**accept, "dpop": context.proof_key.proof("POST", url, nonce=nonce, now=context.now())}
        except ValueError:
            raise AuthorizationError("the URL of the authorization server's token endpoint is invalid") from None

    answer = yield from post_form("token", url, form, server, client, context.now(), headers())
    nonce = answer.headers.get("dpop-nonce", "")
    # RFC 9449 section 8: a token endpoint demands a nonce with status 400. Some endpoints send 401 instead.
    demanded = answer.status in (400, 401) and error_code(answer.body) == "use_dpop_nonce"
    if demanded and context.proof_key is not None and NONCE.fullmatch(nonce):
        answer = yield from post_form("token", url, form, server, client, context.now(), headers(nonce))
    # RFC 6749 section 5.2: check for an error in any response, since some servers send errors with status 200.
    if (error := error_code(answer.body)) is not None or answer.status not in (200, 201):
        secrets = [*map(form.get, _SECRETS), None if client is None else client.client_secret]
        raise refused(
            f"the token endpoint of {shown(server.issuer)} refused the request", error, answer.status, secrets
        )
    try:
        response = TokenResponse.from_json(answer.body)
    except InvalidDocument as error:
        raise AuthorizationError(f"the response of the token endpoint contains no valid token: {error}") from None
    if not _TOKEN.fullmatch(response.access_token):
        raise AuthorizationError("the authorization server granted a token with characters that a header can't contain")
    return response


def post_form(
    endpoint: str,
    url: str,
    form: Mapping[str, str],
    server: ServerMetadata,
    client: TokenClient | None,
    now: float,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Machine[Fetched]:
    """Send ``form`` to an OAuth ``endpoint`` of ``server``, authenticated as ``client``, and return the response.

    Raises `AuthorizationError` if the client's key can't be used.
    """
    own, named = ({}, {}) if client is None else authentication(client, server, now)
    try:
        answer: Fetched = yield Fetch(
            method="POST",
            url=url,
            headers=tuple({**own, **headers}.items()),
            body=urlencode({**form, **named}).encode("ascii"),
            content_type=_FORM,
            secrets_of=server.issuer,
        )
    except FetchFailed as error:
        raise AuthorizationError(f"the request to the {endpoint} endpoint failed: {error}") from None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return attrs.evolve(answer, body=_as_json(answer.body)) if kind in (_FORM, "text/plain") else answer


def _as_json(body: bytes) -> bytes:
    """Return the body of a token response as JSON. If a token endpoint has sent a form, convert it to JSON, and return
    any other body unchanged."""
    try:
        # Don't parse other documents, such as HTML pages: they may quote an attacker's form.
        if not _FORM_TEXT.fullmatch(body):
            return body
        pairs = parse_qsl(body.decode("ascii").strip(), strict_parsing=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        return body
    members = dict(pairs)
    # RFC 6749 section 5: a parameter must not be repeated.
    is_answer = len(members) == len(pairs) and ("access_token" in members or "error" in members)
    return json.dumps(members).encode("ascii") if is_answer else body


SECRET_METHODS: Final[tuple[AuthMethod, ...]] = ("client_secret_post", "client_secret_basic")
"""Authentication methods of clients with a secret, the most reliable method first. All servers read a secret in the
body in the same way. With a secret in a header, some servers require the ``client_id`` in the body and others forbid
it; some decode the parts of the header and others don't."""


@frozen(kw_only=True)
class TokenClient:
    """An OAuth client, with all data that it needs to authenticate at a token endpoint."""

    client_id: str
    auth_method: AuthMethod
    client_secret: str | None = attrs.field(default=None, repr=False)
    key: PreregisteredClient | None = attrs.field(default=None, repr=False)
    """The registration with the key that signs assertions; `None` if the client has no key."""
    registration: RegisteredClient
    """The stored part of the client. This part doesn't contain secrets from the configuration."""


def _listed_methods(server: ServerMetadata) -> Collection[str]:
    # RFC 8414 section 2: without a list of authentication methods, the server accepts client_secret_basic.
    listed = server.token_endpoint_auth_methods_supported
    return ("client_secret_basic",) if listed is None else listed


def _secret_method(usable: Collection[str], otherwise: AuthMethod) -> AuthMethod:
    """Return the authentication method for a client with a secret: of the methods in ``usable``, the one that this
    client prefers.

    Returns ``otherwise`` if ``usable`` contains no preferred method.
    """
    for method in SECRET_METHODS:
        if method in usable:
            return method
    return otherwise


def preregistered(client: PreregisteredClient, server: ServerMetadata) -> TokenClient:
    """Return the data with which ``client``, which is already registered at ``server``, authenticates at the token
    endpoint.

    It authenticates with its configured method, else with its private key, else with its secret in a way that the
    server supports.
    """
    method: AuthMethod = "none"
    if client.auth_method is not None:
        method = client.auth_method
    elif client.private_key is not None:
        method = "private_key_jwt"
    elif client.client_secret is not None:
        method = _secret_method(_listed_methods(server), "client_secret_basic")
    if method == "private_key_jwt" and client.private_key is None:
        raise AuthorizationError("private_key_jwt needs the client's private key: pass private_key=")
    if method in SECRET_METHODS and client.client_secret is None:
        raise AuthorizationError(f"{method} needs the client's secret: pass client_secret=")
    return TokenClient(
        client_id=client.client_id,
        auth_method=method,
        client_secret=client.client_secret,
        key=client,
        registration=RegisteredClient(client_id=client.client_id, auth_method=method),
    )


def authentication(client: TokenClient, server: ServerMetadata, now: float) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and form parameters that authenticate ``client`` in one request to ``server``.

    Raises `AuthorizationError` if the client's key can't be used.

    RFC 6749 sections 2.3.1 and 3.2.1, RFC 7523 section 2.2.
    """
    match client.auth_method:
        case "client_secret_basic":
            return {"authorization": basic_credentials(client.client_id, client.client_secret or "")}, {}
        case "client_secret_post":
            return {}, {"client_id": client.client_id, "client_secret": client.client_secret or ""}
        case "private_key_jwt":
            assertion = _assertion(client, server, now)
            return {}, {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
        case "none":
            return {}, {"client_id": client.client_id}


def _assertion(client: TokenClient, server: ServerMetadata, now: float) -> str:
    """Return a new JWT that authenticates the client in one request. Its only audience is the issuer, so that no other
    server accepts it."""
    key = client.key
    assert key is not None
    assert key.private_key is not None
    try:
        return client_assertion(
            key.client_id,
            server.issuer,
            key.private_key,
            algorithm=key.signing_algorithm,
            key_id=key.key_id,
            now=now,
            supported=server.token_endpoint_auth_signing_alg_values_supported,
        )
    except (ImportError, ValueError) as error:
        failure = str(error)
    raise AuthorizationError(failure)


LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))


def client_at(
    server: ServerMetadata, record: IssuerRecord, settings: OAuthSettings, scopes: tuple[str, ...], now: float
) -> Machine[TokenClient]:
    """Return the OAuth client to use at ``server`` according to ``settings``, registering the client if needed.

    ``record`` is the stored record of this authorization server. Sends at most one request.

    This is the preregistered client; else its metadata document, if the server supports these; else the client that has
    registered itself, which happens now if needed. It registers for ``scopes``, since some servers let a client request
    no others. Raises `AuthorizationError` if the server accepts no such client.
    """
    url = settings.auth.client_metadata_url
    if settings.client is not None:
        return preregistered(settings.client, server)
    if url is not None and server.client_id_metadata_document_supported:
        return _documented(url)
    kept = record.client
    if kept is not None and settings.redirect_uri in kept.redirect_uris and not _is_expired(kept, now):
        suffices = kept.scopes is None or set(scopes) <= set(kept.scopes)
        if suffices or not server.registration_endpoint:
            return _registered(kept)
    if not server.registration_endpoint:
        raise AuthorizationError(
            f"the authorization server {shown(server.issuer)} does not support dynamic registration: get a client id"
            " from its administrators, and pass it as client_id="
        )
    return (yield from _register(server.registration_endpoint, server, settings, scopes))


def client_of(server: ServerMetadata, record: IssuerRecord, settings: OAuthSettings, now: float) -> TokenClient | None:
    """Return the OAuth client to which the tokens in ``record`` were issued. Returns `None` if ``settings`` now
    describe another client."""
    kept = record.client
    if kept is None or _is_expired(kept, now):
        return None
    if kept.redirect_uris:
        return _registered(kept)
    if settings.client is not None and settings.client.client_id == kept.client_id:
        if not same_issuer(settings.client.issuer or server.issuer, server.issuer):
            return None
        return preregistered(settings.client, server)
    return _documented(kept.client_id) if kept.client_id == settings.auth.client_metadata_url else None


def _post_json(url: str, body: bytes) -> Fetch:
    kind = "application/json"
    return Fetch(method="POST", url=url, headers=(("accept", kind),), body=body, content_type=kind)


def _register(
    url: str, server: ServerMetadata, settings: OAuthSettings, scopes: tuple[str, ...]
) -> Machine[TokenClient]:
    """Register the client at the authorization server for ``scopes``, and return the registered client (RFC 7591
    section 3)."""
    # A program on the user's machine can't hide a secret from the user, so the program registers without one.
    listed = _listed_methods(server)
    wanted: AuthMethod = "none" if "none" in listed else _secret_method(listed, "none")
    native = urlsplit(settings.redirect_uri).hostname in LOOPBACK
    metadata = ClientMetadata(
        client_name=settings.auth.client_name,
        redirect_uris=(settings.redirect_uri,),
        grant_types=("authorization_code", "refresh_token") if settings.auth.refresh else ("authorization_code",),
        response_types=("code",),
        token_endpoint_auth_method=wanted,
        # Without application_type, OpenID Connect servers expect a web application, without loopback redirects.
        application_type="native" if native else "web",
        scope=" ".join(scopes) or None,
    )
    try:
        answer: Fetched = yield _post_json(url, metadata.to_json())
    except FetchFailed as error:
        raise AuthorizationError(f"the client could not be registered: {error}") from None
    what = "the authorization server has not registered the client"
    if answer.status not in (200, 201):  # RFC 7591 section 3.2.1 requires status 201, but some servers send status 200
        raise refused(what, error_code(answer.body), answer.status)
    try:
        made = ClientInformation.from_json(answer.body)
    except InvalidDocument:
        raise refused(what, error_code(answer.body)) from None
    if not made.client_id:
        raise AuthorizationError("the authorization server registered the client, but returned no client_id")
    otherwise = wanted
    if made.client_secret:  # RFC 7591 section 2: the default method is client_secret_basic
        basic = "client_secret_basic"
        otherwise = basic if basic in listed else _secret_method(listed, basic)
    kept = RegisteredClient(
        client_id=made.client_id,
        client_secret=made.client_secret or None,
        secret_expires_at=made.client_secret_expires_at or None,  # 0 means never
        auth_method=made.token_endpoint_auth_method or otherwise,
        redirect_uris=(settings.redirect_uri,),
        # RFC 7591 section 3.2.1: the response contains the scopes that were registered.
        # Scopes that the server left out are stored as well, so that the client doesn't register for them again.
        scopes=None if made.scope is None else tuple(dict.fromkeys((*scopes, *scopes_in(made.scope)))),
    )
    return _registered(kept)


def _documented(url: str) -> TokenClient:
    """Return the client that identifies itself with ``url``, the URL of its client metadata document."""
    if not url.startswith("https://") or not urlsplit(url).path.strip("/"):
        raise AuthorizationError("client_metadata_url must be an https URL with a path")
    return TokenClient(client_id=url, auth_method="none", registration=RegisteredClient(client_id=url))


def _registered(registration: RegisteredClient) -> TokenClient:
    """Return the OAuth client that ``registration``, the result of its dynamic registration, describes. Without a
    secret, the client authenticates with its id alone."""
    method = _secret_method(() if registration.client_secret is None else (registration.auth_method,), "none")
    return TokenClient(
        client_id=registration.client_id,
        auth_method=method,
        client_secret=registration.client_secret,
        registration=registration,
    )


def _is_expired(registration: RegisteredClient, now: float) -> bool:
    return registration.secret_expires_at is not None and registration.secret_expires_at <= now
