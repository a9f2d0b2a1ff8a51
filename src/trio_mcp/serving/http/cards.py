"""Server cards and catalogs, for clients that discover servers (SEP-2127). A server's card is served beside its
endpoint, and the catalog lists the card. Both documents are public: no token is required, and they contain no
secrets."""

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
"""Suffixes of names that are valid only in a local network (RFC 6762 section 3, RFC 8375)."""

T = TypeVar("T")


def _check_name(_: Any, __: Any, name: str) -> None:
    check_name(name)


def _check_url(_: Any, __: Any, url: str) -> None:
    origin, _target = split_url(url)
    place = nearness(origin.host)
    # docs/discovery.md, Transport Security: https is required; http is only for local development.
    if not origin.secure and place is not Nearness.MACHINE:
        raise ValueError(f"the URL in a server card must use https, unless its host is this machine: {url[:300]!r}")
    # docs/discovery.md, Information Disclosure: public cards must not contain private endpoints.
    if place is Nearness.NETWORK or (place is Nearness.ANYWHERE and _is_inside(origin.host)):
        raise ValueError(f"the URL in a server card must not have the private address {origin.host}: {url[:300]!r}")


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
    """The public description (server card) of a server, which clients can read before they connect. No token is
    required.

        await serve_http(server, card=Card("com.example/weather", url="https://example.com/mcp"), catalog=True)

    By default, the card has the version, title, description, website and icons of the `Server`. It lists the protocol
    revisions that the server supports, but no tools or capabilities.

    Raises `ValueError` for an invalid name, text or version, and for a URL with a private address, because the card is
    public. Serving checks the values of the server in the same way when it starts.
    """

    name: str = attrs.field(validator=_check_name)
    """The global name of the server: your domain reversed, a slash, and a name, such as ``com.example/weather``. The
    name of the `Server` should be the part after the slash, or all of it."""
    url: str = attrs.field(kw_only=True, validator=_check_url)
    """The URL of the endpoint, as clients enter it."""
    version: str | None = attrs.field(default=None, kw_only=True, validator=_check_version)
    """The version on the card, in place of the version of the server. Required for a proxy, which has no version."""
    title: str | None = attrs.field(default=None, kw_only=True, validator=_check_text)
    """The title on the card, in place of the title of the server."""
    description: str | None = attrs.field(default=None, kw_only=True, validator=_check_text)
    """The description on the card, in place of the description of the server, with 1 to 100 characters. Required if the
    server has no description."""
    repository: SourceRepository | None = attrs.field(default=None, kw_only=True)
    """The repository with the server's source code, as shown on the card."""

    def _of(self, server: Servable) -> ServerCard:
        """Return the complete server card of ``server``.

        Raises `ValueError` if a value is missing, or isn't allowed in a card.
        """
        # A proxy has its own `info`, such as a name and a version, for the people who operate the proxy.
        # The clients of a proxy get the information of the server behind the proxy.
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
            # docs/discovery.md, Consistency with Runtime Behavior: the card SHOULD NOT contradict the server.
            # Clients compare the server card with the running server, and warn users of differences.
            logger.warning("the card says %s, but clients will see the server name %r", self.name, info.name[:200])
        return card


def _required(what: str, own: T | None, of_server: T | None) -> T:
    value = own if own is not None else of_server
    if value is None:
        raise ValueError(
            f"a server card needs a {what}: write Server(..., {what}=...), or Card(..., {what}=...) for a proxy"
        )
    return value


_CORS: Final = (
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Allow-Methods: GET\r\n"
    b"Access-Control-Allow-Headers: Content-Type, If-None-Match\r\n"
    b"Access-Control-Expose-Headers: ETag\r\n"
)
"""Headers that cards and catalogs must have (docs/discovery.md, CORS Requirements)."""
_CACHED: Final = b"Cache-Control: public, max-age=3600\r\n"
_METHODS: Final = b"Allow: GET, HEAD, OPTIONS\r\n"
_TAG: Final = re.compile(r'"[^"]*"')
_LONGEST_KNOWN: Final = 4000
"""Maximum number of characters of an If-None-Match header that are read."""


@frozen
class PublicDocument:
    """A public document, such as a server card, encoded once for all requests. ``kind`` is its media type."""

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
        """Return the HTTP response to a request with the HTTP ``method`` for this server card or catalog. The Accept
        header is ignored.

        ``known`` is the value of the If-None-Match header.
        """
        if method == "OPTIONS":
            return Answer(HTTPStatus.NO_CONTENT, _CORS + _METHODS + b"Access-Control-Max-Age: 7200\r\n")
        if method not in ("GET", "HEAD"):
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, _CORS + _METHODS)
        # RFC 9110 section 13.1.2: If-None-Match uses weak comparison
        if known.strip() == "*" or self.tag in _TAG.findall(known, 0, _LONGEST_KNOWN):
            return Answer(HTTPStatus.NOT_MODIFIED, self._headers)
        return Answer(HTTPStatus.OK, f"Content-Type: {self.kind}\r\n".encode() + self._headers, self.body)


def public_documents(server: Servable, path: str, card: Card | None, *, catalog: bool) -> Mapping[str, PublicDocument]:
    """Return the public documents of an endpoint, keyed by path: the server ``card``, and the catalog that lists it.

    ``path`` is the path of the endpoint.

    Raises `ValueError` for a catalog without a card, and for the same reasons as `Card._of`.
    """
    if card is None:
        raise ValueError("catalog=True needs a server card: card=Card('com.example/weather', url='https://...')")
    plain = {"$schema": CARD_SCHEMA, **unstructure(card._of(server), LATEST_MODERN)}
    document = PublicDocument(CARD_TYPE, encode_value(plain))
    if len(document.body) > LARGEST_CARD:
        raise ValueError(
            f"the server card has {len(document.body)} bytes, but clients read at most {LARGEST_CARD}: "
            "write its icons as https URLs"
        )
    documents = {path.removesuffix("/") + CARD_SUFFIX: document}
    if catalog:
        identifier = f"urn:air:{domain_in(card.name)}:mcp:{name_in(card.name)}"
        entry = {"identifier": identifier, "type": CARD_TYPE, "url": card_url(card.url)}
        listed = {"specVersion": "1.0", "entries": [entry]}
        documents[CATALOG_PATH] = PublicDocument(CATALOG_TYPE, encode_value(listed))
    return documents
