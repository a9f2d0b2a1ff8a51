"""ASGI servers that run asyncio, in a thread beside a test, and requests to an application by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import hypercorn.asyncio
import trio
import uvicorn
from hypercorn.config import Config
from tests.patience import PATIENCE
from tests.serving.http.raw import Endpoint, modern

from trio_mcp import Cancellation, RequestContext, Server

OPEN: dict[str, Any] = {"allowed_origins": [], "allowed_hosts": ["127.0.0.1"]}


@attrs.define(eq=False)
class Journal:
    """What handlers in another thread have seen."""

    started: threading.Event = attrs.field(factory=threading.Event)
    ended: threading.Event = attrs.field(factory=threading.Event)
    cancellation: Cancellation | None = None
    steps: list[str] = attrs.field(factory=list)


def waiting_server(**options: Any) -> tuple[Server, Journal]:
    """Return a server with a tool that waits for ever, and what its handler has seen."""
    journal = Journal()
    server = Server("beside", **options)

    @server.tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    @server.tool
    async def wait(ctx: RequestContext, speak: bool = False) -> str:
        """Wait for ever."""
        try:
            if speak:
                ctx.progress(1)
            journal.started.set()
            await trio.sleep_forever()
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()
        return "never"

    return server, journal


async def happened(event: threading.Event) -> None:
    """Wait, in a test of trio's, for what happens in another thread."""
    assert await trio.to_thread.run_sync(event.wait, PATIENCE, abandon_on_cancel=True)


async def happened_here(event: threading.Event) -> None:
    """Wait, in a task of asyncio's, for what happens in another thread."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


def trio_threads() -> list[str]:
    """Return the names of the threads in which trio runs for others."""
    return [thread.name for thread in threading.enumerate() if thread.name == "trio-mcp"]


class LoopExchange:
    """One request to an ASGI application in this event loop, by hand."""

    def __init__(self, app: Any, tool: str, arguments: dict[str, Any], *, length: bool = True, **more: Any) -> None:
        headers, body = modern("tools/call", {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}})
        self.body = json.dumps(body).encode()
        if length:
            headers["Content-Length"] = str(len(self.body))
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            **more,
        }
        self.bring: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.app = app

    def give_body(self) -> None:
        self.bring.put_nowait({"type": "http.request", "body": self.body, "more_body": False})

    def leave(self) -> None:
        self.bring.put_nowait({"type": "http.disconnect"})

    async def run(self) -> None:
        await self.app(self.scope, self.bring.get, self._send)

    async def _send(self, event: dict[str, Any]) -> None:
        self.sent.append(event)
        await self.may_send.wait()

    async def answer(self) -> Any:
        """Send the body, and return the answer, which is no stream."""
        self.give_body()
        await self.run()
        assert self.sent[0]["status"] == 200, self.sent
        return json.loads(b"".join(event["body"] for event in self.sent[1:]))

    async def text(self) -> str:
        return (await self.answer())["result"]["content"][0]["text"]


class OnAsyncio(Endpoint):
    """An application behind an ASGI server that runs asyncio, in a thread."""

    def __init__(self, port: int, nursery: trio.Nursery, thread: threading.Thread, stop: Any) -> None:
        super().__init__(port, nursery)
        self._thread = thread
        self._stop = stop

    async def aclose(self) -> None:
        self._stop()
        await trio.to_thread.run_sync(self._thread.join, PATIENCE)
        assert not self._thread.is_alive()


def _listener() -> socket.socket:
    # asyncio sets TCP_NODELAY on the connections of sockets that name their protocol
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1000)
    return listener


@asynccontextmanager
async def behind_uvicorn(app: Any, **options: Any) -> AsyncGenerator[OnAsyncio]:
    """Run uvicorn in a thread, which ends with the block."""
    listener = _listener()
    options = {"log_config": None, "lifespan": "auto", "timeout_graceful_shutdown": 1, **options}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")

    def stop() -> None:
        server.should_exit = True

    async with _running(thread, listener, stop) as endpoint:
        yield endpoint


@asynccontextmanager
async def behind_hypercorn_on_asyncio(app: Any) -> AsyncGenerator[OnAsyncio]:
    """Run hypercorn's asyncio worker in a thread, which ends with the block."""
    listener = _listener()
    config = Config()
    config.bind = [f"fd://{os.dup(listener.fileno())}"]  # hypercorn closes its own
    config.errorlog = logging.getLogger("hypercorn.test")
    config.graceful_timeout = 0.2
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(hypercorn.asyncio.serve(app, config, shutdown_trigger=ending.wait))

    thread = threading.Thread(target=run, name="hypercorn")
    async with _running(thread, listener, lambda: loop.call_soon_threadsafe(ending.set)) as endpoint:
        yield endpoint


@asynccontextmanager
async def _running(thread: threading.Thread, listener: socket.socket, stop: Any) -> AsyncGenerator[OnAsyncio]:
    thread.start()
    async with trio.open_nursery() as nursery:
        endpoint = OnAsyncio(listener.getsockname()[1], nursery, thread, stop)
        try:
            yield endpoint
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
                await endpoint.aclose()
            listener.close()
            nursery.cancel_scope.cancel(reason="the test is over")
