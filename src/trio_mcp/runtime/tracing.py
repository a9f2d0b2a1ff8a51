"""Tracing: somebody who is told of each request from its start to its end. Nobody, unless it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..state.requests import OutboundRequest
    from .request_scope import RequestScope

__all__ = ["CallSpan", "HandlerSpan", "Tracer", "Tracing"]


class CallSpan(Protocol):
    """A request of ours, while it is on its way."""

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with what the peer is to know of the trace in their ``_meta``."""
        ...

    def end(self, result: Any, error: BaseException | None) -> None:
        """It is over: ``result`` is plain data; ``error`` is what its caller gets instead."""


class HandlerSpan(Protocol):
    """A request of the peer, while its handler runs."""

    def end(self, result: Any) -> None:
        """It is over. The scope knows of a cancel, and its request of an error reply."""


class Tracer(Protocol):
    """Who is told of the requests of one connection. Its methods never raise, nor do those of its spans."""

    def calling(self, request: OutboundRequest, params: dict[str, Any] | None) -> CallSpan | None:
        """A request of ours is about to be sent, from the current task. `None` when it is not traced."""
        ...

    def handling(self, scope: RequestScope) -> HandlerSpan | None:
        """A handler is about to run, in the current task. `None` when it is not traced."""
        ...


class Tracing(Protocol):
    """What servers and clients are given: one `Tracer` for each connection."""

    def tracer(self, network: str | None) -> Tracer:
        """``network``: how the messages travel, ``pipe``, ``tcp`` or ``unix``; `None` when they do not."""
        ...
