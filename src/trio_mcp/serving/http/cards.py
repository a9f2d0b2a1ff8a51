"""Cards: the card of a server beside its endpoint, and the catalogue that names the card, for clients that look for a
server (SEP-2127). Both are public: no token is asked for, and nothing is in them that needs one.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar

import attrs

from ...auth.fetching import Nearness, nearness
from ...classes import frozen
from ...jsonrpc.codec import encode_value
from ...protocol.converters import unstructure
from ...protocol.revisions import LATEST_MODERN, REVISIONS
from ...protocol.types.server_cards import (
    CARD_SCHEMA,
    CARD_SUFFIX,
    CARD_TYPE,
    CATALOG_PATH,
    CATALOG_TYPE,
    LARGEST_CARD,
    CardRemote,
    ServerCard,
    SourceRepository,
    card_url,
    check_name,
    check_text,
    check_version,
    domain_in,
    name_in,
)
from ...server.servable import Servable
from ...server.server import Server
from ...transports.http.application import Answer
from ...transports.http_client.origins import split_url

logger = logging.getLogger("trio_mcp")

_INSIDE: Final = re.compile(r"[^.]*|.*\.(?:local|internal|home\.arpa)")
"""Names that only a network of its own knows (RFC 6762 section 3, RFC 8375)."""

T = TypeVar("T")


def _check_name(_: Any, __: Any, name: str) -> None:
    check_name(name)


def _check_url(_: Any, __: Any, url: str) -> None:
    origin, _target = split_url(url)
    place = nearness(origin.host)
    # docs/discovery.md, Transport Security: https, and http for local development only.
    if not origin.secure and place is not Nearness.MACHINE:
        raise ValueError(f"the URL in a card is that of https, or of this machine, not {url[:300]!r}")
    # Information Disclosure: no private endpoints.
    if place is Nearness.NETWORK or (place is Nearness.ANYWHERE and _is_inside(origin.host)):
        raise ValueError(f"a card is public, and {origin.host} is an address inside of a network: {url[:300]!r}")


def _is_inside(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _INSIDE.fullmatch(host.removesuffix(".")) is not None
    return False


def _check_version(_: Any, __: Any, version: str | None) -> None:
    if version is not None:
        check_version(version)


def _check_text(_: Any, attribute: attrs.Attribute[Any], words: str | None) -> None:
    if words is not None:
        check_text(attribute.name, words)


@frozen
class Card:
    """The public card of a server, beside its endpoint: what clients may know before they connect, without a token.

        await serve_http(server, card=Card("com.example/weather", url="https://example.com/mcp"), catalog=True)

    Version, title, description, website and icons are those of the `Server`, and the revisions are those that are
    served; nothing is told of its tools and capabilities. Raises `ValueError` for a name, a text or a version that no
    card has, and for a URL inside of a network, since everybody reads the card. The same holds for the values of the
    server, when it begins to be served."""

    name: str = attrs.field(validator=_check_name)
    """The name of the server in the world: a domain of yours, reversed, a slash, and a name: ``com.example/weather``.
    The name behind the slash, or all of it, should be the name of the `Server`."""
    url: str = attrs.field(kw_only=True, validator=_check_url)
    """The URL of the endpoint, as clients write it."""
    version: str | None = attrs.field(default=None, kw_only=True, validator=_check_version)
    """The version in place of the server's own; needed for a proxy, which has none."""
    title: str | None = attrs.field(default=None, kw_only=True, validator=_check_text)
    """The title in place of the server's own."""
    description: str | None = attrs.field(default=None, kw_only=True, validator=_check_text)
    """The description in place of the server's own, of 1 to 100 characters; needed where the server has none."""
    repository: SourceRepository | None = attrs.field(default=None, kw_only=True)
    """The repository of the server's source."""

    def _of(self, server: Servable) -> ServerCard:
        """Return the whole card of ``server``. Raises `ValueError` for what is missing, or fits no card."""
        # The `info` of a proxy is for the people who run it; what its clients see is that of the server behind.
        info = server.info if isinstance(server, Server) else None
        card = ServerCard(
            self.name,
            _required("version", self.version, info and info.version),
            _required("description", self.description, info and info.description),
            self.title or (info and info.title),
            info and info.website_url,
            self.repository,
            info and info.icons,
            [CardRemote("streamable-http", self.url, list(REVISIONS))],
        )
        check_version(card.version)
        check_text("description", card.description)
        if card.title is not None:
            check_text("title", card.title)
        if info is not None and info.name not in (self.name, name_in(self.name)):
            # Consistency with Runtime Behavior: SHOULD NOT contradict; clients compare, and tell their people.
            logger.warning("the card says %s, and clients will see a server %r", self.name, info.name[:200])
        return card


