"""Recordings of client and server as one timeline, as SVG and as Perfetto trace events."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import InMemory, RequestContext, Server, open_client, proxy
from trio_mcp.recording.entries import read_recording
from trio_mcp.recording.recorder import Recorder
from trio_mcp.recording.svg import svg
from trio_mcp.recording.timeline import Timeline, perfetto, timeline
from trio_mcp.testing import memory_transport_pair, open_server

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
HOSTILE = '</text><script>alert(1)</script>&"\u202egnp.\x1b[2J\x00\ud800' + "x" * 1000


async def recorded(folder: Path, era: Any = "legacy") -> Timeline:
    """A timeline of a call that is left, and of one that asks its client."""
    server = Server("s")

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        ctx.progress(1, 2)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("sure?", bool)).content)

    async def yes(_: object) -> dict[str, Any]:
        await trio.sleep(1)
        return {"value": True}

    ours, theirs = folder / "ours.jsonl", folder / "theirs.jsonl"
    here, there = memory_transport_pair()
    async with (
        open_server(server, Recorder(theirs)._recorded(there, "server")),
        open_client(here, record=ours, era=era, elicitation=yes) as client,
    ):
        with trio.move_on_after(1):
            await client.call_tool("slow", on_progress=lambda _: None)
        await client.call_tool("ask")
        await trio.sleep(3)
    return timeline([read_recording(ours), read_recording(theirs)])


@ERAS
async def test_timeline_of_a_cancelled_call_shows_when_the_handler_was_cancelled_and_cleaned_up(
    tmp_path: Path, era: Any, autojump_clock: MockClock
) -> None:
    found = await recorded(tmp_path, era)
    (slow,) = [each for each in found.requests if each.name == "slow"]
    assert slow.sent is not None
    times = [slow.received, slow.began, slow.left, slow.cancel_sent, slow.cancel_read, slow.finally_began, slow.done]
    offsets = [round(at - slow.sent, 1) for at in times if at is not None]
    assert offsets == [0, 0, 1, 1, 1, 1, 3]
    assert (slow.cause, slow.answered, slow.replied) == ("peer", None, None)
    assert [tick.kind for tick in slow.ticks] == ["progress"]
    assert found.offset == pytest.approx(0, abs=0.2)


@ERAS
async def test_timeline_shows_an_elicitation_below_the_call_that_sent_it(
    tmp_path: Path, era: Any, autojump_clock: MockClock
) -> None:
    found = await recorded(tmp_path, era)
    (ask, inner) = [each for each in found.requests if each.name == "ask" or each.depth]
    assert (ask.name, inner.parent, inner.depth) == ("ask", ask, 1)
    assert inner.method == ("elicitation/create" if era == "legacy" else "tools/call")
    assert [tick.kind for tick in ask.ticks] == ([] if era == "legacy" else ["asks"])


def written(path: Path, role: str, wall: float, lines: list[dict[str, Any]]) -> Path:
    header = {"recording": 1, "id": role, "role": role, "pid": 1, "wall": wall}
    path.write_text("".join(json.dumps(each) + "\n" for each in [header, *lines]))
    return path


def call(t: int, way: str, number: int, name: str = "echo") -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name}}
    return {"t": t, "dir": way, "message": message}


def reply(t: int, way: str, number: int) -> dict[str, Any]:
    return {"t": t, "dir": way, "message": {"jsonrpc": "2.0", "id": number, "result": {}}}


def test_timeline_aligns_the_clocks_of_two_recordings_by_the_fastest_round_trip(tmp_path: Path) -> None:
    """The server's clock is 100 s ahead. The first call waits 50 ms on its way back, the second 1 ms each way."""
    ours = [call(0, "out", 1), reply(61_000, "in", 1), call(100_000, "out", 2), reply(112_000, "in", 2)]
    theirs = [call(1_000, "in", 1), reply(11_000, "out", 1), call(101_000, "in", 2), reply(111_000, "out", 2)]
    a = written(tmp_path / "a.jsonl", "client", 1000.0, ours)
    b = written(tmp_path / "b.jsonl", "server", 1100.0, theirs)
    found = timeline([read_recording(a), read_recording(b)])
    assert (found.offset, found.uncertainty) == (pytest.approx(100.0), pytest.approx(0.001))
    assert [round((each.received or 0) - (each.sent or 0), 4) for each in found.requests] == [0.001, 0.001]
    other_way = timeline([read_recording(b), read_recording(a)])
    assert other_way.offset == pytest.approx(-100.0)


