"""Server cards, which describe a server to clients that aren't connected yet, and catalogs, which list the cards of a
domain (SEP-2127, docs/discovery.md and schema.ts). Registries use the same format.

Cards and catalogs are public. No access decision may depend on them: the live server is authoritative.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from ...classes import value
from ..fields import JSONObject
from .lifecycle import Icon

CARD_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
"""Value of ``$schema`` in a server card."""
CARD_TYPE: Final = "application/mcp-server-card+json"
CATALOG_TYPE: Final = "application/ai-catalog+json"
CATALOG_PATH: Final = "/.well-known/ai-catalog.json"
"""URL path of a domain's catalog of server cards."""
CARD_SUFFIX: Final = "/server-card"
"""URL path of a server card, after the path of its endpoint."""
LARGEST_CARD: Final = 64 * 1024
"""Maximum bytes of a server card."""


@value
class SourceRepository:
    """The repository of a server's source code."""

    url: str
    """URL of the repository."""
    source: str
    """The hosting service, such as ``github``."""
    subfolder: str | None = None
    """Path of the server's folder in the repository; `None` for the root."""
    id: str | None = None
    """The hosting service's identifier of the repository."""


@value
class CardRemote:
    """An HTTP endpoint of a server, as listed in a server card."""

    type: str
    """Transport of the endpoint, normally ``streamable-http``."""
    url: str
    """URL of the endpoint, which may contain variables in braces."""
    supported_protocol_versions: list[str] | None = None
    """Protocol revisions that the endpoint supports; `None` if not specified."""
    headers: list[JSONObject] | None = None
    """Descriptions of the HTTP headers that clients must or may send."""
    variables: JSONObject | None = None
    """Descriptions of the variables in ``url``, keyed by their names."""


@value
class ServerCard:
    """A server card, which describes a server for clients that aren't connected yet.

    Use it for display, and to find the endpoint. Its claims are unverified: if the running server differs, trust the
    server.
    """

    name: str
    """Unique name: a reversed domain, a slash and a name, like ``com.example/weather``."""
    version: str
    """Exact version of the server, such as ``1.0.2``."""
    description: str
    """What the server does, in 1 to 100 characters."""
    title: str | None = None
    """Display name of 1 to 100 characters; `None` to show ``name``."""
    website_url: str | None = None
    """URL of the server's website."""
    repository: SourceRepository | None = None
    """Repository of the server's source code; `None` if not specified."""
    icons: list[Icon] | None = None
    """Icons that a client can show to the user."""
    remotes: list[CardRemote] | None = None
    """The server's HTTP endpoints; `None` if not specified."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""

    @property
    def endpoint(self) -> CardRemote | None:
        """The first Streamable HTTP endpoint whose URL has no variables.

        `None` if there is none.
        """
        return next(
            (each for each in self.remotes or () if each.type == "streamable-http" and "{" not in each.url), None
        )


@value
class Catalog:
    """The catalog of a domain, which lists server cards.

    It may also list other things.
    """

    entries: list[JSONObject]


@value
class CardEntry:
    """A catalog entry for a server card.

    It contains the URL of the card, or the card itself.
    """

    identifier: str
    type: str
    url: str | None = None
    data: JSONObject | None = None


def card_url(endpoint: str) -> str:
    """Return the well-known URL of the server card for the server at ``endpoint``.

    The query, and a slash at the end of the path, are ignored.
    """
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/')}{CARD_SUFFIX}"


_NAME: Final = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
_SHORTEST_NAME, _LONGEST_NAME = 3, 200
_LONGEST_VERSION: Final = 255
_LONGEST_TEXT: Final = 100
_RANGE: Final = re.compile(r"[\^~<>=*|,\s]|(?:^|\.)[xX](?:\.|$)")
"""Pattern of version ranges, which aren't allowed: ``^1.2.3``, ``~1.2.3``, ``>=1.2.3``, ``1.x``, ``1.*``."""


def check_name(name: str) -> None:
    """Raise `ValueError` if ``name`` isn't a valid server name: a reversed domain, a slash and a name."""
    if not (_SHORTEST_NAME <= len(name) <= _LONGEST_NAME and _NAME.fullmatch(name)):
        raise ValueError(
            "the name of a server must be your reversed domain, a slash and a name, like com.example/weather, "
            f"with {_SHORTEST_NAME} to {_LONGEST_NAME} letters, digits, dots and hyphens, not {name[:300]!r}"
        )


def check_version(version: str) -> None:
    """Raise `ValueError` if ``version`` isn't a single version, such as 1.0.2."""
    if not 0 < len(version) <= _LONGEST_VERSION or _RANGE.search(version) or version == "latest":
        raise ValueError(f"the version of a server must be one exact version, like 1.0.2, not {version[:300]!r}")


def check_text(what: str, text: str) -> None:
    """Raise `ValueError` if ``text`` is empty or longer than 100 characters.

    ``what`` says whether it is a server's description or title.
    """
    if not 0 < len(text) <= _LONGEST_TEXT:
        told = f"this one has {len(text)}" if text else "this one is empty"
        raise ValueError(
            f"the {what} of a server must have 1 to {_LONGEST_TEXT} characters, but {told}: {text[:300]!r}"
        )


def name_in(name: str) -> str:
    """Return the part of a server's ``name`` after the slash, for example ``weather``."""
    return name.rpartition("/")[2]


def domain_in(name: str) -> str:
    """Return the domain in a server's ``name`` in the usual order: ``example.com`` for ``com.example/weather``."""
    return ".".join(reversed(name.partition("/")[0].split(".")))
