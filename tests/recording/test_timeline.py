"""Recordings of both sides on one axis, as a picture and as trace events."""

from __future__ import annotations

import json
import time
import tracemalloc
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import InMemory, RequestContext, Server, proxy
from trio_mcp.recording.entries import read_recording
from trio_mcp.recording.perfetto import perfetto
from trio_mcp.recording.reading import MOST_REQUESTS
from trio_mcp.recording.recorder import Recorder
from trio_mcp.recording.svg import MOST_ROWS, svg
from trio_mcp.recording.timeline import Timeline, timeline
from trio_mcp.testing import memory_channel_pair, open_client, open_server

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
    here, there = memory_channel_pair()
    async with (
        open_server(server, Recorder(theirs).recorded(there, "server")),
        open_client(here, record=ours, era=era, elicitation=yes) as client,
    ):
        with trio.move_on_after(1):
            await client.call_tool("slow", on_progress=lambda _: None)
        await client.call_tool("ask")
        await trio.sleep(3)
    return timeline([read_recording(ours), read_recording(theirs)])


@ERAS
async def test_a_call_that_is_left_has_its_cancel_its_finally_and_its_cleanup(
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
async def test_questions_stand_below_the_call_that_asks(tmp_path: Path, era: Any, autojump_clock: MockClock) -> None:
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


def test_clocks_are_compared_by_the_round_trip_with_the_least_delay(tmp_path: Path) -> None:
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


def test_hostile_names_are_text_in_the_picture(tmp_path: Path) -> None:
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


async def test_trace_events_nest_within_their_rows(tmp_path: Path, autojump_clock: MockClock) -> None:
    trace = json.loads(perfetto(await recorded(tmp_path)))
    open_slices: dict[tuple[int, str], list[str]] = {}
    last: dict[tuple[int, str], float] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        row = (event["pid"], event["id"])
        assert event["ts"] >= last.get(row, 0)
        last[row] = event["ts"]
        if event["ph"] == "b":
            open_slices.setdefault(row, []).append(event["name"])
        elif event["ph"] == "e":
            assert open_slices[row].pop() == event["name"]
    assert not any(open_slices.values())
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"tools/call slow", "cancel sent", "cancel read", "finally and cleanup", "progress"} <= names


def test_a_recording_of_any_length_is_drawn_within_bounds(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", "client", 0.0, [])
    with path.open("a") as file:
        for number in range(MOST_REQUESTS + 5000):
            file.write(json.dumps(call(number * 10, "out", number, "x" * 300)) + "\n")
            file.write(json.dumps(reply(number * 10 + 5, "in", number)) + "\n")
    tracemalloc.start()
    try:
        begun = time.monotonic()
        found = timeline([read_recording(path)])
        picture = svg(found)
        assert time.monotonic() - begun < 60
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    assert found.left_out == 5000
    assert picture.count("<g>") == MOST_ROWS
    assert f"and {MOST_REQUESTS + 5000 - MOST_ROWS:,} more requests" in picture


def test_an_empty_recording_is_an_empty_picture(tmp_path: Path) -> None:
    found = timeline([read_recording(written(tmp_path / "a.jsonl", "client", 0.0, []))])
    ET.fromstring(svg(found))
    assert perfetto(found)


@ERAS
async def test_the_call_that_a_proxy_made_stands_below_the_call_of_its_client(
    tmp_path: Path, era: Any, autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.tool
    async def greet() -> str:
        return "hello"

    paths = [tmp_path / name for name in ("client.jsonl", "down.jsonl", "up.jsonl")]
    stand_in = proxy(lambda **options: InMemory(server).open(**{**options, "record": paths[2]}))
    here, there = memory_channel_pair()
    async with (
        open_server(stand_in, Recorder(paths[1]).recorded(there, "server")),
        open_client(here, record=paths[0], era=era) as client,
    ):
        assert (await client.call_tool("greet")).text == "hello"
    found = timeline([read_recording(path) for path in paths])
    outer, inner = [each for each in found.requests if each.name == "greet"]
    assert (inner.parent, outer.depth, inner.depth) == (outer, 0, 1)
