"""``trio-mcp timeline`` draws recordings on one axis."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from ...recording.entries import BadRecording, read_recording
from ...recording.svg import svg
from ...recording.timeline import perfetto
from ...recording.timeline import timeline as timeline_of
from ..printable import CommandError
from ..statuses import ENDED_WELL

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("recordings", metavar="RECORDING...", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", type=click.Path(dir_okay=False, writable=True), help="Write to this file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "perfetto"]),
    help="svg, a picture; perfetto, trace events for ui.perfetto.dev. By default as the file's name says, else svg.",
)
@click.option("--title", default="", help="Title of the picture.")
@click.option(
    "--width",
    type=click.IntRange(320, 10_000),
    default=1000,
    show_default=True,
    help="Width of the picture in pixels. Below 640 names stand above the bars.",
)
def timeline(
    recordings: tuple[Path, ...], output: str | None, form: Literal["svg", "perfetto"] | None, title: str, width: int
) -> int:
    """Draw recordings on one axis: calls, questions, cancels and cleanup, as seen by both sides.

    Each RECORDING was written by `record=` or `trio-mcp record`. Two recordings of one connection, one of each side,
    make one picture: requests are found by their ids, and the clocks of the two processes are compared by round trips.

    \b
        trio-mcp timeline client.jsonl server.jsonl -o cancel.svg
        trio-mcp timeline client.jsonl --format perfetto -o trace.json
    """
    try:
        found = timeline_of([read_recording(path) for path in recordings])
    except BadRecording as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"cannot read a recording: {error}") from None
    is_trace = form == "perfetto" or (form is None and output is not None and output.endswith(".json"))
    data = perfetto(found) if is_trace else svg(found, title, width=width).encode()
    if output is None:
        sys.stdout.buffer.write(data)
        return ENDED_WELL
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error}") from None
    return ENDED_WELL
