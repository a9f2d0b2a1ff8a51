"""fetch_keys gets the keys of an issuer, from the place that its metadata names (RFC 8414)."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from ....protocol.authorization import InvalidDocument, ServerMetadata
from ...fetching.exchange import Fetch, Fetcher, FetchFailed
from ...well_known import server_metadata_urls
from .keys import VerificationKey, read_key_set


async def fetch_keys(issuer: str, jwks_uri: str | None, fetcher: Fetcher) -> Sequence[VerificationKey]:
    """Return the keys at ``jwks_uri``, `None` for the place that ``issuer`` says in its metadata. Raises `FetchFailed`
    and `UnusableKey`."""
    uri = await _jwks_uri(issuer, fetcher) if jwks_uri is None else jwks_uri
    return read_key_set(await _get(uri, fetcher))


async def _jwks_uri(issuer: str, fetcher: Fetcher) -> str:
    failures = list[str]()
    for url in server_metadata_urls(issuer):
        try:
            return _read(await _get(url, fetcher), issuer)
        except FetchFailed as error:  # many servers answer any path with a page for people
            failures.append(str(error))
    raise FetchFailed("; ".join(failures))


def _read(body: bytes, issuer: str) -> str:
    try:
        metadata = ServerMetadata.from_json(body)
    except InvalidDocument as error:
        raise FetchFailed(f"{issuer}: {error}") from None
    if metadata.issuer != issuer:  # RFC 8414 section 3.3: identical
        raise FetchFailed(f"the metadata of {issuer} are those of {metadata.issuer!a:.200}")
    if metadata.jwks_uri is None:
        raise FetchFailed(f"the metadata of {issuer} name no jwks_uri")
    return metadata.jwks_uri


async def _get(url: str, fetcher: Fetcher) -> bytes:
    fetched = await fetcher.fetch(Fetch(method="GET", url=url, headers=(("accept", "application/json"),)))
    if fetched.status != HTTPStatus.OK:
        raise FetchFailed(f"{url}: status {fetched.status}")
    return fetched.body
