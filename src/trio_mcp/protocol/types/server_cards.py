"""Server cards: what is known of a server before anybody connects, and the catalogue of a domain, where cards are
found (SEP-2127, docs/discovery.md and schema.ts). The same facts describe a server to registries.

All of it is told to strangers. Nothing of it decides on access: what the live server says counts.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ...classes import value
from ..fields import JSONObject
from .lifecycle import Icon

CARD_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
"""The ``$schema`` of a card."""
CARD_TYPE: Final = "application/mcp-server-card+json"
CATALOG_TYPE: Final = "application/ai-catalog+json"
CATALOG_PATH: Final = "/.well-known/ai-catalog.json"
"""The place of the catalogue of a domain."""
CARD_SUFFIX: Final = "/server-card"
"""The place of a card, behind the path of its endpoint."""
LARGEST_CARD: Final = 64 * 1024
"""Most bytes of a card."""


@value
class SourceRepository:
    """The repository of a server's source. ``source`` is the service that keeps it, such as ``github``; ``subfolder``
    is where in it the server is; ``id`` is the service's own name of the repository."""

    url: str
    source: str
    subfolder: str | None = None
    id: str | None = None


@value
class CardRemote:
    """An endpoint of a server. ``url`` may have ``{variables}``. ``headers`` and ``variables`` describe what the user
    has to give."""

    type: str
    url: str
    supported_protocol_versions: list[str] | None = None
    headers: list[JSONObject] | None = None
    variables: JSONObject | None = None


@value
class ServerCard:
    """A description of a server, for those who have not connected yet. For display and for finding the endpoint: the
    claims are unverified, and a live server that says something else is believed."""

    name: str
    version: str
    description: str
    title: str | None = None
    website_url: str | None = None
    repository: SourceRepository | None = None
    icons: list[Icon] | None = None
    remotes: list[CardRemote] | None = None
    meta: JSONObject | None = None

    @property
    def endpoint(self) -> CardRemote | None:
        """The first remote that speaks Streamable HTTP at a URL without variables; `None` where there is none."""
        return next(
            (each for each in self.remotes or () if each.type == "streamable-http" and "{" not in each.url), None
        )


@value
class Catalog:
    """The catalogue of a domain. Its entries may be of other kinds than servers."""

    entries: list[JSONObject]


@value
class CardEntry:
    """An entry of a catalogue, for a card: where the card is, or the card itself."""

    identifier: str
    type: str
    url: str | None = None
    data: JSONObject | None = None


def card_url(endpoint: str) -> str:
    """Return the reserved place of the card of the server at ``endpoint``, whose query is dropped, and one slash at the
    end of its path."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/')}{CARD_SUFFIX}"


_NAME: Final = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
_SHORTEST_NAME, _LONGEST_NAME = 3, 200
_LONGEST_VERSION: Final = 255
_LONGEST_TEXT: Final = 100
_RANGE: Final = re.compile(r"[\^~<>=*|,\s]|(?:^|\.)[xX](?:\.|$)")
"""Signs of a range: ``^1.2.3``, ``~1.2.3``, ``>=1.2.3``, ``1.x``, ``1.*``."""


def check_name(name: str) -> None:
    """Raise `ValueError` unless ``name`` is a reversed domain and a name, with a slash between."""
    if not (_SHORTEST_NAME <= len(name) <= _LONGEST_NAME and _NAME.fullmatch(name)):
        raise ValueError(
            "the name of a server is a reversed domain of yours, a slash and a name, like com.example/weather, "
            f"of {_SHORTEST_NAME} to {_LONGEST_NAME} letters, digits, dots and hyphens, not {name[:300]!r}"
        )


def check_version(version: str) -> None:
    """Raise `ValueError` unless ``version`` is a single version."""
    if not 0 < len(version) <= _LONGEST_VERSION or _RANGE.search(version) or version == "latest":
        raise ValueError(f"a version is one, like 1.0.2, and no range, not {version[:300]!r}")


def check_text(what: str, text: str) -> None:
    """Raise `ValueError` unless ``text``, a description or a title, has 1 to 100 characters."""
    if not 0 < len(text) <= _LONGEST_TEXT:
        told = f"this one has {len(text)}" if text else "this one is empty"
        raise ValueError(f"the {what} of a server has 1 to {_LONGEST_TEXT} characters, and {told}: {text[:300]!r}")


def name_in(name: str) -> str:
    """Return the part of ``name`` behind the slash: the name without its domain."""
    return name.rpartition("/")[2]


def domain_in(name: str) -> str:
    """Return the domain in ``name``, in the usual order of its labels."""
    return ".".join(reversed(name.partition("/")[0].split(".")))
