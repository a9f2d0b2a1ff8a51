"""The floor over HTTP, both eras on one endpoint: ``floor_http.py h11|written|httptools``.

One reader per connection that never stops, one task with its own nursery per request, orjson, no validation. ``h11``
reads and writes with h11; ``written`` reads with h11 and writes by hand; ``httptools`` reads with the C parser and
writes by hand.
"""

import itertools
import sys
from functools import partial
from typing import Any

import h11
import httptools
import orjson
import trio
from floor import HIGH_WATER, INFO, LOG_HEAD
from marking import began, ended, listening, row

JSON = "application/json"
EVENTS = "text/event-stream"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
REASONS = {200: b"OK", 202: b"Accepted"}
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)

scopes = {}
"""The scopes of the legacy requests, by session and id."""
listeners = set()
"""The listen streams."""
sessions = itertools.count(1)


def event(message):
    return b"event: message\ndata: %s\n\n" % orjson.dumps(message)


class Connection:
    """One connection, written by hand. The classes below read."""

    def __init__(self, stream, nursery):
        self.stream = stream
        self.nursery = nursery
        self.scope = None
        self.streaming = False
        self.has_changed = False
        self.changed = trio.lowlevel.ParkingLot()

    async def serve(self):
        while data := await self.stream.receive_some(65536):
            self.feed(data)
        if self.scope is not None:
            self.scope.cancel()

    def begin(self, method, session, body):
        self.nursery.start_soon(self.handle, method, session, body)

    async def handle(self, method, session, body):
        try:
            async with trio.open_nursery() as nursery:
                self.scope = nursery.cancel_scope
                self.streaming = False
                if method == b"POST":
                    await self.post(session, orjson.loads(body))
                elif method == b"GET":
                    await self.start_events()
                    await trio.sleep_forever()
                else:
                    await self.stream.send_all(self.whole(200, JSON, b"{}"))
        except GONE:
            return
        if nursery.cancel_scope.cancelled_caught:
            await self.stream.aclose()
            return
        if self.scope is nursery.cancel_scope:  # and not that of the next request, which may be here by now
            self.scope = None
        self.next()

    async def post(self, session, message):
        method, request_id = message["method"], message.get("id")
        if request_id is None:
            if method == "notifications/cancelled":
                scopes[session, message["params"]["requestId"]].cancel()
            await self.stream.send_all(self.whole(202, JSON, b""))
        elif method == "initialize":
            answer = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": INFO})
            await self.stream.send_all(self.whole(200, JSON, answer, b"%032d" % next(sessions)))
        elif method == "subscriptions/listen":
            await self.listen(request_id, message["params"])
        else:
            await self.call(session, request_id, message["params"])

    async def call(self, session, request_id, params):
        if session is None:
            text = await TOOLS[params["name"]](self, **params["arguments"])
        else:
            scopes[session, request_id] = self.scope
            try:
                text = await TOOLS[params["name"]](self, **params["arguments"])
            finally:
                del scopes[session, request_id]
        result = {"content": [{"type": "text", "text": text}], "isError": False, "resultType": "complete"}
        answer = {"jsonrpc": "2.0", "id": request_id, "result": result}
        if self.streaming:
            await self.stream.send_all(self.chunk(event(answer)) + self.end())
        else:
            await self.stream.send_all(self.whole(200, JSON, orjson.dumps(answer)))

    async def listen(self, request_id, params):
        told = {"_meta": {SUBSCRIPTION: request_id}}
        acknowledged = {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {**told, "notifications": params["notifications"]},
        }
        (uri,) = params["notifications"]["resourceSubscriptions"]
        changed = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {**told, "uri": uri}}
        listeners.add(self)
        try:
            await self.start_events()
            await self.stream.send_all(self.chunk(event(acknowledged)))
            while True:
                while not self.has_changed:
                    await self.changed.park()
                self.has_changed = False
                await self.stream.send_all(self.chunk(event(changed)))
        finally:
            listeners.discard(self)

    async def start_events(self):
        self.streaming = True
        await self.stream.send_all(self.start())

    def whole(self, status, kind, body, session=None):
        head = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n" % (status, REASONS[status], kind.encode())
        if session is not None:
            head += b"Mcp-Session-Id: %s\r\n" % session
        return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)

    def start(self) -> Any:
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def chunk(self, data):
        return b"%x\r\n%s\r\n" % (len(data), data)

    def end(self) -> Any:
        return b"0\r\n\r\n"

    def next(self):
        """The response is over."""

    def feed(self, data):
        raise NotImplementedError


