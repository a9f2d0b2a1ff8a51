"""OpenTelemetry spans and metrics of calls and of handlers. Needs the extra ``trio-mcp[otel]``.

    server = Server("batch", tracing=OpenTelemetry())
    async with open_stdio(command, tracing=OpenTelemetry()) as client: ...

Names and attributes are those of the semantic conventions for MCP (status: development). Arguments, results and
log messages are never recorded. Metrics that the conventions don't have begin with ``trio_mcp``. In metrics, names that
no server offers aren't recorded as attributes, so a peer cannot create time series.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

import trio
from opentelemetry import context, metrics, propagate, trace

from .concurrency.contexts import ResumptionObserver
from .jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, PeerError
from .protocol.cancel_acknowledged import CANCEL, CANCEL_STATES
from .protocol.fields import as_object
from .protocol.meta import TRACEPARENT, TRACESTATE, TraceContext
from .protocol.types.tools import CallToolResult
from .runtime.limits import Load
from .state.requests import InboundRequest, OutboundRequest

__all__ = ["OpenTelemetry"]

logger = logging.getLogger("trio_mcp")

_LONGEST: Final = 200
"""Maximum length, in characters, of a name that the peer chose. The name becomes a span name, which other systems
store."""
_LONGEST_CARRIED: Final = 8192
_TOOL_ERROR: Final = "tool_error"


P = ParamSpec("P")
T = TypeVar("T")


def _contained(words: str) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
    """Return a decorator that logs exceptions of OpenTelemetry code, such as a sampler, processor or propagator.

    If the function raises, the decorator logs ``words`` and returns `None`, so that the request itself continues.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
        @wraps(function)
        def contained(*args: P.args, **kwargs: P.kwargs) -> T | None:
            try:
                return function(*args, **kwargs)
            except Exception:
                logger.exception(words)
                return None

        return contained

    return decorate


