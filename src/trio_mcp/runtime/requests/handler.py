"""RequestHandler handles the messages of the peer, for a server or a client."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from ...jsonrpc.messages import value

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ...state.events import NotificationReceived
    from ...state.requests import InboundRequest
    from ..exchange import Exchange
    from .request_scope import RequestScope
    from .retry import Retry, Seal


class _Later(Enum):
    LATER = "later"


LATER: Final = _Later.LATER
"""Decision on a request that needs a task of its own."""


@value
class Now:
    """Decision on a request that needs no waiting: the ``result`` to answer."""

    result: Any


Decision: TypeAlias = "Now | Literal[_Later.LATER] | Retry"
"""Decision on a request: an answer at once, a task of its own, or answers for a parked handler."""


class RequestHandler(Protocol):
    """The side of a connection that knows the meaning of methods."""

    @property
    def seal(self) -> Seal | None:
        """The maker of ``requestState``; `None`: this side does not answer requests with questions."""
        ...

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Decide on a request that came over ``exchange``. Runs in the reader, and must be quick. Raises `CodedError`
        for an error reply."""
        ...

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        """Return the result of a request, in its own nursery. Raises `CodedError` for an error reply; any other
        exception is reported, and answered without its text: see `Replies.failure`."""
        ...

    def wants(self, event: NotificationReceived) -> bool:
        """Return whether `notified` is to be called for ``event``."""
        ...

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """Handle one notification. Called for one notification at a time, in wire order."""
        ...
