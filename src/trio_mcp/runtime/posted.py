"""Posted: a request of ours for whose end no task waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .outbox import Outbox, Owner

if TYPE_CHECKING:
    from ..jsonrpc.errors import MCPError
    from ..jsonrpc.messages import RequestId
    from ..protocol.revisions import Revision
    from ..state.requests import OutboundRequest


class Poster(Protocol):
    """The party that has sent a request, and goes on with other things."""

    def ended(self, posted: Posted, result: Any, error: MCPError | None) -> None:
        """Take the end of a request, plain data or an error. Runs in the reader: must be quick, and must not raise."""
        ...


class Posts(Protocol):
    """Sends requests for whose ends no task waits: an `Outbound`."""

    def post(
        self, method: str, params: dict[str, Any] | None, revision: Revision, poster: Poster, name: str, outbox: Outbox
    ) -> Posted:
        """Send a request to ``outbox``, and have ``poster`` told of its end."""
        ...

    def take_back(self, posted: Posted, reason: str | BaseException) -> None:
        """Abandon a request."""
        ...


class _End(Protocol):
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> MCPError | None: ...


class Posted(Owner):
    """A request that ``poster`` has sent by ``outbox``, one of the ``calls`` in flight; ``name`` is for the poster.
    ``over`` is called at the end. Much smaller than a task that waits."""

    __slots__ = ("_calls", "_over", "_poster", "name", "outbox", "request")

    on_notification: ClassVar[None] = None
    limited: ClassVar[bool] = False

    def __init__(
        self,
        request: OutboundRequest,
        calls: dict[RequestId, Any],
        outbox: Outbox,
        poster: Poster,
        name: str,
        over: Callable[[Any, BaseException | None], None] | None,
    ) -> None:
        super().__init__()
        self.request = request
        self.outbox = outbox
        """The way out of the request."""
        self.name = name
        self._calls = calls
        self._poster = poster
        self._over = over

    def settle(self, end: _End) -> None:
        """Take the end, which has arrived by wire or by loss of the connection."""
        if self.leave(end.result, end.error):
            self._poster.ended(self, end.result, end.error)

    def leave(self, result: Any, error: BaseException | None) -> bool:
        """Note that the request is over. Return false where that was so before."""
        if self._calls.pop(self.request.id, None) is None:
            return False
        if self._over is not None:
            self._over(result, error)
        return True