@pytest.mark.parametrize("swapped", [False, True])
def test_timeline_does_not_shift_clocks_if_no_message_arrives_before_it_was_sent(tmp_path: Path, swapped: bool) -> None:
    """No message arrives more than 30 ms early or late by the clocks, and the client asks and is asked."""
    ours = [call(0, "out", 1), reply(50_000, "in", 1), call(60_000, "in", 7), reply(70_000, "out", 7)]
    theirs = [call(10_000, "in", 1), reply(20_000, "out", 1), call(55_000, "out", 7), reply(75_000, "in", 7)]
    a = written(tmp_path / "a.jsonl", "client", 1000.0, ours)
    b = written(tmp_path / "b.jsonl", "server", 1000.0, theirs)
    found = timeline([read_recording(each) for each in ((b, a) if swapped else (a, b))])
    assert (found.offset, found.uncertainty) == (0.0, pytest.approx(0.005))
    assert [(each.id, each.origin) for each in found.requests] == [(1, "client"), (7, "server")]
    first = found.requests[0]
    assert [first.sent, first.received, first.replied, first.answered] == [1000.0, 1000.01, 1000.02, 1000.05]


def test_malicious_names_appear_as_plain_text_in_the_timeline_svg(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "client", 0.0, [])
    with path.open("a") as file:
        file.write(json.dumps(call(0, "out", 1, HOSTILE)).replace("\\ud800", "") + "\n")
        file.write(json.dumps({"t": 1, "dir": "out", "message": {"id": 2, "method": HOSTILE[:-1001]}}) + "\n")
    picture = svg(timeline([read_recording(path)]), HOSTILE)
    tree = ET.fromstring(picture)
    assert {each.tag.rpartition("}")[2] for each in tree.iter()} <= {
        *("svg", "title", "style", "clipPath", "rect", "text", "path", "circle", "g")
    }
    assert not {"\u202e", "\x1b", "\x00"} & set(picture)
    assert all(len(each.text or "") <= 200 for each in tree.iter("{http://www.w3.org/2000/svg}text"))


def check_trace(data: bytes) -> list[dict[str, Any]]:
    """Check ``data`` by the rules of the Trace Event Format for async nestable events, and return the events."""
    trace = json.loads(data)
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    named: dict[str, set[int]] = {"process_name": set(), "thread_name": set()}
    open_slices: dict[tuple[str, int, str], list[str]] = {}
    last: dict[tuple[str, int, str], float] = {}
    for event in trace["traceEvents"]:
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            assert set(event) == {"ph", "pid", "tid", "name", "args"}
            named[event["name"]].add(event["pid"] if event["name"] == "process_name" else event["tid"])
            continue
        assert set(event) - {"args"} == {"ph", "cat", "id2", "pid", "tid", "name", "ts"}
        assert event["ph"] in ("b", "n", "e")
        assert event["pid"] in named["process_name"]
        assert event["tid"] in named["thread_name"]
        assert set(event["id2"]) == {"local"}
        row = (event["cat"], event["pid"], event["id2"]["local"])
        assert event["ts"] >= last.get(row, 0)
        last[row] = event["ts"]
        if event["ph"] == "b":
            open_slices.setdefault(row, []).append(event["name"])
        elif event["ph"] == "e":
            assert open_slices[row].pop() == event["name"]
        else:
            assert open_slices[row], "a moment is inside of a slice"
    assert not any(open_slices.values())
    return trace["traceEvents"]


@pytest.mark.parametrize("width", [320, 390, 1000])
async def test_timeline_svg_has_the_requested_width(tmp_path: Path, width: int, autojump_clock: MockClock) -> None:
    tree = ET.fromstring(svg(await recorded(tmp_path), "a title " * 50, width=width))
    assert tree.attrib["width"] == str(width)
    texts = list(tree.iter("{http://www.w3.org/2000/svg}text"))
    assert all(0 <= float(each.attrib["x"]) < width for each in texts)
    legend = [each for each in texts if each.text in ("call", "handler", "cleanup", "cancel", "finally")]
    assert len(legend) == 5
    assert {float(each.attrib["y"]) for each in legend} <= set(range(int(tree.attrib["height"])))


