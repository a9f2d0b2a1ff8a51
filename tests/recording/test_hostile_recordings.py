"""Damaged, slow or large recordings end in a BadRecording error or in a picture."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.instructions import instructions_of

from trio_mcp import Client, Command, Server, open_memory, open_stdio
from trio_mcp.recording.entries import BadRecording, read_recording
from trio_mcp.recording.recorder import Recorder
from trio_mcp.recording.svg import svg
from trio_mcp.recording.timeline import perfetto, timeline
from trio_mcp.testing import assert_replays, memory_transport_pair, open_server

HEADER = {"recording": 1, "id": "r", "role": "client", "pid": 1, "wall": 0.0}


def written(path: Path, *lines: Any, **header: Any) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in ({**HEADER, **header}, *lines)]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def call(number: int, post: int = 0) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "echo"}}
    return {"t": number, "dir": "out", "message": message, "post": post}


def log(number: int, post: int = 0) -> dict[str, Any]:
    message = {"method": "notifications/message", "params": {"data": "x"}}
    return {"t": 10_000 + number, "dir": "in", "message": message, "post": post}


def answered(number: int) -> dict[str, Any]:
    return {"t": 5_000 + number, "dir": "in", "message": {"id": number, "result": {}}}


def asked(number: int) -> list[Any]:
    return [
        {"t": number, "dir": "in", "message": {"id": 2, "method": "m"}},
        {"t": number, "event": "handler.began", "id": 2},
        {"t": number, "event": "call.began", "id": 1, "for": {"recording": "r", "id": 2}},
        {"t": number, "dir": "out", "message": {"id": 1, "method": "m"}},
    ]


SLOW: dict[str, Callable[[int], list[Any]]] = {
    "open requests and logs": lambda count: [*map(call, range(count)), *map(log, range(count))],
    "open requests of one exchange": lambda count: [
        *(call(each, 1) for each in range(count)),
        *(log(each, 1) for each in range(count)),
    ],
    "open requests of an older exchange": lambda count: [
        *(call(each, each + 1) for each in range(count)),
        *(log(each, 1) for each in range(count)),
    ],
    "answered requests before an open one": lambda count: [
        *map(call, range(count)),
        *map(answered, range(count - 1)),
        *map(log, range(count)),
    ],
    "requests of one id for others of one id": lambda count: [each for one in range(count) for each in asked(one)],
    "progress": lambda count: [
        *map(call, range(count)),
        *(
            {"t": 1, "dir": "in", "message": {"method": "notifications/progress", "params": {"progressToken": each}}}
            for each in range(count)
        ),
    ],
}


@pytest.mark.parametrize("kind", SLOW)
def test_timeline_of_a_recording_is_computed_in_linear_time(kind: str, tmp_path: Path) -> None:
    def cost(count: int) -> int:
        path = written(tmp_path / f"{count}.jsonl", *SLOW[kind](count))
        return instructions_of(lambda: timeline([read_recording(path)]))

    cost(10)
    assert cost(800) < 2.3 * cost(400)


@pytest.mark.parametrize("unit", ["[],", "{},", "1,", '"",', '{"a":[0]},'])
def test_recorded_line_that_would_need_much_memory_is_read_without_the_contents_of_its_message(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.recording.entries._HEAVIEST", 4_000_000)
    size = 2_000_000
    params = unit * (size // len(unit))
    line = f'{{"t":1,"dir":"out","message":{{"id":1,"method":"tools/call","params":[{params}0]}}}}'
    path = written(tmp_path / "a.jsonl", line, {"t": 2, "dir": "in", "message": {"id": 1, "result": {}}})
    tracemalloc.start()
    try:
        (request,) = timeline([read_recording(path)]).requests
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (request.method, request.answered) == ("tools/call", 2e-6)
    assert peak < 4 * size


@pytest.mark.parametrize("message", ["[1,", '["a",', "[[],"])
def test_recorded_line_that_needs_much_memory_is_read_without_its_contents_if_it_is_no_message(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_mcp.recording.entries._HEAVIEST", 10_000)
    line = f'{{"t":1,"dir":"in","message":{message}{message[1:] * 1000}0]}}'
    path = written(tmp_path / "a.jsonl", line, call(1))
    (heavy, _) = list(read_recording(path))
    assert (heavy.message, heavy.cut) == (None, True)
    assert len(timeline([read_recording(path)]).requests) == 1


DIGITS, DEEP = "9" * 400, "[" * 900 + "]" * 900
BAD = (
    *(f'{{"t":{DIGITS},"event":"connection.ended"}}', f'{{"t":-{DIGITS},"dir":"in","message":{{}}}}', '{"t":1e300}'),
    *(
        f'{{"t":1,"dir":"in","message":{DEEP}}}',
        f'{{"t":1,"dir":"out","message":{{"id":1,"method":"m","params":{DEEP}}}}}',
    ),
    *('{"t":1,"dir":"in","message":' + '{"a":' * 300 + "1" + "}" * 300 + "}", '{"t":1,"event":"call.left","id":1.5}'),
    *("not JSON", "{", "[]", "1", '{"t":1,"dir":"in","message":"\\ud800"}', "\x00" * 100, '{"t":null}', '{"dir":"in"}'),
    *(f'{{"t":1,"dir":"in","message":{"[" * 100_000}', f'{{"t":1,"dir":"in","message":{"9" * 5000}}}'),
)


def played(path: Path) -> None:
    trio.run(lambda: assert_replays(path, Server("s"), patience=0.1))


def played_to_a_client(path: Path) -> None:
    async def use(client: Any) -> None:
        await client.ping()

    trio.run(lambda: assert_replays(path, use, patience=0.1, connect_timeout=0.5))


@pytest.mark.parametrize("read", [lambda path: timeline([read_recording(path)]), played, played_to_a_client])
@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_damaged_recording_line_raises_bad_recording_with_the_line_number(
    line: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = written(
        tmp_path / "a.jsonl", {"t": 1, "event": "frames.dropped"}, line, {"t": 2, "event": "connection.ended"}
    )
    with pytest.raises(BadRecording) as caught:
        read(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)


@pytest.mark.parametrize(
    "header", [{"wall": int(DIGITS)}, {"wall": 1e300}, {"trio": -1e300}, {"role": None}, {"pid": "1"}]
)
def test_recording_header_with_invalid_values_raises_bad_recording(header: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="not the header of a recording") as caught:
        read_recording(written(tmp_path / "a.jsonl", **header))
    assert caught.value.line == 1


@pytest.mark.parametrize(
    "value",
    [
        int(DIGITS),
        json.loads("[" * 200 + "]" * 200),
        "x" * 100_000,
        [1] * 100_000,
        {"a": "b" * 100_000},
        1e308,
        None,
        {},
    ],
)
@pytest.mark.parametrize("place", ["id", "method", "name", "token", "progress", "data", "requestId", "requestState"])
def test_recorded_message_with_any_values_can_be_drawn_in_a_timeline(place: str, value: Any, tmp_path: Path) -> None:
    params = {"name": value, "requestState": value, "_meta": {"progressToken": value}} if place != "id" else {}
    messages = [
        {"id": value if place == "id" else 1, "method": value if place == "method" else "tools/call", "params": params},
        {"method": "notifications/progress", "params": {"progressToken": value, "progress": value, "total": value}},
        {"method": "notifications/message", "params": {"data": value}},
        {"method": "notifications/cancelled", "params": {"requestId": value}},
        {"id": value if place == "id" else 1, "result": {"requestState": value, "inputRequests": value}},
    ]
    lines = [{"t": 1, "dir": way, "message": each} for each in messages for way in ("in", "out")]
    found = timeline([read_recording(written(tmp_path / "a.jsonl", *lines))])
    assert svg(found)
    assert perfetto(found)


@pytest.mark.parametrize("words", [("timeline",), ("replay", "--patience", "1", "--", sys.executable, "-c", "input()")])
def test_recording_commands_report_a_damaged_recording_in_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    opening = {"t": 1, "dir": "out", "message": {"jsonrpc": "2.0", "method": "notifications/initialized"}}
    path = written(tmp_path / "a.jsonl", opening, "damaged", opening)
    command = [sys.executable, "-m", "trio_mcp.cli", words[0], str(path), *words[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert "a.jsonl, line 3: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("levels", [100, 250, 300, 600, 5000])
async def test_recording_with_a_deeply_nested_message_is_readable(levels: int, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    ours, theirs = memory_transport_pair()
    async with open_server(Server("s"), Recorder(path)._recorded(theirs, "server")):
        await ours.send(b'{"jsonrpc":"2.0","method":"x","params":' + b"[" * levels + b"]" * levels + b"}\n")
        await ours.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        await ours.receive()
        await ours.aclose()
    assert timeline([read_recording(path)]).requests


# Programs that print text

PRINTING = """
import sys, trio
from trio_mcp import Server, serve_stdio

