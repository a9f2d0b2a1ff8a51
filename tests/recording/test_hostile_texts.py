"""Texts that are slow to mask don't block a recorded process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import open_tcp
from trio_mcp.recording.entries import Recording, WriteJob, read_recording
from trio_mcp.recording.recorder import entry_of, new_header

SERVER = """
import sys, trio
from trio_mcp import Server, serve_tcp
from trio_mcp.recording.recorder import Recorder

server = Server("recorded")

@server.tool
async def measure(text: str) -> int:
    return len(text)

async def main():
    async with trio.open_nursery() as nursery:
        record = Recorder(sys.argv[1], max_line_bytes=10_000_000)
        serve = lambda task_status: serve_tcp(server, port=0, record=record, task_status=task_status)
        (listener,) = await nursery.start(serve)
        print(listener.socket.getsockname()[1], flush=True)

trio.run(main)
"""
UNITS = ("eyJ-", "eyJ.", "://a:b/", "-----BEGIN PRIVATE KEY-----", "token=a b=", '"', "[", "bearer ", "<token ")


async def test_slow_search_for_secrets_in_recorded_texts_does_not_block_clients_or_shutdown(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calls.jsonl"
    command = [sys.executable, "-c", SERVER, str(path)]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
            port = int(await process.stdout.receive_some(100))
            async with open_tcp("127.0.0.1", port) as hostile, open_tcp("127.0.0.1", port) as other:
                for unit in UNITS:
                    for size in (64_000, 250_000, 1_000_000):
                        text = unit * (size // len(unit))
                        assert (await hostile.call_tool("measure", {"text": text})).text == str(len(text))
                        assert (await other.call_tool("measure", {"text": "x"})).text == "1"
            half = 3 * len(UNITS)
            while not path.exists() or path.read_bytes().count(b'"dir":"in"') <= half:  # noqa: ASYNC110
                await trio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await process.wait()
    assert sum(entry.dir == "in" for entry in read_recording(path)) > 3 * len(UNITS)


def job(message: object) -> WriteJob:
    recording = Recording(lambda _: True, None, Path("x"), new_header("server", None))  # type: ignore[arg-type]
    return WriteJob(recording, 0, "in", json.dumps(message).encode())


@pytest.mark.parametrize("long", [{"password": "hunter2"}, "x" * 1000, [[["x"]] * 100], 10**300])
async def test_recorded_message_beyond_the_size_limit_is_truncated_before_secrets_are_masked(
    long: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    reply = {"jsonrpc": "2.0", "id": "a", "result": long}
    searched: list[object] = []
    monkeypatch.setattr("trio_mcp.recording.masking.Masking.masked", lambda _, data: searched.append(data) or data)
    for message, kept in (
        ({**request, "params": {"arguments": long}}, request),
        (reply, {"jsonrpc": "2.0", "id": "a"}),
        ([{**request, "params": long}, reply], [request, {"jsonrpc": "2.0", "id": "a"}]),
        ({"id": {"password": long}}, None),
        (long, {} if isinstance(long, dict) else None),
    ):
        entry = entry_of(job(message), 10)
        assert (entry.cut, entry.message) == (True, kept)
    assert "hunter2" not in str(searched)


async def test_recorder_does_not_record_a_message_that_is_not_json() -> None:
    for data in (
        b"password=hunter2",
        b"\xff" * 100,
        b'{"a":' * 100_000,
        b"",
        b"{}x",
        b'"' + b"\xed\xa0\x80" * 9 + b'"',
    ):
        for most in (10, 10_000_000):
            recording = job(1).recording
            entry = entry_of(WriteJob(recording, 0, "in", data), most)
            assert entry.message is None
            assert entry.bytes == len(data)
