"""Watchers are told which tasks have changed, as far as there is room for the hints."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Final

import trio

from ..concurrency.contexts import contextmanager

__all__ = ["Watchers"]

_MOST_HINTS: Final = 1000


class Watchers:
    """The streams of hints in this process, each to one who watches the store."""

    def __init__(self) -> None:
        self._channels: set[trio.MemorySendChannel[str]] = set()

    @contextmanager
    def watch(self) -> Generator[trio.MemoryReceiveChannel[str]]:
        """Open a stream of the ids of `tell`, from now on. An id for which there is no room is lost."""
        send, receive = trio.open_memory_channel[str](_MOST_HINTS)
        self._channels.add(send)
        try:
            with receive:
                yield receive
        finally:
            self._channels.discard(send)

    def tell(self, task_ids: Iterable[str]) -> None:
        """Tell all watchers that tasks have changed. Never waits."""
        for task_id in task_ids:
            for channel in self._channels:
                with suppress(trio.WouldBlock):  # a hint may be lost
                    channel.send_nowait(task_id)
