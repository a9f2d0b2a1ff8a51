"""A bare trio-websocket loop: the floor, with a `send_message` for each message, as people write it."""

import orjson
import trio
from floor import LOG_HEAD, Floor
from marking import listening
from trio_websocket import ConnectionClosed, serve_websocket


class Bare(Floor):
    def __init__(self, connection):
        super().__init__()
        self.connection = connection

    async def send(self, line):
        await self.connection.send_message(line.decode())

    async def log(self, data):
        await self.connection.send_message((LOG_HEAD + orjson.dumps(data) + b"}}\n").decode())


async def serve(request):
    connection = await request.accept(subprotocol="mcp")
    bare = Bare(connection)
    try:
        async with trio.open_nursery() as nursery:
            while True:
                await bare.receive(await connection.get_message(), nursery)
    except* ConnectionClosed:
        pass


async def main():
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, serve, "127.0.0.1", 0, None)
        listening(server.port)


trio.run(main)
