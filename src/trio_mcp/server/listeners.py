"""Listeners: the connections that are told when something of a server changes."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Listener", "Listeners"]


class Listener(Protocol):
    """A connection that is told of changes."""

    def list_changed(self, method: str) -> None:
        """Tell the client that a list changed, for which ``method`` is the notification."""
        ...

    def resource_updated(self, uri: str) -> None:
        """Tell the client that a resource changed."""
        ...


class Listeners:
    """The connections of one server. Each is told at once; connections may come or go while they are told."""

    def __init__(self) -> None:
        self._all: set[Listener] = set()

    def add(self, listener: Listener) -> None:
        """Tell ``listener`` of changes from now on."""
        self._all.add(listener)

    def discard(self, listener: Listener) -> None:
        """Tell ``listener`` no more. Idempotent."""
        self._all.discard(listener)

    def list_changed(self, method: str) -> None:
        """Tell all listeners. See `Listener.list_changed`."""
        for listener in tuple(self._all):
            listener.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell all listeners. See `Listener.resource_updated`."""
        for listener in tuple(self._all):
            listener.resource_updated(uri)
