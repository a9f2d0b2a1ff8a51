"""Spans of calls and handlers, as the semantic conventions of OpenTelemetry for MCP name them."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.ports import url_on_socket
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import (
    CancelAcknowledged,
    CodedError,
    Limits,
    PeerError,
    RequestContext,
    Server,
    ToolError,
    confirm_cancels,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.otel import Meters, OpenTelemetry
from trio_mcp.types import CallToolResult, CreateMessageParams, CreateMessageResult, TextContent

SECRET = "hunter2"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


class Recorded:
    """What was recorded so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._metrics = InMemoryMetricReader()
        self.tracing = OpenTelemetry(self.provider, meter_provider=MeterProvider([self._metrics]))

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes of a metric, each with the count of a histogram, or the value."""
        data = self._metrics.get_metrics_data()
        found = data.resource_metrics[0].scope_metrics[0].metrics if data is not None else []
        (metric,) = (each for each in found if each.name == name)
        return [
            (dict(point.attributes or {}), point.count if isinstance(point, HistogramDataPoint) else point.value)
            for point in metric.data.data_points
        ]

    def spans(self, kind: SpanKind | None = None, method: str | None = None) -> list[ReadableSpan]:
        """In the order they ended."""
        return [
            span
            for span in self._exporter.get_finished_spans()
            if (kind is None or span.kind is kind)
            and (method is None or (span.attributes or {})["mcp.method.name"] == method)
        ]

    def one(self, kind: SpanKind, method: str = "tools/call") -> ReadableSpan:
        (span,) = self.spans(kind, method)
        return span


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture
def server(recorded: Recorded) -> Server:
    server = Server("traced", tracing=recorded.tracing)

    @server.tool
    async def greet(name: str) -> str:
        return f"hello {name}"

    @server.tool
    async def fail(how: str) -> CallToolResult:
        match how:
            case "tool error":
                raise ToolError(SECRET)
            case "coded":
                raise CodedError(-31999, "not today")
            case "unforeseen":
                raise RuntimeError(SECRET)
            case "unsendable":
                return CallToolResult([], structured_content={"n": float("nan")})
        raise AssertionError(how)

    @server.tool
    async def endless() -> None:
        await trio.sleep_forever()

    @server.tool
    async def current() -> str:
        return format(trace.get_current_span().get_span_context().span_id, "016x")

    @server.prompt
    async def ask(topic: str) -> str:
        return topic

    @server.resource("x://{secret}")
    async def read(secret: str) -> str:
        return secret

    return server


@ERAS
async def test_client_call_and_server_handler_each_have_a_span_in_one_trace(
    autojump_clock: MockClock, server: Server, recorded: Recorded, era: Any
) -> None:
    async with open_memory(server, era=era, tracing=recorded.tracing) as client:
        await client.call_tool("greet", {"name": SECRET})
        revision = client.revision.name
    call, handler = recorded.one(SpanKind.CLIENT), recorded.one(SpanKind.SERVER)
    assert call.name == handler.name == "tools/call greet"
    assert call.context is not None
    assert handler.parent is not None
    assert (handler.parent.span_id, handler.parent.trace_id) == (call.context.span_id, call.context.trace_id)
    assert told(call) == told(handler)
    attributes = told(call)
    assert attributes.pop("jsonrpc.request.id").isdigit()
    assert attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": revision,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "greet",
    }
    assert call.status.status_code is handler.status.status_code is StatusCode.UNSET


async def test_spans_contain_prompt_names_and_resource_uris_only_if_enabled(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server, tracing=OpenTelemetry(recorded.provider, resource_uris=True)) as client:
        await client.get_prompt("ask", {"topic": SECRET})
        await client.read_resource("x://y")
    prompt = recorded.one(SpanKind.SERVER, "prompts/get")
    assert (prompt.name, told(prompt)["gen_ai.prompt.name"]) == ("prompts/get ask", "ask")
    assert "gen_ai.operation.name" not in told(prompt)
    read = recorded.one(SpanKind.SERVER, "resources/read")
    assert (read.name, "mcp.resource.uri" in told(read)) == ("resources/read", False)
    read = recorded.one(SpanKind.CLIENT, "resources/read")
    assert (read.name, told(read)["mcp.resource.uri"]) == ("resources/read", "x://y")


@pytest.mark.parametrize(
    ("how", "error_type", "client_text", "server_text"),
    [
        ("tool error", "tool_error", None, None),
        ("coded", "-31999", "not today", "not today"),
        ("unforeseen", "tool_error", None, None),
        ("unsendable", "tool_error", None, None),
    ],
)
async def test_failed_call_sets_error_status_on_client_and_server_spans(
    autojump_clock: MockClock,
    server: Server,
    recorded: Recorded,
    how: str,
    error_type: str,
    client_text: str | None,
    server_text: Any,
) -> None:
    async with open_memory(server, tracing=recorded.tracing) as client:
        with suppress(PeerError):  # of which the span of the call tells, below
            assert (await client.call_tool("fail", {"how": how})).is_error
    for span, text in (
        (recorded.one(SpanKind.CLIENT), client_text),
        (recorded.one(SpanKind.SERVER), client_text if server_text is ... else server_text),
    ):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == text
        assert told(span)["error.type"] == error_type
        code = None if error_type == "tool_error" else error_type
        assert told(span).get("rpc.response.status_code") == code
        assert span.events == ()


@pytest.mark.parametrize("by", ["cancel", "deadline"])
@ERAS
async def test_cancelled_call_is_marked_as_cancelled_or_timed_out_on_client_and_server_spans(
    autojump_clock: MockClock, server: Server, recorded: Recorded, by: str, era: Any
) -> None:
    async with open_memory(server, era=era, tracing=recorded.tracing) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "endless")
        await wait_all_tasks_blocked()
        if by == "cancel":
            nursery.cancel_scope.cancel(reason=SECRET)
        else:
            nursery.cancel_scope.deadline = trio.current_time() + 1
            await trio.sleep(2)
    await wait_all_tasks_blocked()
    call, handler = recorded.one(SpanKind.CLIENT), recorded.one(SpanKind.SERVER)
    assert told(call)["error.type"] == ("cancelled" if by == "cancel" else "timeout")
    assert told(handler)["error.type"] == "cancelled"
    assert (call.status.status_code, call.status.description) == (StatusCode.ERROR, None)
    assert (handler.status.status_code, handler.status.description) == (StatusCode.ERROR, "cancelled: peer")


async def test_client_and_server_spans_end_when_the_connection_is_lost(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with trio.open_nursery() as nursery, open_memory(server, tracing=recorded.tracing) as client:
        nursery.start_soon(_survive, client.call_tool, "endless")
        await wait_all_tasks_blocked()
    assert told(recorded.one(SpanKind.CLIENT))["error.type"] == "ConnectionLost"
    assert told(recorded.one(SpanKind.SERVER))["error.type"] == "cancelled"


async def _survive(call: Any, *args: Any) -> None:
    with pytest.raises(Exception, match="closed"):
        await call(*args)


async def test_handler_runs_with_its_own_span_as_the_current_span(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server) as client:
        spans = [(await client.call_tool("current")).text for _ in range(2)]
    handlers = recorded.spans(SpanKind.SERVER)
    assert spans == [format(span.context.span_id, "016x") for span in handlers if span.context]
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_traceparent_of_an_untraced_caller_is_the_parent_of_the_server_span(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server) as client:
        await client.call_tool("greet", {"name": "x"}, meta={"traceparent": PARENT})
        await client.call_tool("greet", {"name": "x"}, meta={"traceparent": "00-nonsense", "tracestate": [1]})
    joined, own = recorded.spans(SpanKind.SERVER)
    assert joined.parent is not None
    assert format(joined.parent.span_id, "016x") == PARENT[36:52]
    assert own.parent is None


async def test_server_span_of_a_request_with_a_traceparent_links_to_the_current_span(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    with recorded.provider.get_tracer("host").start_as_current_span("hosting") as hosting:
        async with open_memory(server) as client:
            await client.call_tool("greet", {"name": "x"}, meta={"traceparent": PARENT})
            await client.call_tool("greet", {"name": "x"})
    joined, own = recorded.spans(SpanKind.SERVER, "tools/call")
    assert [link.context for link in joined.links] == [hosting.get_span_context()]
    assert own.parent == hosting.get_span_context()
    assert own.links == ()


@pytest.mark.parametrize("outer_is_traced", [True, False])
async def test_trace_continues_across_several_servers(
    autojump_clock: MockClock, server: Server, recorded: Recorded, outer_is_traced: bool
) -> None:
    outer = Server("outer", tracing=recorded.tracing if outer_is_traced else None)

    @outer.tool
    async def relay() -> None:
        await inner.call_tool("greet", {"name": "x"})

    async with open_memory(server, tracing=recorded.tracing) as inner, open_memory(outer) as client:
        await client.call_tool("relay", meta={"traceparent": PARENT})
    calls = recorded.spans(None, "tools/call")
    names = [(span.kind.name, span.name) for span in calls]
    outermost = [("SERVER", "tools/call relay")] if outer_is_traced else []
    assert names == [("SERVER", "tools/call greet"), ("CLIENT", "tools/call greet"), *outermost]
    parents = [format(span.parent.span_id, "016x") for span in calls if span.parent]
    spans = [format(span.context.span_id, "016x") for span in calls if span.context]
    assert parents == [*spans[1:], PARENT[36:52]]
    assert {format(span.context.trace_id, "032x") for span in calls if span.context} == {PARENT[3:35]}


async def test_traceparent_given_in_meta_is_sent_unchanged(autojump_clock: MockClock, recorded: Recorded) -> None:
    server = Server("plain")
    heard: list[Any] = []

    @server.tool
    async def record(ctx: RequestContext) -> None:
        heard.append({key: ctx.meta[key] for key in ctx.meta if "/" not in key})

    async with open_memory(server, tracing=recorded.tracing) as client:
        await client.call_tool("record", meta={"traceparent": PARENT, "mine": 1})
    assert heard == [{"traceparent": PARENT, "mine": 1}]


async def test_sampling_request_has_a_client_span_and_a_handler_span(
    autojump_clock: MockClock, recorded: Recorded
) -> None:
    server = Server("asking", tracing=recorded.tracing)

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample(SECRET, max_tokens=1)

    async def sample(_: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent(SECRET), "model")

    async with open_memory(server, era="legacy", sampling=sample, tracing=recorded.tracing) as client:
        await client.call_tool("ask")
    chain = [
        recorded.one(SpanKind.SERVER, "sampling/createMessage"),
        recorded.one(SpanKind.CLIENT, "sampling/createMessage"),
        recorded.one(SpanKind.SERVER),
        recorded.one(SpanKind.CLIENT),
    ]
    for span, parent in pairwise(chain):
        assert span.parent is not None
        assert parent.context is not None
        assert span.parent.span_id == parent.context.span_id


async def test_handler_that_requests_input_several_times_has_one_span(
    autojump_clock: MockClock, recorded: Recorded
) -> None:
    server = Server("asking", tracing=recorded.tracing)

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("first", max_tokens=1)
        await ctx.sample("second", max_tokens=1)

    async def sample(_: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("!"), "model")

    async with open_memory(server, era="modern", sampling=sample, tracing=recorded.tracing) as client:
        await client.call_tool("ask")
    first, _, last = recorded.spans(SpanKind.CLIENT, "tools/call")
    handler = recorded.one(SpanKind.SERVER)
    assert first.context is not None
    assert last.context is not None
    assert handler.parent is not None
    assert handler.parent.span_id == first.context.span_id
    assert [link.context.span_id for link in handler.links] == [last.context.span_id]
    assert handler.status.status_code is StatusCode.UNSET


async def test_arguments_and_results_are_not_recorded_in_spans(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server, tracing=recorded.tracing) as client:
        await client.call_tool("greet", {"name": SECRET})
        await client.call_tool("fail", {"how": "tool error"})
        await client.get_prompt("ask", {"topic": SECRET})
        await client.read_resource(f"x://{SECRET}")
        await client.call_tool("fail", {"how": "unforeseen"})
    assert len(recorded.spans()) >= 10
    assert SECRET not in "".join(span.to_json() for span in recorded.spans())


async def test_long_names_sent_by_a_client_are_truncated_in_spans(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server) as client:
        with pytest.raises(PeerError):
            await client.call_tool("x" * 10_000)
    span = recorded.one(SpanKind.SERVER)
    assert span.name == "tools/call " + "x" * 200
    assert max(len(str(value)) for value in told(span).values()) == 200


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no disk")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("no disk")


async def test_request_succeeds_even_if_tracing_fails(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    server = Server("traced", tracing=OpenTelemetry(provider))

    @server.tool
    async def greet() -> str:
        return "hello"

    async with open_memory(server, tracing=OpenTelemetry(provider)) as client:
        with caplog.at_level(logging.ERROR, "trio_mcp"):
            assert (await client.call_tool("greet")).text == "hello"
    assert {"tracing a call failed", "tracing a handler failed"} <= set(caplog.messages)


async def test_span_attribute_network_transport_is_tcp_or_unix(
    server: Server, recorded: Recorded, tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        listening = await nursery.start(serve_tcp, server, "127.0.0.1", 0)
        port = listening[0].socket.getsockname()[1]
        async with open_tcp("127.0.0.1", port, tracing=recorded.tracing) as client:
            await client.call_tool("greet", {"name": "tcp"})
        listening = await nursery.start(serve_websocket, server, "127.0.0.1", 0)
        port = listening[0].socket.getsockname()[1]
        async with open_websocket(f"ws://127.0.0.1:{port}/mcp", tracing=recorded.tracing) as client:
            await client.call_tool("greet", {"name": "websocket"})
        await nursery.start(serve_unix, server, tmp_path / "socket")
        async with open_unix(tmp_path / "socket", tracing=recorded.tracing) as client:
            await client.call_tool("greet", {"name": "unix"})
        nursery.cancel_scope.cancel()
    for kind in (SpanKind.SERVER, SpanKind.CLIENT):
        spans = recorded.spans(kind, "tools/call")
        assert [told(span)["network.transport"] for span in spans] == ["tcp", "tcp", "unix"]


async def test_http_client_span_distinguishes_a_unix_socket_from_tcp(
    server: Server, recorded: Recorded, socket_folder: Path
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, server, unix=socket_folder / "s"))
        async with open_http(url_on_socket(socket_folder / "s"), tracing=recorded.tracing) as client:
            await client.call_tool("greet", {"name": "unix"})
        nursery.cancel_scope.cancel()
    [span] = recorded.spans(SpanKind.CLIENT, "tools/call")
    assert told(span)["network.transport"] == "unix"


CHILD = """
import trio
from opentelemetry.sdk.trace import TracerProvider
from trio_mcp import RequestContext, Server, serve_stdio
from trio_mcp.otel import OpenTelemetry
from opentelemetry import trace