class OpenTelemetry:
    """Creates OpenTelemetry spans and metrics of requests. Pass it as ``tracing`` to a server or to ``open_*``.

    Args:
        tracer_provider: The global one by default.
        meter_provider: The global one by default.
        resource_uris: If true, ``mcp.resource.uri`` is recorded. URIs may contain private data.

    Each sent request has a span of kind CLIENT, and each running handler a span of kind SERVER, on both sides: a
    server's request to its client has a CLIENT span in the server and a SERVER span in the client. Trace context
    travels in ``_meta``, written by the global propagator. A request answered without a handler, such as a ping or the
    handshake, has no SERVER span. A handler that waits for the client's retries has one span, linked to the request
    that gets the final answer.

    Metrics are the four durations that the conventions define, the time that requests wait for their turn, and the
    counts of `Server.statistics`. The duration of a cancelled handler has the cause in ``trio_mcp.cancel.cause``.
    ``trio_mcp.cancel.duration`` is the time from the arrival of a cancel to the handler's ``finally``.

    Spans show a cancel as events: ``cancel.sent`` in the caller, and in the handler ``cancel.received``,
    ``cancel.delivered`` (when ``finally`` begins) and ``cleanup.done``. The request of `confirm_cancels` also has a
    span, with the state that the server reported in ``trio_mcp.cancel.state``.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        resource_uris: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("trio_mcp", tracer_provider=tracer_provider)
        self._meters = Meters(meter_provider)
        self._resource_uris = resource_uris

    def _watch_load(self, load: Load) -> None:
        """Report the counts in ``load`` as metrics.

        `Server.statistics` returns the same counts.
        """
        self._meters.watch(load)

    def _tracer_of(self, network: str | None) -> ConnectionTracer:
        """Return the tracer of a connection over ``network``, which is ``pipe``, ``tcp`` or ``unix``.

        Return `None` if messages don't leave the process.
        """
        return ConnectionTracer(self._tracer, self._meters, network, resource_uris=self._resource_uris)


class ConnectionTracer:
    """Traces the requests of one connection.

    The methods of the tracer and of its spans never raise.
    """

    def __init__(self, tracer: trace.Tracer, meters: Meters, network: str | None, *, resource_uris: bool) -> None:
        self._tracer = tracer
        self._meters = meters
        self._network = network
        self._resource_uris = resource_uris
        self._begun = time.perf_counter()

    @_contained("measuring a connection failed")
    def close(self, role: str, revision: str | None) -> None:
        """Record that the connection has closed.

        ``role`` is the role of this side: client or server.
        """
        attributes: dict[str, str] = {}
        if self._network is not None:
            attributes["network.transport"] = self._network
        if revision is not None:
            attributes["mcp.protocol.version"] = revision
        self._meters.record_session(role, time.perf_counter() - self._begun, attributes)

    @_contained("tracing a call failed")
    def calling(
        self, request: OutboundRequest, params: dict[str, Any] | None, present: TraceContext | None
    ) -> ClientSpan:
        """Return the span of a request that the current task is about to send.

        ``present`` is the trace context that the new span continues. Return `None` if tracing failed.
        """
        params, parent = params or {}, context.get_current()
        if present is not None and not trace.get_current_span(parent).get_span_context().is_valid:
            # This task has no active span, so continue the trace of the MCP request that the task handles.
            parent = propagate.extract(present.inject_into({}), parent)
        attributes = self._attributes(request, params)
        span = self._start(attributes, trace.SpanKind.CLIENT, parent)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span, parent))
        meta: dict[str, Any] = params.get("_meta") or {}
        if TRACEPARENT in meta or TRACESTATE in meta:  # the caller has set a trace context, so keep it
            carrier.pop(TRACEPARENT, None)
            carrier.pop(TRACESTATE, None)
        record = _SpanRecord(span, attributes, self._meters.record_call)
        return ClientSpan(record, {**params, "_meta": {**carrier, **meta}} if carrier else params)

    @_contained("tracing a handler failed")
    def handling(self, request: InboundRequest, queued: float = 0.0) -> ServerSpan:
        """Return the span of a handler that is about to run in the current task.

        The handler's request waited in the queue for ``queued`` seconds. Return `None` if tracing failed.
        """
        ambient = context.get_current()
        parent = propagate.extract(_carrier(request.meta), ambient)
        attributes = self._attributes(request, request.params)
        span = self._start(attributes, trace.SpanKind.SERVER, parent, ambient)
        # Set the trace context without resetting it later: this task ends when its request ends.
        context.attach(trace.set_span_in_context(span, parent))

        def measure(seconds: float, attributes: Mapping[str, str]) -> None:
            self._meters.record_handler(seconds + queued, queued, attributes)

        return ServerSpan(_SpanRecord(span, attributes, measure), request, self._meters.record_cancel)

    def _attributes(self, request: InboundRequest | OutboundRequest, params: Mapping[str, Any]) -> dict[str, str]:
        method = request.method.name
        attributes: dict[str, str] = {
            "mcp.method.name": method,
            "mcp.protocol.version": request.revision.name,
            "jsonrpc.request.id": str(request.id)[:_LONGEST],
        }
        if method in ("tools/call", "prompts/get") and type(name := params.get("name")) is str:
            attributes["gen_ai.tool.name" if method == "tools/call" else "gen_ai.prompt.name"] = name[:_LONGEST]
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if self._resource_uris and method.startswith("resources/") and type(uri := params.get("uri")) is str:
            attributes["mcp.resource.uri"] = uri[:_LONGEST_CARRIED]
        if self._network is not None:
            attributes["network.transport"] = self._network
        return attributes

    def _start(
        self,
        attributes: dict[str, str],
        kind: trace.SpanKind,
        parent: context.Context,
        ambient: context.Context | None = None,
    ) -> trace.Span:
        target = attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.prompt.name")
        name = attributes["mcp.method.name"] if target is None else f"{attributes['mcp.method.name']} {target}"
        return self._tracer.start_span(name, parent, kind, attributes, _links(parent, ambient))


def _links(parent: context.Context, ambient: context.Context | None) -> list[trace.Link]:
    """Return the span links of a handler's span.

    By OpenTelemetry's conventions for MCP (Context propagation), the context in ``_meta`` is the parent of the span,
    and the ambient context is linked.
    """
    if ambient is None:
        return []
    here = trace.get_current_span(ambient).get_span_context()
    there = trace.get_current_span(parent).get_span_context()
    return [trace.Link(here)] if here.is_valid and here != there else []


def _carrier(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return those members of the peer's ``_meta`` that a trace propagator may read.

    They are strings that could be HTTP headers.
    """
    return {key: value for key, value in meta.items() if type(value) is str and len(value) <= _LONGEST_CARRIED}


