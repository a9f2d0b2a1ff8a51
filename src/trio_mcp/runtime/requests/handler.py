"""RequestHandler handles what the peer sends, for a server or a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ...state.events import NotificationReceived
    from ...state.requests import InboundRequest
    from .request_scope import RequestScope

__all__ = ["NOT_NOW", "RequestHandler"]

NOT_NOW: Final = object()
"""Result of `RequestHandler.answer_now` for a request that needs a task of its own."""


class RequestHandler(Protocol):
    """The side of a connection that knows what methods mean."""

    def answer_now(self, request: InboundRequest) -> Any:
        """Return the result of a request that needs no waiting, `NOT_NOW`, or `Retry`. Runs in the reader: it must be
        quick. Raises `CodedError` for an error reply."""

    def answer(self, scope: RequestScope) -> Awaitable[Any]:
        """Return the result of a request, in its own nursery. Raises `CodedError` for an error reply; any other
        exception is reported, and answered without its text: see `Replies.failure`."""
        ...

    def wants(self, event: NotificationReceived) -> bool:
        """Return whether `notified` is to be called for ``event``."""
        ...

    def notified(self, event: NotificationReceived) -> Awaitable[None]:
        """Handle one notification. Called for one at a time, in wire order."""
        ...
