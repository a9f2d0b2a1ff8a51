"""OpenTelemetry spans of calls and of handlers. Needs the extra ``trio-mcp[otel]``.

    server = Server("batch", tracing=OpenTelemetry())
    async with open_stdio(command, tracing=OpenTelemetry()) as client: ...

Names and attributes are those of the semantic conventions for MCP (status: development). Arguments, results and
log messages are never recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import trio
from opentelemetry import context, propagate, trace

from .jsonrpc.errors import PeerError
from .protocol.meta import TRACEPARENT, TRACESTATE, TraceContext
from .protocol.types.tools import CallToolResult
from .state.requests import InboundRequest, OutboundRequest

__all__ = ["OpenTelemetry"]

logger = logging.getLogger("trio_mcp")

_LONGEST: Final = 200
"""Characters of a name chosen by the peer: the name becomes the name of a span, which other systems store."""
_LONGEST_CARRIED: Final = 8192
_TOOL_ERROR: Final = "tool_error"


class OpenTelemetry:
    """Tracing of requests by OpenTelemetry: pass it to a server or to ``open_*`` as ``tracing``.

    Each request sent gets a span of kind CLIENT, and each handler that runs gets a span of kind SERVER, in both roles:
    a request of a server to its client has a CLIENT span in the server and a SERVER span in the client. Trace context
    travels in ``_meta``, by the global propagator. A request answered without a handler, such as a ping or the
    handshake, has no SERVER span. A handler that waits through several rounds has one span, linked to the request that
    gets the final answer.

    ``tracer_provider`` is the global one unless given. ``resource_uris`` records ``mcp.resource.uri``, too; a URI may
    hold private data.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None, *, resource_uris: bool = False) -> None:
        self._tracer = trace.get_tracer("trio_mcp", tracer_provider=tracer_provider)
        self._resource_uris = resource_uris

    def tracer(self, network: str | None) -> ConnectionTracer:
        """Return the tracer of a connection whose messages travel by ``network``: ``pipe``, ``tcp`` or ``unix``; `None`
        when the messages do not leave the process."""
        return ConnectionTracer(self._tracer, network, self._resource_uris)


class ConnectionTracer:
    """Follows the requests of one connection. The methods of the tracer and of its spans never raise."""

    def __init__(self, tracer: trace.Tracer, network: str | None, resource_uris: bool) -> None:
        self._tracer = tracer
        self._network = network
        self._resource_uris = resource_uris

    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> CallSpan | None:
        """Return the span of a request of ours that the current task is about to send, while the task works for the
        trace ``present``; `None` when tracing failed."""
        try:
            return self._call(request, params or {}, present)
        except Exception:  # a sampler, a processor or a propagator failed: the call itself goes on
            logger.exception("tracing a call failed")
            return None

    def _call(self, request: OutboundRequest, params: dict[str, Any], present: TraceContext | None) -> CallSpan:
        parent = context.get_current()
        if present is not None and not trace.get_current_span(parent).get_span_context().is_valid:
            parent = propagate.extract(present.carried_by({}), parent)  # that request is not traced here
        span = self._start(request, params, trace.SpanKind.CLIENT, parent)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span, parent))
        meta: dict[str, Any] = params.get("_meta") or {}
        if TRACEPARENT in meta or TRACESTATE in meta:  # the caller's own wins, both together
            carrier.pop(TRACEPARENT, None)
            carrier.pop(TRACESTATE, None)
        return CallSpan(span, {**params, "_meta": {**carrier, **meta}} if carrier else params)

    def handling(self, request: InboundRequest) -> HandlerSpan | None:
        """Return the span of a handler that is about to run in the current task; `None` when tracing failed."""
        try:
            ambient = context.get_current()
            parent = propagate.extract(_carrier(request.meta), ambient)
            span = self._start(request, request.params, trace.SpanKind.SERVER, parent, ambient)
            context.attach(trace.set_span_in_context(span, parent))  # for this task, which ends with the request
        except Exception:
            logger.exception("tracing a handler failed")
            return None
        return HandlerSpan(span, request)

    def _start(
        self,
        request: InboundRequest | OutboundRequest,
        params: Mapping[str, Any],
        kind: trace.SpanKind,
        parent: context.Context,
        ambient: context.Context | None = None,
    ) -> trace.Span:
        method = request.method.name
        attributes: dict[str, str] = {
            "mcp.method.name": method,
            "mcp.protocol.version": request.revision.name,
            "jsonrpc.request.id": str(request.id)[:_LONGEST],
        }
        target: str | None = None
        if method in ("tools/call", "prompts/get") and type(name := params.get("name")) is str:
            target = name[:_LONGEST]
            attributes["gen_ai.tool.name" if method == "tools/call" else "gen_ai.prompt.name"] = target
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if self._resource_uris and method.startswith("resources/") and type(uri := params.get("uri")) is str:
            attributes["mcp.resource.uri"] = uri[:_LONGEST_CARRIED]
        if self._network is not None:
            attributes["network.transport"] = self._network
        name = method if target is None else f"{method} {target}"
        return self._tracer.start_span(name, parent, kind, attributes, _links(parent, ambient))


