"""Serves the metrics page of ``trio-mcp run`` and ``gateway``, with the metrics of one process or of all workers. When
the page is requested, the supervisor reads each worker's metrics over a Unix socket."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..server.servable import Servable
from ..server.server import Server
from ..transports.sockets import unix_listener
from .printable import CommandError, say

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_PATIENCE: Final = 2.0
"""Seconds that a worker may take to respond. After that, the page omits the worker."""
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum number of bytes of a worker's metrics. There is a limit because a worker runs the author's code."""


async def serve_with_metrics(
    serve: Callable[[Servable], Awaitable[None]], where: tuple[str, int], path: str | None, server: Servable
) -> None:
    """Serve ``server`` with ``serve``, and a page of its metrics at the address ``where``. A worker process serves its
    metrics page on the Unix socket ``path``, and not at ``where``.

    Raises `CommandError` if the extra isn't installed, if the server already has ``tracing=``, or if the port is in
    use.
    """
    assert isinstance(server, Server), "run and gateway serve one"
    try:
        from ..prometheus import PrometheusPage
    except ImportError:
        raise CommandError("--metrics needs an extra: pip install 'trio-mcp[prometheus]'") from None
    if server.tracing is not None:
        raise CommandError("--metrics: the server already has tracing=; use tracing=PrometheusPage().tracing instead")
    page = PrometheusPage()
    server.tracing = page.tracing
    async with open_service_nursery("the server has ended") as services:
        if path is None:
            await _start_page(services, page.registry, where)
        else:
            await services.start(_answer_supervisor, page.registry, path)
        await serve(server)


async def _start_page(services: ServiceNursery, registry: CollectorRegistry, where: tuple[str, int]) -> None:
    from ..prometheus import serve_registry

    host, port = where
    with CommandError.instead_of(OSError, prefix="--metrics: cannot listen on this address: "):
        port = await services.start(serve_registry, registry, host, port)
    say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics")


async def _answer_supervisor(
    registry: CollectorRegistry, path: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    from prometheus_client import generate_latest

    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await stream.send_all(await trio.to_thread.run_sync(generate_latest, registry))

    with unix_listener(path) as listener:
        task_status.started()
        await trio.serve_listeners(answer, [listener])


@asynccontextmanager
async def page_of_workers(host: str, port: int) -> AsyncGenerator[str]:
    """Inside the block, serve one page with the metrics of all workers. Yields the folder in which workers create their
    sockets.

    Raises `CommandError` if the extra isn't installed or the port is in use.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise CommandError("--metrics needs an extra: pip install 'trio-mcp[prometheus]'") from None
    registry = CollectorRegistry()
    with tempfile.TemporaryDirectory(prefix="trio-mcp-") as folder:
        registry.register(_Workers(folder))  # pyright: ignore[reportArgumentType] - has the method that is needed
        async with open_service_nursery("the workers have ended") as services:
            await _start_page(services, registry, (host, port))
            yield folder


class _Workers:
    """A metrics collector that reads the metrics of all workers from their sockets in ``folder``.

    Each sample has the label ``worker`` (a process id), because the counters of a restarted worker begin at zero.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Read the metrics of all workers concurrently, and yield them. The metrics page calls this in a thread."""
        from prometheus_client.metrics_core import Metric
        from prometheus_client.parser import text_string_to_metric_families

        workers = sorted(name for name in os.listdir(self._folder) if name.isdecimal())  # others are locks
        with ThreadPoolExecutor(max(1, len(workers))) as threads:
            texts = threads.map(partial(_ask_worker, self._folder), workers)
        families = dict[str, Metric]()
        for worker, text in zip(workers, texts, strict=True):
            for family in text_string_to_metric_families(text):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.samples.append(sample._replace(labels={**sample.labels, "worker": worker}))
        yield from families.values()


def _ask_worker(folder: str, worker: str) -> str:
    """Read the metrics of a worker from its socket, and return them as text; empty if the worker has ended or doesn't
    respond in time."""
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as asked, suppress(OSError):
        asked.settimeout(_PATIENCE)
        asked.connect(os.path.join(folder, worker))
        while data := asked.recv(65536):
            received += data
            if len(received) > _MOST_BYTES:
                return ""
        return received.decode()
    return ""