def _required(what: str, own: T | None, of_server: T | None) -> T:
    value = own if own is not None else of_server
    if value is None:
        raise ValueError(f"a card has a {what}: write Server(..., {what}=...) or, for a proxy, Card(..., {what}=...)")
    return value


_CORS: Final = (
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Allow-Methods: GET\r\n"
    b"Access-Control-Allow-Headers: Content-Type, If-None-Match\r\n"
    b"Access-Control-Expose-Headers: ETag\r\n"
)
"""docs/discovery.md, CORS Requirements: MUST."""
_CACHED: Final = b"Cache-Control: public, max-age=3600\r\n"
_METHODS: Final = b"Allow: GET, HEAD, OPTIONS\r\n"
_TAG: Final = re.compile(r'"[^"]*"')
_LONGEST_KNOWN: Final = 4000
"""Maximum characters that are read of an If-None-Match header."""


@frozen
class PublicDocument:
    """A document for everybody, made once. ``kind`` is its media type."""

    kind: str
    body: bytes = attrs.field(repr=False)
    tag: str = attrs.field(init=False)
    """The entity tag of the document (RFC 9110 section 8.8.3)."""
    _headers: bytes = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        tag = f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'
        object.__setattr__(self, "tag", tag)
        object.__setattr__(self, "_headers", _CORS + _CACHED + f"ETag: {tag}\r\n".encode())

    def answer(self, method: str, known: str) -> Answer:
        """Return the answer to a request by ``method``, whatever types it accepts; ``known`` is its If-None-Match."""
        if method == "OPTIONS":
            return Answer(HTTPStatus.NO_CONTENT, _CORS + _METHODS + b"Access-Control-Max-Age: 7200\r\n")
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, _CORS + _METHODS)
        # RFC 9110 section 13.1.2: by weak comparison
        if known.strip() == "*" or self.tag in _TAG.findall(known, 0, _LONGEST_KNOWN):
            return Answer(HTTPStatus.NOT_MODIFIED, self._headers)
        return Answer(HTTPStatus.OK, f"Content-Type: {self.kind}\r\n".encode() + self._headers, self.body)


def public_documents(server: Servable, path: str, card: Card | None, *, catalog: bool) -> Mapping[str, PublicDocument]:
    """Return the documents beside the endpoint at ``path``, by their paths: the ``card`` of ``server``, and a catalogue
    with it. Raises `ValueError` for a catalogue without a card, and as `Card._of`."""
    if card is None:
        raise ValueError("catalog=True goes with a card: card=Card('com.example/weather', url='https://...')")
    plain = {"$schema": CARD_SCHEMA, **unstructure(card._of(server), LATEST_MODERN)}
    document = PublicDocument(CARD_TYPE, encode_value(plain))
    if len(document.body) > LARGEST_CARD:
        raise ValueError(
            f"the card has {len(document.body)} bytes, and clients read {LARGEST_CARD}: name icons by https URLs"
        )
    documents = {path.removesuffix("/") + CARD_SUFFIX: document}
    if catalog:
        identifier = f"urn:air:{domain_in(card.name)}:mcp:{name_in(card.name)}"
        entry = {"identifier": identifier, "type": CARD_TYPE, "url": card_url(card.url)}
        listed = {"specVersion": "1.0", "entries": [entry]}
        documents[CATALOG_PATH] = PublicDocument(CATALOG_TYPE, encode_value(listed))
    return documents
