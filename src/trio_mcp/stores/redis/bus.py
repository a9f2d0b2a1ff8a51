"""Bus brings the messages of one subscription to their readers: hints, by their first byte, and letters.

Each replica has one subscription, to the bus of all and to the channel of its own letters. A message on the bus begins
with ``t`` for the id of a task, ``s`` for the id of a session, ``l`` for a stream in the event log, ``c`` for changes.
Others are of versions to come, and are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from ..decoding import decode_stored
from ..record_codec import decoded
from ..shared import Noted
from ..task_store import GAP, Gap, UnreadableRecord, Watchers
from .changes import noted
from .courier import RedisCourier
from .events import hinted
from .link import Message

logger = logging.getLogger("trio_mcp")


class Bus:
    """The readers of ``channel``, and of the letters to ``courier``. ``on_gap`` is called, besides, where messages may
    have been lost: Redis was away, for example."""

    def __init__(self, channel: str, courier: RedisCourier, on_gap: Callable[[], None]) -> None:
        self.channel: Final = channel
        self._courier = courier
        self._on_gap = on_gap
        self.tasks = Watchers[str]()
        self.sessions = Watchers[str]()
        self.events = Watchers[tuple[str, str]]()
        self.changes = Watchers[Noted]()

    async def run(self, messages: AsyncIterator[Message | Gap]) -> None:
        """Bring each message to its readers, until cancelled."""
        async for message in messages:
            if isinstance(message, Gap):
                self._tell_gap()
                self._on_gap()
            elif message.channel == self._courier.channel:
                self._courier.on_message(message.data)
            else:
                self._read(message.data)

    def _read(self, data: bytes) -> None:
        try:
            decode_stored("a hint", self._hint, data)
        except UnreadableRecord as error:  # not written by a replica
            logger.warning("ignored an invalid hint: %s", error)
            self._tell_gap()

    def _hint(self, data: bytes) -> None:
        match data[:1]:
            case b"t":
                self.tasks.tell([decoded(data[1:])])
            case b"s":
                self.sessions.tell([decoded(data[1:])])
            case b"l":
                self.events.tell([hinted(data)])
            case b"c":
                self.changes.tell([noted(data)])
            case kind:
                logger.debug("a hint of an unknown kind was ignored: %r", kind)

    def _tell_gap(self) -> None:
        for watchers in (self.tasks, self.sessions, self.events, self.changes):
            watchers.tell([GAP])
        self._courier.on_gap()
