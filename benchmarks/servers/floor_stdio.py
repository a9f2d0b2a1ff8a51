"""The floor over stdio."""

import os

import trio
from floor import Floor


async def main():
    floor = Floor()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(floor.write, trio.lowlevel.FdStream(os.dup(1)))
            await floor.read(trio.lowlevel.FdStream(os.dup(0)), nursery)
            scope.cancel()


trio.run(main)
