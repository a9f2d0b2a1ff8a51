"""PublishedMetadata: the document that a protected resource publishes about itself (RFC 9728)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ...classes import frozen
from ...transports.host_checks import is_loopback
from ...transports.http_client.origins import origin_of, split_url
from ..fetching import RESOURCE_METADATA

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""RFC 6749 section 3.3, ``scope-token``."""


def check_resource(url: str) -> str:
    """Return ``url``, which a client can be told as the URL of a resource. Raises `ValueError`."""
    return _checked("resource", url)


def check_issuer(url: str) -> str:
    """Return ``url``, which may name an authorization server. Raises `ValueError`."""
    if "?" in url:  # RFC 8414 section 2
        raise ValueError(f"an authorization server is named by its issuer, a URL without query, not {url[:300]!r}")
    return _checked("authorization server", url)


def check_endpoint(url: str) -> str:
    """Return ``url``, which may be an endpoint of an authorization server. Raises `ValueError`."""
    return _checked("endpoint", url)


def _checked(what: str, url: str) -> str:
    origin, _ = split_url(url)
    # 2026-07-28 authorization, Communication Security: https, but for what stays on this machine.
    if not origin.secure and not is_loopback(origin.host):
        raise ValueError(f"a {what} is reached by https://, or on this machine by http://, not {url[:300]!r}")
    return url


def scope_tokens(scopes: Iterable[str]) -> frozenset[str]:
    """Return ``scopes`` as a set. Raises `ValueError` for text that is no scope, `TypeError` for one text alone."""
    if isinstance(scopes, str):
        raise TypeError(f"scopes are several, [{scopes!r}] for example, not one text")
    found = frozenset(scopes)
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"a scope is printable ASCII without blanks, quotes and backslashes, not {scope[:100]!r}")
    return found


def canonical(url: str) -> str:
    """Return ``url`` as all ways to write the same URL are compared (RFC 3986 sections 6.2.2.1 and 6.2.3): the letters
    of scheme and host small, no port that the scheme implies, no empty path. Raises `ValueError`."""
    origin, target = split_url(url)
    return f"{origin}{target}"


@frozen(kw_only=True)
class PublishedMetadata:
    """The metadata of one protected resource (RFC 9728 section 2)."""

    resource: str
    authorization_servers: Sequence[str]
    scopes_supported: frozenset[str]
    name: str | None
    documentation: str | None
    proof_algorithms: Sequence[str]
    """Algorithms of DPoP proofs; none where there is no DPoP."""
    bound_tokens_only: bool
    """True where DPoP is required."""

    @property
    def url(self) -> str:
        """The URL at which clients find the metadata (RFC 9728 section 3.1): never made from a Host header."""
        parts = urlsplit(self.resource)
        path = "" if parts.path == "/" else parts.path
        return f"{origin_of(parts)}{RESOURCE_METADATA}{path}{f'?{parts.query}' if parts.query else ''}"

    @property
    def paths(self) -> frozenset[str]:
        """Paths at which the metadata stand: of `url`, and at the root. Clients disagree about a slash at the end, so
        the metadata stand with and without."""
        path = urlsplit(self.resource).path.rstrip("/")
        return frozenset(
            (RESOURCE_METADATA, *((f"{RESOURCE_METADATA}{path}", f"{RESOURCE_METADATA}{path}/") if path else ()))
        )

    def to_json(self) -> bytes:
        """Return the document."""
        document: dict[str, Any] = {
            "resource": self.resource,
            "authorization_servers": self.authorization_servers,
            "scopes_supported": sorted(self.scopes_supported),
            "bearer_methods_supported": ["header"],  # RFC 6750 sections 2.2 and 2.3 are ways that a token leaks
            "resource_name": self.name,
            "resource_documentation": self.documentation,
            "dpop_signing_alg_values_supported": self.proof_algorithms,
            "dpop_bound_access_tokens_required": self.bound_tokens_only,
        }
        # RFC 9728 section 3.2: what has no value is left out.
        return msgspec.json.encode({name: value for name, value in document.items() if value})