class _SpanRecord:
    """An OpenTelemetry ``span`` with its ``attributes``.

    At the end of the span, ``measure`` is called with the attributes and the duration in seconds.
    """

    def __init__(
        self, span: trace.Span, attributes: dict[str, str], measure: Callable[[float, Mapping[str, str]], None]
    ) -> None:
        self.span = span
        self._attributes = attributes
        self._measure = measure
        self._begun = time.perf_counter()

    @_contained("tracing a cancel failed")
    def add_event(self, event: str, ago: float = 0.0) -> None:
        """Add an event to the span. The event happened ``ago`` seconds ago. Never raises."""
        self.span.add_event(event, timestamp=time.time_ns() - int(ago * 1e9))

    @_contained("tracing a cancel failed")
    def record_cancel_state(self, state: object) -> None:
        """Record in the span how a cancelled call has ended. Never raises.

        This is known only if the client requested confirmation of its cancellations.
        """
        if self._attributes["mcp.method.name"] == CANCEL and state in CANCEL_STATES:
            self.span.set_attribute("trio_mcp.cancel.state", str(state))

    @_contained("tracing the end of a request failed")
    def finish(
        self,
        error_type: str | None,
        description: str | None = None,
        *,
        code: int | None = None,
        cause: str | None = None,
    ) -> None:
        """End the span, and record how long it lasted. Never raises."""
        more: dict[str, str] = {}
        if error_type is not None:
            more["error.type"] = error_type
        if code is not None:
            more["rpc.response.status_code"] = str(code)
        if cause is not None:
            more["trio_mcp.cancel.cause"] = cause
        if error_type is not None:
            words = None if description is None else description[:_LONGEST]
            self.span.set_status(trace.StatusCode.ERROR, words)
        self.span.set_attributes(more)
        self.span.end()
        self._measure(time.perf_counter() - self._begun, {**self._attributes, **more})


