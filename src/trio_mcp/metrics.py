"""Metrics of requests, connections and tasks for OpenTelemetry, recorded by `trio_mcp.otel.OpenTelemetry`.

Durations have the names and attributes of the semantic conventions for MCP (status: development). Other names begin
with ``trio_mcp``. Names that no server offers aren't recorded as attributes, so a peer cannot create time series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final
from weakref import WeakSet

from opentelemetry import metrics

from .jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND
from .runtime.limits import Load

_BOUNDARIES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Histogram boundaries from OpenTelemetry's semantic conventions for MCP, section Metrics."""
_NAMES: Final = frozenset(("gen_ai.tool.name", "gen_ai.prompt.name"))
_UNKNOWN: Final = frozenset((str(INVALID_PARAMS), str(METHOD_NOT_FOUND)))
"""Error codes of requests that may contain an arbitrary name, so that the name isn't used as a label."""
_METHOD: Final = "mcp.method.name"
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
        self._queued.record(queued, {_METHOD: attributes[_METHOD]})

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