class ReadByH11(Connection):
    def __init__(self, stream, nursery):
        super().__init__(stream, nursery)
        self.http = h11.Connection(h11.SERVER)
        self.body = b""

    def feed(self, data):
        self.http.receive_data(data)
        self.pump()

    def pump(self):
        while (found := self.http.next_event()) is not h11.NEED_DATA and found is not h11.PAUSED:
            if isinstance(found, h11.Request):
                self.request = found
            elif isinstance(found, h11.Data):
                self.body += found.data
            elif isinstance(found, h11.EndOfMessage):
                body, self.body = self.body, b""
                session = None
                for name, value in self.request.headers:
                    if name == b"mcp-session-id":
                        session = value
                self.begin(self.request.method, session, body)

    def next(self):
        """Without what h11 does to write, only a new connection of h11 takes the next request."""
        rest, _ = self.http.trailing_data
        self.http = h11.Connection(h11.SERVER)
        if rest:
            self.feed(rest)


class H11(ReadByH11):
    def whole(self, status, kind, body, session=None):
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        if session is not None:
            headers.append(("Mcp-Session-Id", session))
        send = self.http.send
        head = send(h11.Response(status_code=status, headers=headers))
        return head + send(h11.Data(data=body)) + send(h11.EndOfMessage())

    def start(self):
        headers = [("Content-Type", EVENTS), ("Transfer-Encoding", "chunked")]
        return self.http.send(h11.Response(status_code=200, headers=headers))

    def chunk(self, data):
        return self.http.send(h11.Data(data=data))

    def end(self):
        return self.http.send(h11.EndOfMessage())

    def next(self):
        if self.http.our_state is h11.DONE:
            self.http.start_next_cycle()
            self.pump()


class ReadByHttptools(Connection):
    def __init__(self, stream, nursery):
        super().__init__(stream, nursery)
        self.parser = httptools.HttpRequestParser(self)
        self.feed = self.parser.feed_data
        self.session = None
        self.body = b""

    def on_header(self, name, value):
        if name.lower() == b"mcp-session-id":
            self.session = value

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        session, self.session = self.session, None
        body, self.body = self.body, b""
        self.begin(self.parser.get_method(), session, body)


async def echo(connection, text):
    return text


async def notify(connection, count):
    await connection.start_events()
    out = bytearray()
    for number in range(count):
        out += b"event: message\ndata: " + LOG_HEAD + orjson.dumps(row(number)) + b"}}\n\n"
        if len(out) >= HIGH_WATER:
            await connection.stream.send_all(connection.chunk(bytes(out)))
            out = bytearray()
    if out:
        await connection.stream.send_all(connection.chunk(bytes(out)))
    return f"{count} rows"


async def hang(connection, number):
    began(number)
    try:
        await trio.sleep_forever()
    finally:
        ended(number)


async def change(connection):
    for listener in listeners:
        listener.has_changed = True
        listener.changed.unpark_all()
    return "changed"


TOOLS = {"echo": echo, "notify": notify, "hang": hang, "change": change}
KINDS = {"h11": H11, "written": ReadByH11, "httptools": ReadByHttptools}


async def serve(kind, stream):
    async with stream, trio.open_nursery() as nursery:
        try:
            await kind(stream, nursery).serve()
        except GONE:
            nursery.cancel_scope.cancel()


async def main():
    async with trio.open_nursery() as nursery:
        tcp = await nursery.start(partial(trio.serve_tcp, partial(serve, KINDS[sys.argv[1]]), 0, host="127.0.0.1"))
        listening(tcp[0].socket.getsockname()[1])


trio.run(main)