class ClientSpan:
    """The span of an outgoing request."""

    def __init__(self, record: _SpanRecord, params: dict[str, Any]) -> None:
        self._record = record
        self.params = params
        """The request's parameters, whose ``_meta`` contains the trace context for the peer."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """End the span of the outgoing request.

        ``result`` is the request's result as plain data. If the request failed, ``error`` is the exception that its
        caller gets.
        """
        if error is None:
            told = as_object(result)
            self._record.record_cancel_state(told.get("state"))
            self._record.finish(_TOOL_ERROR if told.get("isError") is True else None)
        elif isinstance(error, PeerError):
            self._record.finish(str(error.code), error.message, code=error.code)
        elif isinstance(error, trio.Cancelled):
            self._record.add_event("cancel.sent")
            self._record.finish("timeout" if error.source == "deadline" else "cancelled")
        else:
            self._record.finish(type(error).__qualname__)


class ServerSpan:
    """The span of an incoming request. It lasts while the request's handler runs."""

    def __init__(
        self, record: _SpanRecord, request: InboundRequest, measure: Callable[[float, Mapping[str, str]], None]
    ) -> None:
        self._record = record
        self._request = request
        self._measure = measure
        self._resumed_at: float | None = None

    def follow(self, answer: Awaitable[Any], scope: trio.CancelScope) -> Awaitable[Any]:
        """Return an awaitable that runs the handler's awaitable ``answer``. If ``scope`` is cancelled, it also records
        when the handler first continues after that, for example in a ``finally`` block."""
        return ResumptionObserver(answer, scope, self._resumed)

    def _resumed(self) -> None:
        self._resumed_at = trio.current_time()

    def _cancelled(self, cause: str, at: float) -> None:
        now = trio.current_time()
        self._record.add_event("cancel.received", now - at)
        if (resumed := self._resumed_at) is not None:
            self._record.add_event("cancel.delivered", now - resumed)
            attributes = {"mcp.method.name": self._request.method.name, "trio_mcp.cancel.cause": cause}
            _contained("measuring a cancel failed")(self._measure)(max(resumed - at, 0.0), attributes)
        self._record.add_event("cleanup.done")

    def end(self, result: Any, request: InboundRequest, cause: str | None, at: float | None = None) -> None:
        """End the span of the incoming request.

        ``request`` is the request to which the response is sent: the original request, or the client's last retry. If
        the request was cancelled, ``cause`` and ``at`` are the cause and the time of the cancellation.
        """
        if cause is not None and at is not None:
            self._cancelled(cause, at)
        if request is not self._request:  # the response belongs to the client's retry, so link the trace of the retry
            _link(self._record.span, request.meta)
        if (error := request.error) is not None:
            self._record.finish(str(error.code), error.message, code=error.code)
        elif cause is not None:  # the request was cancelled, so it has no response
            self._record.finish("cancelled", f"cancelled: {cause}", cause=cause)
        else:
            failed = request.failed or (isinstance(result, CallToolResult) and result.is_error)
            self._record.finish(_TOOL_ERROR if failed else None)


@_contained("tracing a later round failed")
def _link(span: trace.Span, meta: Mapping[str, Any]) -> None:
    there = trace.get_current_span(propagate.extract(_carrier(meta), context.Context())).get_span_context()
    if there.is_valid:
        span.add_link(there)


_BOUNDARIES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Histogram boundaries from OpenTelemetry's semantic conventions for MCP, section Metrics."""
_NAMES: Final = frozenset(("gen_ai.tool.name", "gen_ai.prompt.name"))
_UNKNOWN: Final = frozenset((str(INVALID_PARAMS), str(METHOD_NOT_FOUND)))
"""Error codes of requests that may contain an arbitrary name, so that the name isn't used as a label."""
_PRIVATE: Final = frozenset(("jsonrpc.request.id", "mcp.resource.uri"))
"""Span attributes that aren't used in metrics, because their value is different in each request."""

_GAUGES: Final = {
    "connections": ("trio_mcp.connections", "{connection}", "Open connections."),
    "in_flight": ("trio_mcp.requests.in_flight", "{request}", "Requests whose handlers are running."),
    "queued": ("trio_mcp.requests.queued", "{request}", "Requests waiting for their turn."),
    "parked": ("trio_mcp.requests.parked", "{request}", "Parked handlers, waiting for a client to return."),
    "listening": ("trio_mcp.streams", "{stream}", "Open streams of subscriptions/listen."),
    "tasks": ("trio_mcp.tasks.running", "{task}", "Tasks running in this process."),
}
_COUNTERS: Final = {
    "expired": ("trio_mcp.requests.expired", "{request}", "Parked requests whose answers did not arrive in time."),
    "overrun": ("trio_mcp.requests.overrun", "{request}", "Cancelled requests whose cleanup took too long."),
    "dropped_logs": ("trio_mcp.logs.dropped", "{message}", "Log messages dropped because the queue was full."),
    "takeovers": ("trio_mcp.tasks.takeovers", "{task}", "Abandoned tasks that this process took over."),
    "refused_writes": ("trio_mcp.tasks.refused_writes", "{write}", "Refused changes of tasks that had another holder."),
    "forwarded_retries": ("trio_mcp.shared.carried", "{request}", "Retries forwarded to other replicas."),
    "received_retries": ("trio_mcp.shared.carried_here", "{request}", "Retries forwarded here by other replicas."),
    "replica_messages": ("trio_mcp.shared.letters", "{letter}", "Messages to other replicas."),
    "round_trips": ("trio_mcp.shared.round_trips", "{round_trip}", "Round trips to Redis."),
    "reconnects": ("trio_mcp.shared.reconnects", "{reconnect}", "Reconnections to Redis after an outage."),
    "hints_lost": ("trio_mcp.shared.gaps", "{gap}", "Times that Redis messages may have been lost."),
    "uncertain": (
        "trio_mcp.shared.uncertain",
        "{call}",
        "Calls to Redis without a reply, which may have been executed.",
    ),
}


