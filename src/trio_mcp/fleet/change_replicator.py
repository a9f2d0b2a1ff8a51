"""ChangeReplicator: notifies the clients of every replica when tools, resources or prompts change on one replica.

It writes changes of this replica to a shared change log, and notifies local observers of changes on other replicas.
`ReplicatedNotifications` writes extension notifications to the same log.

If the storage fails, a change arrives late, and sometimes twice, but it is never lost.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from ..concurrency.bounded import BoundedDict
from ..concurrency.time_limits import growing_delay
from ..concurrency.wakeups import ChangeSignal, Sleeper
from ..jsonrpc.codec import decode_base64url
from ..protocol.converters import structure, unstructure
from ..protocol.revisions import LATEST_MODERN
from ..stores.record_codec import decode_stored
from ..stores.shared import CHANGES_LIMIT, ChangeHint
from ..stores.task_store import UnreadableRecord
from .messenger import logged_failure

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..server.connected_clients import Observer, Observers
    from ..server.request_state import StateCipher
    from ..stores.shared import ChangeCursor, ChangeLog


logger = logging.getLogger("trio_mcp")

NOTIFICATION_PREFIX: Final = "told:"
"""Prefix of log entries that contain an extension notification."""
MAX_LENGTH: Final = 4096
"""The maximum number of characters of a log entry. Entries are short, because the log stores many of them."""
_KNOWN_LIMIT: Final = 10_000
_PURPOSE: Final = b"trio-mcp told 1 "
EVERYTHING: Final = "everything"
"""The log entry that means that every list and resource may have changed. It is used if too many have changed."""
_RESOURCE: Final = "resource:"
_LISTS: Final = frozenset(("tools", "prompts", "resources"))
_NONE: Final = frozenset[str]()
_PENDING_LIMIT: Final = 1000
"""If this many entries wait to be written, further extension notifications aren't replicated."""
_COALESCE: Final = 0.01
_POLL_INTERVAL: Final = 5.0
_FAREWELL_TIMEOUT: Final = 1.0
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 2.0
_UNKNOWN_CURSOR: Final = ""
"""A position that isn't in any log, so that everything may have changed since."""


class _ReplicatedNotification(msgspec.Struct, frozen=True, array_like=True):
    source: str
    """The id of the server that sent the notification. The id is unique in that server's process."""
    number: int
    method: str
    params: dict[str, Any]


_decoder: Final = msgspec.msgpack.Decoder(_ReplicatedNotification)


class ReplicatedNotifications:
    """Encodes notifications of MCP extensions as entries of the change log that all replicas share, and decodes these
    entries.

    Entries are encrypted with the secrets of ``cipher``. ``rows`` contains the known notification methods.
    """

    def __init__(self, cipher: StateCipher, rows: Mapping[str, Method]) -> None:
        self._keys = cipher.keys_for(_PURPOSE)
        self._rows = rows
        self._known = BoundedDict[tuple[str, int], None](_KNOWN_LIMIT)
        """The notifications of other replicas that were already received."""

    def encode(self, source: str, number: int, row: Method, params: Any) -> str | None:
        """Return the change log entry for an extension notification. Return `None` if the entry would be too long.

        The notification is the ``number``-th that the server ``source`` has sent.
        """
        told = _ReplicatedNotification(source, number, row.name, unstructure(params, LATEST_MODERN))
        sealed = self._keys.seal(msgspec.msgpack.encode(told), _PURPOSE)
        thing = NOTIFICATION_PREFIX + base64.urlsafe_b64encode(sealed).decode()
        return thing if len(thing) <= MAX_LENGTH else None

    def decode_new(self, changed: Collection[str], own_source: str) -> list[tuple[Method, Any]]:
        """Decode the extension notifications in ``changed``, except those that this replica has already received.

        ``changed`` contains entries of the change log.

        The notifications of each replica are in the order in which that replica sent them.

        Notifications from ``own_source`` are left out. Unreadable ones are skipped and logged.
        """
        come = [self._unseal(thing) for thing in changed if thing.startswith(NOTIFICATION_PREFIX)]
        news: list[tuple[Method, Any]] = []
        for told in sorted((told for told in come if told is not None), key=lambda told: told.number):
            key = told.source, told.number
            row = self._rows.get(told.method)
            if told.source == own_source or key in self._known or row is None:  # unknown method
                continue
            self._known[key] = None
            try:
                news.append((row, structure(told.params, row.params)))
            except ValueError as error:
                logger.warning("ignored an invalid notification %s of another replica: %s", row.name, error)
        return news

    def _unseal(self, thing: str) -> _ReplicatedNotification | None:
        try:
            sealed = decode_base64url(thing.removeprefix(NOTIFICATION_PREFIX))
            return decode_stored("a notification", _decoder.decode, self._keys.open(sealed, _PURPOSE))
        except (ValueError, UnreadableRecord):  # the entry comes from a replica with another version or other secrets
            pass
        logger.warning("cannot read a notification of another replica: it has other secrets, or another version")
        return None


