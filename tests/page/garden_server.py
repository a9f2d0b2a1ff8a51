"""A server with a tool that takes a form, reports, and writes to a FIFO why it was cancelled. As a program, it serves
on standard input and output; its argument is the FIFO.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from trio_mcp import RequestContext, Server, serve_stdio


@dataclass
class Pot:
    size: int
    colour: Literal["red", "green"] = "red"


def garden_server(ended: Path) -> Server:
    server = Server("garden")

    @server.tool
    async def grow(ctx: RequestContext, plant: str, pot: Pot, water: bool) -> None:
        ctx.progress(2, total=4, message=f"{plant} in {pot.size} {pot.colour}, {water}")
        try:
            await trio.sleep_forever()
        finally:
            cause = ctx.cancellation
            with ended.open("w") as fifo:
                fifo.write(f"{cause.reason if cause else None}\n")

    return server


if __name__ == "__main__":
    trio.run(serve_stdio, garden_server(Path(sys.argv[1])))
