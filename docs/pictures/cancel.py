"""Draws cancel.svg: a cancel that crosses the process boundary, as a client and its server recorded it.

python docs/pictures/cancel.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from trio_mcp import RequestContext, Server, open_stdio, serve_stdio
from trio_mcp.recording.entries import read_recording
from trio_mcp.recording.svg import svg
from trio_mcp.recording.timeline import timeline

server = Server("reports")


@server.tool
async def report(ctx: RequestContext) -> str:
    try:
        for page in range(1, 10):
            await trio.sleep(0.1)
            ctx.progress(page, 9)
        return "a report of nine pages"
    finally:
        with trio.CancelScope(shield=True):  # whatever has to be tidied up
            await trio.sleep(0.15)


async def draw(folder: str) -> str:
    """Call the server in another process, leave the call after 0.35 seconds, and draw what both sides recorded."""
    ours, theirs = os.path.join(folder, "client.jsonl"), os.path.join(folder, "server.jsonl")
    command = [sys.executable, __file__, theirs]
    async with open_stdio(command, inherit_env=True, record=ours) as client:
        with trio.move_on_after(0.35):
            await client.call_tool("report", on_progress=lambda _: None)
        await trio.sleep(0.3)
    found = timeline([read_recording(ours), read_recording(theirs)])
    calls = [each for each in found.requests if each.name == "report"]
    sides = ["above: the call, in the client's process", "below: its handler, in the server's process"]
    found = attrs.evolve(found, requests=calls, offset=None, sides=sides)
    return svg(found, "A cancel crosses the process boundary", width=720)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(lambda: serve_stdio(server, record=sys.argv[1]))
    else:
        with TemporaryDirectory() as folder:
            picture = trio.run(draw, folder)
        Path(__file__).with_name("cancel.svg").write_text(picture, encoding="utf-8")
