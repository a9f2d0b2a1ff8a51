"""Feed tells pages of all events, as server-sent events. The unread part of a page is bounded: a later state of the
same thing replaces the earlier one, and a page that is far behind is shown everything anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any, Final

import trio

from ..concurrency.contexts import contextmanager
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import encode_value
from ..protocol.fields import JSONObject
from ..transports.sse import KEEP_ALIVE, events

MOST_PAGES: Final = 8
"""Pages that are open at the same time."""
_MOST_WAITING: Final = 2000
"""Unread things of a page; with more, the page is shown everything anew."""
_AT_ONCE: Final = 200
"""Things that are written in one piece."""
_PAUSE: Final = 0.03
"""Seconds between two pieces, in which several changes of one thing are told once."""
_KEEP_ALIVE: Final = 15.0

Snapshot = Callable[[], Iterable[tuple[Hashable, JSONObject]]]


class PageFeed:
    """The news for all pages. ``snapshot`` returns all that a page has to know at its beginning, each thing under the
    key under which its changes are told."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._pages: set[PageStream] = set()

    def publish(self, key: Hashable, thing: JSONObject) -> None:
        """Tell all pages of ``thing``, which replaces an unread thing of the same ``key``."""
        for page in self._pages:
            page.put(key, thing)

    @property
    def is_full(self) -> bool:
        """True while no more pages may be opened."""
        return len(self._pages) >= MOST_PAGES

    @contextmanager
    def opened(self) -> Generator[PageStream]:
        """Open the stream of one more page, which begins with everything."""
        page = PageStream(self._snapshot)
        self._pages.add(page)
        try:
            yield page
        finally:
            self._pages.discard(page)


class PageStream:
    """The unread news of one page."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._waiting: dict[Hashable, JSONObject] = {}
        self._wakeup = Sleeper()
        self._restart()

    def _restart(self) -> None:
        self._waiting = {None: {"what": "everything"}}
        self._waiting.update(self._snapshot())

    def put(self, key: Hashable, thing: JSONObject) -> None:
        """Let ``thing`` be told. Synchronous."""
        self._waiting[key] = thing
        if len(self._waiting) > _MOST_WAITING:
            self._restart()
        self._wakeup.wake()

    async def next_events(self) -> bytes:
        """Wait for news, and return the news as events; a comment after a while without any."""
        with trio.move_on_after(_KEEP_ALIVE):
            while not self._waiting:
                await self._wakeup.sleep()
            await trio.sleep(_PAUSE)  # a handler that reports each step is no reason to draw the page for each
        if not self._waiting:
            return KEEP_ALIVE
        keys = list(self._waiting)[:_AT_ONCE]
        things: list[Any] = [self._waiting.pop(key) for key in keys]
        return bytes(events(b"".join(encode_value(thing) + b"\n" for thing in things)))
