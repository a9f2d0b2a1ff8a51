"""Observers of requests, and the words that an observer is told in: the parts of `trio_mcp.otel.OpenTelemetry`, of
recordings, and of observers of your own. No method may raise, and all must be quick.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import trio

    from ..protocol.meta import TraceContext
    from ..state.requests import InboundRequest, OutboundRequest
    from .limits import Load


class Tracing(Protocol):
    """An observer of the requests of many connections."""

    def watch(self, load: Load) -> None:
        """Note the counts of a server or client that runs from now on."""
        ...

    def tracer(self, network: str | None) -> Tracer:
        """Return the observer of a connection whose messages travel by ``network``: see `Transport.network`."""
        ...


class Tracer(Protocol):
    """The observer of one connection."""

    def close(self, role: str, revision: str | None) -> None:
        """Note that the connection has ended, in which our side was ``role``."""
        ...

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Note a request of ours that the current task is about to send, while the task works for ``present``."""
        ...

    def handling(self, request: InboundRequest, queued: float = 0.0) -> HandlerSpan | None:
        """Note a handler that is about to run in the current task, after its request has waited ``queued`` seconds."""
        ...


class CallSpan(Protocol):
    """A request of ours, on its way."""

    @property
    def params(self) -> dict[str, Any] | None:
        """The parameters to send."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """Note the end: ``result`` is plain data; ``error`` is the exception that the caller gets instead."""
        ...


class HandlerSpan(Protocol):
    """A request of the peer, while its handler runs."""

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        """Return ``answer``, the handler itself, in a form that may note its first step behind the cancel of
        ``scope``, and its end."""
        ...

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        """Note that the handler and all its tasks have ended: ``request`` is the one that is answered, ``cause`` that
        of a cancel, if any, which came at the time ``at`` on trio's clock."""
        ...
