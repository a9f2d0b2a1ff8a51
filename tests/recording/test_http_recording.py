"""Recordings of an HTTP server: one file per session, and one for requests without a session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import RequestContext, Server, open_http, serve_http
from trio_mcp.recording.entries import RecordedEntry, Recording, WriteJob, read_recording
from trio_mcp.recording.recorder import Recorder
from trio_mcp.recording.timeline import timeline
from trio_mcp.testing import assert_replays

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@pytest.fixture
def server() -> Server:
    server = Server("s")

    @server.tool
    async def greet(name: str, password: str = "") -> str:
        return f"hello {name}"

    @server.tool
    async def slow(ctx: RequestContext) -> None:
        ctx.progress(1, 2)
        await trio.sleep_forever()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        return str((await ctx.elicit("sure?", bool)).content)

    return server


def yes(_: object) -> dict[str, Any]:
    return {"value": True}


class WritesAtTheEnd(Recorder):
    """A recorder with a disk so slow that nothing is written before somebody waits for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.awaited = threading.Event()

    def _write(self, job: WriteJob) -> None:
        self.awaited.wait(PATIENCE)
        super()._write(job)

    async def _written(self, recording: Recording) -> None:
        self.awaited.set()
        await super()._written(recording)


async def run(
    server: Server, folder: Path, clients: int, make: Callable[[Path], Recorder] = Recorder, **options: Any
) -> None:
    """Run as many clients at once, each of which greets, asks, and leaves a call once there is progress."""

    async def use(number: int) -> None:
        record = folder / f"client{number}.jsonl"
        async with open_http(url, record=record, elicitation=yes, **options) as client:
            await client.call_tool("greet", {"name": f"Ann{number}", "password": "hunter2"})
            assert (await client.call_tool("ask")).text == "{'value': True}"
            with trio.CancelScope() as scope:
                await client.call_tool("slow", on_progress=lambda _: scope.cancel(reason="seen enough"))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: serve_http(
                server, "127.0.0.1", 0, record=make(folder / "server.jsonl"), task_status=task_status
            )
        )
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        async with trio.open_nursery() as users:
            for number in range(clients):
                users.start_soon(use, number)
        nursery.cancel_scope.cancel(reason="done")


def found(folder: Path, pattern: str = "*.jsonl") -> list[Path]:
    return sorted(folder.glob(pattern))


def entries(path: Path) -> list[RecordedEntry]:
    return list(read_recording(path))


def methods(path: Path, direction: str) -> list[str]:
    messages = [message for entry in entries(path) if entry.dir == direction for message in entry.messages]
    return [message["method"] for message in messages if "method" in message]


async def test_each_http_session_is_recorded_in_its_own_file(server: Server, tmp_path: Path) -> None:
    await run(server, tmp_path, 2, era="legacy")
    paths = found(tmp_path, "server*.jsonl")
    assert len(paths) == 2
    for path in paths:
        assert methods(path, "in")[:2] == ["initialize", "notifications/initialized"]
        assert methods(path, "in").count("tools/call") == 3
        assert "elicitation/create" in methods(path, "out")
        assert [entry.cause for entry in entries(path) if entry.event == "cancel.received"] == ["peer"]
        assert entries(path)[-1].event == "connection.ended"
    assert {next(name for name in ("Ann0", "Ann1") if name in path.read_text()) for path in paths} == {"Ann0", "Ann1"}


async def test_recording_of_an_http_session_is_complete_after_shutdown(server: Server, tmp_path: Path) -> None:
    await run(server, tmp_path, 1, WritesAtTheEnd, era="legacy")
    (path,) = found(tmp_path, "server*.jsonl")
    assert entries(path)[-1].event == "connection.ended"


async def test_recording_of_http_requests_without_a_session_numbers_each_request(
    server: Server, tmp_path: Path
) -> None:
    await run(server, tmp_path, 2, era="modern")
    (path,) = found(tmp_path, "server*.jsonl")
    read = entries(path)
    calls = [
        (message["id"], entry.post)
        for entry in read
        for message in entry.messages
        if message.get("method") == "tools/call" and "requestState" not in message["params"]
    ]
    assert len({number for number, _ in calls}) == 3  # greet, ask, slow: the ids of both clients are the same
    assert len({post for _, post in calls}) == len(calls) == 6
    assert {(entry.id, entry.post) for entry in read if entry.event == "handler.began"} >= set(calls)
    assert {entry.cause for entry in read if entry.event == "cancel.received"} == {"disconnect"}
    assert read[-1].event == "connection.ended"


@ERAS
async def test_http_recording_contains_no_headers_or_secrets(server: Server, tmp_path: Path, era: Any) -> None:
    await run(server, tmp_path, 1, era=era, headers={"Authorization": "Bearer abcdefghijklmnop"})
    for path in found(tmp_path):
        assert "abcdefghijklmnop" not in path.read_text()
        assert "hunter2" not in path.read_text()


@ERAS
async def test_recordings_of_server_and_client_can_be_shown_in_one_timeline(
    server: Server, tmp_path: Path, era: Any
) -> None:
    await run(server, tmp_path, 1, era=era)
    drawn = timeline([read_recording(tmp_path / name) for name in ("client0.jsonl", "server.jsonl")])
    (slow,) = [each for each in drawn.requests if each.name == "slow"]
    assert None not in (slow.sent, slow.received, slow.began, slow.cancel_sent, slow.cancel_read, slow.finally_began)
    assert drawn.offset is not None


async def test_request_with_an_unknown_session_starts_no_recording(server: Server, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            lambda task_status: serve_http(
                server, "127.0.0.1", 0, record=tmp_path / "server.jsonl", task_status=task_status
            )
        )
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        async with stream:
            await stream.send_all(
                b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Mcp-Session-Id: unknown\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            answer = b"".join([part async for part in stream])
        nursery.cancel_scope.cancel(reason="done")
    assert b" 404 " in answer
    assert found(tmp_path) == []


@ERAS
async def test_recording_of_an_http_server_with_several_clients_can_be_replayed(
    server: Server, tmp_path: Path, era: Any
) -> None:
    await run(server, tmp_path, 2, era=era)
    for path in found(tmp_path):
        await assert_replays(path, server)
