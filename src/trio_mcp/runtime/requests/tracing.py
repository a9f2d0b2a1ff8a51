"""Tracing follows each request from start to end, where tracing was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...state.requests import OutboundRequest
    from .request_scope import RequestScope


class CallSpan(Protocol):
    """A request of ours, on its way."""

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with the trace context for the peer in their ``_meta``."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """Note that the request is over: ``result`` is plain data; ``error`` is the exception that the caller gets
        instead."""


class HandlerSpan(Protocol):
    """A request of the peer, while its handler runs."""

    def end(self, result: Any) -> None:
        """Note that the handler has ended. The scope knows of a cancel, and its request of an error reply."""


class Tracer(Protocol):
    """Follows the requests of one connection. The methods of the tracer and of its spans never raise."""

    def calling(self, request: OutboundRequest, params: dict[str, Any] | None) -> CallSpan | None:
        """Return the span of a request of ours that the current task is about to send; `None` when the request is not
        traced."""
        ...

    def handling(self, scope: RequestScope) -> HandlerSpan | None:
        """Return the span of a handler that is about to run in the current task; `None` when the handler is not
        traced."""
        ...


class Tracing(Protocol):
    """Makes one `Tracer` for each connection of the server or client that was given the tracing."""

    def tracer(self, network: str | None) -> Tracer:
        """Return the tracer of a connection whose messages travel by ``network``: ``pipe``, ``tcp`` or ``unix``; `None`
        when the messages do not leave the process."""
        ...
