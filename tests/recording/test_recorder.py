"""Contents and limits of a recording."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import (
    Command,
    RequestContext,
    Server,
    open_client,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_websocket,
    serve_http,
    serve_tcp,
    serve_websocket,
)
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.recording.entries import BadRecording, RecordedEntry, read_recording
from trio_mcp.recording.recorder import Recorder
from trio_mcp.testing import memory_transport_pair, open_server

DEEP = '{"t":1,"dir":"in","message":' + "[" * 200_000
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@pytest.fixture
def server() -> Server:
    server = Server("s")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def sign_in(user: str, password: str) -> str:
        return f"Bearer {password * 4}"

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        ctx.progress(1)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("sure?", bool)).content)

    return server


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def entries(path: Path) -> list[RecordedEntry]:
    return list(read_recording(path))


def methods(path: Path, direction: str) -> list[str]:
    return [
        message["method"]
        for entry in entries(path)
        if entry.dir == direction
        for message in entry.messages
        if "method" in message
    ]


def events(path: Path) -> list[tuple[str, float]]:
    """The events in the order of their times, with milliseconds."""
    found = [(entry.event, round(entry.t / 1000)) for entry in entries(path) if entry.event is not None]
    return sorted(found, key=lambda each: each[1])


RECORDED_SERVER = """
import sys

from trio_mcp import Server, run

