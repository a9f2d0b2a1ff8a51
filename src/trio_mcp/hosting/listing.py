"""Listing: read the offers of a member, and read them again after changes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import trio

from ..auth.errors import AuthorizationError
from ..client.changes import Change
from ..client.client import Client
from ..concurrency.time_limits import fail_after_work
from ..jsonrpc.errors import METHOD_NOT_FOUND, PeerError, ProtocolViolation
from ..runtime.channel import ConnectionLost
from ..runtime.http_error import HTTPError
from .catalogue import Catalogue, ListName

logger = logging.getLogger("trio_mcp")

_MOST: Final = 10_000
_LARGEST: Final = 16 * 1024 * 1024
_SLOWEST: Final = 60.0
_REST: Final = 0.1
_LISTS_OF: Final[dict[str, tuple[ListName, ...]]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "resource_templates"),
}


class Listing:
    """Keep the lists of a member in the catalogue as its server has them.

    A list has 10,000 items at most, of 16 MiB together, and 60 seconds. After reading, the listing rests for 100 ms, or
    for as long as the reading took, whatever changes the server reports. A list that cannot be read stays unchanged,
    and the failure is reported.
    """

    def __init__(self, member: str, catalogue: Catalogue) -> None:
        self._member = member
        self._catalogue = catalogue
        self._stale: dict[ListName, None] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self.read = False
        """True once the lists of the present connection were read."""
        self._over = False
        """True once the member was removed."""

    def begin(self, client: Client) -> None:
        """Start anew for a new connection: read all lists that the server declares, and watch them from now on."""
        declared = client.server_capabilities
        self._stale = {name: None for kind, names in _LISTS_OF.items() if getattr(declared, kind) for name in names}
        self.read = False
        client.callbacks.watchers.append(self._heard)

    def end(self) -> None:
        """Let nothing more get into the catalogue, where another member may have the name from now on."""
        self._over = True

    def _heard(self, change: Change) -> None:
        for name in _LISTS_OF.get(change.kind, ()):
            self._stale[name] = None
        self._changed.unpark_all()

    async def keep(self, client: Client, after_reading: trio.lowlevel.ParkingLot) -> None:
        """Read the lists, and wait for changes, until the connection is lost or this is cancelled."""
        while True:
            began = trio.current_time()
            due, self._stale = self._stale, {}  # a change that comes during the reading makes a list stale again
            try:
                for name in due:
                    await self._read(client, name)
            except ConnectionLost:
                return
            self.read = True
            after_reading.unpark_all()
            await trio.sleep(max(_REST, trio.current_time() - began))  # long lists take time from all other tasks
            while not self._stale:
                await self._changed.park()

    async def _read(self, client: Client, name: ListName) -> None:
        items: list[Any] = []
        size = 0
        pages: AsyncIterator[Any] = getattr(client, f"list_{name}")()
        try:
            with fail_after_work(_SLOWEST):  # not counting the time in which the user signs in
                async for item in pages:
                    size += len(repr(item))
                    if len(items) == _MOST or size > _LARGEST:
                        logger.warning("member %s: only the first %d %s are listed", self._member, len(items), name)
                        break
                    items.append(item)
        except (PeerError, ProtocolViolation, HTTPError, AuthorizationError, trio.TooSlowError) as error:
            if not _has_none(name, error):
                logger.warning("the %s of member %s cannot be listed: %r", name, self._member, error)
                return
            items = []
        if not self._over:
            self._catalogue.replace(self._member, name, items)


def _has_none(name: ListName, error: Exception) -> bool:
    """Return whether the server has no list ``name``. No capability says whether it has resource templates, so some
    servers with resources do not know the method."""
    return name == "resource_templates" and isinstance(error, PeerError) and error.code == METHOD_NOT_FOUND