def _links(parent: context.Context, ambient: context.Context | None) -> list[trace.Link]:
    """Return the links of a handler's span. Conventions for MCP, Context propagation: the parent is the context in
    ``_meta``; the ambient one is linked."""
    if ambient is None:
        return []
    here = trace.get_current_span(ambient).get_span_context()
    there = trace.get_current_span(parent).get_span_context()
    return [trace.Link(here)] if here.is_valid and here != there else []


def _carrier(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of the peer's ``_meta`` for a propagator: propagators expect headers, and no more than headers
    hold."""
    return {key: value for key, value in meta.items() if type(value) is str and len(value) <= _LONGEST_CARRIED}


class CallSpan:
    """A request of ours, on its way."""

    def __init__(self, span: trace.Span, params: dict[str, Any]) -> None:
        self._span = span
        self.params = params
        """The parameters, with the trace context for the peer in their ``_meta``."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """End the span: ``result`` is plain data; ``error`` is the exception that the caller gets instead."""
        if error is None:
            failed = isinstance(result, dict) and cast("dict[str, Any]", result).get("isError") is True
            _end(self._span, _TOOL_ERROR if failed else None)
        elif isinstance(error, PeerError):
            _end(self._span, str(error.code), error.message, code=error.code)
        elif isinstance(error, trio.Cancelled):
            _end(self._span, "timeout" if error.source == "deadline" else "cancelled")
        else:
            _end(self._span, type(error).__qualname__)


class HandlerSpan:
    """A request of the peer, while its handler runs."""

    def __init__(self, span: trace.Span, request: InboundRequest) -> None:
        self._span = span
        self._request = request

    def end(self, result: Any, request: InboundRequest, cause: str | None) -> None:
        """End the span: ``request`` is the one that is answered, ``cause`` that of a cancel, if any."""
        if request is not self._request:  # a later round is answered
            _link(self._span, request.meta)
        if (error := request.error) is not None:
            _end(self._span, str(error.code), error.message, code=error.code)
        elif cause is not None:  # cancelled by its peer, and never answered then; the reason is the peer's text
            _end(self._span, "cancelled", f"cancelled: {cause}")
        else:
            failed = request.failed or (isinstance(result, CallToolResult) and result.is_error)
            _end(self._span, _TOOL_ERROR if failed else None)


def _link(span: trace.Span, meta: Mapping[str, Any]) -> None:
    try:
        there = trace.get_current_span(propagate.extract(_carrier(meta), context.Context())).get_span_context()
        if there.is_valid:
            span.add_link(there)
    except Exception:
        logger.exception("tracing a later round failed")


def _end(span: trace.Span, error_type: str | None, description: str | None = None, *, code: int | None = None) -> None:
    try:
        if error_type is not None:
            span.set_attribute("error.type", error_type)
            words = None if description is None else description[:_LONGEST]
            span.set_status(trace.StatusCode.ERROR, words)
        if code is not None:
            span.set_attribute("rpc.response.status_code", str(code))
        span.end()
    except Exception:
        logger.exception("tracing the end of a request failed")
