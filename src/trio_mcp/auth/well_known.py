"""Well-known places: where the metadata of an authorization server stand."""

from __future__ import annotations

from typing import Final

from ..transports.http_client.origin import split_url

RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
"""RFC 9728 section 3."""
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"


def server_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs to ask for the metadata of ``issuer``, in this order (2026-07-28 authorization, Authorization
    Server Metadata Discovery). Raises `ValueError` for what is no HTTP URL."""
    origin, target = split_url(issuer)
    # RFC 8414 section 3.1, OpenID Connect Discovery section 4: without the slash at the end.
    path = target.rstrip("/")
    appended = [f"{origin}{path}{_OPENID}"] if path else []
    return (f"{origin}{_OAUTH}{path}", f"{origin}{_OPENID}{path}", *appended)
