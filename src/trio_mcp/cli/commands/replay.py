"""``trio-mcp replay`` plays a recorded client against a server."""

from __future__ import annotations

from pathlib import Path

import click
import trio

from ...connecting.bad_target import BadTarget
from ...connecting.stdio import Command, open_process
from ...diagnostics.log import WrittenInAThread
from ...recording.entries import BadRecording, Recorded, read_recording
from ...recording.replay import Difference
from ...recording.replay import replay as play
from ...runtime.transport import ConnectionLost
from ..printable import CopiedToStderr, Unusable, printable, say
from ..statuses import ENDED_WELL, NO_CONNECTION, TOOL_FAILED


@click.command()
@click.argument("recording", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that each message of the server may take.",
)
def replay(recording: Path, command: tuple[str, ...], patience: float) -> int:
    """Send the messages of a recorded client to a server, and report each answer that differs.

    COMMAND is started with your whole environment. The messages go in their order, each behind the answers that had
    come before; a cancel goes after as long as in the recording. Ids and times are no differences, nor is the number
    of progress and log messages. Masked secrets are sent masked, unless the secret
    came from the server itself.

    \b
        trio-mcp replay calls.jsonl -- python server.py

    Exit status: 0 without a difference, 1 with one, 2 for wrong usage, 3 when the server could not be started.
    """
    try:
        recorded = read_recording(recording)
        server = Command(command, inherit_env=True, stderr=WrittenInAThread(CopiedToStderr().write))
        differences = trio.run(_play, recorded, server, patience)
    except (BadRecording, BadTarget) as error:
        raise Unusable(str(error)) from None
    except ConnectionLost as error:
        say(str(error))
        return NO_CONNECTION
    for each in differences:
        print(printable(str(each)))
    return TOOL_FAILED if differences else ENDED_WELL


async def _play(recorded: Recorded, server: Command, patience: float) -> list[Difference]:
    async with open_process(server) as transport:
        return await play(recorded, transport, patience=patience)
