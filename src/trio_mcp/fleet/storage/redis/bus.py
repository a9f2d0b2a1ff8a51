"""Bus brings the messages of one subscription to their readers: hints, by their first byte, and letters.

Each replica has one subscription, to the bus of all and to the channel of its own letters. A message on the bus begins
with ``t`` for the id of a task, ``s`` for the id of a session, ``l`` for a stream in the event log, ``c`` for changes.
Others are of versions to come, and are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from ....stores.decoding import decode_stored
from ....stores.record_codec import decoded
from ....stores.shared import ChangeHint
from ....stores.task_store import HINTS_LOST, HintQueues, HintsLost, UnreadableRecord
from .change_log import decode_change_hint
from .courier import RedisCourier
from .event_log import decode_hint
from .link import ChannelMessage

logger = logging.getLogger("trio_mcp")


class Bus:
    """The readers of ``channel``, and of the letters to ``courier``. ``on_gap`` is called, besides, where messages may
    have been lost: Redis was away, for example."""

    def __init__(self, channel: str, courier: RedisCourier, on_gap: Callable[[], None]) -> None:
        self.channel: Final = channel
        self._courier = courier
        self._on_hints_lost = on_gap
        self.tasks = HintQueues[str]()
        self.sessions = HintQueues[str]()
        self.events = HintQueues[tuple[str, str]]()
        self.changes = HintQueues[ChangeHint]()

    async def run(self, messages: AsyncIterator[ChannelMessage | HintsLost]) -> None:
        """Bring each message to its readers, until cancelled."""
        async for message in messages:
            if isinstance(message, HintsLost):
                self._notify_hints_lost()
                self._on_hints_lost()
            elif message.channel == self._courier.channel:
                self._courier.on_message(message.data)
            else:
                self._read(message.data)

    def _read(self, data: bytes) -> None:
        try:
            decode_stored("a hint", self._hint, data)
        except UnreadableRecord as error:  # not written by a replica
            logger.warning("ignored an invalid hint: %s", error)
            self._notify_hints_lost()

    def _hint(self, data: bytes) -> None:
        match data[:1]:
            case b"t":
                self.tasks.notify([decoded(data[1:])])
            case b"s":
                self.sessions.notify([decoded(data[1:])])
            case b"l":
                self.events.notify([decode_hint(data)])
            case b"c":
                self.changes.notify([decode_change_hint(data)])
            case kind:
                logger.debug("a hint of an unknown kind was ignored: %r", kind)

    def _notify_hints_lost(self) -> None:
        for watchers in (self.tasks, self.sessions, self.events, self.changes):
            watchers.notify([HINTS_LOST])
        self._courier.on_messages_lost()
