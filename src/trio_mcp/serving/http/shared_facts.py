"""SharedFacts are the facts of one session, as known to one replica and written for all.

Known facts are as old as the last reading: `FRESH` seconds at most, while requests come, and until a hint says that
the facts have changed. `SessionHost` is common to all sessions of a replica.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import trio

from ...classes import define, frozen
from ...concurrency.fair_share import Caller
from ...concurrency.wakeups import ChangeSignal
from ...server.retry_letters import LetterSeal
from ...server.server import RunningServer
from ...server.shared_changes import SharedChanges
from ...stores.decoding import decode_stored
from ...stores.letters import Letter, Letters
from ...stores.record_codec import encoded
from ...stores.sealing import BadSeal, SealingKey
from ...stores.shared import Replica
from ...stores.task_store import StoreFull, Uncertain, UnreadableRecord, new_mark
from .session_facts import MAX_FACTS, Change, SessionFacts, decode_facts, encode_facts, opening_of

logger = logging.getLogger("trio_mcp")

T = TypeVar("T", bound=msgspec.Struct)

FRESH: Final = 5.0
"""Seconds for which facts hold that were read."""
_MOST_WRITES: Final = 20
"""Tries of a write that others are quicker than."""
_LETTER_PATIENCE: Final = 5.0
_UNUSED: Final = 60.0
"""Seconds after which a session ends that its client has opened and not used."""
UNREACHABLE: Final = "the sessions of this server cannot be reached; try again later"
ENDED: Final = "there is no such session: it has ended; send initialize"


class SessionEnded(Exception):
    """The session has ended, on whichever replica."""


class FactsTooLong(Exception):
    """The facts of a session would exceed their bound."""


@frozen(eq=False)
class SessionHost:
    """The parts that the sessions of a replica have in common."""

    running: RunningServer
    replica: Replica
    letters: Letters
    nursery: trio.Nursery
    retry_interval: float
    """Seconds after which clients shall come back when a response breaks."""
    new_id: Callable[[], str]
    """Maker of the ids of requests to clients, which name this replica."""
    owner_of: Callable[[object], str]
    """Returns the other replica that an id, or a token of progress, names; empty for all others."""
    follow: Callable[[str, str], ChangeSignal]
    """Returns a signal of the changes of a stream, until `unfollow`."""
    unfollow: Callable[[str, str, ChangeSignal], None]
    name_of: Callable[[Caller], bytes]
    """Returns the name under which all replicas count the sessions of a caller."""
    changes: SharedChanges
    """Tells the clients of this replica of changes on others."""
    seal: LetterSeal | None = None
    """Seals the letters about sessions; `None` where the author has given no secrets."""
    keys: Sequence[SealingKey] = ()
    """Keys of the events of sessions; none where the author has given no secrets."""
    fact_keys: Sequence[SealingKey] = ()
    """Keys that seal the facts of sessions: the first one seals, and each one opens."""

    def send(self, replica: str, kind: str, content: tuple[object, ...]) -> Awaitable[bytes]:
        """Bring ``content`` to the reader of this ``kind`` in ``replica``: see `Letters.send`."""
        encoded = msgspec.msgpack.encode(content) if self.seal is None else self.seal.seal(kind, replica, content)
        return self.letters.send(replica, kind, encoded, patience=_LETTER_PATIENCE)

    def open(self, kind: str, letter: Letter, form: type[T]) -> T | None:
        """Return the content of ``letter``; `None`, and the letter is refused, where that cannot be read."""
        if self.seal is None:
            try:
                return decode_stored("a letter", partial(msgspec.msgpack.decode, type=form), letter.content)
            except UnreadableRecord as error:
                logger.warning("%s", error)
                letter.refuse("this replica cannot read the message: it is of another version")
                return None
        return self.seal.open(kind, letter, form)

    def seal_facts(self, session_id: str, text: bytes) -> bytes:
        """Return the facts ``text`` sealed for this session, as the storage keeps them."""
        return self.fact_keys[0].seal(text, encoded(session_id)) if self.fact_keys else text

    def read_facts(self, session_id: str, stored: bytes) -> SessionFacts | None:
        """Return the facts of a session from the storage. `None` if they were changed or never sealed; the client then
        has to open another session. Raises `FactsUnreadable`."""
        if not self.fact_keys:
            return decode_facts(stored)
        for key in self.fact_keys:
            with suppress(BadSeal):
                return decode_facts(key.open(stored, encoded(session_id)))
        logger.warning("the data of a session was changed, or not sealed with a secret of this replica")
        return None

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run ``function`` in a task of its own. A failure is a defect, which concerns one request alone."""

        async def run() -> None:
            try:
                await function(*args)
            except Exception:
                logger.exception("a part of an HTTP request failed")

        self.nursery.start_soon(run)


