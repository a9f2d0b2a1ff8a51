"""The metrics of `trio_mcp.metrics` as a page for Prometheus. Needs the extra ``trio-mcp[prometheus]``.

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
"""Seconds in which the page that is being read is written at the end."""


class PrometheusPage:
    """The metrics of all servers and clients that are given ``tracing``, on a page with a listener of its own.

    ``tracer_provider``: see `OpenTelemetry`. The page is written by threads of ``prometheus_client``, and knows no
    caller: keep its port inside.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self.registry = CollectorRegistry()
        """The registry that the page shows: register metrics of your own here."""
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self.registry)
        self.tracing = OpenTelemetry(tracer_provider, meter_provider=MeterProvider([reader]))
        """The observer to give to servers and clients."""

    async def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9464,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the page at ``http://host:port/metrics`` until cancelled. Reports the port, which is a free one for 0.
        Raises `OSError` when the port is taken."""
        await serve_registry(self.registry, host, port, task_status=task_status)


async def serve_registry(
    registry: CollectorRegistry,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page of ``registry``: see `PrometheusPage.serve`."""
    page, _ = start_http_server(port, host, registry)
    try:
        task_status.started(page.server_port)
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(deadline=trio.current_time() + _LAST_PAGE, shield=True):
            await trio.to_thread.run_sync(page.shutdown, abandon_on_cancel=True)
        page.server_close()
