"""TokenSource: a way to tokens, with the credentials for that way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol, TypeAlias

import attrs

from ..grant import Grant, Situation
from ..steps import Machine, Visit

Visitor: TypeAlias = Callable[[Visit], Awaitable[str]]
"""Has the user make a visit, and returns the URL that the browser was sent to. Raises `AuthorizationError`."""


@attrs.frozen
class Errand:
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

    def errand(self, situation: Situation) -> AbstractAsyncContextManager[Errand]:
        """Prepare the way to a new grant, for use inside: a user may be asked. Raises `AuthorizationError`."""
        ...

    def refreshing(self, situation: Situation) -> Machine[Grant] | None:
        """Return the machine that refreshes the stored tokens; `None` where a new grant is as good. The code of the
        machine's `AuthorizationError` is that of a refusal, and `None` where nobody has refused anything."""
        ...
