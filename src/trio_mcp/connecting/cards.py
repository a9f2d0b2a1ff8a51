"""Discovery of servers before connecting to them: the catalog of a domain, and server cards (SEP-2127)."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urljoin

import attrs
import msgspec

from ..auth.fetching import Fetch, Fetched, FetchFailed, HttpFetcher, UrlRules
from ..classes import frozen
from ..jsonrpc.codec import check_levels
from ..jsonrpc.errors import MCPError, clean
from ..protocol.converters import structure
from ..protocol.types.server_cards import (
    CARD_TYPE,
    CATALOG_PATH,
    CATALOG_TYPE,
    LARGEST_CARD,
    CardEntry,
    Catalog,
    ServerCard,
    check_name,
)
from ..transports.http_client.origins import split_url
from .bad_target import check_url

_LARGEST_CATALOG: Final = 1024 * 1024
_MOST_ENTRIES: Final = 1000
_MOST_REDIRECTS: Final = 3
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class DiscoveryFailed(MCPError):
    """Raised if no valid server card or catalog can be read from a URL.

    The message gives the reason, without terminal control characters.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(clean(reason))


@frozen
class FoundServer:
    """A server that the catalog of a domain lists. The catalog's description of the server is unverified."""

    identifier: str
    """The server's identifier in the catalog, such as ``urn:air:example.com:mcp:weather``."""
    catalog: str
    """The URL of the catalog that lists the server."""
    url: str | None = attrs.field(default=None, kw_only=True)
    """The URL of the server card; `None` if the catalog contains the card itself."""
    card: ServerCard | None = attrs.field(default=None, kw_only=True)
    """The server card; `None` if the catalog doesn't contain it."""


async def read_card(where: str | FoundServer, *, public_addresses_only: bool = False) -> ServerCard:
    """Fetch the server card at a URL such as ``https://example.com/mcp/server-card``.

    You can also pass a server that `discover` has returned.

    A card is unverified, so don't base decisions on it. When you are connected, compare it with `Client.server_info`.

    The URL must use ``https``. ``http`` is allowed if the URL, or the catalog that contains it, is on this machine.
    Up to three redirects are followed, by the same rule. Each response may take up to 30 seconds and have up to 64 KiB.
    With ``public_addresses_only``, which is meant for programs on servers, only addresses on the public internet are
    contacted. Raises `DiscoveryFailed`.
    """
    if isinstance(where, FoundServer):
        if where.card is not None:
            return where.card
        # The server card's URL comes from an untrusted catalog of servers, so `_rules` restricts its addresses.
        # For example, the URL can only lead to this machine if the catalog itself is on this machine.
        url, named_by = where.url or "", where.catalog
    else:
        check_url(where, "https://example.com/mcp/server-card")
        url = named_by = where
    body = await _read(url, CARD_TYPE, LARGEST_CARD, _rules(named_by, public_addresses_only))
    try:
        return _card(_decoded(body))
    except ValueError as error:
        raise DiscoveryFailed(f"there is no valid server card at {url}: {error}") from None


async def discover(domain: str, *, public_addresses_only: bool = False) -> list[FoundServer]:
    """Fetch the catalog of ``domain``, and return the servers in it: at most a thousand.

    ``domain`` is like ``example.com`` or ``https://example.com``.

    Invalid entries, and entries of other kinds, are left out.

    The catalog is fetched by the rules of `read_card`, including ``public_addresses_only``, and may have up to 1 MiB.
    Raises `DiscoveryFailed`, also if the domain has no catalog.
    """
    check_url(domain, "example.com")
    try:
        origin, target = split_url(domain if "://" in domain else f"https://{domain}")
    except ValueError as error:
        raise DiscoveryFailed(str(error)) from None
    if target != "/":
        raise DiscoveryFailed(f"discover() takes a domain without a path, such as example.com, not {domain[:300]!r}")
    url = f"{origin}{CATALOG_PATH}"
    body = await _read(url, CATALOG_TYPE, _LARGEST_CATALOG, _rules(url, public_addresses_only))
    try:
        catalog = structure(_decoded(body), Catalog)
    except ValueError as error:
        raise DiscoveryFailed(f"{url} is not a valid catalog of servers: {error}") from None
    found = (_found(entry, url) for entry in catalog.entries[:_MOST_ENTRIES])
    return [server for server in found if server is not None]


def _found(entry: Any, catalog: str) -> FoundServer | None:
    """Return the server in a catalog entry. Return `None` if the entry doesn't describe a server.

    Also return `None` unless the entry has either ``url`` or ``data``.
    """
    if entry.get("type") != CARD_TYPE or ("url" in entry) == ("data" in entry):
        return None
    try:
        read = structure(entry, CardEntry)
        card = None if read.data is None else _card(read.data)
    except ValueError:
        return None
    return FoundServer(read.identifier, catalog, url=read.url, card=card)


def _rules(named_by: str, public_addresses_only: bool) -> UrlRules:
    try:
        # The domain is untrusted, unlike the URL that a user passes to a client: don't allow addresses of this machine.
        return UrlRules(public_addresses_only=True) if public_addresses_only else UrlRules.for_server(named_by)
    except ValueError as error:
        raise DiscoveryFailed(str(error)) from None


async def _read(url: str, kind: str, limit: int, rules: UrlRules) -> bytes:
    """Fetch and return the document at ``url``. It must have the media type ``kind``, and at most ``limit`` bytes.

    Raises `DiscoveryFailed` if there is no such document.
    """
    fetcher = HttpFetcher(rules, max_bytes=limit)
    where = url
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            answer = await fetcher.fetch(Fetch(method="GET", url=where, headers=(("accept", kind),)))
        except FetchFailed as error:
            raise DiscoveryFailed(f"the request for the server card or the catalog failed: {error}") from None
        if answer.status not in _REDIRECTS:
            break
        where = _next(answer, where)
    else:
        raise DiscoveryFailed(f"{url} leads to more than {_MOST_REDIRECTS} redirects")
    if answer.status != 200:
        raise DiscoveryFailed(f"there is no document at {where}: status {answer.status}")
    return answer.body


def _next(answer: Fetched, where: str) -> str:
    try:
        return urljoin(where, answer.headers.get("location", ""))
    except ValueError:
        raise DiscoveryFailed(f"{where} redirects to an invalid URL") from None


def _decoded(body: bytes) -> Any:
    """Parse the JSON document ``body``. Raises `ValueError` if it isn't valid JSON."""
    try:
        data = msgspec.json.decode(body)
        check_levels(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("the document is not JSON in UTF-8") from None
    return data


def _card(data: Any) -> ServerCard:
    """Parse ``data`` as a server card. Raises `ValueError` if the card, or the server name in it, is invalid."""
    card = structure(data, ServerCard)
    check_name(card.name)
    return card
