"""Present trace: to which trace belongs what is asked here and now."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any

from ..jsonrpc.contexts import contextmanager
from ..spec.trace_context import TraceContext
from .request_scope import RequestScope, current_request

__all__ = ["answering", "present_trace"]

_answering: ContextVar[tuple[TraceContext, RequestScope | None] | None] = ContextVar("trio_mcp.answering", default=None)


def present_trace() -> TraceContext | None:
    """The trace context of the inbound request that is worked for, as its ``_meta`` says at this moment, or of the
    call whose server is being answered."""
    scope = current_request.get(None)
    answered = _answering.get()
    if answered is not None and answered[1] is scope:  # and no request that was received since then
        return answered[0]
    return None if scope is None else scope.trace


@contextmanager
def answering(meta: Mapping[str, Any]) -> Generator[None]:
    """Inside, what a server asked in its answer to a request with ``meta`` is answered, in this task and those it
    starts. Where servers send requests, these say by themselves to which trace they belong."""
    present = present_trace()
    trace = TraceContext.of(meta if present is None else present.carried_by(meta))
    token = _answering.set(None if trace is None else (trace, current_request.get(None)))
    try:
        yield
    finally:
        _answering.reset(token)
