"""present_trace finds the trace that a request made here and now belongs to."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any

from ...concurrency.contexts import contextmanager
from ...protocol.meta import TraceContext
from ..requests.request_scope import RequestScope, current_request

_answering: ContextVar[tuple[TraceContext, RequestScope | None] | None] = ContextVar("trio_mcp.answering", default=None)


def present_trace() -> TraceContext | None:
    """Return the trace context of the inbound request that is being handled, as the request's ``_meta`` says at this
    moment, or of the call whose server is being answered; `None` without a trace."""
    scope = current_request.get(None)
    answered = _answering.get()
    if answered is not None and answered[1] is scope:  # else a request was received since then
        return answered[0]
    return None if scope is None else scope.trace


@contextmanager
def answering(meta: Mapping[str, Any]) -> Generator[None]:
    """Mark the block, and the tasks started in the block, as answering the questions that a server asked in reply to a
    request with ``meta``. No mark is needed where servers ask by requests: each request names its own trace."""
    present = present_trace()
    trace = TraceContext.of(meta if present is None else present.carried_by(meta))
    token = _answering.set(None if trace is None else (trace, current_request.get(None)))
    try:
        yield
    finally:
        _answering.reset(token)