for line in sys.argv[1:]:
    sys.__stdout__.write(line + "\\n")
sys.__stdout__.flush()
server = Server("s")

@server.tool
async def greet(name: str) -> str:
    return f"hello {name}"

trio.run(serve_stdio, server)
"""


@pytest.mark.parametrize(
    "texts",
    [
        ["Starting ..."],
        ["Starting ...", "", "ready, at last"],
        ["42", "null", '"a text"', "[]", "[1, 2]", '{"level": "info"}', "{not JSON"],
        ["\x1b[1mbold\x1b[0m", "x" * 10_000],
        ["x", '{"method": "GET"}', '{"id": "7"}', '{"jsonrpc": "1.0", "method": "x"}', '[{"id": 7}, {"a": 1}]'],
    ],
)
async def test_recording_of_a_server_that_prints_text_can_be_replayed(texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    command = [sys.executable, "-c", PRINTING, *texts]
    async with open_stdio(command, record=path, era="legacy") as client:
        await client.call_tool("greet", {"name": "Ann"})
    assert any(entry.dir == "in" and not entry.messages for entry in read_recording(path))
    await assert_replays(path, Command(command))
    await assert_replays(path, Command([*command[:3]]))
    with pytest.raises(AssertionError) as caught:
        await assert_replays(path, Command([*command, "one more"]))
    assert len(str(caught.value).splitlines()) == 1
    assert "a message of the server: a message was recorded" in str(caught.value)


async def test_replay_fails_if_the_server_prints_text_that_is_not_in_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    server = Server("s")

    @server.tool
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with open_memory(server, record=path, era="legacy") as client:
        await client.call_tool("greet", {"name": "Ann"})
    with pytest.raises(AssertionError, match="a message was recorded"):
        await assert_replays(path, Command([sys.executable, "-c", PRINTING, "Starting ..."]))


AFTER_ITS_ANSWERS = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result})
        print(answer, *sys.argv[1:], sep="\\n", flush=True)
"""


async def test_replay_succeeds_if_the_server_prints_text_after_the_last_response(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    command = [sys.executable, "-c", AFTER_ITS_ANSWERS]
    async with open_stdio(command, record=path, era="legacy"):
        pass
    for texts in (["done"], ["done", "", "exiting", "[]"]):
        await assert_replays(path, Command([*command, *texts]))


async def test_replay_to_a_client_raises_bad_recording_for_a_damaged_line(tmp_path: Path) -> None:
    path, server = tmp_path / "calls.jsonl", Server("s")

    @server.tool
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def use(client: Client) -> None:
        for name in ("Ann", "Bob"):
            await client.call_tool("greet", {"name": name})

    async with open_memory(server, record=path) as client:
        await use(client)
    await assert_replays(path, use)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join((*lines[:-3], "{damaged\n", *lines[-3:])))
    with pytest.raises(BadRecording, match=f"line {len(lines) - 2}:"):
        await assert_replays(path, use)
