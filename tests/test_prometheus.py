"""The page for Prometheus."""

from __future__ import annotations

import threading
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import trio

from trio_mcp import Server, open_memory

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")

from trio_mcp.prometheus import PrometheusPage


def read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return answer.read().decode()


async def test_the_page_tells_the_metrics_of_a_server_and_ends_with_its_task() -> None:
    page = PrometheusPage()
    server = Server("measured", tracing=page.tracing)

    @server.tool
    async def greet() -> str:
        return "hello"

    threads = threading.active_count()
    async with trio.open_nursery() as nursery:
        port = await nursery.start(page.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{port}/metrics"
        async with open_memory(server) as client:
            await client.call_tool("greet")
            text = await trio.to_thread.run_sync(read, url)
        nursery.cancel_scope.cancel(reason="the test is over")
    counts = [each for each in text.splitlines() if each.startswith("mcp_server_operation_duration_seconds_count{")]
    (line,) = (each for each in counts if "tools/call" in each)
    assert line.endswith(" 1.0")
    assert 'gen_ai_tool_name="greet"' in line
    assert "trio_mcp_connections 1.0" in text
    with pytest.raises(URLError):
        await trio.to_thread.run_sync(read, url)
    names = [thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio")]
    assert len(names) <= threads, names


async def test_a_port_that_is_taken_is_an_error() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        with pytest.raises(OSError, match="in use"):
            await PrometheusPage().serve("127.0.0.1", listener.socket.getsockname()[1])
