"""Finding servers before connecting: the catalogue of a domain, and the cards of servers (SEP-2127)."""

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
    """There is no card, or no catalogue, at the URL, or what is there makes no sense. The message says which, and has
    no characters that a terminal obeys."""

    def __init__(self, reason: str) -> None:
        super().__init__(clean(reason))


@frozen
class FoundServer:
    """A server that a catalogue names. What is said of it is unverified."""

    identifier: str
    """The identifier in the catalogue, such as ``urn:air:example.com:mcp:weather``."""
    catalog: str
    """The URL of the catalogue."""
    url: str | None = attrs.field(default=None, kw_only=True)
    """The URL of the card; `None` where the catalogue has the card itself."""
    card: ServerCard | None = attrs.field(default=None, kw_only=True)
    """The card, where the catalogue has it itself."""


async def read_card(where: str | FoundServer, *, public_addresses_only: bool = False) -> ServerCard:
    """Return the card of a server: at a URL, such as ``https://example.com/mcp/server-card``, or of a server that
    `discover` has found.

    The scheme is ``https``, or ``http`` where the URL, or the catalogue that names it, is of this machine. Up to three
    redirects are followed, by the same rule; each answer has 30 seconds, and 64 KiB are read at most. With
    ``public_addresses_only``, meant for programs on servers, only addresses on the public internet are contacted, and
    never this machine, for any URL. Raises `DiscoveryFailed`.

    Nobody has verified what a card says. Compare it with `Client.server_info` once connected, and decide nothing by it.
    """
    if isinstance(where, FoundServer):
        if where.card is not None:
            return where.card
        # Whoever wrote the catalogue has named the URL, so what it may lead to depends on where the catalogue is.
        url, named_by = where.url or "", where.catalog
    else:
        check_url(where, "https://example.com/mcp/server-card")
        url = named_by = where
    body = await _read(url, CARD_TYPE, LARGEST_CARD, _rules(named_by, public_addresses_only))
    try:
        return _card(_decoded(body))
    except ValueError as error:
        raise DiscoveryFailed(f"{url} has no card: {error}") from None


async def discover(domain: str, *, public_addresses_only: bool = False) -> list[FoundServer]:
    """Return the servers in the catalogue of ``domain``, ``example.com`` or ``https://example.com``, up to a thousand.
    Entries of other kinds, and those that make no sense, are left out.

    The catalogue is asked for by the rules of `read_card`, ``public_addresses_only`` included, and up to 1 MiB are
    read. Raises `DiscoveryFailed`, also where the domain has no catalogue.
    """
    check_url(domain, "example.com")
    try:
        origin, target = split_url(domain if "://" in domain else f"https://{domain}")
    except ValueError as error:
        raise DiscoveryFailed(str(error)) from None
    if target != "/":
        raise DiscoveryFailed(f"a catalogue belongs to a whole domain, like example.com: {domain[:300]!r}")
    url = f"{origin}{CATALOG_PATH}"
    body = await _read(url, CATALOG_TYPE, _LARGEST_CATALOG, _rules(url, public_addresses_only))
    try:
        catalog = structure(_decoded(body), Catalog)
    except ValueError as error:
        raise DiscoveryFailed(f"{url} is no catalogue: {error}") from None
    found = (_found(entry, url) for entry in catalog.entries[:_MOST_ENTRIES])
    return [server for server in found if server is not None]


def _found(entry: Any, catalog: str) -> FoundServer | None:
    """Return the server of an entry; `None` for an entry of another kind, or one that has not exactly one of ``url``
    and ``data``."""
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
        # Unlike the server of a client, the domain comes from a stranger: no address of this machine is public.
        return UrlRules(public_addresses_only=True) if public_addresses_only else UrlRules.for_server(named_by)
    except ValueError as error:
        raise DiscoveryFailed(str(error)) from None


async def _read(url: str, kind: str, limit: int, rules: UrlRules) -> bytes:
    """Return the document of the media type ``kind`` at ``url``, of ``limit`` bytes at most. Raises
    `DiscoveryFailed`."""
    fetcher = HttpFetcher(rules, max_bytes=limit)
    where = url
    for _ in range(_MOST_REDIRECTS + 1):
        try:
            answer = await fetcher.fetch(Fetch(method="GET", url=where, headers=(("accept", kind),)))
        except FetchFailed as error:
            raise DiscoveryFailed(f"nothing was read: {error}") from None
        if answer.status not in _REDIRECTS:
            break
        where = _next(answer, where)
    else:
        raise DiscoveryFailed(f"{url} leads through more than {_MOST_REDIRECTS} redirects")
    if answer.status != 200:
        raise DiscoveryFailed(f"there is nothing at {where}: status {answer.status}")
    return answer.body


def _next(answer: Fetched, where: str) -> str:
    try:
        return urljoin(where, answer.headers.get("location", ""))
    except ValueError:
        raise DiscoveryFailed(f"{where} leads to no URL") from None


def _decoded(body: bytes) -> Any:
    """Return the JSON in ``body``. Raises `ValueError`."""
    try:
        data = msgspec.json.decode(body)
        check_levels(body)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("it is no JSON in UTF-8") from None
    return data


def _card(data: Any) -> ServerCard:
    """Return the card in ``data``. Raises `ValueError`, also for a name by which nobody knows a server again."""
    card = structure(data, ServerCard)
    check_name(card.name)
    return card
