"""``trio-mcp record``, which forwards and records messages between a host and a stdio server, and ``replay`` and
``timeline``, which read recordings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import click
import trio

from ...connecting.bad_target import BadTarget
from ...connecting.targets import Target, open_messages
from ...diagnostics.log import ThreadedSink
from ...jsonrpc.errors import MCPError
from ...recording.comparing import Difference
from ...recording.entries import BadRecording, Recorded, Recording, read_recording
from ...recording.recorder import Recorder
from ...recording.replay import opening_of
from ...recording.replay import replay as play
from ...recording.svg import svg
from ...recording.timeline import perfetto
from ...recording.timeline import timeline as timeline_of
from ...runtime.limits import DEFAULT_LIMITS
from ...transports.stdio import own_stdio
from .. import ENDED_WELL, NO_CONNECTION, SIGNALLED, TOOL_FAILED
from ..printable import CommandError, CopiedToStderr, printable, say
from ..targets import target_typed, with_extras

_CHUNK = 65536
_MOST_LINE = 16 * 1024 * 1024
"""Maximum bytes of a message that are recorded. Of a longer message only the length is recorded."""


@click.command(context_settings={"ignore_unknown_options": False})
@click.option(
    "-o",
    "--output",
    default="recording.jsonl",
    show_default=True,
    help="File of the recording. An existing file is replaced.",
)
@click.option(
    "--max-bytes", type=click.IntRange(min=1000), default=100_000_000, show_default=True, help="Maximum size in bytes."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: str, max_bytes: int, command: tuple[str, ...]) -> int:
    """Record the messages between a host and a stdio server.

    In the configuration of the host, put this command before the server's COMMAND. Every byte is forwarded unchanged,
    in both directions, and standard error is the server's. Secrets are masked in the recording. `trio-mcp timeline`
    draws it, and `trio-mcp replay` replays it. If recording fails, forwarding continues.

    \b
        trio-mcp record -o calls.jsonl -- npx -y some-server

    The exit status is the server's.
    """
    with CommandError.instead_of(OSError):
        recorder = Recorder(Path(output), max_bytes=max_bytes)
    return trio.run(_relay, recorder, command)


async def _relay(recorder: Recorder, command: tuple[str, ...]) -> int:
    recording = recorder._start("relay", "pipe")
    assert recording is not None, "the first one"
    started_at = trio.current_time()
    try:
        child = await trio.lowlevel.open_process(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        await recording.aclose()
        raise CommandError(f"cannot start {command[0]}: {error}") from None
    recording.event("process.started", at=started_at, pid=child.pid)
    assert child.stdin is not None, "a pipe"
    assert child.stdout is not None, "a pipe"
    async with trio.open_nursery() as nursery:
        host = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        nursery.start_soon(_pass_on, host, child.stdin, _RecordedLines(recording, "out"))
        try:
            await _pass_on(
                child.stdout, trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())), _RecordedLines(recording, "in")
            )
            status = await child.wait()
        finally:
            nursery.cancel_scope.cancel(reason="the server has ended")
            await recording.aclose()
    return status if status >= 0 else SIGNALLED - status


async def _pass_on(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, lines: _RecordedLines) -> None:
    """Forward all bytes from ``source`` to ``sink`` and record them. At the end of ``source``, close ``sink``."""
    async with source, sink:
        try:
            while data := await source.receive_some(_CHUNK):
                lines.feed(data)
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the reader has closed the stream, so nothing more can be forwarded


class _RecordedLines:
    """Splits the bytes that flow in one direction into messages, and adds the messages to the recording."""

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
                self._recording.event("unreadable", reason="a message longer than 16 MiB")
            elif self._rest and not self._rest.isspace():
                self._recording.frame("out" if self._direction == "out" else "in", self._rest)
            self._rest = bytearray()
            self._is_long = False
        self._rest += rest
        if len(self._rest) > _MOST_LINE:
            self._rest.clear()
            self._is_long = True


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("recordings", metavar="RECORDING...", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", type=click.Path(dir_okay=False, writable=True), help="Write to this file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "perfetto"]),
    help="svg: a picture. perfetto: trace events for ui.perfetto.dev. Default: by the file's suffix, or svg.",
)
@click.option("--title", default="", help="Title of the picture.")
@click.option(
    "--width",
    type=click.IntRange(320, 10_000),
    default=1000,
    show_default=True,
    help="Width of the picture in pixels. Below 640, names are above the bars.",
)
def timeline(
    recordings: tuple[Path, ...], output: str | None, form: Literal["svg", "perfetto"] | None, title: str, width: int
) -> int:
    """Draw recordings as a timeline, with the times of both sides.

    A RECORDING is written with `record=` or by `trio-mcp record`. Two recordings of one connection, one from each side,
    make one picture: requests are matched by their ids, and the clocks of both processes are aligned by round trips.

    \b
        trio-mcp timeline client.jsonl server.jsonl -o cancel.svg
        trio-mcp timeline client.jsonl --format perfetto -o trace.json
    """
    with CommandError.instead_of(BadRecording), CommandError.instead_of(OSError, prefix="cannot read a recording: "):
        found = timeline_of([read_recording(path) for path in recordings])
    is_trace = form == "perfetto" or (form is None and output is not None and output.endswith(".json"))
    data = perfetto(found) if is_trace else svg(found, title, width=width).encode()
    if output is None:
        sys.stdout.buffer.write(data)
        return ENDED_WELL
    with CommandError.instead_of(OSError, prefix=f"cannot write {output}: "):
        Path(output).write_bytes(data)
    return ENDED_WELL


@click.command()
@click.argument("recording", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("server", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--as-server",
    is_flag=True,
    help="Replay the server's side, on standard input and output, to the client that started this command.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    help="A header for each request, if SERVER is a URL, like 'Name: value'.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to wait for each message of the other side.",
)
def replay(recording: Path, server: tuple[str, ...], as_server: bool, headers: tuple[str, ...], patience: float) -> int:
    """Replay one side of a recording, and report differences.

    SERVER is a URL, a Python file, a name from the configuration file of a host, or a command, which is started with
    your whole environment. It receives the messages of the recorded client. To test a client instead, configure this
    command with --as-server as its server; differences are then written to standard error.

    Messages are sent in their recorded order, each after the messages of the other side that preceded it. A
    cancellation is sent after the recorded delay. Ids and times don't count as differences, and neither do progress
    steps before the last. Masked secrets are sent masked, unless the other side itself has sent the secret.

    \b
        trio-mcp replay calls.jsonl -- python server.py
        trio-mcp replay calls.jsonl http://127.0.0.1:8000/mcp
        trio-mcp replay calls.jsonl --as-server

    Exit status: 0 no difference; 1 differences; 2 wrong usage; 3 the server couldn't be reached.
    """
    if as_server == bool(server):
        raise click.UsageError("either SERVER or --as-server is required, but not both")
    try:
        recorded = read_recording(recording)
        if as_server:
            differences = trio.run(_play_server, recorded, patience)
        else:
            sink = ThreadedSink(CopiedToStderr().write)
            target = with_extras(target_typed(server[0] if len(server) == 1 else server, stderr=sink), headers, ())
            differences = trio.run(_play_client, recorded, target, patience)
    except (BadRecording, BadTarget) as error:
        raise CommandError(str(error)) from None
    except MCPError as error:
        say(str(error))
        return NO_CONNECTION
    for each in differences:
        print(printable(str(each)), file=sys.stderr if as_server else sys.stdout)
    return TOOL_FAILED if differences else ENDED_WELL


async def _play_client(recorded: Recorded, target: Target, patience: float) -> list[Difference]:
    async with open_messages(target, opening_of(recorded).modern) as transport:
        return await play(recorded, transport, patience=patience)


async def _play_server(recorded: Recorded, patience: float) -> list[Difference]:
    with own_stdio(DEFAULT_LIMITS.max_message_bytes) as transport:
        return await play(recorded, transport, side="server", patience=patience)