class ChangeReplicator:
    """Notifies the clients of each replica when tools, resources or prompts change on another replica.

    It records the changes of this replica in the shared ``log``, and notifies the observers on this replica of the
    changes that other replicas have recorded there.

    It is one of the ``observers`` of a server, which are notified at once of changes on this replica. While `run` runs,
    it notifies the others of changes on other replicas. ``notifications`` encodes extension notifications, if there are
    any.
    """

    def __init__(
        self, observers: Observers, log: ChangeLog, notifications: ReplicatedNotifications | None = None
    ) -> None:
        self._notifications = notifications
        self._observers = observers
        self._log = log
        self.cursor: ChangeCursor = _UNKNOWN_CURSOR
        """The position in the shared change log up to which this replica has reported all changes. It is empty if
        unknown."""
        self._pending: dict[str, None] = {}
        """Changes of this replica that wait to be recorded."""
        self._recording = _NONE
        """Changes that are being recorded."""
        self._writer = Sleeper()
        self._signal = ChangeSignal(_POLL_INTERVAL)
        self._is_lost = False
        """True from the loss of notifications until the log has been read. The cursor doesn't move in the meantime."""
        self._own = Counter[frozenset[str]]()
        """Records of this replica whose notifications haven't arrived yet. Cleared when notifications were lost."""

    @property
    def unrecorded(self) -> frozenset[str]:
        """The changes made on this replica that may still be missing from the shared change log."""
        return self._recording.union(self._pending)

    # Changes of this replica

    def list_changed(self, method: str) -> None:
        """Record in the shared change log that a list of tools, prompts or resources has changed. See
        `Observer.list_changed`."""
        self._queue(method.split("/")[1])

    def resource_updated(self, uri: str) -> None:
        """Record in the shared change log that the resource ``uri`` has changed. See `Observer.resource_updated`."""
        self._queue(_RESOURCE + uri)

    def everything_changed(self) -> None:
        """Record in the shared change log that any list or resource may have changed. See
        `Observer.everything_changed`."""
        self._queue(EVERYTHING)

    def send_extension_notification(self, row: Method, params: object) -> None:
        """Record an extension notification in the shared change log, so that other replicas send it to their clients.

        The notification is dropped if it is too long, or if too many entries wait to be recorded. See
        `Observer.send_extension_notification`.
        """
        if self._notifications is None:
            return
        thing = self._notifications.encode(self._observers.source, self._observers.notification_number, row, params)
        if thing is None or len(self._pending) >= _PENDING_LIMIT:
            why = "it is too long" if thing is None else "too many wait"
            logger.warning("a notification %s is only sent to the clients of this replica: %s", row.name, why)
            return
        self._pending[thing] = None
        self._writer.wake()

    def _queue(self, thing: str) -> None:
        if EVERYTHING in self._pending:
            return
        self._pending[thing] = None
        if thing == EVERYTHING or len(self._pending) > CHANGES_LIMIT:  # the change log can't store so many entries
            told = (each for each in self._pending if each.startswith(NOTIFICATION_PREFIX))
            self._pending = dict.fromkeys((EVERYTHING, *told))
        self._writer.wake()

    async def _record_pending(self) -> None:
        while True:
            while not self._pending:
                await self._writer.sleep()
            await trio.sleep(_COALESCE)
            self._recording, self._pending = frozenset(self._pending), {}
            attempt = 1
            while not await self._record(self._recording):
                await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
                attempt += 1
            self._recording = _NONE

    async def _record(self, changed: frozenset[str]) -> bool:
        # Count this replica's entry in the change log before writing it.
        # The notification of the new entry may arrive before `record` returns.
        self._own[changed] += 1
        try:
            await self._log.record(changed)
        except OSError as error:
            logger.debug("could not record a change, and will retry: %s", error)
            if self._own[changed]:
                self._own -= Counter([changed])
            else:
                # Another replica may have recorded the same change while this replica tried to record it.
                # Then this replica has mistaken the other replica's record for its own, and notified no observer.
                self._notify_observers(changed)
            return False
        return True

    async def _record_rest(self) -> None:
        """Record in the shared change log, before this replica ends, the changes that aren't recorded yet.

        Does nothing while the storage is unavailable.
        """
        if left := self.unrecorded:
            with trio.move_on_after(_FAREWELL_TIMEOUT, shield=True):
                await self._record(left)

    # Changes of other replicas

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write changes of this replica to the shared change log, and read changes of other replicas from it, until
        cancelled.

        The observers on this replica are notified of the changes of other replicas.

        Reports that it has started as soon as every later change will be noticed.
        """
        async with self._log.watch() as hints, trio.open_nursery() as nursery:
            self._observers.add(self)
            try:
                # If this fails, `_poll` notifies the observers when the log can be read.
                with logged_failure("could not read the change log"):
                    self.cursor = (await self._log.read_since(None)).cursor
                nursery.start_soon(self._record_pending)
                nursery.start_soon(self._poll)
                task_status.started()
                async for hint in hints:
                    self._on_hint(hint if isinstance(hint, ChangeHint) else None)
            finally:
                self._observers.discard(self)
                await self._record_rest()

    def _on_hint(self, hint: ChangeHint | None) -> None:
        if hint is not None and hint.cursor == self.cursor:
            return
        if hint is None or hint.previous != self.cursor or self._is_lost:
            self._is_lost = True
            self._signal.notify()
            return
        self.cursor = hint.cursor
        changed = frozenset(hint.changed)
        if self._own[changed]:
            self._own -= Counter([changed])
        else:
            self._notify_observers(changed)

    async def _poll(self) -> None:
        """Read the shared change log when notifications were lost. Read it at regular intervals, too, because a loss
        may stay unnoticed."""
        attempt = 1
        while True:
            await self._signal.next_poll()
            self._is_lost = True  # ignore notifications until the read ends, because it may return the same changes
            try:
                changes = await self._log.read_since(self.cursor)
            except OSError as error:
                logger.debug("could not read the change log: %s", error)
                await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
                attempt += 1
                self._signal.notify()
                continue
            attempt = 1
            self.cursor, self._is_lost = changes.cursor, False
            self._own.clear()
            self._notify_observers([EVERYTHING] if changes.everything else changes.changed)

    def _notify_observers(self, changed: Collection[str]) -> None:
        for observer in tuple(self._observers):
            # Skip other `ChangeReplicator` objects, because they read the shared change log themselves.
            if not isinstance(observer, ChangeReplicator):
                notify_changes(observer, changed)
        if self._notifications is None:
            return
        for row, params in self._notifications.decode_new(changed, self._observers.source):
            for observer in tuple(self._observers):
                if not isinstance(observer, ChangeReplicator):
                    observer.send_extension_notification(row, params)


def notify_changes(observer: Observer, changed: Collection[str]) -> None:
    """Call the methods of ``observer`` for the changes in ``changed``, which contains entries of the change log."""
    if EVERYTHING in changed:
        observer.everything_changed()
        return
    for thing in changed:
        if thing.startswith(_RESOURCE):
            observer.resource_updated(thing.removeprefix(_RESOURCE))
        elif thing in _LISTS:
            observer.list_changed(f"notifications/{thing}/list_changed")
