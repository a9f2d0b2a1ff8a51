"""The floor of clients: what trio itself allows, with no validation and nothing bounded."""

import subprocess
import sys
from typing import Any

import orjson
import trio
from orders import Rows, obey


class Floor:
    def __init__(self, rows):
        self.rows = rows
        self.out = bytearray()
        self.wake = trio.lowlevel.ParkingLot()
        self.waiting = {}
        self.last_id = 0

    async def write(self, stream):
        while True:
            while not self.out:
                await self.wake.park()
            chunk, self.out = self.out, bytearray()
            await stream.send_all(chunk)

    async def read(self, stream):
        rest = b""
        while data := await stream.receive_some(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = orjson.loads(line)
                if "method" in message:
                    self.rows.got(message["params"]["data"])
                else:
                    mailbox = self.waiting.pop(message["id"])
                    mailbox.append(message["result"])
                    mailbox[0].set()

    def put(self, message):
        self.out += orjson.dumps({"jsonrpc": "2.0", **message}, option=orjson.OPT_APPEND_NEWLINE)
        if self.wake:
            self.wake.unpark()

    async def request(self, method, params):
        self.last_id = request_id = self.last_id + 1
        mailbox: list[Any] = [trio.Event()]
        self.waiting[request_id] = mailbox
        self.put({"id": request_id, "method": method, "params": params})
        await mailbox[0].wait()
        return mailbox[1]

    async def call(self, tool, arguments):
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        return result["content"][0]["text"]


async def main(server):
    rows = Rows()
    client = Floor(rows)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.write, trio.lowlevel.FdStream(server.stdin.fileno()))
        nursery.start_soon(client.read, trio.lowlevel.FdStream(server.stdout.fileno()))
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}
        await client.request("initialize", opening)
        client.put({"method": "notifications/initialized"})
        await obey(client.call, rows, trio.to_thread.run_sync, trio.open_nursery)
        nursery.cancel_scope.cancel()


with subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    trio.run(main, child)
    child.kill()
