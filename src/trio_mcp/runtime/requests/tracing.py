"""Tracing follows each request from its start to its end. There is none unless it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...state.requests import OutboundRequest
    from .request_scope import RequestScope

__all__ = ["CallSpan", "HandlerSpan", "Tracer", "Tracing"]


class CallSpan(Protocol):
    """A request of ours, while it is on its way."""

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with what the peer is to know of the trace in their ``_meta``."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """Note that the request is over: ``result`` is plain data; ``error`` is what its caller gets instead."""


class HandlerSpan(Protocol):
    """A request of the peer, while its handler runs."""

    def end(self, result: Any) -> None:
        """Note that the handler has ended. The scope knows of a cancel, and its request of an error reply."""


class Tracer(Protocol):
    """Follows the requests of one connection. Its methods never raise, nor do those of its spans."""

    def calling(self, request: OutboundRequest, params: dict[str, Any] | None) -> CallSpan | None:
        """Return the span of a request of ours that the current task is about to send; `None` when it is not traced."""
        ...

    def handling(self, scope: RequestScope) -> HandlerSpan | None:
        """Return the span of a handler that is about to run in the current task; `None` when it is not traced."""
        ...


class Tracing(Protocol):
    """Makes one `Tracer` for each connection of a server or a client, which is given this."""

    def tracer(self, network: str | None) -> Tracer:
        """Return the tracer of a connection whose messages travel by ``network``: ``pipe``, ``tcp`` or ``unix``; `None`
        when they do not leave the process."""
        ...
