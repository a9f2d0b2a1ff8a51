"""``trio-mcp replay`` plays a recorded client against a server, or a recorded server against a client."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import trio

from ...connecting.bad_target import BadTarget
from ...connecting.targets import Target, open_messages
from ...diagnostics.log import ThreadedSink
from ...jsonrpc.errors import MCPError
from ...recording.comparing import Difference
from ...recording.entries import BadRecording, Recorded, read_recording
from ...recording.replay import opening_of
from ...recording.replay import replay as play
from ...runtime.limits import DEFAULT_LIMITS
from ...transports.stdio import own_stdio
from ..printable import CommandError, CopiedToStderr, printable, say
from ..statuses import ENDED_WELL, NO_CONNECTION, TOOL_FAILED
from ..targets import target_typed, with_extras


@click.command()
@click.argument("recording", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("server", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--as-server",
    is_flag=True,
    help="Play the server of the recording, on standard input and output, to the client that has started this command.",
)
@click.option("-H", "--header", "headers", multiple=True, help="A header for a URL, like 'Name: value'.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that each message of the other side may take.",
)
def replay(recording: Path, server: tuple[str, ...], as_server: bool, headers: tuple[str, ...], patience: float) -> int:
    """Play one side of a recording again, and report each message of the other side that differs.

    SERVER is a URL, a Python file, a name in the file of a host, or a command, which is started with your whole
    environment. It gets the messages of the recorded client. A client is tested the other way round: give it this
    command, with --as-server, as the command of its server; differences are written to standard error.

    The messages go in their order, each behind those of the other side that had come before; a cancel goes after as
    long as in the recording. Ids and times are no differences, nor are the steps of progress but for the last. Masked
    secrets are sent masked, unless the secret came from the other side itself.

    \b
        trio-mcp replay calls.jsonl -- python server.py
        trio-mcp replay calls.jsonl http://127.0.0.1:8000/mcp
        trio-mcp replay calls.jsonl --as-server

    Exit status: 0 without a difference, 1 with one, 2 for wrong usage, 3 when the server could not be reached.
    """
    if as_server == bool(server):
        raise click.UsageError("name a server, or play the server with --as-server")
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