@ERAS
async def test_events_in_a_row_of_a_perfetto_trace_are_properly_nested(
    tmp_path: Path, era: Any, autojump_clock: MockClock
) -> None:
    events = check_trace(perfetto(await recorded(tmp_path, era)))
    names = {event["name"] for event in events}
    assert {"tools/call slow", "cancel sent", "cancel read", "finally and cleanup", "progress"} <= names
    (handlers,) = {event["pid"] for event in events if event.get("args") == {"name": "handlers"}}
    begun, slow = [event for event in events if event["name"] == "tools/call slow" and event["pid"] == handlers]
    assert (begun["ph"], slow["ph"]) == ("b", "e")
    assert begun["id2"] == slow["id2"]
    assert slow["ts"] - begun["ts"] == pytest.approx(3_000_000, abs=500_000)  # microseconds


def test_perfetto_trace_of_a_malicious_recording_is_valid(tmp_path: Path) -> None:
    cancel = {"t": -5, "dir": "out", "message": {"method": "notifications/cancelled", "params": {"requestId": 1}}}
    progress = {
        "t": 10**9,
        "dir": "in",
        "message": {"method": "notifications/progress", "params": {"progressToken": 1}},
    }
    asked = call(100, "out", 1, HOSTILE.replace("\ud800", ""))
    asked["message"]["params"]["_meta"] = {"progressToken": 1}
    lines = [asked, progress, reply(50, "in", 1), cancel, {"t": 7, "event": "cleanup.done", "id": 1}, call(3, "in", 1)]
    check_trace(perfetto(timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])))


def test_timeline_uses_one_clock_for_both_recordings_of_a_proxy(tmp_path: Path) -> None:
    """The clock of the proxy, process 2, is 100 s ahead of its client's, and that of the server 50 s behind the
    proxy's."""
    paths = []
    for name, role, pid, wall, way, back in (
        ("a", "client", 1, 1000.0, "out", "in"),
        ("b", "server", 2, 1100.0, "in", "out"),
        ("c", "client", 2, 1100.0, "out", "in"),
        ("d", "server", 3, 1050.0, "in", "out"),
    ):
        asked = call(1000 * ord(name), way, 1 if name in "ab" else 7)
        answered = reply(1_000_000 - 1000 * ord(name), back, 1 if name in "ab" else 7)
        lines = [asked, answered] if name in "ab" else [asked, {**answered, "t": answered["t"]}]
        path = tmp_path / f"{name}.jsonl"
        header = {"recording": 1, "id": name, "role": role, "pid": pid, "wall": wall}
        path.write_text("".join(json.dumps(each) + "\n" for each in [header, *lines]))
        paths.append(path)
    found = timeline([read_recording(path) for path in paths])
    times = [at for each in found.requests for at in (each.sent, each.received) if at is not None]
    assert times == sorted(times)
    assert times[-1] - times[0] == pytest.approx(0.003, abs=0.0005)


def test_timeline_of_a_long_recording_is_truncated_at_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.recording.reading.MOST_REQUESTS", 50)
    monkeypatch.setattr("trio_mcp.recording.reading.MOST_TICKS", 3)
    monkeypatch.setattr("trio_mcp.recording.reading.MOST_TICKS_IN_ALL", 100)
    monkeypatch.setattr("trio_mcp.recording.svg.MOST_ROWS", 20)
    lines: list[dict[str, Any]] = []
    for number in range(60):
        asked = call(number * 10, "out", number, "x" * 300)
        asked["message"]["params"]["_meta"] = {"progressToken": number}
        step = {"method": "notifications/progress", "params": {"progressToken": number, "progress": 1}}
        lines += [
            asked,
            *[{"t": number * 10 + 1, "dir": "in", "message": step}] * 4,
            reply(number * 10 + 5, "in", number),
        ]
    found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])
    assert (len(found.requests), found.left_out) == (50, 10)
    assert [len(each.ticks) for each in found.requests[:34]] == [3] * 33 + [1]
    assert sum(len(each.ticks) for each in found.requests) == 100
    assert sum(each.more_ticks for each in found.requests) == 100
    assert max(len(each.name) for each in found.requests) == 200
    picture = svg(found)
    assert picture.count("<g>") == 20
    assert "and 40 more requests" in picture
    assert len(picture) < 20 * 3000


