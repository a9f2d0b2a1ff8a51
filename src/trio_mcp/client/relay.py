"""Relay: who stands between a server and the clients that a client here speaks for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from ..state.events import NotificationReceived

__all__ = ["Relay"]


class Relay(Protocol):
    """Is told what the server says, and takes its questions where the client declared to forward them
    (`ClientSettings.forwards`)."""

    def told(self, event: NotificationReceived) -> None:
        """A notification, logs and changes of every kind, the moment it was read: before any callback, and before
        the reply to any call that came after it. Must be quick, and must not raise."""
        ...

    def ask(self, method: str, params: dict[str, Any]) -> Awaitable[Any]:
        """The result of a question, plain data, as the revision of this client says it.

        A modern server asks in a call: it runs in a task of that call then; of a legacy one, in the task of the
        question. Raises `CodedError` for an error reply.
        """
        ...
