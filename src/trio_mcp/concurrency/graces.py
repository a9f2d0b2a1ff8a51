"""Graces bounds how long cancelled calls may clean up before being abandoned."""

from __future__ import annotations

from collections.abc import Generator

import trio

from .contexts import contextmanager


class Graces:
    """The graces of one connection, each of ``seconds``, or of less once `shorten` was called."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._scopes: set[trio.CancelScope] = set()

    def shorten(self, seconds: float) -> None:
        """Give at most ``seconds`` from now on, also to blocks whose grace has begun."""
        self.seconds = min(self.seconds, seconds)
        end = trio.current_time() + self.seconds
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, end)

    @contextmanager
    def grace(self) -> Generator[None]:
        """Shield the block from cancels for as long as the grace lasts; then leave it."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.seconds) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
