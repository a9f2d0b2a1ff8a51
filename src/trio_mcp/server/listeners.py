"""Listeners: who is told when something of a server changes."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Listener", "Listeners"]


class Listener(Protocol):
    """Somebody who is told of changes: a connection."""

    def list_changed(self, method: str) -> None:
        """A list changed, for which ``method`` is the notification."""
        ...

    def resource_updated(self, uri: str) -> None:
        """A resource changed."""
        ...


class Listeners:
    """All connections of one server. Each is told at once; one may come or go while they are told."""

    def __init__(self) -> None:
        self._all: set[Listener] = set()

    def add(self, listener: Listener) -> None:
        """Tell ``listener`` of changes from now on."""
        self._all.add(listener)

    def discard(self, listener: Listener) -> None:
        """Tell it no more. Idempotent."""
        self._all.discard(listener)

    def list_changed(self, method: str) -> None:
        """Tell them. See `Listener.list_changed`."""
        for listener in tuple(self._all):
            listener.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell them. See `Listener.resource_updated`."""
        for listener in tuple(self._all):
            listener.resource_updated(uri)
