"""Flight: a way to a token that is gone once, for all who wait for the token."""

from __future__ import annotations

import copy
import logging
import math
import traceback
from collections.abc import Awaitable, Callable

import trio

from ...errors import AuthorizationError

logger = logging.getLogger("trio_mcp")


class Flight:
    """A way to a token. The flight has a task of its own, so a waiter who leaves does not end the flight for others;
    the last waiter does, as far as the flight can be ended. ``is_refresh``: nobody is asked."""

    def __init__(self, *, is_refresh: bool) -> None:
        self.is_refresh = is_refresh
        self.failure: AuthorizationError | None = None
        """The reason why there is no token; `None` where the flight goes on, has brought a token, or was left."""
        self.failed = -math.inf
        """Time of the failure on trio's clock."""
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._waiters = 0

    async def run(self, way: Callable[[], Awaitable[None]]) -> None:
        """Go ``way``. Never raises but for a cancel from outside."""
        try:
            with self._scope:
                await way()
        except AuthorizationError as error:
            # Frames have secrets in them, and keep what they belong to.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            self._fail(error)
        except Exception as error:
            # The words may have a secret in them: the log is told the type and the places.
            places = "".join(traceback.format_tb(error.__traceback__))
            logger.error("getting a token failed: %s\n%s", type(error).__name__, places)  # noqa: TRY400 -- see above
            words = str(error) if isinstance(error, ImportError) else type(error).__name__
            self._fail(AuthorizationError(f"getting a token failed: {words}"))
        finally:
            self._ended.set()

    def _fail(self, error: AuthorizationError) -> None:
        self.failure, self.failed = error, trio.current_time()

    async def wait(self) -> None:
        """Wait for the end: a new token, or none where all others who waited have left. Raises the failure."""
        self._waiters += 1
        try:
            await self._ended.wait()
        finally:
            self._waiters -= 1
            if not self._waiters and not self._ended.is_set():
                self._scope.cancel(reason="nobody waits for the token any more")
        if self.failure is not None:
            raise copy.copy(self.failure)
