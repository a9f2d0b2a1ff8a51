"""fetch_keys gets the keys of an issuer, from the place that its metadata names (RFC 8414)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

import attrs
import msgspec

from ....transports.http_client.origin import split_url
from ...fetching.exchange import Fetch, Fetcher, FetchFailed
from .keys import VerificationKey, read_key_set

__all__ = ["fetch_keys"]

_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"


@attrs.frozen
class _Metadata:
    issuer: str
    jwks_uri: str


async def fetch_keys(issuer: str, jwks_uri: str | None, fetcher: Fetcher) -> Sequence[VerificationKey]:
    """Return the keys at ``jwks_uri``, `None` for the place that ``issuer`` says in its metadata. Raises `FetchFailed`
    and `UnusableKey`."""
    uri = await _jwks_uri(issuer, fetcher) if jwks_uri is None else jwks_uri
    return read_key_set(await _get(uri, fetcher))


async def _jwks_uri(issuer: str, fetcher: Fetcher) -> str:
    failure = ""
    for url in _metadata_urls(issuer):
        try:
            return _read(await _get(url, fetcher), issuer)
        except FetchFailed as error:  # many servers answer any path with a page for people
            failure = str(error)
    raise FetchFailed(failure)


def _metadata_urls(issuer: str) -> Iterator[str]:
    """Return the places of the metadata, in the order of 2026-07-28 authorization, Authorization Server Metadata
    Discovery."""
    origin, target = split_url(issuer)
    path = target.rstrip("/")
    yield f"{origin}{_OAUTH}{path}"
    yield f"{origin}{_OPENID}{path}"
    if path:
        yield f"{origin}{path}{_OPENID}"


def _read(body: bytes, issuer: str) -> str:
    try:
        metadata = msgspec.json.decode(body, type=_Metadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise FetchFailed(f"the metadata of {issuer} cannot be read, or name no jwks_uri") from None
    if metadata.issuer != issuer:  # RFC 8414 section 3.3: identical
        raise FetchFailed(f"the metadata of {issuer} are those of {metadata.issuer!a:.200}")
    return metadata.jwks_uri


async def _get(url: str, fetcher: Fetcher) -> bytes:
    fetched = await fetcher.fetch(Fetch(method="GET", url=url, headers=(("accept", "application/json"),)))
    if fetched.status != HTTPStatus.OK:
        raise FetchFailed(f"{url}: status {fetched.status}")
    return fetched.body
