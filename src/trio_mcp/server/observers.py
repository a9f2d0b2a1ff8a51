"""Observers: the connections that are told of changes of a server."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """A connection that is told of changes."""

    def list_changed(self, method: str) -> None:
        """Tell the client that a list changed, for which ``method`` is the notification."""
        ...

    def resource_updated(self, uri: str) -> None:
        """Tell the client that a resource changed."""
        ...


class Observers:
    """The connections of one server. Every connection is told at once; connections may come or go during the
    telling."""

    def __init__(self) -> None:
        self._all: set[Observer] = set()

    def add(self, observer: Observer) -> None:
        """Tell ``observer`` of changes from now on."""
        self._all.add(observer)

    def discard(self, observer: Observer) -> None:
        """Tell ``observer`` no more. Idempotent."""
        self._all.discard(observer)

    def list_changed(self, method: str) -> None:
        """Tell all observers. See `Observer.list_changed`."""
        for observer in tuple(self._all):
            observer.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell all observers. See `Observer.resource_updated`."""
        for observer in tuple(self._all):
            observer.resource_updated(uri)
