"""Documents of authorization, as far as a client reads them."""

from __future__ import annotations

from typing import TypeVar

import attrs
import msgspec

__all__ = ["ClientRegistration", "ResourceMetadata", "ServerMetadata", "TokenResponse", "decoded"]

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class ResourceMetadata:
    resource: str
    authorization_servers: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class ServerMetadata:
    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


@attrs.frozen(kw_only=True)
class ClientRegistration:
    client_id: str
    client_secret: str | None = attrs.field(default=None, repr=False)
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None


@attrs.frozen(kw_only=True)
class TokenResponse:
    access_token: str = attrs.field(repr=False)
    token_type: str
    expires_in: float | None = None
    refresh_token: str | None = attrs.field(default=None, repr=False)
    scope: str | None = None
    issued_token_type: str | None = None


def decoded(body: bytes, kind: type[T]) -> T:
    """Return the document. Raises ValueError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no {kind.__name__}: {type(error).__name__}") from None
