"""Finishing: a way to tokens that has begun comes to its end, even where nobody waits any more."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import trio

from ....concurrency.contexts import contextmanager
from ...errors import AuthorizationError

_SECONDS: Final = 60.0
_FAREWELL: Final = 5.0


class Finishing:
    """Shields ways to tokens, once they cannot be left without harm: the authorization server has used up a code or a
    refresh token, and the new tokens are not stored yet."""

    def __init__(self) -> None:
        self._seconds = _SECONDS
        self._begun: set[trio.CancelScope] = set()

    @contextmanager
    def once_begun(self) -> Generator[Callable[[], None]]:
        """Give a function, from whose first call on the block is shielded for a minute. Raises `AuthorizationError`
        when that was not enough."""
        with trio.CancelScope() as scope:

            def begin() -> None:
                if not scope.shield:
                    scope.shield = True
                    scope.deadline = trio.current_time() + self._seconds
                    self._begun.add(scope)

            try:
                yield begin
            finally:
                self._begun.discard(scope)
        if scope.cancelled_caught:
            raise AuthorizationError("the authorization server, or the storage of tokens, was too slow")

    def hurry(self) -> None:
        """Leave no more than a few seconds from now on, since the client is closed."""
        self._seconds = _FAREWELL
        end = trio.current_time() + _FAREWELL
        for scope in self._begun:
            scope.deadline = min(scope.deadline, end)