server = Server("child", tracing=OpenTelemetry(TracerProvider()))

@server.tool
async def where() -> str:
    span = trace.get_current_span()
    return f"{span.parent.span_id:016x} {span.attributes['network.transport']}"

trio.run(serve_stdio, server)
"""


async def test_trace_continues_in_a_stdio_child_process(recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    async with open_stdio([sys.executable, tmp_path / "child.py"], tracing=recorded.tracing) as client:
        parent, network = (await client.call_tool("where")).text.split()
    call = recorded.one(SpanKind.CLIENT)
    assert call.context is not None
    assert (parent, network) == (format(call.context.span_id, "016x"), "pipe")
    assert told(call)["network.transport"] == "pipe"


@pytest.mark.commands
def test_opentelemetry_is_imported_only_if_tracing_is_used() -> None:
    code = (
        "import sys, trio_mcp; trio_mcp.Client, trio_mcp.open_stdio, trio_mcp.serve_websocket;"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Metrics

BOTH = ("mcp.client.operation.duration", "mcp.server.operation.duration")


@ERAS
async def test_client_and_server_record_operation_duration_metrics(
    autojump_clock: MockClock, server: Server, recorded: Recorded, era: Any
) -> None:
    async with open_memory(server, era=era, tracing=recorded.tracing) as client:
        await client.call_tool("greet", {"name": "a"})
        await client.call_tool("greet", {"name": "b"})
        revision = client.revision.name
    told = {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": revision,
        "gen_ai.tool.name": "greet",
        "gen_ai.operation.name": "execute_tool",
    }
    for name in BOTH:
        assert (told, 2) in recorded.points(name)
    assert ({"mcp.method.name": "tools/call"}, 2) in recorded.points("trio_mcp.queue.duration")
    for side in ("client", "server"):  # a modern server has no revision for a whole connection
        (session,) = recorded.points(f"mcp.{side}.session.duration")
        assert session in (({"mcp.protocol.version": revision}, 1), ({}, 1))


@ERAS
async def test_unknown_tool_names_create_no_metric_time_series(
    autojump_clock: MockClock, server: Server, recorded: Recorded, era: Any
) -> None:
    async with open_memory(server, era=era, tracing=recorded.tracing) as client:
        for number in range(5):
            with pytest.raises(PeerError, match="Unknown tool"):
                await client.call_tool(f"junk-{number}")
    for name in BOTH:
        (found,) = (point for point in recorded.points(name) if point[0]["mcp.method.name"] == "tools/call")
        assert found[1] == 5
        assert found[0]["error.type"] == "-32602"
        assert "gen_ai.tool.name" not in found[0]


@ERAS
async def test_metrics_count_cancelled_calls_by_cause(
    autojump_clock: MockClock, server: Server, recorded: Recorded, era: Any
) -> None:
    async with open_memory(server, era=era, tracing=recorded.tracing) as client:
        with trio.move_on_after(1):
            await client.call_tool("endless")
        await wait_all_tasks_blocked()
    (handled,) = (each for each, _ in recorded.points(BOTH[1]) if each.get("gen_ai.tool.name") == "endless")
    (called,) = (each for each, _ in recorded.points(BOTH[0]) if each.get("gen_ai.tool.name") == "endless")
    assert (handled["error.type"], handled["trio_mcp.cancel.cause"]) == ("cancelled", "peer")
    assert called["error.type"] == "timeout"


async def test_request_duration_metric_includes_the_time_that_the_request_waits_in_the_queue(
    autojump_clock: MockClock, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("slow", limits=Limits(max_in_flight=1), tracing=recorded.tracing)
    waits: list[tuple[float, bool]] = []

    def record_handler(_: Meters, seconds: float, queued: float, __: Any) -> None:
        waits.append((queued, seconds >= queued))

    monkeypatch.setattr(Meters, "record_handler", record_handler)

    @server.tool
    async def work() -> None:
        await trio.sleep(2)

    async with open_memory(server) as client, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(client.call_tool, "work")
    assert waits[-3:] == [(0, True), (2, True), (4, True)]


async def test_metrics_of_running_requests_and_connections_are_reported_while_the_server_exists(
    autojump_clock: MockClock, server: Server, recorded: Recorded
) -> None:
    async with open_memory(server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "endless")
        await wait_all_tasks_blocked()
        assert recorded.points("trio_mcp.requests.in_flight") == [({}, 1)]
        assert recorded.points("trio_mcp.connections") == [({}, 1)]
        nursery.cancel_scope.cancel()
    assert recorded.points("trio_mcp.requests.in_flight") == [({}, 0)]
    assert recorded.points("trio_mcp.tasks.running") == [({}, 0)]


async def test_request_succeeds_even_if_metrics_fail(
    autojump_clock: MockClock, recorded: Recorded, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the exporter is broken")

    for name in ("record_call", "record_handler", "record_session"):
        monkeypatch.setattr(Meters, name, fail)
    async with open_memory(server, tracing=recorded.tracing) as client:
        assert (await client.call_tool("greet", {"name": "a"})).text == "hello a"


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


async def test_span_of_a_cancelled_handler_has_events_for_the_cancel_and_for_the_cleanup(
    server: Server, recorded: Recorded, autojump_clock: MockClock
) -> None:
    @server.tool
    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    ours = Recorded()
    async with open_memory(server, tracing=ours.tracing) as client:
        with trio.move_on_after(1):
            await client.call_tool("slow")
        await trio.sleep(3)
    assert events(ours.one(SpanKind.CLIENT)) == ["cancel.sent"]
    handled = recorded.one(SpanKind.SERVER)
    assert events(handled) == ["cancel.received", "cancel.delivered", "cleanup.done"]
    received, delivered, done = [event.timestamp for event in handled.events]
    assert received <= delivered
    assert done - received == pytest.approx(2e9, rel=0.05)
    assert recorded.points("trio_mcp.cancel.duration") == [
        ({"mcp.method.name": "tools/call", "trio_mcp.cancel.cause": "peer"}, 1)
    ]


async def test_cancel_request_has_a_span_that_shows_how_the_call_ended(autojump_clock: MockClock) -> None:
    server = Server("slow", extensions=[CancelAcknowledged()])

    @server.tool
    async def slow() -> None:
        await trio.sleep_forever()

    ours = Recorded()
    async with open_memory(server, tracing=ours.tracing, extensions=[CancelAcknowledged()]) as client:
        with confirm_cancels(), trio.move_on_after(1):
            await client.call_tool("slow")
    asked = ours.one(SpanKind.CLIENT, "trio-mcp/cancel")
    assert asked.attributes is not None
    assert asked.attributes["trio_mcp.cancel.state"] == "stopped"
