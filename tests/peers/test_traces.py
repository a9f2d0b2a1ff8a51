"""One trace across our software and the official ``mcp`` package, which makes spans of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.patience import PATIENCE

from trio_mcp import open_stdio
from trio_mcp.otel import OpenTelemetry

PEER = """
from mcp.server.mcpserver import MCPServer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
server = MCPServer("peer")

@server.tool()
def where() -> str:
    span = trace.get_current_span()
    return f"{span.context.trace_id:032x} {span.parent.span_id:016x}"

server.run()
"""

OURS = """
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from trio_mcp import RequestContext, Server, serve_stdio
from trio_mcp.otel import OpenTelemetry

server = Server("ours", tracing=OpenTelemetry(TracerProvider()))

@server.tool
async def where(ctx: RequestContext) -> str:
    span = trace.get_current_span()
    return f"{ctx.trace.trace_id} {span.context.trace_id:032x} {span.parent.span_id:016x}"

trio.run(serve_stdio, server)
"""

PEER_CLIENT = """
import json, sys
import anyio
from mcp import Client, StdioServerParameters
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

spans = []

class Keep(SpanProcessor):
    def on_end(self, span):
        spans.append([span.attributes.get("mcp.method.name"), span.context.trace_id, span.context.span_id])

provider = TracerProvider()
provider.add_span_processor(Keep())
trace.set_tracer_provider(provider)

async def main():
    parameters = StdioServerParameters(command=sys.executable, args=[sys.argv[2]])
    async with Client(parameters, mode=sys.argv[1]) as client:
        result = await client.call_tool("where", {})
    print(json.dumps({"text": result.content[0].text, "spans": spans}))

anyio.run(main)
"""


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_server_of_the_mcp_package_continues_the_trace_of_a_trio_mcp_client(tmp_path: Path, era: Any) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("host").start_as_current_span("host") as host:
        async with open_stdio(
            [sys.executable, tmp_path / "peer.py"], era=era, tracing=OpenTelemetry(provider)
        ) as client:
            trace_id, parent_id = (await client.call_tool("where")).text.split()
    assert trace_id == format(host.get_span_context().trace_id, "032x")
    (call,) = [span for span in exporter.get_finished_spans() if span.name == "tools/call where"]
    assert call.context is not None
    assert parent_id == format(call.context.span_id, "016x")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_trio_mcp_server_continues_the_trace_of_a_client_of_the_mcp_package(tmp_path: Path, mode: str) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    (tmp_path / "peer.py").write_text(PEER_CLIENT)
    ran = subprocess.run(
        [sys.executable, tmp_path / "peer.py", mode, tmp_path / "ours.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    ((_, trace_id, span_id),) = [span for span in told["spans"] if span[0] == "tools/call"]
    assert told["text"] == f"{trace_id:032x} {trace_id:032x} {span_id:016x}"
