"""PendingChanges are the changes of a session that requests have made here, on their way to the facts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

import trio

from ...server.subscriptions import ClientSubscriptions
from ...serving.http.responses import busy, invalid, unavailable
from ...state.connection import ConnectionState
from ...transports.http.application import Answer
from .shared_state import (
    SESSION_ENDED_TEXT,
    UNREACHABLE_TEXT,
    SessionEnded,
    SessionServices,
    SessionStateTooLong,
    SharedSessionState,
)
from .state import Change, SessionState, change_log_level, change_subscriptions, mark_initialized

logger = logging.getLogger("trio_mcp")

Refusal: TypeAlias = Callable[[bytes], Answer]
"""Makes an answer with more headers."""


class PendingChange:
    """A change of the facts that is on its way."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._done = trio.Event()
        self._refusal: Refusal | None = None

    def settle(self, refusal: Refusal | None) -> None:
        """Note the outcome: `None`, or the answer to a request that needs the change."""
        self._refusal = refusal
        self._done.set()

    async def outcome(self) -> Refusal | None:
        """Wait for the outcome; `None`: the change is kept."""
        await self._done.wait()
        return self._refusal


class PendingChanges:
    """Changes of ``session_state`` by a connection, as its ``state`` and its ``subscriptions`` have them, that others
    do not know yet."""

    def __init__(
        self,
        services: SessionServices,
        session_state: SharedSessionState,
        state: ConnectionState,
        subscriptions: ClientSubscriptions,
    ) -> None:
        self._services = services
        self._session_state = session_state
        self._state = state
        self._subscriptions = subscriptions
        self._expected = session_state.current
        """The facts, with the changes that are on their way."""
        self._writes: list[PendingChange] = []
        """The writes that are on their way, oldest first."""

    def __bool__(self) -> bool:
        """True while a change is on its way."""
        return bool(self._writes)

    def apply(self) -> None:
        """Have the connection go by the facts, and by the changes that are on their way."""
        told, state = self._session_state.current, self._state
        for write in self._writes:
            told = write.change(told)
        self._expected = told
        state.initialized = told.is_initialized
        state.set_log_level(told.log_level)
        if state.subscriptions != set(told.subscriptions):
            self._subscriptions.adopt(told.subscriptions)

    def start(self) -> PendingChange | None:
        """Return the write of all that the connection has changed and other replicas do not know; `None`: nothing."""
        state, told = self._state, self._expected
        changes = list[Change]()
        if state.initialized and not told.is_initialized:
            changes.append(mark_initialized)
        if state.log_level != told.log_level:
            changes.append(change_log_level(state.log_level))
        if len(state.subscriptions) != len(told.subscriptions) or state.subscriptions.difference(told.subscriptions):
            before = frozenset(told.subscriptions)
            changes.append(change_subscriptions(state.subscriptions - before, before - state.subscriptions))
        if not changes:
            return self._writes[-1] if self._writes else None
        write = PendingChange(partial(_apply_all, changes))
        self._expected = write.change(told)
        self._writes.append(write)
        self._services.start_soon(self._write, write)
        return write

    async def _write(self, write: PendingChange) -> None:
        refusal: Refusal | None = partial(unavailable, UNREACHABLE_TEXT)
        try:
            await self._session_state.change(write.change)
            refusal = None
        except SessionEnded:
            refusal = partial(invalid, HTTPStatus.NOT_FOUND, SESSION_ENDED_TEXT)
        except SessionStateTooLong:
            refusal = partial(busy, "Too busy: too many subscriptions")
        except OSError as error:
            logger.debug("a session could not be changed: %s", error)
        finally:
            self._writes.remove(write)
            self.apply()
            write.settle(refusal)


def _apply_all(changes: list[Change], state: SessionState) -> SessionState:
    for change in changes:
        state = change(state)
    return state
