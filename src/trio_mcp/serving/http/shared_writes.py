"""SharedWrites are the changes of a session that requests have made here, on their way to the facts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import trio

from ...server.subscriptions import Subscriptions
from ...state.connection import ConnectionState
from ...transports.http.application import Answer
from .entrance import busy, invalid, unavailable
from .session_facts import Change, SessionFacts, initialized, subscribed, with_level
from .shared_facts import ENDED, UNREACHABLE, FactsTooLong, SessionEnded, SessionHost, SharedFacts

logger = logging.getLogger("trio_mcp")

Refusal: TypeAlias = Callable[[bytes], Answer]
"""Makes an answer with more headers."""


class Write:
    """A change of the facts that is on its way."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._done = trio.Event()
        self._refusal: Refusal | None = None

    def end(self, refusal: Refusal | None) -> None:
        """Note the outcome: `None`, or the answer to a request that needs the change."""
        self._refusal = refusal
        self._done.set()

    async def outcome(self) -> Refusal | None:
        """Wait for the outcome; `None`: the change is kept."""
        await self._done.wait()
        return self._refusal


class SharedWrites:
    """Changes of ``facts`` by a connection, as its ``state`` and its ``subscriptions`` have them, that others do not
    know yet."""

    def __init__(
        self, host: SessionHost, facts: SharedFacts, state: ConnectionState, subscriptions: Subscriptions
    ) -> None:
        self._host = host
        self._facts = facts
        self._state = state
        self._subscriptions = subscriptions
        self._told = facts.now
        """The facts, with the changes that are on their way."""
        self._writes: list[Write] = []
        """The writes that are on their way, oldest first."""

    def __bool__(self) -> bool:
        """True while a change is on its way."""
        return bool(self._writes)

    def show(self) -> None:
        """Have the connection go by the facts, and by the changes that are on their way."""
        told, state = self._facts.now, self._state
        for write in self._writes:
            told = write.change(told)
        self._told = told
        state.initialized = told.is_initialized
        state.set_log_level(told.log_level)
        if state.subscriptions != set(told.subscriptions):
            self._subscriptions.adopt(told.subscriptions)

    def begin(self) -> Write | None:
        """Return the write of all that the connection has changed and other replicas do not know; `None`: nothing."""
        state, told = self._state, self._told
        changes = list[Change]()
        if state.initialized and not told.is_initialized:
            changes.append(initialized)
        if state.log_level != told.log_level:
            changes.append(with_level(state.log_level))
        if len(state.subscriptions) != len(told.subscriptions) or state.subscriptions.difference(told.subscriptions):
            before = frozenset(told.subscriptions)
            changes.append(subscribed(state.subscriptions - before, before - state.subscriptions))
        if not changes:
            return self._writes[-1] if self._writes else None
        write = Write(partial(_all, changes))
        self._told = write.change(told)
        self._writes.append(write)
        self._host.start(self._write, write)
        return write

    async def _write(self, write: Write) -> None:
        refusal: Refusal | None = partial(unavailable, UNREACHABLE)
        try:
            await self._facts.change(write.change)
            refusal = None
        except SessionEnded:
            refusal = partial(invalid, HTTPStatus.NOT_FOUND, ENDED)
        except FactsTooLong:
            refusal = partial(busy, "Too busy: too many subscriptions")
        except OSError as error:
            logger.debug("a session could not be changed: %s", error)
        finally:
            self._writes.remove(write)
            self.show()
            write.end(refusal)


def _all(changes: list[Change], facts: SessionFacts) -> SessionFacts:
    for change in changes:
        facts = change(facts)
    return facts
