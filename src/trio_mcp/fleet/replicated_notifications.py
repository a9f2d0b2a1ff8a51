"""ReplicatedNotifications: the notifications of extensions that replicas tell each other, as things in their log of
changes."""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..concurrency.bounded import BoundedDict
from ..jsonrpc.base64url import decode_base64url
from ..protocol.converters import structure, unstructure
from ..protocol.revisions import LATEST_MODERN
from ..stores.decoding import decode_stored
from ..stores.task_store import UnreadableRecord

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..server.request_state import StateCipher

logger = logging.getLogger("trio_mcp")

NOTIFICATION_PREFIX: Final = "told:"
"""The beginning of the names of these things."""
MAX_LENGTH: Final = 4096
"""Characters of the longest thing: the log remembers many."""
_KNOWN_LIMIT: Final = 10_000
_PURPOSE: Final = b"trio-mcp told 1 "


class _ReplicatedNotification(msgspec.Struct, frozen=True, array_like=True):
    source: str
    """The server that has told, in its process."""
    number: int
    method: str
    params: dict[str, Any]


_decoder: Final = msgspec.msgpack.Decoder(_ReplicatedNotification)


class ReplicatedNotifications:
    """Notifications of these ``rows``, sealed by the secrets of ``cipher``, which all replicas have."""

    def __init__(self, cipher: StateCipher, rows: Mapping[str, Method]) -> None:
        self._keys = cipher.keys_for(_PURPOSE)
        self._rows = rows
        self._known = BoundedDict[tuple[str, int], None](_KNOWN_LIMIT)
        """Notifications of others that have come."""

    def encode(self, source: str, number: int, row: Method, params: Any) -> str | None:
        """Return the thing for a notification, the ``number``-th of ``source``; `None` for one that is too long."""
        told = _ReplicatedNotification(source, number, row.name, unstructure(params, LATEST_MODERN))
        sealed = self._keys.seal(msgspec.msgpack.encode(told), _PURPOSE)
        thing = NOTIFICATION_PREFIX + base64.urlsafe_b64encode(sealed).decode()
        return thing if len(thing) <= MAX_LENGTH else None

    def decode_new(self, changed: Collection[str], own_source: str) -> list[tuple[Method, Any]]:
        """Return the notifications among the things that have ``changed`` which have not come before, those of each
        source in order, but none of the source ``own_source``. What cannot be read is skipped, and logged."""
        come = [self._unseal(thing) for thing in changed if thing.startswith(NOTIFICATION_PREFIX)]
        news: list[tuple[Method, Any]] = []
        for told in sorted((told for told in come if told is not None), key=lambda told: told.number):
            key = told.source, told.number
            row = self._rows.get(told.method)
            if told.source == own_source or key in self._known or row is None:  # another version has no such row
                continue
            self._known[key] = None
            try:
                news.append((row, structure(told.params, row.params)))
            except ValueError as error:
                logger.warning("a notification %s of another replica makes no sense: %s", row.name, error)
        return news

    def _unseal(self, thing: str) -> _ReplicatedNotification | None:
        try:
            sealed = decode_base64url(thing.removeprefix(NOTIFICATION_PREFIX))
            return decode_stored("a notification", _decoder.decode, self._keys.open(sealed, _PURPOSE))
        except (ValueError, UnreadableRecord):  # sealed with other secrets, or of another version
            pass
        logger.warning("a notification of another replica cannot be read: it has other secrets, or another version")
        return None
