"""From the name of a host to the endpoint of a server: by the catalogue and the card (SEP-2127), and by what the user
agrees to. What a card says is compared with the live server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

import attrs

from ..auth.credentials import Bearer
from ..auth.fetching import FetchFailed, UrlRules
from ..client.client import Client
from ..connecting.cards import DiscoveryFailed, FoundServer, discover, read_card
from ..connecting.credentials import is_confidential
from ..connecting.targets import Address
from ..protocol.converters import structure_result
from ..protocol.revisions import LEGACY_REVISIONS
from ..protocol.types.lifecycle import DiscoverResult
from ..protocol.types.server_cards import ServerCard, name_in
from ..transports.http_client.origins import Origin, split_url
from .printable import name_shown, on_one_line, say
from .signals import run_until_interrupted
from .targets import NoTarget
from .terminal import Terminal

_LONGEST_URL = 2000
_LEGACY = frozenset(row.name for row in LEGACY_REVISIONS)


def is_host_alone(url: str) -> bool:
    """Return whether ``url`` names a host, and no path of it, by HTTP."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and parts.path in ("", "/") and not parts.query


def find_endpoint(typed: Address, timeout: float) -> tuple[Address, ServerCard | None]:
    """Return the endpoint that the catalogue at the host of ``typed`` leads to, and its card; where there is no
    catalogue, or nothing in it, ``typed`` itself and `None`.

    The user at the terminal is asked which of several servers is meant, and before anything but the host that was typed
    is asked for anything. Without a terminal nothing else is asked. Headers and tokens of the user go to the typed
    origin alone. Each answer has ``timeout`` seconds. Raises `NoTarget`, `DiscoveryFailed` for a card, and
    `trio.TooSlowError`.
    """
    origin = split_url(typed.url)[0]
    try:
        servers = run_until_interrupted(partial(discover, str(origin)), timeout)
    except DiscoveryFailed as error:
        say(f"no catalogue, so the URL itself is asked: {error}")
        return typed, None
    if not servers:
        say(f"the catalogue of {origin} names no server, so the URL itself is asked")
        return typed, None
    visit = _DiscoveryDialog(origin)
    server = visit.chosen(servers)
    if server.url is not None:
        visit.agree(server.url, "the card of the server is")
    card = run_until_interrupted(partial(read_card, server), timeout)
    visit.say(f"{name_shown(card.name)} {name_shown(card.version)}: {on_one_line(card.description)}")
    if card.endpoint is None:
        raise NoTarget(f"the card of {card.name} names no URL of Streamable HTTP")
    url = card.endpoint.url
    visit.agree(url, "the server is")
    visit.say(f"  at {name_shown(url, _LONGEST_URL)}")
    if split_url(url)[0] == origin:
        return attrs.evolve(typed, url=url), card
    if typed.headers or isinstance(typed.auth, Bearer):
        raise NoTarget(f"your headers and your token are for {origin}, and the server is elsewhere: name {url} itself")
    return attrs.evolve(typed, url=url, auth=typed.auth if is_confidential(url) else None), card


class _DiscoveryDialog:
    """Hosts that the user has agreed to, beginning with the host that was typed."""

    def __init__(self, typed: Origin) -> None:
        self._agreed = {typed}
        self._rules = UrlRules.for_server(str(typed))
        self._terminal = Terminal(None)
        self.say = self._terminal.say

    def chosen(self, servers: Sequence[FoundServer]) -> FoundServer:
        """Show what the catalogue has, and return the server that is meant. Raises `NoTarget`."""
        for number, server in enumerate(servers, start=1):
            where = server.url or "(its card is in the catalogue)"
            self.say(f"  {number}) {name_shown(server.identifier)}  {name_shown(where, _LONGEST_URL)}")
        if len(servers) == 1:
            return servers[0]
        typed = self._asked(f"which one? 1 to {len(servers)}") if self._terminal.can_ask else None
        if typed is not None and typed.isdecimal() and 0 < int(typed) <= len(servers):
            return servers[int(typed) - 1]
        raise NoTarget(f"there are {len(servers)} servers: name the URL of the one that you mean")

    def agree(self, url: str, what: str) -> None:
        """Have the user agree to ask ``url``, unless it is at an agreed origin. Raises `NoTarget`."""
        try:
            origin = self._rules.check(url)
        except FetchFailed as error:
            raise NoTarget(f"the catalogue leads to no URL that is asked: {error}") from None
        if origin in self._agreed:
            return
        if not self._terminal.can_ask:
            raise NoTarget(f"{what} elsewhere, at {origin}: name {url} itself if you want it asked")
        if self._asked(f"{what} elsewhere: connect to {origin}? yes or no [no]") not in ("y", "yes"):
            raise NoTarget(f"{origin} was not asked for anything")
        self._agreed.add(origin)

    def _asked(self, prompt: str) -> str | None:
        async def ask() -> str | None:
            async with self._terminal.asking():
                return await self._terminal.read(prompt)

        return run_until_interrupted(ask)


async def differences(card: ServerCard, client: Client) -> list[str]:
    """Return in words where ``card`` says something else than the live server (docs/discovery.md, Consistency with
    Runtime Behavior). Asks a modern server for its revisions, and raises as a call does."""
    return [*_differences(card, client, await _live_versions(client))]


def _differences(card: ServerCard, client: Client, live: set[str]) -> Iterator[str]:
    info = client.server_info
    if info is not None and info.name not in (card.name, name_in(card.name)):
        yield _said("the name", card.name, info.name)
    if info is not None and info.version != card.version:
        yield _said("version", card.version, info.version)
    told = card.endpoint.supported_protocol_versions if card.endpoint is not None else None
    if told is None:
        return
    # A modern server does not tell its legacy revisions; of a legacy one, that of the connection is known alone.
    claimed = {name for name in told if name not in _LEGACY} if not client.revision.handshake else live & set(told)
    if claimed != live:
        yield _said("revisions", ", ".join(sorted(claimed)) or "none of these", ", ".join(sorted(live)))


def _said(what: str, card: str, live: str) -> str:
    return f"the card says {what} {name_shown(card)}, the live server {name_shown(live)}: believe the server"


async def _live_versions(client: Client) -> set[str]:
    revision = client.revision
    if revision.handshake:
        return {revision.name}
    result = await client.connection.request("server/discover", {"_meta": client.meta_in(revision)}, revision)
    return set(structure_result("server/discover", result, DiscoverResult).supported_versions)
