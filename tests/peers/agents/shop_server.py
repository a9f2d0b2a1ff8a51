"""A server of ours for frameworks of agents: typed orders, a failure, a picture, and a call that hangs.

python shop_server.py        # over stdio
python shop_server.py http   # at a port that the first line tells
"""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import trio

from trio_mcp import Image, Limits, RequestContext, Server, ToolError, serve_http, serve_stdio

server = Server("shop", limits=Limits(drain_timeout=0.1))  # the frameworks kill it after two seconds
DOT = bytes.fromhex("89504e470d0a1a0a")


def note(line: str) -> None:
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write(f"{line}\n")


@dataclass
class Topping:
    name: str
    grams: int = 10


@dataclass
class Order:
    dish: str
    size: Literal["small", "large"]
    toppings: list[Topping]


@dataclass
class Receipt:
    text: str
    plates: int


@server.tool
async def order(order: Order, plates: int = 1) -> Receipt:
    """Order a dish."""
    grams = sum(topping.grams for topping in order.toppings)
    return Receipt(f"{order.size} {order.dish} with {grams} g", plates)


@server.tool
async def fail() -> str:
    """Fail, as the kitchen does."""
    raise ToolError("sold out")


@server.tool
async def picture() -> Image:
    """Show a dot."""
    return Image(DOT, mime_type="image/png")


@server.tool
async def hang(ctx: RequestContext) -> str:
    """Wait for ever."""
    note(f"revision {ctx.revision.name}")
    note("hang began")
    try:
        await trio.sleep_forever()
    finally:
        note("hang ended")


async def listen() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0))
        print(listeners[0].socket.getsockname()[1], flush=True)


if sys.argv[1:] == ["http"]:
    trio.run(listen)
else:
    trio.run(serve_stdio, server)
