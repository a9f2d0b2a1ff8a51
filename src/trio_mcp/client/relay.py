"""Relay: the code between a server and the clients that a client here speaks for."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from ..state.events import NotificationReceived
from ..state.requests import InboundRequest

__all__ = ["Relay"]


class Relay(Protocol):
    """Gets the notifications of the server, and the questions that the client declared to forward
    (`ClientSettings.forwards`)."""

    def told(self, event: NotificationReceived) -> None:
        """Take a notification, logs and changes of every kind, the moment it was read: before any callback, and before
        any later reply. Must be quick, and must not raise."""
        ...

    def came(self, request: InboundRequest) -> None:
        """Take a question, for which `ask` will be called, the moment it was read. Must be quick, and must not
        raise."""
        ...

    def ask(self, method: str, params: dict[str, Any], key: str | None) -> Awaitable[Any]:
        """Return the result of a question, plain data, in the form of this client's revision.

        A question of a modern server, which asks in a call, runs in a task of that call; one of a legacy server, in the
        task of the question. ``key`` is the name that a modern server gave the question; `None` for a legacy server.
        Raises `CodedError` for an error reply.
        """
        ...
