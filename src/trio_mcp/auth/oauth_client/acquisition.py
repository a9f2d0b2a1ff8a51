"""Acquisition: how new tokens are acquired, once for all who wait.

A `TokenSource` names the machine of a grant, and `drive` carries out its steps. A machine that has begun is brought
to its end: once an authorization server may have used up a code or a refresh token, `Finishing` shields the rest,
although nobody waits any more. An `Acquisition` is one such run, with all its waiters.
"""

from __future__ import annotations

import copy
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Final, Protocol, TypeAlias, TypeVar

import trio

from ...classes import frozen
from ...concurrency.contexts import contextmanager
from ..errors import AuthorizationError
from ..fetching import Fetch, Fetcher, FetchFailed
from .grants import Grant, GrantContext, Machine, Step, Visit

Visitor: TypeAlias = Callable[[Visit], Awaitable[str]]
"""Has the user make a visit, and returns the URL that the browser was sent to. Raises `AuthorizationError`."""


@frozen
class GrantFlow:
    """The way to one grant."""

    machine: Machine[Grant]
    visitor: Visitor | None = None
    """`None` where no user takes part."""


class TokenSource(Protocol):
    """A kind of grant, and the credentials for that kind."""

    asks_user: ClassVar[bool]
    """True where a grant takes the time of a user."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until nobody else asks the same user for tokens of the same server, and ask inside."""
        ...

    def flow(self, context: GrantContext) -> AbstractAsyncContextManager[GrantFlow]:
        """Prepare the way to a new grant, for use inside: a user may be asked. Raises `AuthorizationError`."""
        ...

    def refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        """Return the machine that refreshes the stored tokens; `None` where a new grant is as good. The code of the
        machine's `AuthorizationError` is that of a refusal, and `None` where nobody has refused anything."""
        ...


T = TypeVar("T")


async def drive(
    machine: Machine[T],
    fetcher: Fetcher,
    visitor: Visitor | None,
    before_secrets: Callable[[], None],
    settle: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Return the end of ``machine``, which is closed in any case. ``before_secrets`` is called before each request
    with credentials, codes or tokens: from then on an authorization server may have used up a code or a token.
    ``settle`` keeps what the machine has noted, before each step. Raises `AuthorizationError`."""
    try:
        step = next(machine)
        while True:
            if settle is not None:
                await settle()
            if isinstance(step, Fetch) and step.secrets_of is not None:
                before_secrets()
            try:
                outcome = await _carried_out(step, fetcher, visitor)
            except FetchFailed as error:
                error.__traceback__ = None  # whose frames have the request in them
                step = machine.throw(error)
            else:
                step = machine.send(outcome)
    except StopIteration as end:
        return end.value
    finally:
        machine.close()


async def _carried_out(step: Step, fetcher: Fetcher, visitor: Visitor | None) -> object:
    if isinstance(step, Fetch):
        return await fetcher.fetch(step)
    if visitor is None:
        raise AuthorizationError("a user has to sign in, and there is none")
    return await visitor(step)


_SHIELDED_SECONDS: Final = 60.0
_CLOSING_SECONDS: Final = 5.0


class Finishing:
    """Shields ways to tokens, once they cannot be left without harm: the authorization server has used up a code or a
    refresh token, and the new tokens are not stored yet."""

    def __init__(self) -> None:
        self._seconds = _SHIELDED_SECONDS
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
        self._seconds = _CLOSING_SECONDS
        end = trio.current_time() + _CLOSING_SECONDS
        for scope in self._begun:
            scope.deadline = min(scope.deadline, end)


logger = logging.getLogger("trio_mcp")


class Acquisition:
    """A way to a token, gone once for all who wait for the token. The acquisition has a task of its own, so a waiter
    who leaves does not end it for others; the last waiter does, as far as it can be ended. ``is_refresh``: nobody is
    asked."""

    def __init__(self, *, is_refresh: bool) -> None:
        self.is_refresh = is_refresh
        self.failure: AuthorizationError | None = None
        """The reason why there is no token; `None` where the acquisition goes on, has brought a token, or was left."""
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
