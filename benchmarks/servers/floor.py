"""The floor: what trio itself allows. The same tools with no validation at all and no rulings but those that trio
gives for nothing: one task with its own nursery per request, one bytearray with one writer, orjson."""

import time
from math import inf
from typing import Any

import orjson
import trio
from marking import answer, began, ended, question, row

HIGH_WATER = 16 * 1024
LOG_HEAD = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":'
INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "floor", "version": "1"}}


def encode(message):
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


class Floor:
    """One connection. What is collected in ``out`` is written by the one task that runs `write`."""

    def __init__(self):
        self.out = bytearray()
        self.wake = trio.lowlevel.ParkingLot()
        self.room = trio.lowlevel.ParkingLot()
        self.scopes = {}
        self.waiting = {}
        self.last_id = 0

    def put(self, line):
        self.out += line
        if self.wake:
            self.wake.unpark()

    async def send(self, line):
        self.put(line)

    async def log(self, data):
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self.out) >= HIGH_WATER:
            await self.room.park()
        self.put(LOG_HEAD + orjson.dumps(data) + b"}}\n")

    async def write(self, stream):
        while True:
            while not self.out:
                await self.wake.park()
            chunk, self.out = self.out, bytearray()
            self.room.unpark_all()
            await stream.send_all(chunk)

    async def read(self, stream, nursery):
        rest = b""
        while data := await stream.receive_some(65536):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await self.receive(line, nursery)

    async def receive(self, line, nursery):
        message = orjson.loads(line)
        method = message.get("method")
        if method == "tools/call":
            nursery.start_soon(self.answer, message)
        elif method is None:
            mailbox = self.waiting.pop(message["id"])
            mailbox.append(message["result"])
            mailbox[0].set()
        elif method == "notifications/cancelled":
            if scope := self.scopes.get(message["params"]["requestId"]):
                scope.cancel()
        elif method == "initialize":
            await self.send(encode({"jsonrpc": "2.0", "id": message["id"], "result": INFO}))

    async def answer(self, message):
        request_id, params = message["id"], message["params"]
        async with trio.open_nursery() as nursery:
            self.scopes[request_id] = nursery.cancel_scope
            try:
                text = await TOOLS[params["name"]](self, params, **params["arguments"])
            finally:
                del self.scopes[request_id]
        if not nursery.cancel_scope.cancelled_caught:
            content = {"content": [{"type": "text", "text": text}], "isError": False}
            await self.send(encode({"jsonrpc": "2.0", "id": request_id, "result": content}))

    async def sample(self, text):
        self.last_id = request_id = self.last_id + 1
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        params = {"messages": messages, "maxTokens": 10}
        line = {"jsonrpc": "2.0", "id": request_id, "method": "sampling/createMessage", "params": params}
        mailbox: list[Any] = [trio.Event()]
        self.waiting[request_id] = mailbox
        await self.send(encode(line))
        await mailbox[0].wait()
        return mailbox[1]["content"]["text"]

    def progress_of(self, params):
        token, due = params["_meta"]["progressToken"], -inf

        def progress(value, total):
            nonlocal due
            now = trio.current_time()
            if now >= due or value == total:
                due = now + 0.1
                params = {"progressToken": token, "progress": value, "total": total}
                self.put(encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))

        return progress


async def echo(floor, params, text):
    return text


async def notify(floor, params, count):
    for number in range(count):
        await floor.log(row(number))
    return f"{count} rows"


async def progress(floor, params, count):
    report, began = floor.progress_of(params), time.perf_counter()
    for number in range(1, count + 1):
        report(number, count)
    return repr(time.perf_counter() - began)


async def ask(floor, params, count):
    right = 0
    for number in range(count):
        right += await floor.sample(question(number)) == answer(number)
    return f"{right} answers"


async def hang(floor, params, number):
    began(number)
    try:
        await trio.sleep_forever()
    finally:
        ended(number)


async def flood(floor, params, number):
    rows = 0
    began(number)
    try:
        while True:
            await floor.log(row(rows))
            rows += 1
    finally:
        ended(number)


TOOLS = {"echo": echo, "notify": notify, "progress": progress, "ask": ask, "hang": hang, "flood": flood}