run(Server("s"), "stdio", record=sys.argv[1])
"""


async def test_stdio_client_records_the_start_of_its_server_process(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    async with open_stdio([sys.executable, "-c", RECORDED_SERVER, str(theirs)], record=ours):
        pass
    (started,) = [entry for entry in entries(ours) if entry.event == "process.started"]
    assert started.pid == read_recording(theirs).header.pid
    assert started.t < 0, "before the connection was recorded"
    assert started.t < min(entry.t for entry in entries(ours) if entry.dir == "in")


async def test_client_without_a_server_process_records_no_process_start(server: Server, tmp_path: Path) -> None:
    async with open_memory(server, record=tmp_path / "a.jsonl"):
        pass
    assert "process.started" not in dict(events(tmp_path / "a.jsonl"))


@ERAS
async def test_client_and_server_record_the_same_messages(server: Server, tmp_path: Path, era: Any) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: serve_tcp(server, port=0, record=theirs, task_status=task_status)
        )
        port = listener.socket.getsockname()[1]
        async with open_tcp("127.0.0.1", port, record=ours, era=era) as client:
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
        nursery.cancel_scope.cancel(reason="done")
    assert read_recording(ours).header.role == "client"
    assert read_recording(theirs).header.role == "server"
    assert methods(ours, "out") == methods(theirs, "in")
    assert "tools/call" in methods(ours, "out")
    replies = [
        [each["id"] for entry in entries(path) if entry.dir == way for each in entry.messages if "result" in each]
        for path, way in ((ours, "in"), (theirs, "out"))
    ]
    assert replies[0] == replies[1] != []
    assert [name for name, _ in events(theirs)] == [
        "handler.began",
        "handler.returned",
        "cleanup.done",
        "connection.ended",
    ]
    assert stat.S_IMODE(ours.stat().st_mode) == 0o600


async def test_recording_shows_when_a_call_was_cancelled_and_when_the_handler_cleanup_ended(
    server: Server, tmp_path: Path, autojump_clock: MockClock
) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    here, there = memory_transport_pair()
    async with (
        open_server(server, Recorder(theirs)._recorded(there, "server")),
        open_client(here, record=ours) as client,
    ):
        begun = trio.current_time()
        with trio.move_on_after(1):
            await client.call_tool("slow")
        await trio.sleep(3)
        assert trio.current_time() == begun + 4
    assert ("call.left", 1000) in events(ours)
    assert "notifications/cancelled" in methods(ours, "out")
    assert events(theirs)[-5:] == [
        ("cancel.delivered", 1000),
        ("cancel.received", 1000),  # written when the handler has ended, with its time
        ("handler.returned", 3000),
        ("cleanup.done", 3000),
        ("connection.ended", 4000),
    ]
    assert [entry.cause for entry in entries(theirs) if entry.event == "cancel.received"] == ["peer"]


@ERAS
async def test_equal_secrets_get_equal_masks_in_a_recording(server: Server, tmp_path: Path, era: Any) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(server, record=path, era=era, elicitation=lambda _: {"value": True}) as client:
        result = await client.call_tool("sign_in", {"user": "ann", "password": "hunter2"})
        assert "hunter2" in result.text
        assert (await client.call_tool("ask")).text == "{'value': True}"
        assert [tool.name async for tool in client.list_tools()]
    text = path.read_text()
    assert "hunter2" not in text
    assert '"user":"ann"' in text
    states = {
        part["requestState"]
        for entry in entries(path)
        for message in entry.messages
        if "requestState" in (part := message.get("result", message.get("params", {})))
    }
    assert [state.startswith("masked:") for state in states] == ([] if era == "legacy" else [True])
    listed = [message for entry in entries(path) for message in entry.messages if "tools" in message.get("result", {})]
    schemas = {tool["name"]: tool["inputSchema"]["properties"] for tool in listed[0]["result"]["tools"]}
    assert schemas["sign_in"]["password"]["type"] == "string"  # a schema is no secret


@ERAS
async def test_http_and_websocket_clients_record_requests_and_cancels(server: Server, tmp_path: Path, era: Any) -> None:
    async with trio.open_nursery() as nursery:
        for serve, opening, scheme in ((serve_http, open_http, "http"), (serve_websocket, open_websocket, "ws")):
            (listener,) = await nursery.start(serve, server, "127.0.0.1", 0)
            path = tmp_path / f"{scheme}.jsonl"
            port = listener.socket.getsockname()[1]
            async with opening(f"{scheme}://127.0.0.1:{port}/mcp", record=path, era=era) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
                with trio.CancelScope() as scope:
                    await client.call_tool("slow", on_progress=lambda _: scope.cancel(reason="slow has begun"))
            sent = methods(path, "out")
            assert sent.count("tools/call") == 2
            assert sent.count("notifications/cancelled") == 1
            assert any("hi" in json.dumps(entry.message) for entry in entries(path) if entry.dir == "in")
        nursery.cancel_scope.cancel(reason="done")


async def test_each_connection_is_recorded_in_its_own_file(server: Server, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "calls.jsonl")
    for _ in range(3):
        async with open_memory(server, record=recorder) as client:
            await client.call_tool("echo", {"text": "hi"})
    assert files(tmp_path) == ["calls-2.jsonl", "calls-3.jsonl", "calls.jsonl"]
    assert len({read_recording(tmp_path / each).header.id for each in files(tmp_path)}) == 3


async def test_each_server_of_a_group_is_recorded_in_its_own_file(tmp_path: Path) -> None:
    code = "import trio; from trio_mcp import Server, serve_stdio; trio.run(serve_stdio, Server('m'))"
    described = MemberDescription(Command([sys.executable, "-c", code]))
    async with open_group({"a": described, "b": described}, record=tmp_path / "g.jsonl") as group:
        await group.settled()
    assert files(tmp_path) == ["g-2.jsonl", "g.jsonl"]


async def test_recording_stops_at_its_size_limit_and_the_connection_continues(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(server, record=Recorder(path, max_bytes=5000)) as client:
        for _ in range(100):
            assert (await client.call_tool("echo", {"text": "x" * 100})).text == "x" * 100
    assert path.stat().st_size < 6000
    assert entries(path)[-1].event == "recording.full"
    assert [record.message for record in caplog.records if "recording" in record.message] == [
        f"the recording {path} is full, and ends"
    ]


async def test_recordings_end_with_one_log_line_if_the_disk_fails(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder("/dev/full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", lambda *_: None)
        patch.setattr("trio_mcp.recording.entries.os.open", lambda *_: __import__("posix").open("/dev/full", 1))
        for _ in range(2):
            async with open_memory(server, record=recorder) as client:
                for _ in range(200):
                    assert (await client.call_tool("echo", {"text": "x" * 1000})).text == "x" * 1000
    (line,) = [record.message for record in caplog.records if "recording" in record.message]
    assert line.startswith("the recording /dev/full ends, and no further connection is recorded: ")


async def test_recording_of_a_long_message_contains_at_least_method_and_id(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(server, record=Recorder(path, max_line_bytes=500)) as client:
        await client.call_tool("echo", {"text": "x" * 1000})
    (cut,) = [entry for entry in entries(path) if entry.cut and entry.dir == "out"]
    assert cut.bytes > 1000
    assert cut.message == {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}


def test_recorder_raises_file_not_found_error_for_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the folder .* doesn't exist"):
        Recorder(tmp_path / "none" / "calls.jsonl")


@pytest.mark.parametrize(
    ("lines", "number", "words"),
    [
        (["{}"], 1, "not the header"),
        (["nonsense"], 1, "not the header"),
        ([""], 1, "not the header"),
        (['{"recording":2,"id":"a","role":"client","pid":1,"wall":0}'], 1, "version 1, not 2"),
        (['{"recording":1,"id":"a","role":"client","pid":1,"wall":0}', '{"t":1,"dir":"up"}'], 2, "up"),
        (['{"recording":1,"id":"a","role":"client","pid":1,"wall":0}', '{"t":1}', DEEP], 3, "nested"),
    ],
)
def test_malformed_recording_line_raises_bad_recording_with_the_line_number(
    lines: list[str], number: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(BadRecording, match=words) as caught:
        list(read_recording(path))
    assert caught.value.line == number


def test_incomplete_last_line_of_a_recording_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text(
        '{"recording":1,"id":"a","role":"client","pid":1,"wall":0}\n{"t":1,"event":"connection.ended"}\n{"t":2,"di'
    )
    assert [entry.t for entry in read_recording(path)] == [1]