def drawn(tmp_path: Path, lines: list[dict[str, Any]]) -> ET.Element:
    return ET.fromstring(svg(timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])))


def parts_of(tree: ET.Element, kind: str, tag: str) -> list[ET.Element]:
    return [each for each in tree.iter(f"{{http://www.w3.org/2000/svg}}{tag}") if each.attrib.get("class") == kind]


def test_timeline_svg_shortens_a_long_idle_time_and_keeps_short_calls_visible(tmp_path: Path) -> None:
    lines = [call(0, "out", 1), reply(10_000, "in", 1), call(250_000_000, "out", 2), reply(250_010_000, "in", 2)]
    tree = drawn(tmp_path, lines)
    widths = [float(each.attrib["width"]) for each in parts_of(tree, "call", "rect")]
    assert widths[0] == pytest.approx(widths[1], abs=0.1)
    assert widths[0] > 300
    assert len(parts_of(tree, "cut", "path")) == 1
    assert "idle for 250 s" in {each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")}


def test_timeline_svg_does_not_shorten_a_short_idle_time(tmp_path: Path) -> None:
    lines = [call(0, "out", 1), reply(10_000, "in", 1), call(15_000, "out", 2), reply(25_000, "in", 2)]
    assert parts_of(drawn(tmp_path, lines), "cut", "path") == []


def test_timeline_svg_distinguishes_two_calls_of_one_tool_by_id(tmp_path: Path) -> None:
    tree = drawn(tmp_path, [call(0, "out", 1, "bake"), reply(10, "in", 1), call(20, "out", 2, "bake")])
    texts = {each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"bake #1", "bake #2"} <= texts


async def test_timeline_svg_draws_a_cancel_as_one_line_from_caller_to_handler(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    tree = ET.fromstring(svg(await recorded(tmp_path)))
    (line,) = [each for each in parts_of(tree, "cancel", "path") if "L" in each.attrib["d"]]
    assert line.attrib["d"].count("m") == 1, "one arrow head"


STARTED = {"t": -40_000, "event": "process.started", "pid": 4712}


def test_timeline_shows_a_server_process_as_started_at_its_first_message(tmp_path: Path) -> None:
    text = {"t": 100_000, "dir": "in", "bytes": 9, "reason": "no JSON"}
    lines = [STARTED, call(0, "out", 1), text, reply(960_000, "in", 1)]
    (start,) = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 50.0, lines))]).starts
    assert (start.pid, start.started_at, start.ready_at) == (4712, pytest.approx(49.96), pytest.approx(50.96))


@pytest.mark.parametrize("swapped", [False, True])
def test_timeline_of_two_recordings_shows_a_server_process_as_started_when_it_begins_to_serve(
    tmp_path: Path, swapped: bool
) -> None:
    ours = written(tmp_path / "a.jsonl", "client", 50.0, [STARTED, call(0, "out", 1), reply(960_000, "in", 1)])
    # The server's clock is 100 s ahead, and the server begins to serve 10 ms before it receives the call.
    theirs = written(tmp_path / "b.jsonl", "server", 150.94, [call(10_000, "in", 1), reply(10_000, "out", 1)])
    paths = [theirs, ours] if swapped else [ours, theirs]
    found = timeline([read_recording(path) for path in paths])
    ((start, request),) = zip(found.starts, found.requests, strict=True)
    assert (start.ready_at or 0) - start.started_at == pytest.approx(0.51), "the middle of what the round trip allows"
    assert (request.received or 0) - (start.ready_at or 0) == pytest.approx(0.01)


