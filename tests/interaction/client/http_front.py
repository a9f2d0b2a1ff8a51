"""An HTTP server before a raw one that reads and writes lines: each POST is a line to read, and each line that is
written goes out in the answer to which it belongs."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import attrs
import trio
from tests.connecting.http.scripted import Answer, Got, answer_all
from tests.interaction.by_http import wait_for_sockets

from trio_mcp import Client, ConnectionLost, open_http
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.runtime.transport import Transport

__all__ = ["http_before", "open_client_by_http"]

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_REFUSALS = frozenset((-32601, -32022, -32021, -32020))
"""Codes of errors that modern servers answer with another status than 200."""
_ID = re.compile(rb'"id":([0-9]+)')
_paths = count()


@attrs.define(eq=False)
class _Open:
    """An answer that is owed, or the stream of a GET."""

    answer: Answer
    request: dict[str, Any] | None
    over: trio.Event = attrs.field(factory=trio.Event)

    async def event(self, line: bytes) -> None:
        if not self.answer.begun:
            await self.answer.open()
        await self.answer.chunk(b"data: " + line + b"\n\n")

    async def reply(self, line: bytes, message: dict[str, Any]) -> None:
        """Answer with the first line that is written, or end the stream with it."""
        if self.answer.begun:
            await self.event(line)
            await self.answer.end()
        else:
            error = message.get("error")
            refused = isinstance(error, dict) and error.get("code") in _REFUSALS
            headers = {"mcp_session_id": "raw"} if self.request and self.request["method"] == "initialize" else {}
            await self.answer.whole(400 if refused else 200, line, content_type="application/json", **headers)
        self.over.set()


class _Front:
    """The requests that came by HTTP, and the lines to and from ``behind``."""

    def __init__(self, behind: Transport, *, tells_cancels: bool) -> None:
        self._behind = behind
        self._tells_cancels = tells_cancels
        self._open: list[_Open] = []
        """What can carry messages, latest first. The stream of a GET carries those that belong to nothing else."""
        self._held: list[bytes] = []
        """Lines for which nothing was open."""
        self._over: list[Any] = []
        """Ids of requests that can be answered no more."""
        self._sending = trio.Lock()
        self._writing = trio.Lock()

    async def take(self, got: Got, answer: Answer) -> None:
        """Answer one request."""
        match got.method:
            case "GET":
                await answer.open()
                await self._hold_open(_Open(answer, None), is_modern=False)
            case "POST":
                message = json.loads(got.body)
                if "method" in message and "id" in message:
                    is_modern = got.headers.get("mcp-protocol-version", "") >= "2026"
                    await self._hold_open(_Open(answer, message), is_modern)
                else:
                    await self._send(message)
                    await answer.whole(202)
            case _:
                await answer.whole(200)

    async def _hold_open(self, opened: _Open, is_modern: bool) -> None:
        """Hand on a request, and wait until its answer is whole or its client has left."""
        async with self._writing:
            for line in self._held:
                await opened.event(line)
            self._held.clear()
            self._open.insert(0, opened)
        if opened.request is not None:
            await self._send(opened.request)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, opened)
            await opened.over.wait()
            nursery.cancel_scope.cancel()
        if opened not in self._open:
            return
        self._open.remove(opened)
        if opened.request is not None:
            self._over.append(opened.request["id"])
            if is_modern and self._tells_cancels:
                params = {"requestId": opened.request["id"]}
                await self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    async def _send(self, message: Any) -> None:
        async with self._sending:
            with suppress(ConnectionLost):
                await self._behind.send(json.dumps(message).encode() + b"\n")

    async def _until_gone(self, opened: _Open) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await opened.answer.stream.receive_some():
                pass
        await opened.answer.cut()
        opened.over.set()

    async def pump(self) -> None:
        """Put lines into answers, until the server behind closes."""
        with suppress(trio.EndOfChannel, ConnectionLost):
            while True:
                await self._write(bytes(await self._behind.receive()).rstrip(b"\n"))

    async def _write(self, line: bytes) -> None:
        message = _read(line)
        async with self._writing:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if isinstance(message, dict) and "method" not in message:
                    if any(_same(each, message.get("id")) for each in self._over):
                        return  # the answer that it would have gone out in has ended
                    owed = self._found(lambda request: _same(request["id"], message.get("id")))
                    if owed is not None:
                        self._open.remove(owed)
                        self._over.append(message["id"])
                        await owed.reply(line, message)
                        return
                carrier = self._carrier(message)
                if carrier is None:
                    self._held.append(line)
                else:
                    await carrier.event(line)

    def _carrier(self, message: Any) -> _Open | None:
        """What a message that settles nothing belongs to: its request, where it names one, else the latest request."""
        params = message.get("params") if isinstance(message, dict) else None
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta") if isinstance(params.get("_meta"), dict) else {}
        if SUBSCRIPTION in meta:
            return self._found(lambda request: _same(request["id"], meta[SUBSCRIPTION])) or self._latest
        token = params.get("progressToken")
        return self._found(lambda request: _same(_token(request), token)) or self._latest

    @property
    def _latest(self) -> _Open | None:
        return max(self._open, key=lambda opened: opened.request is not None, default=None)

    def _found(self, wanted: Callable[[dict[str, Any]], bool]) -> _Open | None:
        return next((o for o in self._open if o.request is not None and wanted(o.request)), None)


def _read(line: bytes) -> Any:
    """The message, or at least the request that it names."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        named = _ID.search(line)
        return {"id": int(named[1])} if named else None


def _same(one: Any, other: Any) -> bool:
    return one is not None and type(one) is type(other) and one == other


def _token(request: dict[str, Any]) -> Any:
    return request.get("params", {}).get("_meta", {}).get("progressToken")


@asynccontextmanager
async def http_before(behind: Transport, *, tells_cancels: bool = True) -> AsyncGenerator[str]:
    """The URL of what is behind, which stops to listen when that closes, and is told by lines when a client has closed
    the answer of a modern request."""
    wait_for_sockets()
    front = _Front(behind, tells_cancels=tells_cancels)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def connected(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await answer_all(stream, front.take)

    async def listening(until: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, connected, listeners)
            await until()
            nursery.cancel_scope.cancel()

    async with open_service_nursery("the client was closed") as nursery:
        nursery.start_soon(listening, front.pump)
        port = listeners[0].socket.getsockname()[1]
        yield f"http://127.0.0.1:{port}/{next(_paths)}"  # the era of another test's server may be known for a port


@asynccontextmanager
async def open_client_by_http(behind: Transport, **options: Any) -> AsyncGenerator[Client]:
    """As `open_client`, with HTTP on the way to what is at the other end of ``behind``."""
    try:
        tells_cancels = options.get("send_cancels", True)
        async with http_before(behind, tells_cancels=tells_cancels) as url, open_http(url, **options) as client:
            yield client
    finally:
        with trio.CancelScope(shield=True):
            await behind.aclose()
