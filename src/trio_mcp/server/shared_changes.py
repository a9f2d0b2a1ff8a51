"""SharedChanges tells the other replicas of a server of changes here, and the observers here of changes there.

A change is told late where the storage fails, and twice now and then, but never not at all.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import trio

from ..concurrency.time_limits import growing_delay
from ..concurrency.wakeups import ChangeSignal, Sleeper
from ..stores.shared import MOST_CHANGES, Noted
from .told_elsewhere import TOLD

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..stores.shared import ChangeLog, Place
    from .connected_clients import Observer, Observers
    from .told_elsewhere import ToldElsewhere

logger = logging.getLogger("trio_mcp")

EVERYTHING: Final = "everything"
"""The thing that stands for all, where too many have changed to be named."""
_RESOURCE: Final = "resource:"
_LISTS: Final = frozenset(("tools", "prompts", "resources"))
_NONE: Final = frozenset[str]()
_MOST_WAITING: Final = 1000
"""Things that wait to be noted, beyond which no notification of an extension does."""
_COALESCE: Final = 0.01
_LOOK_EVERY: Final = 5.0
_LAST_WORDS: Final = 1.0
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 2.0
_LOST: Final = ""
"""A place that no log knows: everything may have changed since."""


class SharedChanges:
    """One of the ``observers`` of a server, all of whom are told at once of changes here: this one notes changes in the
    ``log``. While `run` runs, the others are told of changes on other replicas. ``elsewhere`` has the form of
    notifications of extensions, where there are any."""

    def __init__(self, observers: Observers, log: ChangeLog, elsewhere: ToldElsewhere | None = None) -> None:
        self._elsewhere = elsewhere
        self._observers = observers
        self._log = log
        self._place: Place = _LOST
        self._waiting: dict[str, None] = {}
        """Things that have changed here, and are to be noted."""
        self._noting = _NONE
        """Things that are being noted."""
        self._writer = Sleeper()
        self._signal = ChangeSignal(_LOOK_EVERY)
        self._is_lost = False
        """True where hints were lost, so that none moves the place before the log was asked."""
        self._own = Counter[frozenset[str]]()
        """The notes of ours without a hint so far, forgotten where hints were lost."""

    @property
    def place(self) -> Place:
        """The place in the log up to which the observers were told; empty where nobody knows."""
        return self._place

    @property
    def unnoted(self) -> Collection[str]:
        """Things that have changed here, of which the log may not know yet."""
        return self._noting.union(self._waiting)

    # What changes here

    def list_changed(self, method: str) -> None:
        """Note that a list has changed: see `Observer.list_changed`."""
        self._note(method.split("/")[1])

    def resource_updated(self, uri: str) -> None:
        """Note that a resource has changed: see `Observer.resource_updated`."""
        self._note(_RESOURCE + uri)

    def everything_changed(self) -> None:
        """Note that everything has changed: see `Observer.everything_changed`."""
        self._note(EVERYTHING)

    def told(self, row: Method, params: object) -> None:
        """Note a notification of an extension, unless that is too long, or too many wait: see `Observer.told`."""
        if self._elsewhere is None:
            return
        thing = self._elsewhere.thing(self._observers.source, self._observers.telling, row, params)
        if thing is None or len(self._waiting) >= _MOST_WAITING:
            why = "it is too long" if thing is None else "too many wait"
            logger.warning("a notification %s is told to the clients of this replica alone: %s", row.name, why)
            return
        self._waiting[thing] = None
        self._writer.wake()

    def _note(self, thing: str) -> None:
        if EVERYTHING in self._waiting:
            return
        self._waiting[thing] = None
        if thing == EVERYTHING or len(self._waiting) > MOST_CHANGES:  # nobody could remember them
            told = (each for each in self._waiting if each.startswith(TOLD))
            self._waiting = dict.fromkeys((EVERYTHING, *told))
        self._writer.wake()

    async def _write(self) -> None:
        while True:
            while not self._waiting:
                await self._writer.sleep()
            await trio.sleep(_COALESCE)
            self._noting, self._waiting = frozenset(self._waiting), {}
            attempt = 1
            while not await self._is_noted(self._noting):
                await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
                attempt += 1
            self._noting = _NONE

    async def _is_noted(self, changed: frozenset[str]) -> bool:
        self._own[changed] += 1  # before, since the hint may be faster than the answer
        try:
            await self._log.note(changed)
        except OSError as error:
            logger.debug("a change was not noted, and is again: %s", error)
            if self._own[changed]:
                self._expect_no_more(changed)
            else:  # the hint that was taken for ours may be of another replica, where the same has changed
                self._tell(changed)
            return False
        return True

    def _expect_no_more(self, changed: frozenset[str]) -> None:
        self._own[changed] -= 1
        if not self._own[changed]:
            del self._own[changed]

    async def _write_last(self) -> None:
        """Note the rest, as far as the storage works."""
        left = self._noting.union(self._waiting)
        if left:
            with trio.move_on_after(_LAST_WORDS, shield=True):
                await self._is_noted(left)

    # What changes on other replicas

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell, in both directions, until cancelled. Started once no change is missed any more."""
        async with self._log.watch() as hints, trio.open_nursery() as nursery:
            self._observers.add(self)
            try:
                try:
                    self._place = (await self._log.since(None)).place
                except OSError as error:  # once the log can be asked, everything is told
                    logger.debug("the log of changes could not be asked: %s", error)
                nursery.start_soon(self._write)
                nursery.start_soon(self._look)
                task_status.started()
                async for hint in hints:
                    self._hinted(hint if isinstance(hint, Noted) else None)
            finally:
                self._observers.discard(self)
                await self._write_last()

    def _hinted(self, hint: Noted | None) -> None:
        if hint is not None and hint.place == self._place:
            return
        if hint is None or hint.was != self._place or self._is_lost:
            self._is_lost = True
            self._signal.notice()
            return
        self._place = hint.place
        changed = frozenset(hint.changed)
        if self._own[changed]:
            self._expect_no_more(changed)
        else:
            self._tell(changed)

    async def _look(self) -> None:
        """Ask the log where hints were lost, and from time to time, since nobody may know that."""
        attempt = 1
        while True:
            await self._signal.next_look()
            self._is_lost = True  # what is hinted at from now on may be in the answer, or not
            try:
                changes = await self._log.since(self._place)
            except OSError as error:
                logger.debug("the log of changes could not be asked: %s", error)
                await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
                attempt += 1
                self._signal.notice()
                continue
            attempt = 1
            self._place, self._is_lost = changes.place, False
            self._own.clear()
            self._tell([EVERYTHING] if changes.everything else changes.changed)

    def _tell(self, changed: Collection[str]) -> None:
        for observer in tuple(self._observers):
            if not isinstance(observer, SharedChanges):  # of the same server, served twice: it has been told, too
                tell(observer, changed)
        if self._elsewhere is None:
            return
        for row, params in self._elsewhere.news(changed, self._observers.source):
            for observer in tuple(self._observers):
                if not isinstance(observer, SharedChanges):
                    observer.told(row, params)


def tell(observer: Observer, changed: Collection[str]) -> None:
    """Tell ``observer`` of the things that have ``changed``."""
    if EVERYTHING in changed:
        observer.everything_changed()
        return
    for thing in changed:
        if thing.startswith(_RESOURCE):
            observer.resource_updated(thing.removeprefix(_RESOURCE))
        elif thing in _LISTS:
            observer.list_changed(f"notifications/{thing}/list_changed")