class Meters:
    """The OpenTelemetry instruments (counters, histograms and so on) with which this package reports its metrics.

    All servers and clients with the same observer share them.
    """

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("trio_mcp", meter_provider=provider)

        def histogram(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_BOUNDARIES)

        self._handled = histogram(
            "mcp.server.operation.duration", "Time from a request to its response, at the receiver."
        )
        self._called = histogram("mcp.client.operation.duration", "Time from a request to its response, at the sender.")
        self._sessions = {
            "server": histogram("mcp.server.session.duration", "Duration of connections, at the server."),
            "client": histogram("mcp.client.session.duration", "Duration of connections, at the client."),
        }
        self._queued = histogram("trio_mcp.queue.duration", "Time that a request waited for its turn.")
        self._cancelled = histogram(
            "trio_mcp.cancel.duration", "Time from the arrival of a cancel until the handler resumed."
        )
        self._loads: WeakSet[Load] = WeakSet()
        for field, (name, unit, description) in _GAUGES.items():
            meter.create_observable_up_down_counter(name, [partial(self._observe, field)], unit, description)
        for field, (name, unit, description) in _COUNTERS.items():
            meter.create_observable_counter(name, [partial(self._observe, field)], unit, description)
        words = "1 while the shared storage is available, otherwise 0."
        meter.create_observable_gauge("trio_mcp.shared.up", [self._observe_links], "1", words)

    def watch(self, load: Load) -> None:
        """Report the numbers of connections and requests that ``load`` counts as metrics, until ``load`` is
        garbage-collected."""
        self._loads.add(load)

    def _observe(self, field: str, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        yield metrics.Observation(sum(getattr(load.statistics(), field) for load in tuple(self._loads)))

    def _observe_links(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        states = [is_up for load in tuple(self._loads) if (is_up := load.links.is_up) is not None]
        if states:
            yield metrics.Observation(int(all(states)))

    def record_call(self, seconds: float, attributes: Mapping[str, str]) -> None:
        """Record the metrics of an outgoing request that has ended.

        ``attributes`` are the attributes of the request's span.
        """
        self._called.record(seconds, _bounded(attributes))

    def record_handler(self, seconds: float, queued: float, attributes: Mapping[str, str]) -> None:
        """Record the metrics of an incoming request that took ``seconds``, of which it spent ``queued`` seconds in the
        queue."""
        self._handled.record(seconds, _bounded(attributes))
        self._queued.record(queued, {"mcp.method.name": attributes["mcp.method.name"]})

    def record_cancel(self, seconds: float, attributes: Mapping[str, str]) -> None:
        """Record the ``seconds`` between the arrival of a cancellation and the cancelled handler's next step."""
        self._cancelled.record(seconds, attributes)

    def record_session(self, role: str, seconds: float, attributes: Mapping[str, str]) -> None:
        """Record the metrics of a connection that has closed.

        ``role`` is the role of this side: client or server.
        """
        self._sessions[role].record(seconds, attributes)


def _bounded(attributes: Mapping[str, str]) -> Mapping[str, str]:
    left_out = _PRIVATE | _NAMES if attributes.get("rpc.response.status_code") in _UNKNOWN else _PRIVATE
    return {name: value for name, value in attributes.items() if name not in left_out}
