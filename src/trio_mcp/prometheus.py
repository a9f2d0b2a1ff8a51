"""The metrics of `trio_mcp.otel` as a page for Prometheus. Needs the extra ``trio-mcp[prometheus]``.

page = PrometheusPage()
server = Server("batch", tracing=page.tracing)

async with trio.open_nursery() as nursery:
    await nursery.start(page.serve)
    await serve_http(server)
"""

from __future__ import annotations

import trio
from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, start_http_server

from .otel import OpenTelemetry

__all__ = ["PrometheusPage"]

_LAST_PAGE = 2.0
"""Seconds that a scrape in progress has to finish when the page stops."""


class PrometheusPage:
    """A web page with metrics for Prometheus, on its own port.

    It shows all servers and clients to which you pass the page's `tracing`.

    ``tracer_provider``: see `OpenTelemetry`. Threads of ``prometheus_client`` serve the page without authentication, so
    keep its port internal.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self.registry = CollectorRegistry()
        """The registry that the page shows. You can register your own metrics here."""
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self.registry)
        self.tracing = OpenTelemetry(tracer_provider, meter_provider=MeterProvider([reader]))
        """The observer that records the metrics. Pass it to servers and clients as ``tracing``."""

    async def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9464,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the page at ``http://host:port/metrics`` until cancelled.

        Calls ``task_status.started`` with the port. With port 0, the system chooses a free port. Raises `OSError` if
        the port is in use.
        """
        await serve_registry(self.registry, host, port, task_status=task_status)


async def serve_registry(
    registry: CollectorRegistry,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the metrics of ``registry`` as a page until cancelled.

    See `PrometheusPage.serve`.
    """
    page, _ = start_http_server(port, host, registry)
    try:
        task_status.started(page.server_port)
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(deadline=trio.current_time() + _LAST_PAGE, shield=True):
            await trio.to_thread.run_sync(page.shutdown, abandon_on_cancel=True)
        page.server_close()