def test_timeline_draws_the_process_start_as_the_first_row(tmp_path: Path) -> None:
    lines = [STARTED, call(0, "out", 1), reply(960_000, "in", 1)]
    for width in (1000, 390):
        found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])
        tree = ET.fromstring(svg(found, width=width))
        (bar,), (called,) = parts_of(tree, "start", "rect")[:1], parts_of(tree, "call", "rect")[:1]
        assert float(bar.attrib["y"]) < float(called.attrib["y"])
        assert float(bar.attrib["x"]) < float(called.attrib["x"])
        texts = {each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")}
        assert {"start of process 4712", "1 s", "process start"} <= texts


def test_timeline_draws_the_start_of_a_process_that_sends_nothing_as_unfinished(tmp_path: Path) -> None:
    found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, [STARTED, call(0, "out", 1)]))])
    tree = ET.fromstring(svg(found))
    assert len(parts_of(tree, "start open", "rect")) == 1
    assert "no message" in {each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")}
    check_trace(perfetto(found))


def test_timeline_draws_a_process_start_recorded_after_the_first_request_with_duration_zero(tmp_path: Path) -> None:
    lines = [call(0, "out", 1), {**STARTED, "t": 500_000}, reply(960_000, "in", 1)]
    ours = written(tmp_path / "a.jsonl", "client", 50.0, lines)
    theirs = written(tmp_path / "b.jsonl", "server", 50.1, [call(10_000, "in", 1), reply(10_000, "out", 1)])
    found = timeline([read_recording(ours), read_recording(theirs)])
    (start,) = found.starts
    assert start.ended_at == start.started_at
    check_trace(perfetto(found))
    assert "-" not in duration_of_start(svg(found))


def duration_of_start(picture: str) -> str:
    texts = [each.text or "" for each in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    [title] = [each for each in texts if each.startswith("start of process")]
    return title.partition(": ")[2]


def test_perfetto_trace_has_the_process_start_in_a_row_of_its_own(tmp_path: Path) -> None:
    lines = [STARTED, call(0, "out", 1), reply(960_000, "in", 1)]
    events = check_trace(perfetto(timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])))
    starts = [(each["ph"], each["ts"]) for each in events if each["name"] == "start of process 4712"]
    assert starts == [("b", 0.0), ("e", 1_000_000.0)]


def test_timeline_svg_of_an_empty_recording_is_empty(tmp_path: Path) -> None:
    found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, []))])
    ET.fromstring(svg(found))
    assert perfetto(found)


@ERAS
async def test_timeline_shows_the_call_of_a_proxy_below_the_call_of_its_client(
    tmp_path: Path, era: Any, autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.tool
    async def greet() -> str:
        return "hello"

    paths = [tmp_path / name for name in ("client.jsonl", "down.jsonl", "up.jsonl")]
    stand_in = proxy(lambda **options: InMemory(server).open(**{**options, "record": paths[2]}))
    here, there = memory_transport_pair()
    async with (
        open_server(stand_in, Recorder(paths[1])._recorded(there, "server")),
        open_client(here, record=paths[0], era=era) as client,
    ):
        assert (await client.call_tool("greet")).text == "hello"
    found = timeline([read_recording(path) for path in paths])
    outer, inner = [each for each in found.requests if each.name == "greet"]
    assert (inner.parent, outer.depth, inner.depth) == (outer, 0, 1)


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ({"result": {}}, False),
        ({"result": {"isError": True}}, True),
        ({"result": {"isError": False}}, False),
        ({"error": {"code": 1, "message": "no"}}, True),
    ],
)
def test_timeline_shows_a_failed_call_as_failed(tmp_path: Path, answer: dict[str, Any], failed: bool) -> None:
    lines = [call(0, "out", 1), {"t": 5, "dir": "in", "message": {"jsonrpc": "2.0", "id": 1, **answer}}]
    found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, lines))])
    assert found.requests[0].failed is failed
    assert ("failed call" in svg(found)) is failed


def test_timeline_labels_a_retry_after_input_required_as_a_retry(tmp_path: Path) -> None:
    retry = call(20, "out", 2, "bake")
    retry["message"]["params"]["requestState"] = "state"
    tree = drawn(tmp_path, [call(0, "out", 1, "bake"), reply(10, "in", 1), retry, reply(30, "in", 2)])
    texts = {each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"bake #1", "bake, retry #2"} <= texts
