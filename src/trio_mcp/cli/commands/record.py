"""``trio-mcp record`` stands between a host and a server on stdio, and records all messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import trio

from ...recording.entries import Recording
from ...recording.recorder import Recorder
from ..printable import CommandError
from ..statuses import SIGNALLED

_CHUNK = 65536
_MOST_LINE = 16 * 1024 * 1024
"""Bytes of a message that are kept for the recording; of a longer one only the length is noted."""


@click.command(context_settings={"ignore_unknown_options": False})
@click.option(
    "-o", "--output", default="recording.jsonl", show_default=True, help="File of the recording; replaced if there."
)
@click.option("--max-bytes", type=click.IntRange(min=1000), default=100_000_000, show_default=True, help="Most bytes.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: str, max_bytes: int, command: tuple[str, ...]) -> int:
    """Record all messages between a host and a server on standard input and output.

    Put the words of this command before the server's COMMAND in the configuration of the host. Every byte is passed on
    unchanged, in both directions, and standard error is the server's. Secrets are masked in the recording, which
    `trio-mcp timeline` draws and `trio-mcp replay` plays again. A failure of the recording ends the recording alone.

    \b
        trio-mcp record -o calls.jsonl -- npx -y some-server

    The exit status is the server's.
    """
    try:
        recorder = Recorder(Path(output), max_bytes=max_bytes)
    except OSError as error:
        raise CommandError(str(error)) from None
    return trio.run(_relay, recorder, command)


async def _relay(recorder: Recorder, command: tuple[str, ...]) -> int:
    recording = recorder.start("relay", "pipe")
    assert recording is not None, "the first one"
    try:
        child = await trio.lowlevel.open_process(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        await recording.aclose()
        raise CommandError(f"cannot start {command[0]}: {error}") from None
    assert child.stdin is not None, "a pipe"
    assert child.stdout is not None, "a pipe"
    async with trio.open_nursery() as nursery:
        host = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        nursery.start_soon(_pass_on, host, child.stdin, _Lines(recording, "out"))
        try:
            await _pass_on(child.stdout, trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())), _Lines(recording, "in"))
            status = await child.wait()
        finally:
            nursery.cancel_scope.cancel(reason="the server has ended")
            await recording.aclose()
    return status if status >= 0 else SIGNALLED - status


async def _pass_on(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, lines: _Lines) -> None:
    """Pass all bytes on, and then the end."""
    async with source, sink:
        try:
            while data := await source.receive_some(_CHUNK):
                lines.feed(data)
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader is gone, so there is nobody to pass anything on to


class _Lines:
    """The messages of one direction, for the recording."""

    def __init__(self, recording: Recording, direction: str) -> None:
        self._recording = recording
        self._direction = direction
        self._rest = bytearray()
        self._is_long = False

    def feed(self, data: bytes | bytearray) -> None:
        *whole, rest = bytes(data).split(b"\n")
        for line in whole:
            self._rest += line
            if self._is_long:
                self._recording.event("unreadable", reason="a message of more than 16 MiB")
            elif self._rest and not self._rest.isspace():
                self._recording.frame("out" if self._direction == "out" else "in", self._rest)
            self._rest = bytearray()
            self._is_long = False
        self._rest += rest
        if len(self._rest) > _MOST_LINE:
            self._rest.clear()
            self._is_long = True