@define(eq=False)
class _Waiting:
    """A change that its caller waits for."""

    change: Change
    is_over: bool = False
    error: Exception | None = None


class SharedFacts:
    """The facts of the session ``session_id``. ``changed`` is called with the facts that were known before, `None` at
    first, when other ones are known, and ``ended`` when the session has ended."""

    def __init__(
        self,
        host: SessionHost,
        session_id: str,
        facts: SessionFacts,
        changed: Callable[[SessionFacts | None], None],
        ended: Callable[[str], None],
    ) -> None:
        limits = host.running.limits
        self.now = facts
        """The facts as last read or written."""
        self._sessions = host.replica.sessions
        self._host = host
        self._id = session_id
        self._changed = changed
        self._ended = ended
        self._timeout = limits.session_timeout
        self._most = limits.max_sessions
        self._idle = in_milliseconds(limits.session_timeout)
        self._mark: bytes | None = None
        self.read_at = -math.inf
        """Time of the last reading, or writing."""
        self.is_hinted = False
        """True when the facts may have changed since the last reading began."""
        self._own_hints = 0
        """Number of hints of our own writes that haven't arrived yet."""
        self._own_hints_until = -math.inf
        """Time after which they count as lost."""
        self._is_reading = False
        self._lock = trio.Lock()
        """Held while facts are read or written, so that older ones never follow newer ones."""
        self._waiting: list[_Waiting] = []
        """The changes whose callers wait, in order."""

    @property
    def are_kept(self) -> bool:
        """True once the session is open."""
        return self._mark is not None

    @property
    def are_fresh(self) -> bool:
        """True while the facts hold without another reading."""
        return not self.is_hinted and trio.current_time() - self.read_at < min(FRESH, self._timeout / 4)

    # Reading

    def read_soon(self) -> None:
        """Read the facts, unless that is about to begin."""
        if not self._is_reading:
            self._is_reading = True
            self._host.start(self._read_now)

    def is_own_hint(self) -> bool:
        """Return whether a received hint belongs to our own write, and so is not news. If another replica has written
        meanwhile, another hint follows."""
        if trio.current_time() > self._own_hints_until:
            self._own_hints = 0
        if not self._own_hints:
            return False
        self._own_hints -= 1
        return True

    def forget_hints(self) -> None:
        """Stop expecting hints of our own writes, since hints were lost."""
        self._own_hints = 0

    async def _read_now(self) -> None:
        self._is_reading = False
        try:
            await self.read()
        except OSError as error:  # the next look comes; the storage logs its outages
            logger.debug("a session could not be read: %s", error)

    async def read(self) -> bool:
        """Read the facts, for a client that is here, and return whether the session lasts. Raises `OSError`."""
        async with self._lock:
            return await self._read()

    async def _read(self) -> bool:
        self.is_hinted = False
        try:
            stored = await self._sessions.read(self._id, idle=self._idle)
            facts = None if stored is None else self._host.read_facts(self._id, stored.facts)
        except BaseException:
            self.is_hinted = True
            raise
        if stored is None or facts is None:
            self._ended("the session has ended")
            return False
        self.adopt(facts, stored.mark)
        return True

    def adopt(self, facts: SessionFacts, mark: bytes) -> None:
        """Use the facts that were read or written under ``mark`` from now on."""
        before = None if self._mark is None else self.now
        if before is None:
            opening_of(facts)  # raises if the view can't use the facts
        self.now, self._mark, self.read_at = facts, mark, trio.current_time()
        self._changed(before)

    async def look(self) -> None:
        """Look whether the session lasts, which lasts no longer by this."""
        try:
            # A directory that may have no session at all has no room for one, but tells of one with this id.
            await self._sessions.open(self._id, b"", caller=b"", mark=new_mark(), idle=1, most=0)
        except StoreFull:
            self._ended(f"the client has not come back for {self._timeout:g} seconds")
        except ValueError:
            return
        except OSError as error:
            logger.debug("a session could not be looked for: %s", error)

    # Writing

    async def open(self, facts: SessionFacts, caller: Caller) -> str | None:
        """Open the session of ``caller`` for all replicas. Until its client uses it, the session ends before others.
        Returns the id of the session that was ended for it, if any: see `SessionDirectory.open`. Raises `StoreFull`,
        `FactsTooLong`, and `OSError` if the storage is unavailable."""
        text, mark, name = _encoded(facts, MAX_FACTS // 2), new_mark(), self._host.name_of(caller)
        idle, text = min(self._idle, in_milliseconds(_UNUSED)), self._host.seal_facts(self._id, text)
        try:
            ended = await self._sessions.open(self._id, text, caller=name, mark=mark, idle=idle, most=self._most)
        except Uncertain:
            await self._sessions.end(self._id)
            raise
        self.adopt(facts, mark)
        return ended

    async def change(self, change: Change) -> None:
        """Have the facts changed for all replicas. Changes that come while another one is written are written together:
        a client that sends many costs the storage, and other clients, no more than one that sends few.

        Raises `SessionEnded`, `FactsTooLong`, and `OSError` where the storage cannot be reached, or others write all
        the time: the change may have happened then."""
        waiting = _Waiting(change)
        self._waiting.append(waiting)
        try:
            async with self._lock:
                if not waiting.is_over:
                    await self._write([each for each in self._waiting if not each.is_over])
        finally:
            self._waiting.remove(waiting)
        if waiting.error is not None:
            raise type(waiting.error)(*waiting.error.args)  # one of its own for each

    async def _write(self, changes: list[_Waiting]) -> None:
        error: Exception | None = None
        try:
            await self._write_all(changes)
        except (OSError, SessionEnded) as failed:
            error = failed
        for each in changes:
            each.is_over, each.error = True, each.error or error

    async def _write_all(self, changes: list[_Waiting]) -> None:
        for _ in range(_MOST_WRITES):
            facts, text, mark = self.now, b"", new_mark()
            for each in changes:
                following = facts if each.error is not None else each.change(facts)
                if following == facts:
                    continue
                try:
                    text = _encoded(following, MAX_FACTS)
                except FactsTooLong as error:
                    each.error = error
                else:
                    facts = following
            if facts == self.now:
                return
            self._own_hints += 1  # before the write, since the hint may arrive before the answer
            self._own_hints_until = trio.current_time() + FRESH
            is_done = False
            try:
                was, sealed = self._mark or b"", self._host.seal_facts(self._id, text)
                is_done = await self._sessions.change(self._id, sealed, was=was, mark=mark, idle=self._idle)
            except Uncertain:
                pass  # the next read finds out
            finally:
                if not is_done:
                    self.is_own_hint()
            if is_done:
                self.adopt(facts, mark)
                return
            if not await self._read():
                raise SessionEnded
        raise Uncertain("a session could not be changed, since it changes all the time")

    async def end(self) -> None:
        """End the session for all replicas. Raises `OSError`."""
        await self._sessions.end(self._id)
        self._ended("the client has ended the session")


def _encoded(facts: SessionFacts, most: int) -> bytes:
    text = encode_facts(facts)
    if len(text) > most:
        raise FactsTooLong
    return text


def in_milliseconds(seconds: float) -> int:
    """Return a length of time in the unit of storages."""
    return max(1, min(round(seconds * 1000), 10**12))
